// Statistics are right for every split, large means, non-finite values and no values at all.
#include "probes/moments.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace wobble {
namespace {

Moments of(const std::vector<double>& values, size_t begin = 0, size_t end = SIZE_MAX) {
    Moments moments;
    for (size_t i = begin; i < std::min(end, values.size()); ++i) moments.add(values[i]);
    return moments;
}

std::vector<double> normal(int n, double mean, double deviation) {
    std::mt19937_64 generator(7);
    std::normal_distribution<double> distribution(mean, deviation);
    std::vector<double> values;
    for (int i = 0; i < n; ++i) values.push_back(double(float(distribution(generator))));
    return values;
}

struct Exact {
    double mean, variance;
};
/// In two passes and extended precision.
Exact exact(const std::vector<double>& values) {
    long double sum = 0, squares = 0;
    for (double x : values) sum += x;
    const long double mean = sum / (long double)(values.size());
    for (double x : values) squares += (x - mean) * (x - mean);
    return {double(mean), double(squares / (long double)(values.size()))};
}

TEST(Moments, OfAFewNumbersAreWhatTheyAre) {
    const Moments m = of({3, -1, 4, 2});
    EXPECT_EQ(m.count, 4);
    EXPECT_EQ(m.nonfinite, 0);
    EXPECT_EQ(m.mean(), 2);
    EXPECT_EQ(m.variance(), 3.5);
    EXPECT_EQ(m.rms(), std::sqrt(7.5));
    EXPECT_EQ(m.min, -1);
    EXPECT_EQ(m.max, 4);
}

// Sums of n terms in float64 err by n units of their size, here a spread of at most a few.
TEST(Moments, DoNotCancelUnderALargeMean) {
    for (double mean : {0.0, 1000.0, -1e6}) {
        const auto values = normal(20000, mean, 1);
        const Moments m = of(values);
        const Exact expected = exact(values);
        EXPECT_NEAR(m.mean(), expected.mean, 20000 * 0x1p-53 * 8 + std::abs(mean) * 0x1p-52) << mean;
        EXPECT_NEAR(m.variance() / expected.variance, 1, 20000 * 0x1p-53 * 8) << mean;
    }
}

TEST(Moments, MergedFromAnySplitAreThoseOfTheWhole) {
    const auto values = normal(300, 1000, 1);
    const Moments whole = of(values);
    for (size_t first : {size_t(0), size_t(1), size_t(150), size_t(299), size_t(300)}) {
        for (size_t second : {first, (first + 300) / 2, size_t(300)}) {
            Moments merged = of(values, 0, first);
            merged.merge(of(values, first, second));
            merged.merge(of(values, second));
            EXPECT_EQ(merged.count, whole.count);
            EXPECT_EQ(merged.min, whole.min);
            EXPECT_EQ(merged.max, whole.max);
            EXPECT_NEAR(merged.mean(), whole.mean(), 300 * 0x1p-53 * 8);
            EXPECT_NEAR(merged.variance(), whole.variance(), 300 * 0x1p-53 * 64);
        }
    }
}

TEST(Moments, MergedFromTwoConstantPartsKnowTheirDistance) {
    Moments zeros = of({0, 0});
    zeros.merge(of({2, 2}));
    EXPECT_EQ(zeros.count, 4);
    EXPECT_EQ(zeros.mean(), 1);
    EXPECT_EQ(zeros.variance(), 1);
    EXPECT_EQ(zeros.min, 0);
    EXPECT_EQ(zeros.max, 2);
}

TEST(Moments, CountNonFiniteValuesApart) {
    const double inf = INFINITY, nan = NAN;
    const Moments m = of({nan, 5, inf, 7, -inf, nan});
    EXPECT_EQ(m.count, 2);
    EXPECT_EQ(m.nonfinite, 4);
    EXPECT_EQ(m.mean(), 6);
    EXPECT_EQ(m.variance(), 1);
    EXPECT_EQ(m.min, 5);
    EXPECT_EQ(m.max, 7);

    Moments merged = of({nan});
    merged.merge(of({inf, 5}));
    merged.merge(of({7, -inf, nan}));
    EXPECT_EQ(merged.count, 2);
    EXPECT_EQ(merged.nonfinite, 4);
    EXPECT_EQ(merged.mean(), 6);
}

TEST(Moments, OfNothingHaveNoMeanAndChangeNothing) {
    Moments empty;
    EXPECT_EQ(empty.count, 0);
    EXPECT_TRUE(std::isnan(empty.mean()));
    EXPECT_TRUE(std::isnan(empty.rms()));
    Moments some = of({1, 2});
    some.merge(empty);
    EXPECT_EQ(some.mean(), 1.5);
    empty.merge(some);
    EXPECT_EQ(empty.count, 2);
    EXPECT_EQ(empty.mean(), 1.5);
}

TEST(Moments, OfAConstantHaveNoSpread) {
    const Moments m = of(std::vector<double>(1000, 0.1));
    EXPECT_EQ(m.variance(), 0);
    EXPECT_EQ(m.mean(), 0.1);
    EXPECT_EQ(m.min, m.max);
}

TEST(Moments, SurviveTheLargestFloat) {
    const double largest = double(std::numeric_limits<float>::max());
    const Moments m = of({largest, -largest, largest, -largest});
    EXPECT_EQ(m.nonfinite, 0);
    EXPECT_EQ(m.mean(), 0);
    EXPECT_NEAR(m.rms() / largest, 1, 8 * 0x1p-53);
}

TEST(Moments, OfAProbeAreKeptByChannel) {
    MomentsProbe<2> probe, later;
    probe.observe(0, 0, At<2>{0}, generate<float, 2>([](int i) { return float(i); }));
    later.observe(1, 1, At<1>{0}, splat<1>(8.0f));
    probe.merge(later);
    EXPECT_EQ(probe.of[0].count, 2);
    EXPECT_EQ(probe.of[0].mean(), 0.5);
    EXPECT_EQ(probe.of[1].count, 1);
    EXPECT_EQ(probe.of[1].mean(), 8);
}

}  // namespace
}  // namespace wobble
