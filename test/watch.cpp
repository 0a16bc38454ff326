// Probes see every value of every part, in order, whatever the pieces it comes in.
#include "probes/watch.h"

#include <gtest/gtest.h>

#include "test/exact_moments.h"
#include "test/example_kernel.h"

namespace wobble {
namespace {

/// One that has only what every kernel has.
template <class T>
struct Plain {
    using Element = T;
    static constexpr const char* name = "plain";
    static constexpr const char* channels[] = {"output"};
};
template <class T>
struct Wide : Plain<T> {
    using Observed = double;
};

static_assert(Channels<Example<float>>::count == 3 && Channels<Example<float>>::sums == 2);
static_assert(Channels<Example<float>>::identities == 2 && Channels<Example<float>>::pair);
static_assert(Channels<Example<float>>::heads && !Channels<Plain<float>>::heads);
static_assert(Channels<Plain<float>>::sums == 0 && Channels<Plain<float>>::identities == 0);
static_assert(!Channels<Plain<float>>::pair);
static_assert(std::is_same_v<Channels<Plain<float>>::A, float>);
static_assert(std::is_same_v<Channels<Wide<float>>::A, double>);

template <class A>
class Probes : public testing::Test {};
using Elements = testing::Types<float, double>;
TYPED_TEST_SUITE(Probes, Elements);

template <class A>
void expect_statistics(const Statistics& found, const Expected<A>& expected, int64_t additions, bool full) {
    const int64_t merges = int64_t(expected.values.size());
    expect_moments(found.moments, expected.values, Rounding::blocks<A>(additions, merges));
    EXPECT_EQ(std::pair(found.moments.first_row, found.moments.first_column), expected.first);
    ASSERT_EQ(found.histogram != nullptr, full);
    if (!full) return;
    Histogram histogram;
    for (size_t i = 0; i < expected.values.size(); i += 100) {
        add_block(&expected.values[i], int(std::min<size_t>(100, expected.values.size() - i)), histogram);
    }
    EXPECT_EQ(found.histogram->by_exponent, histogram.by_exponent);
    EXPECT_EQ(found.histogram->flushed, histogram.flushed);
    EXPECT_EQ(found.histogram->overflowed, histogram.overflowed);
}

// At most 64 rows are gone through together, of 4096 values or one row more.
int64_t additions_of_rows(int64_t columns) {
    return Rounding::additions(std::min<int64_t>(64, 4096 / columns + 1), columns);
}

TYPED_TEST(Probes, SeeEveryValueOfEveryPartInOrder) {
    using A = TypeParam;
    const A nan = A(NAN), inf = A(INFINITY), tiny = std::numeric_limits<A>::denorm_min();
    for (Tier tier : {Tier::Moments, Tier::Full}) {
        for (int64_t columns : {1, 16, 37, 500, 1024, 1030, 5000}) {
            for (const std::vector<A>& specials :
                 {std::vector<A>{}, {A(0), tiny}, {-inf}, {-A(0), nan, inf}, {tiny, inf, -inf, nan}}) {
                for (int64_t bad_part : {0, 2}) {
                    SCOPED_TRACE(testing::Message() << columns << " columns, part " << bad_part);
                    const Look look = at_tier(tier);
                    Watch<Example<A>> watch(4, look);
                    Expected<A> expected[3];
                    // The third part has more short rows than are gone through together.
                    const int64_t rows[] = {5, 0, columns < 100 ? 150 : 3, 4};
                    for (int64_t part = 0, row = 0; part < 4; row += rows[part++]) {
                        std::vector<A> memory;
                        auto probe = watch.probe(part);
                        const bool special = part == bad_part || part == 3;
                        show(probe, memory, rows[part], row, columns, special ? specials : std::vector<A>(),
                             expected);
                    }
                    const auto seen = watch.total();
                    for (int channel = 0; channel < 3; ++channel) {
                        SCOPED_TRACE(channel);
                        const int64_t additions =
                            channel == Example<A>::Single ? 64 : additions_of_rows(columns);
                        expect_statistics(seen.channels[channel], expected[channel], additions,
                                          tier == Tier::Full);
                        EXPECT_EQ(seen.channels[channel].columns, nullptr);
                        EXPECT_EQ(seen.channels[channel].sample, nullptr);
                    }
                    EXPECT_FALSE(seen.pair.any);
                    EXPECT_TRUE(seen.heads.empty());
                }
            }
        }
    }
}

// As the tasks of a product see their matrix.
TYPED_TEST(Probes, SeeTilesWithTheirPlaces) {
    using A = TypeParam;
    constexpr int64_t rows = 50, columns = 75;
    std::mt19937_64 generator(1);
    std::normal_distribution<double> distribution(-2, 1);
    std::vector<A> matrix, outside(size_t(rows * columns), A(0));
    for (int64_t i = 0; i < rows * columns; ++i) matrix.push_back(A(distribution(generator)));
    for (const auto& [bad_row, bad_column] : {std::pair(-1, -1), {0, 0}, {49, 74}, {20, 40}, {12, 32}}) {
        SCOPED_TRACE(testing::Message() << "row " << bad_row << ", column " << bad_column);
        std::vector<A> values = matrix;
        if (bad_row >= 0) values[size_t(bad_row * columns + bad_column)] = A(NAN);
        const Look look = at_tier(Tier::Full);
        Watch<Example<A>> watch(4, look);
        int64_t part = 0;
        for (int64_t row : {0, 20}) {
            for (int64_t column : {0, 40}) {
                const int64_t last_row = row == 0 ? 20 : rows, last_column = column == 0 ? 40 : columns;
                auto probe = watch.probe(part++);
                for (int64_t j = column; j < last_column; j += 32) {
                    for (int64_t i = row; i < last_row; i += 12) {
                        probe.wrote(0, i, j, &values[size_t(i * columns + j)],
                                    std::min<int64_t>(32, last_column - j),
                                    std::min<int64_t>(12, last_row - i), columns);
                    }
                }
            }
        }
        // What tells the whole from its tiles is the order alone.
        Expected<A> expected;
        for (const A value : values) expected.add(0, 0, value);
        expected.first = {bad_row, bad_column};
        expect_statistics(watch.total().channels[0], expected, Rounding::additions(rows, 15), true);
    }
}

TYPED_TEST(Probes, MayFinishInAnyOrder) {
    using A = TypeParam;
    const Look look = at_tier(Tier::Full);
    Watch<Example<A>> forwards(3, look), backwards(3, look);
    const auto fill = [](auto& watch, int64_t part) {
        Expected<A> expected[3];
        std::vector<A> memory;
        auto probe = watch.probe(part);
        show(probe, memory, 4, 4 * part, 37, {A(1), A(NAN)}, expected);
        probe.sum(0, 1.0 / double(part + 3));
        probe.residual(1, part, 1.0 / double(part + 3), 1);
        probe.query(part % 2, {2, 1, 1, 1.0 + 1.0 / double(part + 3), -0.1, 1, 1});
        const A branch = A(part), beside = A(0.1);
        probe.pair(&branch, 1, &beside, 1, 1, 1);
    };
    for (int64_t part : {0, 1, 2}) fill(forwards, part);
    for (int64_t part : {2, 1, 0}) fill(backwards, part);
    const auto a = forwards.total(), b = backwards.total();
    for (int channel = 0; channel < 3; ++channel) {
        const Statistics &x = a.channels[channel], &y = b.channels[channel];
        EXPECT_EQ(x.moments.m4, y.moments.m4);
        EXPECT_EQ(x.moments.mean, y.moments.mean);
        EXPECT_EQ(x.moments.first_row, channel < 2 ? 1 : -1);
        EXPECT_EQ(y.moments.first_row, channel < 2 ? 1 : -1);
        EXPECT_EQ(x.histogram->by_exponent, y.histogram->by_exponent);
    }
    EXPECT_EQ(a.sums[0], b.sums[0]);
    EXPECT_EQ(a.residuals[1].bias, b.residuals[1].bias);
    EXPECT_EQ(a.pair.dot, b.pair.dot);
    ASSERT_EQ(a.heads.size(), 2u);
    ASSERT_EQ(b.heads.size(), 2u);
    EXPECT_EQ(a.heads[0].first, b.heads[0].first);
    EXPECT_EQ(a.heads[0].second.entropy, b.heads[0].second.entropy);
}

TYPED_TEST(Probes, KnowThePlacesOfSingleValuesHereAndThere) {
    using A = TypeParam;
    for (const auto& [bad_row, bad_column] : {std::pair<int64_t, int64_t>{4, 10}, {4, 11}, {4, 3}, {5, 11}}) {
        const Look look = at_tier(Tier::Moments);
        Watch<Example<A>> watch(1, look);
        {
            auto probe = watch.probe(0);
            for (const auto& [row, column] :
                 {std::pair<int64_t, int64_t>{4, 3}, {4, 10}, {4, 11}, {5, 12}, {5, 11}, {4, 12}}) {
                const bool bad = row == bad_row && column == bad_column;
                probe.observe(0, row, At<1>{column}, splat<1>(bad ? A(NAN) : A(column)));
            }
        }
        const auto seen = watch.total();
        EXPECT_EQ(seen.channels[0].moments.count, 5);
        EXPECT_EQ(seen.channels[0].moments.first_row, bad_row);
        EXPECT_EQ(seen.channels[0].moments.first_column, bad_column);
    }
}

TEST(Watch, OfNoPartsSeesNothing) {
    Watch<Example<float>> watch(
        0, Look{.tier = Tier::Full, .fault = {}, .rows = 0, .columns = 5, .row_step = 1});
    const auto seen = watch.total();
    EXPECT_EQ(seen.channels[0].moments.count, 0);
    EXPECT_TRUE(seen.channels[0].columns->sizes.empty());
    EXPECT_EQ(seen.channels[0].sample->rows, 0);
}

TEST(Watch, OfAKernelThatSaysSoSeesDoubles) {
    const Look look = at_tier(Tier::Moments);
    Watch<Wide<float>> watch(1, look);
    {
        auto probe = watch.probe(0);
        for (int64_t row = 0; row < 3; ++row)
            probe.observe(0, row, At<1>{0}, splat<1>(1 + double(row) * 0x1p-40));
    }
    EXPECT_EQ(watch.total().channels[0].moments.max, 1 + 0x1p-39);
}

// -------------------------------------------------------------------------------------------------- columns

int value_at(int64_t row, int64_t column) {
    return int(row * 7 + column * 3) % 11 - 5;
}

TYPED_TEST(Probes, AddUpColumnsAndKeepSampledRowsOfTheFirstChannelOfAMatrix) {
    using A = TypeParam;
    constexpr int64_t rows = 23, columns = 70;
    std::vector<A> matrix;
    for (int64_t i = 0; i < rows * columns; ++i) matrix.push_back(A(value_at(i / columns, i % columns)));
    for (int64_t step : {0, 1, 5, 22, 23, 100}) {
        SCOPED_TRACE(testing::Message() << "every " << step << " rows");
        const Look look{.tier = Tier::Full, .fault = {}, .rows = rows, .columns = columns, .row_step = step};
        // Two parts side by side, the right one first: it has seen no column of the left.
        Watch<Example<A>> watch(2, look);
        for (int64_t part : {1, 0}) {
            auto probe = watch.probe(part);
            const int64_t first = part ? 33 : 0, width = part ? columns - 33 : 33;
            for (int64_t row = 0; row < rows; row += 12) {
                probe.wrote(0, row, first, &matrix[size_t(row * columns + first)], width,
                            std::min<int64_t>(12, rows - row), columns);
            }
            probe.observe(1, 0, At<1>{0}, splat<1>(A(1)));
        }
        const auto seen = watch.total();
        for (int channel : {1, 2}) {
            EXPECT_EQ(seen.channels[channel].columns, nullptr);
            EXPECT_EQ(seen.channels[channel].sample, nullptr);
        }
        const Columns& sums = *seen.channels[0].columns;
        ASSERT_EQ(sums.first, 0);
        ASSERT_EQ(sums.sizes.size(), size_t(columns));
        for (int64_t c = 0; c < columns; ++c) {
            int size = 0, square = 0;
            for (int64_t row = 0; row < rows; ++row)
                size += std::abs(value_at(row, c)), square += value_at(row, c) * value_at(row, c);
            EXPECT_EQ(sums.sizes[size_t(c)], size) << c;
            EXPECT_EQ(sums.squares[size_t(c)], square) << c;
        }
        if (step == 0) {
            EXPECT_EQ(seen.channels[0].sample, nullptr);
            continue;
        }
        const SampledRows& sample = *seen.channels[0].sample;
        ASSERT_EQ(sample.rows, (rows + step - 1) / step);
        ASSERT_EQ(sample.columns, columns);
        for (int64_t i = 0; i < sample.rows * columns; ++i) {
            EXPECT_EQ(sample.values[size_t(i)], float(value_at(i / columns * step, i % columns))) << i;
        }
    }
}

TEST(Watch, KeepsNoColumnsBelowTierFull) {
    const Look look{.tier = Tier::Moments, .fault = {}, .rows = 2, .columns = 3, .row_step = 1};
    Watch<Example<float>> watch(1, look);
    float values[6] = {1, 2, 3, 4, 5, 6};
    {
        auto probe = watch.probe(0);
        EXPECT_FALSE(probe.full());
        probe.wrote(0, 0, 0, values, 3, 2, 3);
    }
    const auto seen = watch.total();
    EXPECT_EQ(seen.channels[0].moments.count, 6);
    EXPECT_EQ(seen.channels[0].columns, nullptr);
    EXPECT_EQ(seen.channels[0].sample, nullptr);
}

}  // namespace
}  // namespace wobble
