// Probes see every value of every part, in order, whatever the pieces it comes in.
#include "probes/watch.h"

#include <gtest/gtest.h>

#include <random>

#include "test/exact_moments.h"

namespace wobble {
namespace {

template <class A>
struct Seen {
    std::vector<A> values;
    std::pair<int64_t, int64_t> first = {-1, -1};  // row and column of the first that is not finite

    void add(int64_t row, int64_t column, A value) {
        if (!std::isfinite(value) && first.first < 0) first = {row, column};
        values.push_back(value);
    }
};

/// Shows rows of `columns` values in channel 0 to a probe as kernels do, packs, then single values, and after
/// each row one value in channel 1, so that the blocks of the two fill at different times.
template <class A, class Probe>
void show(Probe& probe, int64_t rows, int64_t first_row, int64_t columns, std::vector<A> specials,
          Seen<A> (&seen)[2]) {
    std::mt19937_64 generator{uint64_t(first_row)};
    std::normal_distribution<double> distribution(3, 1);
    size_t special = 0;
    for (int64_t row = first_row; row < first_row + rows; ++row) {
        const auto next = [&](int64_t column) {
            // One in each row, from column 15 + row on.
            const bool is_special = column == 15 + row && special < specials.size();
            return is_special ? specials[special++] : A(distribution(generator));
        };
        int64_t column = 0;
        for (; column + 16 <= columns; column += 16) {
            const auto pack = generate<A, 16>([&](int i) { return next(column + i); });
            probe.observe(0, row, At<16>{column}, pack);
            for (int i = 0; i < 16; ++i) seen[0].add(row, column + i, pack[i]);
        }
        for (; column < columns; ++column) {
            const A value = next(column);
            probe.observe(0, row, At<1>{column}, splat<1>(value));
            seen[0].add(row, column, value);
        }
        probe.observe(1, row, At<1>{7}, splat<1>(A(row)));
        seen[1].add(row, 7, A(row));
    }
}

template <class A>
class Probes : public testing::Test {};
using Elements = testing::Types<float, double>;
TYPED_TEST_SUITE(Probes, Elements);

template <class A>
void expect_statistics(const Statistics& found, const Seen<A>& seen, Tier tier) {
    expect_moments(found.moments, seen.values, Rounding::blocks<A>(seen.values.size()));
    EXPECT_EQ(std::pair(found.moments.first_row, found.moments.first_column), seen.first);
    ASSERT_EQ(found.histogram != nullptr, tier == Tier::Full);
    if (tier != Tier::Full) return;
    Histogram expected;
    for (const A value : seen.values) add_block(&value, 1, expected);
    EXPECT_EQ(found.histogram->by_exponent, expected.by_exponent);
    EXPECT_EQ(found.histogram->flushed, expected.flushed);
    EXPECT_EQ(found.histogram->overflowed, expected.overflowed);
}

TYPED_TEST(Probes, SeeEveryValueOfEveryPartInOrder) {
    using A = TypeParam;
    const A nan = A(NAN), inf = A(INFINITY), tiny = std::numeric_limits<A>::denorm_min();
    for (Tier tier : {Tier::Moments, Tier::Full}) {
        for (int64_t columns : {1, 16, 37, 500, 1024, 1030}) {
            for (const std::vector<A>& specials :
                 {std::vector<A>{}, {A(0), tiny}, {-inf}, {-A(0), nan, inf}, {tiny, inf, -inf, nan}}) {
                for (int64_t bad_part : {0, 2}) {
                    SCOPED_TRACE(testing::Message() << columns << " columns, part " << bad_part);
                    Watch<A, 2> watch(4, tier);
                    Seen<A> seen[2];
                    constexpr int64_t rows[] = {5, 0, 3, 4};
                    for (int64_t part = 0, row = 0; part < 4; row += rows[part++]) {
                        auto probe = watch.probe(part);
                        const bool special = part == bad_part || part == 3;
                        show(probe, rows[part], row, columns, special ? specials : std::vector<A>(), seen);
                    }
                    expect_statistics(watch.total(0), seen[0], tier);
                    expect_statistics(watch.total(1), seen[1], tier);
                }
            }
        }
    }
}

TYPED_TEST(Probes, MayFinishInAnyOrder) {
    using A = TypeParam;
    Watch<A, 2> forwards(3, Tier::Full), backwards(3, Tier::Full);
    const auto fill = [](auto& watch, int64_t part) {
        Seen<A> seen[2];
        auto probe = watch.probe(part);
        show(probe, 4, 4 * part, 37, {A(1), A(NAN)}, seen);
    };
    for (int64_t part : {0, 1, 2}) fill(forwards, part);
    for (int64_t part : {2, 1, 0}) fill(backwards, part);
    const Statistics a = forwards.total(0), b = backwards.total(0);
    EXPECT_EQ(a.moments.m4, b.moments.m4);
    EXPECT_EQ(a.moments.mean, b.moments.mean);
    EXPECT_EQ(a.moments.first_row, 1);
    EXPECT_EQ(b.moments.first_row, 1);
    EXPECT_EQ(a.histogram->by_exponent, b.histogram->by_exponent);
}

TYPED_TEST(Probes, OfALaneSeeTheSame) {
    using A = TypeParam;
    LaneProbe<2> probe;
    Seen<A> seen[2];
    show(probe, 6, 0, 37,
         {std::numeric_limits<A>::denorm_min(), std::numeric_limits<A>::min(), A(0), A(NAN), A(1e-40)}, seen);
    for (int channel : {0, 1}) {
        expect_moments(probe.of[channel], seen[channel].values,
                       Rounding::values(seen[channel].values.size()));
        EXPECT_EQ(std::pair(probe.of[channel].first_row, probe.of[channel].first_column),
                  seen[channel].first);
    }
}

}  // namespace
}  // namespace wobble
