// Probes see every value of every part, in order, whatever the pieces it comes in, and change none but those
// they are told to.
#include "probes/watch.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "test/exact_moments.h"

namespace wobble {
namespace {

/// A kernel that exists to be observed: a channel that it stores, one that only passes, one value of each
/// row, and one of everything else that a probe can be shown.
template <class T>
struct Example {
    using Element = T;
    static constexpr const char* name = "example";
    enum Channel { Stored, Passing, Single };
    static constexpr const char* channels[] = {"stored", "passing", "single"};
    enum Sums { First, Second };
    static constexpr const char* sums[] = {"first", "second"};
    enum Identity { Left, Right };
    static constexpr const char* identities[] = {"left", "right"};
    using ObservesPair = void;
    using ObservesHeads = void;
};

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

Look at_tier(Tier tier) {
    Look look;
    look.tier = tier;
    return look;
}

template <class A>
struct Expected {
    std::vector<A> values;
    std::pair<int64_t, int64_t> first = {-1, -1};  // row and column of the first that is not finite

    void add(int64_t row, int64_t column, A value) {
        if (!std::isfinite(value) && first.first < 0) first = {row, column};
        values.push_back(value);
    }
};

template <int N, class A>
bool same_bits(Pack<A, N> a, Pack<A, N> b) {
    for (int i = 0; i < N; ++i) {
        const A x = a[i], y = b[i];
        if (std::memcmp(&x, &y, sizeof x) != 0) return false;
    }
    return true;
}

/// Shows rows of `columns` values to a probe as kernels do: packs, then single values, once on their way to
/// `memory`, once in passing; and after each row one more value. So the three fill up at different times.
template <class A, class Probe>
void show(Probe& probe, std::vector<A>& memory, int64_t rows, int64_t first_row, int64_t columns,
          std::vector<A> specials, Expected<A> (&expected)[3]) {
    using Kernel = Example<A>;
    std::mt19937_64 generator{uint64_t(first_row)};
    std::normal_distribution<double> distribution(3, 1);
    size_t special = 0;
    memory.assign(size_t(rows * columns), A(0));
    for (int64_t row = first_row; row < first_row + rows; ++row) {
        A* line = memory.data() + (row - first_row) * columns;
        const auto next = [&](int64_t column) {
            // One in each row, from column 15 + row on.
            const bool is_special = column == 15 + row && special < specials.size();
            return is_special ? specials[special++] : A(distribution(generator));
        };
        Lane{}.each(columns, [&](auto at) {
            constexpr int N = decltype(at)::width;
            const auto pack = generate<A, N>([&](int i) { return next(at.index + i); });
            const auto stored = probe.writes(Kernel::Stored, row, at, pack);
            EXPECT_TRUE(same_bits(stored, pack));
            store(line, at, stored);
            EXPECT_TRUE(same_bits(probe.observe(Kernel::Passing, row, at, pack), pack));
            for (int i = 0; i < N; ++i) {
                for (int channel : {Kernel::Stored, Kernel::Passing})
                    expected[channel].add(row, at.index + i, pack[i]);
            }
        });
        probe.wrote(Kernel::Stored, row, 0, line, columns);
        probe.observe(Kernel::Single, row, At<1>{7}, splat<1>(A(row)));
        expected[Kernel::Single].add(row, 7, A(row));
    }
}

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
    for (const A value : expected.values) add_block(&value, 1, histogram);
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
        probe.pair(splat<1>(A(part)), splat<1>(A(0.1)));
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
    const float values[6] = {1, 2, 3, 4, 5, 6};
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

// --------------------------------------------------------------------------------------------------- faults

TYPED_TEST(Probes, PutAFaultInItsPlaceAndNowhereElse) {
    using A = TypeParam;
    constexpr int64_t rows = 3, columns = 37;  // two packs and five single values a row
    for (Tier tier : {Tier::Off, Tier::Moments}) {
        for (double value : {double(NAN), double(INFINITY), 2.5}) {
            for (int channel : {Example<A>::Stored, Example<A>::Passing, Example<A>::Single}) {
                for (int64_t row = 0; row < rows; ++row) {
                    for (int64_t column : {0, 7, 15, 16, 31, 32, 36, 37}) {
                        SCOPED_TRACE(testing::Message() << value << " in channel " << channel << " at " << row
                                                        << ", " << column);
                        Look look = at_tier(tier);
                        look.fault = {channel, row, column, value};
                        Watch<Example<A>> watch(1, look);
                        std::vector<A> memory(rows * columns), passed(rows * columns), single(rows);
                        {
                            auto probe = watch.probe(0);
                            for (int64_t r = 0; r < rows; ++r) {
                                A* line = memory.data() + r * columns;
                                A* beside = passed.data() + r * columns;
                                Lane{}.each(columns, [&](auto at) {
                                    const auto ones = splat<decltype(at)::width>(A(1));
                                    store(line, at, probe.writes(Example<A>::Stored, r, at, ones));
                                    store(beside, at, probe.observe(Example<A>::Passing, r, at, ones));
                                });
                                probe.wrote(Example<A>::Stored, r, 0, line, columns);
                                single[size_t(r)] =
                                    probe.observe(Example<A>::Single, r, At<1>{0}, splat<1>(A(1)))[0];
                            }
                        }
                        const auto expect_fault = [&](int of, const std::vector<A>& values, int64_t width) {
                            for (int64_t i = 0; i < int64_t(values.size()); ++i) {
                                const bool hit = of == channel && i == row * width + column && column < width;
                                const A expected = hit ? A(value) : A(1), found = values[size_t(i)];
                                EXPECT_TRUE(found == expected || (found != found && expected != expected))
                                    << i;
                            }
                        };
                        expect_fault(Example<A>::Stored, memory, columns);
                        expect_fault(Example<A>::Passing, passed, columns);
                        expect_fault(Example<A>::Single, single, 1);
                        const auto seen = watch.total();
                        const bool lands = column < (channel == Example<A>::Single ? 1 : columns);
                        for (int c = 0; c < 3; ++c) {
                            const Moments& m = seen.channels[c].moments;
                            const bool bad = c == channel && lands && !std::isfinite(value);
                            EXPECT_EQ(m.nonfinite(), bad);
                            EXPECT_EQ(m.first_row, bad ? row : -1);
                            EXPECT_EQ(m.first_column, bad ? column : -1);
                            EXPECT_EQ(m.max, c == channel && lands && value == 2.5 ? 2.5 : 1);
                        }
                    }
                }
            }
        }
    }
}

// -------------------------------------------------------------------------------------------------- tallies

/// The sums of a pair, from values and their neighbours.
struct ExactPair {
    long double dot = 0, squares = 0, beside_squares = 0, sizes = 0;
    int64_t n = 0;

