// Statistics are right for every length, split, size and kind of value.
#include "probes/statistics.h"

#include <gtest/gtest.h>

#include <random>

#include "probes/block_statistics.h"
#include "test/exact_moments.h"

namespace wobble {
namespace {

template <class T>
using Values = std::vector<T>;

template <class T>
Values<T> normal(int n, double mean, double deviation) {
    std::mt19937_64 generator(7);
    std::normal_distribution<double> distribution(mean, deviation);
    Values<T> values;
    for (int i = 0; i < n; ++i) values.push_back(T(distribution(generator)));
    return values;
}
template <class T>
Values<T> exponential_from(int n, double start) {
    std::mt19937_64 generator(8);
    std::exponential_distribution<double> distribution;
    Values<T> values;
    for (int i = 0; i < n; ++i) values.push_back(T(start + distribution(generator)));
    return values;
}
template <class T>
Values<T> alternating(int n, T a, T b) {
    Values<T> values;
    for (int i = 0; i < n; ++i) values.push_back(i % 2 ? b : a);
    return values;
}

/// Blocks stand at row 3 from column 100 on; rows have 400 columns.
std::pair<int64_t, int64_t> place(int i) {
    return {3 + (100 + i) / 400, (100 + i) % 400};
}

template <class T>
Moments of_block(const Values<T>& values) {
    Moments m;
    add_block(values.data(), int(values.size()), m, place);
    return m;
}
template <class T>
Moments one_by_one(const Values<T>& values, size_t begin = 0, size_t end = SIZE_MAX) {
    Moments m;
    for (size_t i = begin; i < std::min(end, values.size()); ++i)
        m.add(double(values[i]), 0, int64_t(i), double(std::numeric_limits<T>::min()));
    return m;
}

template <class T>
class BlockStatistics : public testing::Test {};
using Elements = testing::Types<float, double>;
TYPED_TEST_SUITE(BlockStatistics, Elements);

constexpr int lengths[] = {0, 1, 2, 15, 16, 17, 100, 1000, 1024};

TYPED_TEST(BlockStatistics, AreThoseOfTheValues) {
    using T = TypeParam;
    const T largest = T(std::numeric_limits<float>::max()), least = std::numeric_limits<T>::denorm_min();
    for (int n : lengths) {
        Values<T> outlier = normal<T>(n, 0, 1), tiny_steps;
        if (n > 0) outlier[size_t(n / 2)] = T(1e6);
        for (int i = 0; i < n; ++i) tiny_steps.push_back(T(i % 7 - 2) * least);
        const std::pair<const char*, Values<T>> cases[] = {
            {"normal", normal<T>(n, 0, 1)},
            {"mean 1000", normal<T>(n, 1000, 1)},
            {"mean -1e6", normal<T>(n, -1e6, 1)},
            {"skewed", exponential_from<T>(n, 0)},
            {"skewed, mean 1e6", exponential_from<T>(n, 1e6)},
            {"tiny", normal<T>(n, 0, 1e-30)},
            {"subnormal floats", normal<T>(n, 0, 1e-40)},
            {"huge", normal<T>(n, 0, 1e30)},
            {"huge mean", normal<T>(n, 1e38, 1e33)},
            {"all zero", Values<T>(size_t(n))},
            {"zeros of both signs", alternating<T>(n, T(0), -T(0))},
            {"constant", Values<T>(size_t(n), T(0.1))},
            {"largest and its opposite", alternating<T>(n, largest, -largest)},
            {"one outlier", outlier},
        };
        for (const auto& [name, values] : cases) {
            SCOPED_TRACE(testing::Message() << name << ", " << n << " values");
            const Moments m = of_block(values);
            expect_moments(m, values, Rounding::block<T>(size_t(n)));
            EXPECT_EQ(m.first_row, -1);
            EXPECT_EQ(m.first_column, -1);
        }
        // Sums that overflow, so that the block is gone through one by one.
        const Values<T> overflowing = alternating<T>(n, largest, largest / 2);
        expect_moments(of_block(overflowing), overflowing, Rounding::blocks<T>(size_t(n)));
        // Squares of the smallest float64 vanish: there, counts and the mean alone.
        if constexpr (std::is_same_v<T, float>) {
            expect_moments(of_block(tiny_steps), tiny_steps, Rounding::block<T>(size_t(n)));
        } else {
            const Moments m = of_block(tiny_steps);
            EXPECT_EQ(m.subnormals + m.zeros, n);
            EXPECT_EQ(m.zeros, (n + 4) / 7);
        }
    }
}

TYPED_TEST(BlockStatistics, KeepNonFiniteValuesApartAndKnowTheFirst) {
    using T = TypeParam;
    const T nan = T(NAN), inf = T(INFINITY);
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
                const Moments m = of_block(values);
                expect_moments(m, values, Rounding::blocks<T>(size_t(n)));
                EXPECT_EQ(std::pair(m.first_row, m.first_column), place(first));
            }
        }
        const Values<T> nothing(size_t(n), nan);
        expect_moments(of_block(nothing), nothing, Rounding::blocks<T>(size_t(n)));
    }
}

TYPED_TEST(BlockStatistics, OfSeveralBlocksAreThoseOfTheWhole) {
    using T = TypeParam;
    for (double mean : {0.0, 1000.0, 1e6}) {
        const Values<T> values = exponential_from<T>(10000, mean);
        Moments m;
        for (size_t begin = 0; begin < values.size(); begin += 1024)
            add_block(&values[begin], int(std::min<size_t>(1024, values.size() - begin)), m, place);
        expect_moments(m, values, Rounding::blocks<T>(values.size()));
    }
}

