// Statistics of values that come in blocks are right for every length, layout, split, size and kind of value.
#include "probes/block_statistics.h"

#include <gtest/gtest.h>

#include <random>

#include "test/exact_moments.h"
#include "test/number_series.h"

namespace wobble {
namespace {

/// Values in rows of `columns`, the last one ragged, from row 3 and column 100 on. Between rows lie NaN.
template <class T>
struct Matrix {
    std::vector<T> memory;
    std::vector<Region<T>> blocks;  // whole rows, and the ragged one
    int64_t columns;

    Matrix(const Values<T>& values, int64_t width, int64_t gap) : columns(std::max<int64_t>(width, 1)) {
        const int64_t n = int64_t(values.size()), rows = n / columns, rest = n % columns,
                      stride = columns + gap;
        memory.assign(size_t((rows + 1) * stride), T(NAN));
        for (int64_t i = 0; i < n; ++i)
            memory[size_t(i / columns * stride + i % columns)] = values[size_t(i)];
        blocks.push_back({memory.data(), stride, 3, 100, rows, columns});
        if (rest > 0) blocks.push_back({memory.data() + rows * stride, 0, 3 + rows, 100, 1, rest});
    }
    Matrix(Matrix&&) = default;
    void add_to(RunningMoments<T>& running) const { running.add(blocks.data(), int(blocks.size())); }
    std::pair<int64_t, int64_t> place(int64_t i) const { return {3 + i / columns, 100 + i % columns}; }
    int64_t additions() const {
        int64_t sum = 0;
        for (const Region<T>& b : blocks) sum += Rounding::additions(b.rows, b.columns);
        return sum;
    }
};

/// All values in one row.
template <class T>
Matrix<T> row_of(const Values<T>& values) {
    return Matrix<T>(values, int64_t(values.size()), 0);
}

template <class T>
Moments finished(RunningMoments<T>& running) {
    Moments m;
    running.finish(m);
    return m;
}
template <class T>
Moments of_block(const Matrix<T>& matrix) {
    RunningMoments<T> running;
    matrix.add_to(running);
    return finished(running);
}

constexpr int lengths[] = {0, 1, 2, 15, 16, 17, 100, 1000, 1024, 4096};
// So far does float64 hold fourth powers.
constexpr double least_fourth_root = 1e-77;

template <class T>
class BlockMoments : public testing::Test {};
using Elements = testing::Types<float, double>;
TYPED_TEST_SUITE(BlockMoments, Elements);

TYPED_TEST(BlockMoments, AreThoseOfTheValues) {
    using T = TypeParam;
    const T largest = T(std::numeric_limits<float>::max()), least = std::numeric_limits<T>::denorm_min();
    for (int n : lengths) {
        Values<T> outlier = normal<T>(n, 0, 1), mixed = normal<T>(n, 0, 1), tiny_steps;
        Values<T> just_below = normal<T>(n, 100, 1), just_above = normal<T>(n, -100, 1);
        if (n > 0) outlier[size_t(n / 2)] = T(1e6);
        if (n > 1) just_below[size_t(n / 2)] = -least, just_above[size_t(n / 3)] = least;
        for (size_t i = 0; i < size_t(n); ++i) {
            if (i % 5 == 1) mixed[i] = i % 2 ? T(0) : -T(0);
            if (i % 7 == 2) mixed[i] = T(int(i % 3) - 1) * least;
            tiny_steps.push_back(T(int(i % 7) - 2) * least);
        }
        const std::pair<const char*, Values<T>> cases[] = {
            {"normal", normal<T>(n, 0, 1)},
            {"mean 1000", normal<T>(n, 1000, 1)},
            {"mean -1e5", normal<T>(n, -1e5, 1)},
            {"skewed", exponential_from<T>(n, 0)},
            {"skewed, mean 1e5", exponential_from<T>(n, 1e5)},
            {"tiny", normal<T>(n, 0, 1e-30)},
            {"subnormal floats", normal<T>(n, 0, 1e-40)},
            {"huge", normal<T>(n, 0, 1e30)},
            {"huge mean", normal<T>(n, 1e38, 1e33)},
            {"all zero", Values<T>(size_t(n))},
            {"zeros of both signs", alternating<T>(n, T(0), -T(0))},
            {"-0", Values<T>(size_t(n), -T(0))},
            {"constant", Values<T>(size_t(n), T(0.1))},
            {"constant, a subnormal float", Values<T>(size_t(n), T(0x5p-149))},
            {"two near numbers", alternating<T>(n, T(1), T(1.001))},
            {"largest and its opposite", alternating<T>(n, largest, -largest)},
            {"largest and its half", alternating<T>(n, largest, largest / 2)},
            {"one outlier", outlier},
            {"zeros and subnormals among others", mixed},
            {"one negative subnormal", just_below},
            {"one positive subnormal", just_above},
        };
        for (const auto& [name, values] : cases) {
            SCOPED_TRACE(testing::Message() << name << ", " << n << " values");
            const auto matrix = row_of(values);
            const Moments m = of_block(matrix);
            expect_moments(m, values, Rounding::block<T>(matrix.additions()));
            EXPECT_EQ(m.first_row, -1);
            EXPECT_EQ(m.first_column, -1);
        }
        // Squares of the smallest float64 vanish: there, counts and the mean alone.
        const auto matrix = row_of(tiny_steps);
        if constexpr (double(std::numeric_limits<T>::denorm_min()) > least_fourth_root) {
            expect_moments(of_block(matrix), tiny_steps, Rounding::block<T>(matrix.additions()));
        } else {
            const Moments m = of_block(matrix);
            EXPECT_EQ(m.subnormals + m.zeros, n);
            EXPECT_EQ(m.zeros, (n + 4) / 7);
            EXPECT_EQ(m.min, n > 0 ? -2 * double(least) : INFINITY);
        }
    }
}

TYPED_TEST(BlockMoments, OfRowsThatLieApartAreThoseOfTheirValuesAlone) {
    using T = TypeParam;
    for (int64_t columns : {1, 2, 15, 16, 17, 31, 33, 100, 500}) {
        for (int64_t gap : {0, 1, 16}) {
            for (int n : {0, 1, 40, 1000, 4000}) {
                SCOPED_TRACE(testing::Message()
                             << n << " values in rows of " << columns << ", " << gap << " apart");
                for (Values<T> values : {exponential_from<T>(n, 0), normal<T>(n, 1000, 1),
                                         Values<T>(size_t(n), T(1.1)), Values<T>(size_t(n), T(-3e-5))}) {
                    const Matrix<T> matrix(values, columns, gap);
                    expect_moments(of_block(matrix), values, Rounding::block<T>(matrix.additions()));
                    if (n < 40) continue;
                    values[30] = T(0), values[31] = -T(0), values[32] = std::numeric_limits<T>::denorm_min();
                    const Matrix<T> special(values, columns, gap);
                    expect_moments(of_block(special), values, Rounding::block<T>(special.additions()));
                }
            }
        }
    }
}

TYPED_TEST(BlockMoments, KeepNonFiniteValuesApartAndKnowTheFirst) {
    using T = TypeParam;
    const T nan = T(NAN), inf = T(INFINITY);
    const Values<T> before = normal<T>(700, 5, 1);
    for (int n : {1, 2, 15, 16, 17, 100, 1000, 1024}) {
        for (int first : {0, 1, 14, 15, 16, 99, n - 1}) {
            for (T kind : {nan, inf, -inf, -nan}) {
                if (first >= n) continue;
                SCOPED_TRACE(testing::Message() << kind << " at " << first << " of " << n);
                Values<T> values = normal<T>(n, 5, 1);
                values[size_t(first)] = kind;
                // Later ones of all kinds; infinities of both signs would make a NaN of their sum.
                if (first + 3 < n) {
                    values[size_t(first + 1)] = -inf, values[size_t(first + 2)] = nan;
                    values[size_t(n - 1)] = inf;
                }
                if (first > 1) values[0] = T(0), values[1] = std::numeric_limits<T>::denorm_min();
                for (int64_t columns : {1, 16, 37, 2000}) {
                    const Matrix<T> matrix(values, columns, 3);
                    const Moments m = of_block(matrix);
                    expect_moments(m, values, Rounding::values(values.size()));
                    EXPECT_EQ(std::pair(m.first_row, m.first_column), matrix.place(first));

                    // With finite values before, in the same call and in one of their own.
                    const Matrix<T> good(before, 50, 0);
                    const auto both = joined<T>({before, values});
                    const auto rounding = Rounding::blocks<T>(good.additions(), int64_t(both.size()));
                    std::vector<Region<T>> blocks = good.blocks;
                    blocks.insert(blocks.end(), matrix.blocks.begin(), matrix.blocks.end());
                    RunningMoments<T> together, apart;
                    together.add(blocks.data(), int(blocks.size()));
                    good.add_to(apart), matrix.add_to(apart);
                    for (const Moments& joint : {finished(together), finished(apart)}) {
                        expect_moments(joint, both, rounding);
                        EXPECT_EQ(std::pair(joint.first_row, joint.first_column), matrix.place(first));
                    }
                }
            }
        }
        const Values<T> nothing(size_t(n), nan);
        expect_moments(of_block(row_of(nothing)), nothing, Rounding::values(size_t(n)));
    }
}

TYPED_TEST(BlockMoments, DoNotReadRegionsWithoutValues) {
    using T = TypeParam;
    const Values<T> values = normal<T>(100, 5, 1);
    const Region<T> without_rows{nullptr, 0, 7, 8, 0, 100}, without_columns{nullptr, 0, 7, 8, 100, 0},
        region{values.data(), 0, 0, 0, 1, 100};
    for (const std::vector<Region<T>>& regions : {std::vector{without_columns, region},
                                                  {region, without_rows},
                                                  {region, without_columns, without_rows}}) {
        RunningMoments<T> running;
        running.add(regions.data(), int(regions.size()));
        expect_moments(finished(running), values, Rounding::block<T>(Rounding::additions(1, 100)));
    }
    RunningMoments<T> nothing;
    nothing.add(nullptr, 0);
    nothing.add(&without_rows, 1);
    nothing.add(&without_columns, 1);
    const Moments m = finished(nothing);
    EXPECT_EQ(m.count + m.nonfinite(), 0);
    EXPECT_EQ(m.first_row, -1);
}

TYPED_TEST(BlockMoments, TellThePositionInTheFirstBlockThatHasOne) {
    using T = TypeParam;
    RunningMoments<T> running;
    const Values<T> good = normal<T>(100, 0, 1);
    Values<T> bad = good;
    bad[37] = T(INFINITY), bad[12] = T(NAN);
    const Matrix<T> finite(good, 10, 0), other(bad, 10, 0);
    finite.add_to(running);
    other.add_to(running);
    std::vector<Region<T>> later = other.blocks;
    for (Region<T>& block : later) block.row = 0, block.column = 0;
    running.add(later.data(), int(later.size()));
    finite.add_to(running);
    const Moments m = finished(running);
    EXPECT_EQ(std::pair(m.first_row, m.first_column), other.place(12));
    EXPECT_EQ(m.count, 4 * 100 - 4);
    EXPECT_EQ(m.nans, 2);
    EXPECT_EQ(m.positive_infinities, 2);
}

/// Sequences of blocks, after some of which the shift or the unit does not fit what follows.
template <class T>
std::vector<std::pair<const char*, std::vector<Values<T>>>> sequences() {
    const int n = 777;
    const auto of = [](int count, auto block) {
        std::vector<Values<T>> blocks;
        for (int i = 0; i < count; ++i) blocks.push_back(block(i));
        return blocks;
    };
    const auto zeros = [](int count) { return Values<T>(size_t(count)); };
    const T least = std::numeric_limits<float>::denorm_min();
    return {
        {"alike", of(20, [&](int i) { return normal<T>(n + i, 1000, 1); })},
        {"the mean jumps once", of(20, [&](int i) { return normal<T>(n, i < 3 ? 0 : 1e6, 1); })},
        {"the mean jumps to and fro", of(20, [&](int i) { return normal<T>(n, i % 2 ? 1e6 : -1e6, 1); })},
        {"the mean creeps", of(50, [&](int i) { return normal<T>(n, 0.1 * i, 1); })},
        {"the scale jumps up", of(20, [&](int i) { return normal<T>(n, 0, i < 10 ? 1 : 1e20); })},
        {"the scale jumps down", of(20, [&](int i) { return normal<T>(n, 0, i < 10 ? 1 : 1e-20); })},
        {"the scale jumps to and fro", of(20, [&](int i) { return normal<T>(n, 0, i % 2 ? 1e20 : 1e-20); })},
        {"the scale grows", of(60, [&](int i) { return normal<T>(n, 0, std::ldexp(1.0, 4 * i - 120)); })},
        {"the scale shrinks", of(60, [&](int i) { return normal<T>(n, 0, std::ldexp(1.0, 116 - 4 * i)); })},
        {"of mean 0, the scale jumps", of(20,
                                          [&](int i) {
                                              Values<T> values = normal<T>(n, 0, i % 2 ? 1e-20 : 1);
                                              for (size_t k = 0; k + 1 < values.size(); k += 2)
                                                  values[k + 1] = -values[k];
                                              return i % 2 ? values : alternating<T>(n + 1, T(1), T(-1));
                                          })},
        {"huge and subnormal", of(10, [&](int i) { return normal<T>(n, 0, i % 2 ? 1e37 : 1e-40); })},
        {"huge", of(10, [&](int) { return normal<T>(n, 1e38, 1e37); })},
        {"subnormal", of(10, [&](int i) { return Values<T>(size_t(n), T(i % 3) * least); })},
        {"zeros, then tiny", of(10, [&](int i) { return i < 2 ? zeros(n) : normal<T>(n, 1e-25, 1e-28); })},
        {"zeros between", of(21, [&](int i) { return i % 3 ? normal<T>(n, 50, 1) : zeros(n); })},
        {"outliers", of(10,
                        [&](int i) {
                            Values<T> values = normal<T>(n, 0, 1);
                            if (i % 2) values[100] = T(1e15);
                            return values;
                        })},
        {"constant", of(10, [&](int i) { return Values<T>(size_t(n + i), T(0.1)); })},
        {"constants", of(10, [&](int i) { return Values<T>(size_t(n), T(0.1) + T(i)); })},
        {"of one value", of(100, [&](int i) { return Values<T>{T(3 + std::sin(i))}; })},
        {"empty ones between", of(20, [&](int i) { return normal<T>(i % 2 ? n : 0, 10, 1); })},
        {"of all lengths", of(70, [&](int i) { return exponential_from<T>(i, 100); })},
    };
}

TYPED_TEST(BlockMoments, OfManyBlocksAreThoseOfTheWhole) {
    using T = TypeParam;
    for (const auto& [name, parts] : sequences<T>()) {
        SCOPED_TRACE(name);
        RunningMoments<T> running;
        for (const auto& part : parts) row_of(part).add_to(running);
        expect_moments(finished(running), joined(parts),
                       Rounding::blocks<T>(Rounding::additions(1, 800), int64_t(parts.size())));
    }
}

// What came before would hide the loss of a small block in a large whole: here it has been finished with.
TYPED_TEST(BlockMoments, DoNotSufferFromTheBlocksBefore) {
    using T = TypeParam;
    for (const auto& [name, parts] : sequences<T>()) {
        RunningMoments<T> running;
        for (size_t i = 0; i < parts.size(); ++i) {
            SCOPED_TRACE(testing::Message() << name << ", block " << i);
            const auto matrix = row_of(parts[i]);
            matrix.add_to(running);
            expect_moments(finished(running), parts[i], Rounding::block<T>(matrix.additions()));
        }
    }
}

TYPED_TEST(BlockMoments, AreTheSameForEverySplitIntoBlocksAndParts) {
    using T = TypeParam;
    for (double mean : {0.0, 1000.0}) {
        auto values = exponential_from<T>(10000, mean);
        values[7000] = T(NAN), values[123] = T(0), values[124] = std::numeric_limits<T>::denorm_min();
        for (size_t length : {size_t(1), size_t(15), size_t(16), size_t(100), size_t(1024), size_t(4096)}) {
            for (size_t blocks_in_a_part : {size_t(1), size_t(3), size_t(10000)}) {
                SCOPED_TRACE(testing::Message() << "mean " << mean << ", blocks of " << length
                                                << ", parts of " << blocks_in_a_part);
                Moments merged;
                RunningMoments<T> running;
                size_t blocks = 0;
                for (size_t begin = 0; begin < values.size(); begin += length) {
                    const size_t n = std::min(length, values.size() - begin);
                    const Region<T> block{&values[begin], 0, 0, int64_t(begin), 1, int64_t(n)};
                    running.add(&block, 1);
                    if (++blocks % blocks_in_a_part == 0) {
                        running.finish(merged);
                        running = RunningMoments<T>();
                    }
                }
                running.finish(merged);
                expect_moments(
                    merged, values,
                    Rounding::blocks<T>(Rounding::additions(1, int64_t(length)), int64_t(blocks + length)));
                EXPECT_EQ(std::pair(merged.first_row, merged.first_column),
                          std::pair(int64_t(0), int64_t(7000)));
            }
        }
    }
}

TYPED_TEST(BlockMoments, OfOneBlockAreMergedIntoWhatIsThere) {
    using T = TypeParam;
    const Values<T> first = normal<T>(300, 2, 1), second = normal<T>(500, -7, 3);
    Moments m;
    for (const auto& values : {first, second}) {
        add_block(Region<T>{values.data(), 0, 0, 0, 1, int64_t(values.size())}, m);
    }
    expect_moments(m, joined<T>({first, second}), Rounding::blocks<T>(Rounding::additions(1, 500), 2));
}

// The sum of what a shift's rounding leaves of equal values is no spread, however it is added up.
TYPED_TEST(BlockMoments, OfAConstantHaveNoSpreadInRowsOfAnyWidth) {
    using T = TypeParam;
    std::mt19937_64 random(1);
    std::uniform_real_distribution<T> value(1, 2);
    for (const int64_t columns : {1, 3, 15, 16, 100}) {
        for (int i = 0; i < 100; ++i) {
            const int64_t rows = 4096 / columns;
            const Values<T> values(size_t(rows * columns), value(random));
            Moments m;
            add_block(Region<T>{values.data(), columns, 0, 0, rows, columns}, m);
            ASSERT_EQ(m.variance(), 0) << columns << " columns of " << values[0];
            ASSERT_TRUE(std::isnan(m.kurtosis()));
            ASSERT_EQ(m.mean, double(values[0]));
        }
    }
}

// However much a kernel shows at once.
TYPED_TEST(BlockMoments, OfOneLargeRegionAreAsGoodAsThoseOfItsPieces) {
    using T = TypeParam;
    std::mt19937_64 random(1);
    std::exponential_distribution<double> spread;
    for (const int64_t columns : {int64_t(64), int64_t(15), int64_t(50257)}) {
        for (const double mean : {0.0, 1000.0, 1e5}) {
            // In rows too short for a pack values are added one after another: a bound on the rounding of
            // 4,095 additions says nothing of a spread of 1 about 100,000 in float32.
            if (columns < 16 && mean > 1e4) continue;
            SCOPED_TRACE(testing::Message() << columns << " columns, mean " << mean);
            const int64_t rows = columns > 1000 ? 1 : 65536 / columns;
            Values<T> values;
            for (int64_t i = 0; i < rows * columns; ++i) values.push_back(T(mean + spread(random)));
            Moments m;
            add_block(Region<T>{values.data(), columns, 0, 0, rows, columns}, m);
            const int64_t width = std::min<int64_t>(columns, 4096);
            expect_moments(
                m, values,
                Rounding::blocks<T>(Rounding::additions(4096 / width, width), int64_t(values.size()) / 2048));
        }
    }
}

}  // namespace
}  // namespace wobble