    void add(double value, double beside) {
        const long double v = value, b = beside;
        dot += v * b, squares += v * v, beside_squares += b * b, sizes += std::abs(v * b), ++n;
    }
    /// 64 values go through one lane in A, the rest is float64; a product that is not fused is rounded.
    template <class A>
    void expect(const PairTally& found) const {
        const long double epsilon =
            (64 + 16 + 1) * double(std::numeric_limits<A>::epsilon()) / 2 + double(n) * 0x1p-53;
        EXPECT_LE(std::abs(found.dot - dot), epsilon * sizes);
        EXPECT_LE(std::abs(found.squares - squares), epsilon * squares);
        EXPECT_LE(std::abs(found.beside_squares - beside_squares), epsilon * beside_squares);
    }
};

template <int N, class A, class Probe>
void show_pairs(Probe& probe, int count, ExactPair& exact) {
    std::mt19937_64 generator(uint64_t(N * 1000 + count));
    std::normal_distribution<double> distribution(0.3, 1);
    for (int i = 0; i < count; ++i) {
        Pack<A, N> value, beside;
        for (int k = 0; k < N; ++k) {
            value.set(k, A(distribution(generator))), beside.set(k, A(distribution(generator)));
            exact.add(double(value[k]), double(beside[k]));
        }
        probe.pair(value, beside);
    }
}

TYPED_TEST(Probes, AddUpPairsOfEveryWidth) {
    using A = TypeParam;
    const Look look = at_tier(Tier::Moments);
    for (int count : {1, 5, 63, 64, 65, 200}) {
        Watch<Example<A>> watch(2, look);
        ExactPair exact;
        {
            auto probe = watch.probe(0);
            show_pairs<16, A>(probe, count, exact);
            show_pairs<1, A>(probe, count, exact);
        }
        {
            auto probe = watch.probe(1);
            show_pairs<8, A>(probe, count, exact);
            show_pairs<4, A>(probe, count, exact);
        }
        const auto seen = watch.total();
        EXPECT_TRUE(seen.pair.any);
        exact.template expect<A>(seen.pair);
    }
}

TYPED_TEST(Probes, PassSumsResidualsAndQueriesOn) {
    using A = TypeParam;
    for (Tier tier : {Tier::Moments, Tier::Full}) {
        const Look look = at_tier(tier);
        Watch<Example<A>> watch(3, look);
        for (int64_t part : {0, 1, 2}) {
            auto probe = watch.probe(part);
            EXPECT_EQ(probe.full(), tier == Tier::Full);
            probe.sum(Example<A>::First, 1);
            probe.sum(Example<A>::Second, double(part));
            if (part != 1) probe.residual(Example<A>::Right, 10 + part, -double(part + 1), 4);
            probe.query(5, {1, 0, 0, 1, 0, 1, 1});
            if (part > 0) probe.query(2, {1, 0, 0, 1, 0, 1, 1});
        }
        const auto seen = watch.total();
        EXPECT_EQ(seen.sums[Example<A>::First], 3);
        EXPECT_EQ(seen.sums[Example<A>::Second], 3);
        EXPECT_EQ(seen.residuals[Example<A>::Left].rows, 0);
        EXPECT_EQ(seen.residuals[Example<A>::Right].rows, 2);
        EXPECT_EQ(seen.residuals[Example<A>::Right].bias, -4);
        EXPECT_EQ(seen.residuals[Example<A>::Right].worst_row, 12);
        ASSERT_EQ(seen.heads.size(), 2u);
        EXPECT_EQ(seen.heads[0].first, 5);
        EXPECT_EQ(seen.heads[0].second.queries, 3);
        EXPECT_EQ(seen.heads[1].first, 2);
        EXPECT_EQ(seen.heads[1].second.queries, 2);
    }
}

// ---------------------------------------------------------------------------------------------------- lanes

TYPED_TEST(Probes, OfALaneSeeTheSame) {
    using A = TypeParam;
    LaneProbe<Example<A>> probe;
    Expected<A> expected[3];
    std::vector<A> memory;
    show(probe, memory, 6, 0, 37,
         {std::numeric_limits<A>::denorm_min(), std::numeric_limits<A>::min(), A(0), A(NAN), A(1e-40)},
         expected);
    for (int channel : {0, 1, 2}) {
        expect_moments(probe.of[channel], expected[channel].values,
                       Rounding::values(expected[channel].values.size()));
        EXPECT_EQ(std::pair(probe.of[channel].first_row, probe.of[channel].first_column),
                  expected[channel].first);
    }
}

TYPED_TEST(Probes, OfLanesAreTakenTogetherInTheirOrder) {
    using A = TypeParam;
    LaneProbe<Example<A>> fresh;
    fresh.wants_residuals = true;
    EXPECT_TRUE(fresh.full());
    std::vector<LaneProbe<Example<A>>> lanes(3, fresh);
    Expected<A> expected[3];
    ExactPair exact;
    for (int64_t lane : {2, 0, 1}) {
        Expected<A> its[3];
        std::vector<A> memory;
        auto& probe = lanes[size_t(lane)];
        show(probe, memory, 2, 2 * lane, 37, {A(0), A(INFINITY)}, its);
        show_pairs<4, A>(probe, 10, exact);
        probe.sum(1, double(lane));
        probe.residual(0, lane, double(lane) - 1, 2);
        if (lane > 0) probe.query(lane % 2, {1, double(lane), 1, 1, 0, 1, 1});
    }
    for (int64_t lane : {0, 1, 2}) {
        std::vector<A> memory;
        LaneProbe<Example<A>> again;
        show(again, memory, 2, 2 * lane, 37, {A(0), A(INFINITY)}, expected);
    }
    const auto seen = LaneProbe<Example<A>>::together(lanes);
    for (int channel : {0, 1, 2}) {
        expect_moments(seen.channels[channel].moments, expected[channel].values,
                       Rounding::values(expected[channel].values.size()));
        EXPECT_EQ(
            std::pair(seen.channels[channel].moments.first_row, seen.channels[channel].moments.first_column),
            expected[channel].first);
    }
    exact.template expect<A>(seen.pair);
    EXPECT_EQ(seen.sums[1], 3);
    EXPECT_EQ(seen.residuals[0].value, 2);
    EXPECT_EQ(seen.residuals[0].bias, 0);
    EXPECT_EQ(seen.residuals[0].worst_row, 0);
    ASSERT_EQ(seen.heads.size(), 2u);
    EXPECT_EQ(seen.heads[0].first, 1);
    EXPECT_EQ(seen.heads[0].second.max_logit, 1);
    EXPECT_EQ(seen.heads[1].second.max_logit, 2);
}

TYPED_TEST(Probes, OfALanePutAFaultInItsPlace) {
    using A = TypeParam;
    for (int64_t column : {0, 2, 3, 4}) {
        LaneProbe<Example<A>> probe;
        probe.fault = {Example<A>::Stored, 1, column, NAN};
        for (int64_t row : {0, 1, 2}) {
            const auto stored = probe.writes(Example<A>::Stored, row, At<4>{0}, splat<4>(A(1)));
            const auto passed = probe.observe(Example<A>::Passing, row, At<4>{0}, splat<4>(A(1)));
            for (int i = 0; i < 4; ++i) {
                EXPECT_EQ(stored[i] != stored[i], row == 1 && i == column);
                EXPECT_EQ(passed[i], 1);
            }
        }
        EXPECT_EQ(probe.of[0].nans, column < 4);
        EXPECT_EQ(probe.of[0].first_column, column < 4 ? column : -1);
    }
}

}  // namespace
}  // namespace wobble
