// Probes pass on what a kernel tells them, and change no value but the one they are told to.
#include <gtest/gtest.h>

#include "probes/watch.h"
#include "test/exact_moments.h"
#include "test/example_kernel.h"

namespace wobble {
namespace {

template <class A>
class WatchedTallies : public testing::Test {};
using Elements = testing::Types<float, double>;
TYPED_TEST_SUITE(WatchedTallies, Elements);

// --------------------------------------------------------------------------------------------------- faults

TYPED_TEST(WatchedTallies, PutAFaultInItsPlaceAndNowhereElse) {
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
    /// At most 60 values of a tile go through one lane in A, the rest is float64; a product that is not fused
    /// is rounded.
    template <class A>
    void expect(const PairTally& found) const {
        const long double epsilon =
            (64 + 16 + 1) * double(std::numeric_limits<A>::epsilon()) / 2 + double(n) * 0x1p-53;
        EXPECT_LE(std::abs(found.dot - dot), epsilon * sizes);
        EXPECT_LE(std::abs(found.squares - squares), epsilon * squares);
        EXPECT_LE(std::abs(found.beside_squares - beside_squares), epsilon * beside_squares);
    }
};

/// Shows a probe a tile of values and its neighbours, both inside wider matrices.
template <class A, class Probe>
void show_pair(Probe& probe, int64_t columns, int64_t rows, double scale, ExactPair& exact) {
    std::mt19937_64 generator(uint64_t(columns * 1000 + rows));
    std::normal_distribution<double> distribution(0.3, 1);
    const int64_t stride = columns + 3, beside_stride = columns + 5;
    std::vector<A> branch(size_t(rows * stride), A(NAN)), beside(size_t(rows * beside_stride), A(NAN));
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
            A& value = branch[size_t(r * stride + c)];
            A& neighbour = beside[size_t(r * beside_stride + c)];
            value = A(scale * distribution(generator)), neighbour = A(scale * distribution(generator));
            exact.add(double(value), double(neighbour));
        }
    }
    probe.pair(branch.data(), stride, beside.data(), beside_stride, columns, rows);
}

TYPED_TEST(WatchedTallies, AddUpPairsOfTilesOfEveryShapeAndSize) {
    using A = TypeParam;
    const Look look = at_tier(Tier::Moments);
    // Squares of the last ones do not fit float32: they overflow, or vanish.
    for (double scale : {1.0, 1e-5, 1e15, 1e30, 1e-30, 1e-42, 0.0}) {
        Watch<Example<A>> watch(2, look);
        ExactPair exact;
        for (int part : {0, 1}) {
            auto probe = watch.probe(part);
            for (int64_t columns : {1, 15, 16, 32, 37})
                for (int64_t rows : {1, 2, 12}) show_pair<A>(probe, columns + part, rows, scale, exact);
        }
        const auto seen = watch.total();
        EXPECT_TRUE(seen.pair.any);
        exact.template expect<A>(seen.pair);
        EXPECT_EQ(seen.pair.squares > 0, scale > 0);
    }
}

TYPED_TEST(WatchedTallies, PassSumsResidualsAndQueriesOn) {
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

}  // namespace
}  // namespace wobble
