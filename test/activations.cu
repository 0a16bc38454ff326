// Activations one value at a time: how far from the formula, and what lies far out.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/activation.h"

namespace wobble {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Not inlined, so that they are compiled once.
template <class Act, class A>
__attribute__((noinline)) Pack<A, 16> value_of(Pack<A, 16> x) {
    return Act::value(x);
}
template <class Act, class A>
__attribute__((noinline)) Pack<A, 16> gradient_of(Pack<A, 16> x) {
    return Act::gradient(x);
}

double gelu(double x) {
    return x * std::erfc(-x / std::numbers::sqrt2) / 2;
}
double gelu_slope(double x) {
    return std::erfc(-x / std::numbers::sqrt2) / 2 +
           x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
}
double silu(double x) {
    return x / (1 + std::exp(-x));
}
double silu_slope(double x) {
    return 1 / (1 + std::exp(-x)) * (1 + x / (1 + std::exp(x)));
}

/// The largest relative error over [low, high] in units of one rounding, or error relative to 1.
template <class F, class Exact>
double worst(F f, Exact exact, double low, double high, bool relative) {
    constexpr int steps = 1 << 16;
    double most = 0;
    for (int step = 0; step < steps; step += 16) {
        Pack<float, 16> x;
        for (int i = 0; i < 16; ++i) x.set(i, float(low + (high - low) * (step + i) / steps));
        const auto y = f(x);
        for (int i = 0; i < 16; ++i) {
            const double right = exact(double(x[i])), error = std::abs(double(y[i]) - right) * 0x1p24;
            if (std::abs(right) < 1e-36) continue;  // subnormal numbers have fewer digits
            most = std::max(most, relative ? error / std::abs(right) : error);
        }
    }
    return most;
}

TEST(Activations, GeluAndSiluKeepTheirDigitsInTheTail) {
    EXPECT_LE(worst(value_of<GeluExact, float>, gelu, -12.5, 12.5, true), 10);
    EXPECT_LE(worst(gradient_of<GeluExact, float>, gelu_slope, -12.5, -2, true), 10);
    EXPECT_LE(worst(gradient_of<GeluExact, float>, gelu_slope, -12.5, 12.5, false), 4);
    EXPECT_LE(worst(value_of<Silu, float>, silu, -85, 85, true), 8);
    EXPECT_LE(worst(gradient_of<Silu, float>, silu_slope, -85, 85, false), 4);
}

template <class A>
void expect_limits() {
    const A nan = std::numeric_limits<A>::quiet_NaN(), most = std::numeric_limits<A>::max();
    for (Activation activation : {Activation::Gelu, Activation::GeluExact, Activation::Relu,
                                  Activation::ReluSquared, Activation::Silu}) {
        SCOPED_TRACE(int(activation));
        with_activation(activation, [&](auto act) {
            using Act = decltype(act);
            const bool squared = std::is_same_v<Act, ReluSquared>;
            const auto value = [](A x) { return value_of<Act>(splat<16>(x))[5]; };
            const auto slope = [](A x) { return gradient_of<Act>(splat<16>(x))[5]; };
            EXPECT_EQ(value(A(infinity)), infinity);
            EXPECT_EQ(value(A(-infinity)), 0);
            EXPECT_EQ(value(-most), 0);
            EXPECT_EQ(value(most), squared ? A(infinity) : most);
            EXPECT_EQ(value(A(0)), 0);
            EXPECT_EQ(slope(A(infinity)), squared ? infinity : 1);
            EXPECT_LE(std::abs(slope(A(-infinity))), A(1e-35));
            EXPECT_LE(std::abs(slope(-most)), A(1e-35));
            EXPECT_TRUE(std::isnan(value(nan)));
            EXPECT_TRUE(std::isnan(slope(nan)));
        });
    }
}

TEST(Activations, HaveTheirLimitsAndKeepNan) {
    expect_limits<float>();
    expect_limits<double>();
}

TEST(Activations, OfTheirNamesAreWhatTheyAreCalled) {
    const auto at = [](Activation activation, double x) {
        return with_activation(activation, [&](auto act) { return act.value(splat<1>(x))[0]; });
    };
    EXPECT_NEAR(at(Activation::Gelu, 1), 0.841192, 1e-6);
    EXPECT_NEAR(at(Activation::GeluExact, 1), 0.841345, 1e-6);
    EXPECT_EQ(at(Activation::Relu, 3), 3);
    EXPECT_EQ(at(Activation::ReluSquared, 3), 9);
    EXPECT_NEAR(at(Activation::Silu, 1), 0.731059, 1e-6);
}

}  // namespace
}  // namespace wobble
