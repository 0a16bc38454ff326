// What moved first: planted departures are found where they were planted, and nothing is found in noise,
// drift and seasons.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "report/first_mover.h"

namespace wobble::test {
namespace {

/// A positive series around 0.01 that varies by a few per cent.
std::vector<double> steady(size_t count, unsigned seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal;
    std::vector<double> values(count);
    for (double& x : values) x = 0.01 * std::exp(0.03 * normal(generator));
    return values;
}

Lead lead(const std::string& name, std::vector<double> values) {
    Lead l{name, "RMS", true, {}, std::move(values)};
    for (size_t i = 0; i < l.values.size(); ++i) l.steps.push_back(int64_t(10 * i + 1));
    return l;
}

TEST(FirstMover, FindsAJumpThatStays) {
    for (const double factor : {3.0, 0.2}) {
        std::vector<double> x = steady(60, 1);
        for (size_t i = 45; i < x.size(); ++i) x[i] *= factor;
        const auto found = departure(x, true);
        ASSERT_TRUE(found.has_value());
        EXPECT_EQ(found->index, 45u);
        EXPECT_EQ(found->score > 0, factor > 1);
        EXPECT_NEAR(found->baseline, 0.01, 0.001);
    }
}

TEST(FirstMover, FindsNothingInNoiseOrDrift) {
    for (unsigned seed = 0; seed < 2000; ++seed) {
        std::vector<double> x = steady(60, seed);
        EXPECT_FALSE(departure(x, true)) << seed;
        // As a rate that warms up, or a loss that falls: up to a factor of a hundred over the window.
        for (size_t i = 0; i < x.size(); ++i) x[i] *= std::exp((seed % 2 ? 0.08 : -0.08) * double(i));
        EXPECT_FALSE(departure(x, true)) << seed;
    }
}

TEST(FirstMover, FindsGrowthThatGathersPace) {
    std::vector<double> x = steady(60, 2);
    for (size_t i = 40; i < x.size(); ++i) x[i] *= std::exp(0.02 * double(i - 39) * double(i - 39));
    const auto found = departure(x, true);
    ASSERT_TRUE(found.has_value());
    EXPECT_GE(found->index, 41u);
    EXPECT_LE(found->index, 46u);
}

// It went and came back long before the event.
TEST(FirstMover, LeavesAnEarlierIncidentAlone) {
    std::vector<double> x = steady(60, 3);
    x[30] *= 50, x[31] *= 20;
    EXPECT_FALSE(departure(x, true));
    x.back() *= 50;
    ASSERT_TRUE(departure(x, true).has_value());
    EXPECT_EQ(departure(x, true)->index, 59u);
}

TEST(FirstMover, TakesWhatIsNoLongerFiniteForADeparture) {
    std::vector<double> x = steady(40, 4);
    x[38] = x[39] = NAN;
    const auto found = departure(x, true);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->index, 38u);
    EXPECT_TRUE(std::isinf(found->score));
}

TEST(FirstMover, AsksForAPast) {
    EXPECT_FALSE(departure({}, true));
    EXPECT_FALSE(departure({1, 1, 1, 1, 100}, true));
    EXPECT_TRUE(departure({1, 1.01, 0.99, 1, 1, 1, 100}, true).has_value());
    EXPECT_FALSE(departure(std::vector<double>(40, NAN), true));
    EXPECT_FALSE(departure(std::vector<double>(40, 0.0), true));
}

TEST(FirstMover, LooksAtSignedSeriesAsTheyAre) {
    std::vector<double> x(50);
    for (size_t i = 0; i < x.size(); ++i) x[i] = (i % 2 ? 1 : -1) * (0.5 + 0.01 * double(i % 7));
    EXPECT_FALSE(departure(x, false));
    x[48] = 40, x[49] = 90;
    ASSERT_TRUE(departure(x, false).has_value());
    EXPECT_EQ(departure(x, false)->index, 48u);
}

TEST(FirstMover, RanksByStepAndThenByHowFar) {
    std::vector<Lead> leads;
    for (unsigned i = 0; i < 100; ++i) leads.push_back(lead("quiet", steady(60, 100 + i)));
    const auto jump = [&](const std::string& name, size_t at, double factor, unsigned seed) {
        std::vector<double> x = steady(60, seed);
        for (size_t i = at; i < x.size(); ++i) x[i] *= factor;
        leads.push_back(lead(name, x));
    };
    jump("last", 58, 10, 1), jump("small", 50, 5, 2), jump("large", 50, 500, 3), jump("first", 47, 4, 4);
    const std::vector<Mover> movers = first_movers(leads);
    ASSERT_EQ(movers.size(), 4u);
    std::string order;
    for (const Mover& m : movers) order += leads[m.lead].name + " ";
    EXPECT_EQ(order, "first large small last ");
    EXPECT_EQ(movers[0].step, 471);
}

}  // namespace
}  // namespace wobble::test
