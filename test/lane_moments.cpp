// What a CUDA thread makes of the values it sees, and several of them together about one centre, beside
// moments in extended precision.
#include "probes/lane_moments.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace wobble {
namespace {

/// As the lanes of a warp take their values: in turn, and then about the middle of what all have seen.
template <class A>
Moments by_lanes(const std::vector<A>& values, size_t lanes) {
    std::vector<LaneMoments<A>> of(lanes);
    for (size_t i = 0; i < values.size(); ++i) of[i % lanes].add(values[i]);
    Moments m;
    A min = INFINITY, max = -INFINITY;
    for (auto& lane : of) {
        lane.settle();
        m.count += lane.earlier, m.zeros += lane.zeros, m.subnormals += lane.subnormals;
        min = std::min(min, lane.min), max = std::max(max, lane.max);
    }
    m.min = double(min), m.max = double(max);
    const double centre = m.min / 2 + m.max / 2;
    double s[4] = {};
    for (auto& lane : of)
        for (int p = 0; p < 4; ++p) s[p] += lane.about(centre).sums[p];
    set_moments(m, double(m.count), centre, s);
    return m;
}

template <class A>
class LaneMomentsOf : public testing::Test {};
using Elements = testing::Types<float, double>;
TYPED_TEST_SUITE(LaneMomentsOf, Elements);

/// Sums of n values err by 4 √n units, relative to those of magnitudes (Higham & Mary 2019): of deviations
/// from a lane's first value. A lane's own are of at most 64 values; what float64 makes of them shows in
/// float64 alone.
template <class A>
void expect_moments(const std::vector<A>& values) {
    const bool single = sizeof(A) == sizeof(float);
    const double n = double(values.size());
    const double gamma = 4 * std::sqrt(single ? std::min(64.0, n) : n + 8) * (single ? 0x1p-24 : 0x1p-53);
    long double mean = 0, powers[3] = {};
    for (int pass = 0; pass < 2; ++pass) {
        long double rest = 0;
        for (A x : values) rest += (long double)(x)-mean;
        mean += rest / (long double)(n);
    }
    for (A x : values) {
        const long double d = (long double)(x)-mean;
        powers[0] += d * d, powers[1] += d * d * d, powers[2] += d * d * d * d;
    }
    for (size_t lanes : {size_t(1), size_t(3), size_t(32)}) {
        SCOPED_TRACE(lanes);
        long double off = 0, sizes[3] = {};
        for (size_t i = 0; i < std::min(lanes, values.size()); ++i)
            off = std::max(off, std::fabs((long double)(values[i]) - mean));
        for (A x : values) {
            const long double d = std::fabs((long double)(x)-mean) + off;
            sizes[0] += d * d, sizes[1] += d * d * d, sizes[2] += d * d * d * d;
        }
        const Moments m = by_lanes(values, lanes);
        EXPECT_EQ(m.count, int64_t(values.size()));
        EXPECT_NEAR(
            m.mean, double(mean),
            gamma * double(std::sqrt(sizes[0] / (long double)(n))) + 0x1p-52 * std::fabs(double(mean)));
        EXPECT_NEAR(m.m2, double(powers[0]), gamma * double(sizes[0]));
        EXPECT_NEAR(m.m3, double(powers[1]), gamma * double(sizes[1]));
        EXPECT_NEAR(m.m4, double(powers[2]), gamma * double(sizes[2]));
    }
}

template <class A>
std::vector<A> normal(size_t n, double mean, double deviation) {
    std::mt19937_64 generator(n);
    std::normal_distribution<double> draw(mean, deviation);
    std::vector<A> values;
    for (size_t i = 0; i < n; ++i) values.push_back(A(draw(generator)));
    return values;
}

TYPED_TEST(LaneMomentsOf, CommonValuesAreRight) {
    for (size_t n : {1, 2, 31, 500, 5000}) expect_moments(normal<TypeParam>(n, 0, 1));
}

TYPED_TEST(LaneMomentsOf, AMeanFarFromZeroDoesNotCancel) {
    for (double mean : {-1000.0, 1000.0, 30000.0}) expect_moments(normal<TypeParam>(3000, mean, 1));
}

TYPED_TEST(LaneMomentsOf, NeitherLargeNorSmallValuesAreLost) {
    for (double size : {1e-44, 1e-38, 1e-30, 1e30, 5e37}) expect_moments(normal<TypeParam>(3000, 0, size));
}

TYPED_TEST(LaneMomentsOf, TheUnitFollowsAsValuesGrow) {
    std::vector<TypeParam> values;
    for (int i = 0; i < 120; ++i) values.push_back(TypeParam(std::ldexp(i % 3 == 0 ? -1.25 : 1.0, i - 60)));
    expect_moments(values);
}

TYPED_TEST(LaneMomentsOf, EqualValuesHaveNoSpread) {
    for (double x : {0.0, 3.7, -1e-40, 3e38}) {
        const Moments m = by_lanes(std::vector<TypeParam>(2500, TypeParam(x)), 32);
        EXPECT_EQ(m.mean, double(TypeParam(x)));
        EXPECT_EQ(m.m2, 0);
        EXPECT_EQ(m.zeros, x == 0 ? 2500 : 0);
    }
}

TEST(LaneMoments, ExtremesOfFloat32KeepTheirFourthPowers) {
    const float most = std::numeric_limits<float>::max();
    expect_moments(std::vector<float>{most, -most, most, -most, 0, most, most});
    EXPECT_EQ(by_lanes(std::vector<float>{1e-40f, 0, 1}, 2).subnormals, 1);
}

}  // namespace
}  // namespace wobble
