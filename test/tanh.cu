// The hyperbolic tangent of packs against that of the standard library in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/tanh.h"

namespace wobble::test {
namespace {

TEST(HyperbolicTangent, IsWithinAFewUnitsOverTheWholeRange) {
    double worst = 0;
    for (double x = 1e-38; x < 1e3; x *= 1.0003) {
        for (double sign : {1.0, -1.0}) {
            const float in = float(sign * x), found = hyperbolic_tangent(in);
            const double exact = std::tanh(double(in));
            worst = std::max(worst, std::abs(double(found) - exact) / std::abs(exact));
            EXPECT_LE(std::abs(found), 1);
        }
    }
    EXPECT_LE(worst, 4 * 0x1p-24);
    EXPECT_EQ(hyperbolic_tangent(0.7), std::tanh(0.7));
}

TEST(HyperbolicTangent, KnowsZerosInfinitiesAndNan) {
    EXPECT_EQ(hyperbolic_tangent(0.0f), 0);
    EXPECT_TRUE(std::signbit(hyperbolic_tangent(-0.0f)));
    EXPECT_EQ(hyperbolic_tangent(float(INFINITY)), 1);
    EXPECT_EQ(hyperbolic_tangent(-float(INFINITY)), -1);
    EXPECT_TRUE(std::isnan(hyperbolic_tangent(std::numeric_limits<float>::quiet_NaN())));
    EXPECT_EQ(hyperbolic_tangent(1e-42f), 1e-42f);
    EXPECT_EQ(hyperbolic_tangent(1e30f), 1);
}

TEST(HyperbolicTangent, IsTheSameInAPackAndAlone) {
    Pack<float, 16> x;
    for (int i = 0; i < 16; ++i) x.set(i, float(i - 8) * 0.13f);
    const auto y = hyperbolic_tangent(x);
    for (int i = 0; i < 16; ++i) EXPECT_EQ(y[i], hyperbolic_tangent(x[i]));
}

}  // namespace
}  // namespace wobble::test