TEST(Moments, AddedOneByOneAreThoseOfTheValues) {
    for (int n : lengths) {
        for (double mean : {0.0, 1000.0, -1e6}) {
            SCOPED_TRACE(testing::Message() << n << " values, mean " << mean);
            for (const auto& values : {normal<double>(n, mean, 1), exponential_from<double>(n, mean)})
                expect_moments(one_by_one(values), values, Rounding::values(size_t(n)));
        }
        const Values<double> constant(size_t(n), 0.1);
        expect_moments(one_by_one(constant), constant, Rounding::values(size_t(n)));
    }
}

TEST(Moments, MergedFromAnySplitAreThoseOfTheWhole) {
    for (double mean : {0.0, 1000.0, -1e6}) {
        auto values = exponential_from<double>(300, mean);
        values[140] = -INFINITY, values[151] = NAN, values[20] = 0, values[299] = -0.0;
        for (size_t first :
             {size_t(0), size_t(1), size_t(20), size_t(141), size_t(150), size_t(299), size_t(300)}) {
            for (size_t second : {first, (first + 300) / 2, size_t(300)}) {
                SCOPED_TRACE(testing::Message() << "split at " << first << " and " << second);
                Moments merged = one_by_one(values, 0, first);
                merged.merge(one_by_one(values, first, second));
                merged.merge(one_by_one(values, second));
                expect_moments(merged, values, Rounding::values(values.size()));
                EXPECT_EQ(merged.first_column, 140);
            }
        }
    }
}

TEST(Moments, MergedFromTwoConstantPartsKnowTheirDistance) {
    Moments m = one_by_one<double>({0, 0});
    m.merge(one_by_one<double>({2, 2}));
    EXPECT_EQ(m.count, 4);
    EXPECT_EQ(m.mean, 1);
    EXPECT_EQ(m.variance(), 1);
    EXPECT_EQ(m.rms(), std::sqrt(2.0));
    EXPECT_EQ(m.skew(), 0);
    EXPECT_EQ(m.kurtosis(), 1);
    EXPECT_EQ(m.zeros, 2);
}

TEST(Moments, OfAFewNumbersAreWhatTheyAre) {
    const Moments m = one_by_one<double>({3, -1, 4, 2});  // deviations 1, -3, 2, 0
    EXPECT_EQ(m.mean, 2);
    EXPECT_NEAR(m.m2, 14, 14 * 16 * 0x1p-53);
    EXPECT_NEAR(m.m3, -18, 36 * 64 * 0x1p-53);
    EXPECT_NEAR(m.m4, 98, 98 * 64 * 0x1p-53);
    EXPECT_EQ(m.min, -1);
    EXPECT_EQ(m.absmax(), 4);
}

bool same(const Moments& a, const Moments& b) {
    return a.count == b.count && a.zeros == b.zeros && a.subnormals == b.subnormals && a.nans == b.nans &&
           a.positive_infinities == b.positive_infinities && a.negative_infinities == b.negative_infinities &&
           a.mean == b.mean && a.m2 == b.m2 && a.m3 == b.m3 && a.m4 == b.m4 && a.min == b.min &&
           a.max == b.max && a.first_row == b.first_row && a.first_column == b.first_column;
}

TEST(Moments, OfNothingChangeNothing) {
    for (const Values<double>& values : {Values<double>{}, {1, 2, 4}, {NAN}, {1, NAN, 3}, {0, INFINITY}}) {
        const Moments m = one_by_one(values);
        Moments before, after = m;
        before.merge(m);
        after.merge(Moments());
        EXPECT_TRUE(same(before, m));
        EXPECT_TRUE(same(after, m));
    }
}

TEST(Moments, OfPartsWithoutFiniteValuesAddTheirCountsAlone) {
    const Moments some = one_by_one<double>({1, 2, 4});
    const Moments bad = one_by_one<double>({NAN, -INFINITY});
    for (bool bad_first : {false, true}) {
        Moments m = bad_first ? bad : some;
        m.merge(bad_first ? some : bad);
        EXPECT_EQ(m.nans, 1);
        EXPECT_EQ(m.negative_infinities, 1);
        EXPECT_EQ(m.first_column, 0);
        m.nans = m.negative_infinities = 0, m.first_row = m.first_column = -1;
        EXPECT_TRUE(same(m, some));
    }
    Moments twice = bad;
    twice.merge(bad);
    EXPECT_EQ(twice.nonfinite(), 4);
    EXPECT_EQ(twice.count, 0);
    EXPECT_EQ(twice.mean, 0);
}

TEST(Moments, TellTheFirstPositionOfTheEarlierPart) {
    Moments earlier, later;
    earlier.add(1, 7, 1, 0), earlier.add(NAN, 7, 2, 0), earlier.add(INFINITY, 7, 3, 0);
    later.add(-INFINITY, 1, 0, 0);
    Moments m = earlier;
    m.merge(later);
    EXPECT_EQ(std::pair(m.first_row, m.first_column), std::pair(int64_t(7), int64_t(2)));
    later.merge(earlier);
    EXPECT_EQ(std::pair(later.first_row, later.first_column), std::pair(int64_t(1), int64_t(0)));
}

}  // namespace
}  // namespace wobble
