// Curvature of losses whose Hessian is known.
#include "probes/curvature.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace wobble {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kN = 50;

using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

Vector random_vector(std::mt19937_64& generator, size_t n = kN) {
    std::normal_distribution<double> normal;
    Vector v(n);
    for (double& x : v) x = normal(generator);
    return v;
}

/// L(w) = gᵀw + wᵀHw / 2 about w = 0, with H = S Q Λ Qᵀ S for a random rotation Q and a diagonal S: P⁻¹H for
/// P = S² has the eigenvalues Λ.
struct Quadratic {
    size_t n;
    Vector H, g;

    Quadratic(Vector eigenvalues, uint64_t seed, const Vector& S = {}) : n(eigenvalues.size()), H(n * n) {
        std::mt19937_64 generator(seed);
        for (size_t i = 0; i < n; ++i) H[i * n + i] = eigenvalues[i];
        // n reflections I - 2 v vᵀ / vᵀv, from both sides.
        for (size_t r = 0; r < n; ++r) {
            const Vector v = random_vector(generator, n);
            const double scale = 2 / dot(v, v);
            for (int side = 0; side < 2; ++side) {
                for (size_t i = 0; i < n; ++i) {
                    double sum = 0;
                    for (size_t j = 0; j < n; ++j) sum += at(side, i, j) * v[j];
                    for (size_t j = 0; j < n; ++j) at(side, i, j) -= scale * sum * v[j];
                }
            }
        }
        for (size_t i = 0; i < n && !S.empty(); ++i) {
            for (size_t j = 0; j < n; ++j) H[i * n + j] *= S[i] * S[j];
        }
        g = random_vector(generator, n);
    }

    double& at(int side, size_t i, size_t j) { return side ? H[j * n + i] : H[i * n + j]; }

    Vector times(const Vector& v) const {
        Vector out(n);
        for (size_t i = 0; i < n; ++i) {
            for (size_t j = 0; j < n; ++j) out[i] += H[i * n + j] * v[j];
        }
        return out;
    }
    Vector gradient(const Vector& w) const {
        Vector out = times(w);
        for (size_t i = 0; i < n; ++i) out[i] += g[i];
        return out;
    }
    double loss(const Vector& w) const { return dot(g, w) + dot(w, times(w)) / 2; }

    /// Of L about `w`, for largest_eigenvalue.
    auto gradient_along(const Vector& w) const {
        return [this, w](std::span<const double> direction, double step, std::span<double> out) {
            Vector moved = w;
            for (size_t i = 0; i < n; ++i) moved[i] += step * direction[i];
            std::ranges::copy(gradient(moved), out.begin());
        };
    }
    auto loss_along(const Vector& u) const {
        return [this, u](double alpha) {
            Vector w = u;
            for (double& x : w) x *= alpha;
            return loss(w);
        };
    }
};

Vector scaled(double factor, Vector v) {
    for (double& x : v) x *= factor;
    return v;
}

/// Eigenvalues spread evenly over [low, high] at random.
Vector spectrum(double low, double high, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::uniform_real_distribution<double> uniform(low, high);
    Vector values(kN);
    for (double& x : values) x = uniform(generator);
    return values;
}

double largest(const Vector& values) {
    return *std::ranges::max_element(values, {}, [](double x) { return std::abs(x); });
}

// Enough iterations for the smallest gap in some random spectra of 50; a residual of at most 1e-3 of the
// value.
const EigenvalueOptions<double> kPatient = {.max_iterations = 3000, .tolerance = 1e-6, .weight_norm = 7};

TEST(LargestEigenvalue, OfRandomQuadraticsIsOffByLessThanAThousandth) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
        const Vector values = spectrum(-8, 10, seed);
        const Quadratic loss(values, seed);
        std::mt19937_64 generator(seed);
        const auto found =
            largest_eigenvalue<double>(loss.gradient_along(random_vector(generator)), kN, kPatient);
        const double expected = largest(values);
        EXPECT_TRUE(found.converged) << seed;
        EXPECT_LT(std::abs(found.value - expected), 1e-3 * std::abs(expected)) << seed;
    }
}

TEST(LargestEigenvalue, HasAnEigenvalueWithinItsResidualAndAVectorOfNormOne) {
    for (int iterations : {1, 3, 10, 100}) {
        const Vector values = spectrum(0.1, 10, 4);
        const Quadratic loss(values, 4);
        const auto found =
            largest_eigenvalue<double>(loss.gradient_along(Vector(kN)), kN, {.max_iterations = iterations});
        double nearest = kInfinity;
        for (const double value : values) nearest = std::min(nearest, std::abs(value - found.value));
        EXPECT_LE(nearest, found.residual * (1 + 1e-6)) << iterations;
        EXPECT_NEAR(dot(found.vector, found.vector), 1, 1e-14);
        Vector rest = loss.times(found.vector);
        for (size_t i = 0; i < kN; ++i) rest[i] -= found.value * found.vector[i];
        EXPECT_NEAR(std::sqrt(dot(rest, rest)), found.residual, 1e-6 * found.residual);
    }
}

TEST(LargestEigenvalue, IsTheEdgeOfStabilityOfGradientDescent) {
    const Quadratic loss(spectrum(0.5, 10, 1), 1);
    const auto found = largest_eigenvalue<double>(loss.gradient_along(Vector(kN)), kN, kPatient);
    const auto after = [&](double lr) {
        Vector w(kN);
        for (int step = 0; step < 500; ++step) {
            const Vector g = loss.gradient(w);
            for (size_t i = 0; i < kN; ++i) w[i] -= lr * g[i];
        }
        const Vector g = loss.gradient(w);
        return std::sqrt(dot(g, g) / dot(loss.g, loss.g));
    };
    // The steepest component of the gradient changes by 1 - η λ a step: 1.02^500 = 20,000 and 0.98^500 =
    // 4e-5 times a start of at least a hundredth of the whole.
    EXPECT_GT(after(1.01 * 2 / found.value), 200);
    EXPECT_LT(after(0.99 * 2 / found.value), 1e-4);
}

TEST(LargestEigenvalue, IsNegativeWhereTheLossFallsMostSteeplyToBothSides) {
    const Quadratic loss({1, -3, 2, 0.5}, 2);
    const auto found = largest_eigenvalue<double>(loss.gradient_along(Vector(4)), 4);
    EXPECT_TRUE(found.converged);
    EXPECT_NEAR(found.value, -3, 3e-3);
}

TEST(LargestEigenvalue, BetweenEqualAndOppositeEigenvaluesDoesNotPassForConverged) {
    const Quadratic loss({2, -2, 1}, 3);
    const auto found = largest_eigenvalue<double>(loss.gradient_along(Vector(3)), 3, {.max_iterations = 500});
    EXPECT_EQ(found.iterations, 500);
    EXPECT_FALSE(found.converged);
    EXPECT_GT(found.residual, 0.1);
}

TEST(LargestEigenvalue, OfAConstantAndOfALinearLossIsZero) {
    const auto zero = [](std::span<const double>, double, std::span<double> out) {
        std::ranges::fill(out, 0.0);
    };
    const auto constant = [](std::span<const double>, double, std::span<double> out) {
        std::ranges::fill(out, 3.0);
    };
    for (const auto& found : {largest_eigenvalue<double>(zero, 5), largest_eigenvalue<double>(constant, 5)}) {
        EXPECT_EQ(found.value, 0);
        EXPECT_TRUE(found.converged);
        EXPECT_EQ(found.iterations, 1);
    }
}

TEST(LargestEigenvalue, OfGradientsThatAreNotFiniteIsNaN) {
    const auto broken = [](std::span<const double>, double, std::span<double> out) {
        std::ranges::fill(out, 1.0);
        out[3] = kInfinity;
    };
    const auto found = largest_eigenvalue<double>(broken, 5);
    EXPECT_TRUE(std::isnan(found.value));
    EXPECT_FALSE(found.converged);
}

TEST(LargestEigenvalue, OfOneWeightIsItsSecondDerivative) {
    const Quadratic loss({7}, 1);
    const auto found = largest_eigenvalue<double>(loss.gradient_along({0.5}), 1);
    EXPECT_NEAR(found.value, 7, 1e-6);
    EXPECT_EQ(found.iterations, 2);
}

TEST(LargestEigenvalue, IsTheSameAgainAndFasterFromTheLastVector) {
    const Quadratic loss(spectrum(0.1, 10, 6), 6);
    const auto gradient = loss.gradient_along(Vector(kN));
    const auto first = largest_eigenvalue<double>(gradient, kN, kPatient);
    const auto again = largest_eigenvalue<double>(gradient, kN, kPatient);
    EXPECT_EQ(first.value, again.value);
    EXPECT_EQ(first.vector, again.vector);

    EigenvalueOptions<double> options = kPatient;
    options.seed = 1;
    const auto other = largest_eigenvalue<double>(gradient, kN, options);
    EXPECT_NE(first.vector, other.vector);
    EXPECT_NEAR(first.value, other.value, 2e-3 * first.value);

    options.start = first.vector;
    const auto warm = largest_eigenvalue<double>(gradient, kN, options);
    EXPECT_TRUE(warm.converged);
    EXPECT_LT(warm.iterations, first.iterations / 4);
    const Vector nothing(kN);
    options.seed = 0, options.start = nothing;
    EXPECT_EQ(largest_eigenvalue<double>(gradient, kN, options).value, first.value) << "no direction at all";
}

TEST(LargestEigenvalue, OfALossWithHigherDerivativesIsOffByTheTruncationOfTheStep) {
    // L = Σ a cosh w: H is diagonal, a cosh w. For the largest,
    // v = e_i and the difference is a cosh(w) sinh(h) / h = H (1 + h²/6 + ...), with h at most
    // √2 ε^(1/3) RMS(w) = 8.6e-6 for a RMS of 1.
    const Vector w = {1, -1, 1, 0.5, -1.2}, a = {1, 2, 3, 4, 10};
    const double norm = std::sqrt(dot(w, w));
    const auto gradient = [&](std::span<const double> direction, double step, std::span<double> out) {
        for (size_t i = 0; i < w.size(); ++i) out[i] = a[i] * std::sinh(w[i] + step * direction[i]);
    };
    const auto found = largest_eigenvalue<double>(gradient, 5, {.tolerance = 1e-12, .weight_norm = norm});
    const double expected = 10 * std::cosh(1.2);
    EXPECT_TRUE(found.converged);
    // Rounding: 2^-53 of gradients of about |sinh| <= |cosh|, over h >= ε^(1/3) RMS(w) / √2 = 4.2e-6; and w +
    // h v is off by as much: 1.2 · 2^-53.
    EXPECT_NEAR(found.value, expected, expected * (8.6e-6 * 8.6e-6 / 6 + 2.2 * 0x1p-53 / 4.2e-6));
}

TEST(LargestEigenvalue, InFloat32IsOffByTheRoundingOfWeightsAndGradients) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
        const Vector values = spectrum(-8, 10, seed);
        const Quadratic loss(values, seed);
        std::mt19937_64 generator(seed);
        const Vector exact = random_vector(generator);
        const std::vector<float> w(exact.begin(), exact.end());
        double norm = 0, size = 0;
        const auto gradient = [&](std::span<const float> direction, double step, std::span<float> out) {
            Vector moved(kN);
            for (size_t i = 0; i < kN; ++i) moved[i] = double(float(w[i] + float(step) * direction[i]));
            const Vector g = loss.gradient(moved);
            std::ranges::transform(g, out.begin(), [](double x) { return float(x); });
            norm = std::sqrt(dot(moved, moved)), size = std::sqrt(dot(g, g));
        };
        const auto found = largest_eigenvalue<float>(
            gradient, kN,
            {.max_iterations = 3000, .tolerance = 1e-6, .weight_norm = std::sqrt(dot(exact, exact))});
        const double expected = std::abs(largest(values));
        // Each of two gradients is rounded, by 2^-24 of its norm at most, and so are their weights, by 2^-24
        // |w|, which H makes λ times as large; all of it is divided by 2 h, h >= ε^(1/3) RMS(w) / √2. The
        // value stops short of the largest by less than residual.
        const double h = std::cbrt(0x1p-23) * norm / std::sqrt(double(kN)) / std::sqrt(2.0);
        const double rounding = 2 * 0x1p-24 * (size + expected * norm) / (2 * h);
        EXPECT_TRUE(found.converged) << seed;
        EXPECT_LT(rounding, 1e-3 * expected) << "a bound that says something";
        EXPECT_LT(std::abs(std::abs(found.value) - expected), rounding + found.residual) << seed;
        EXPECT_EQ(found.value < 0, largest(values) < 0);
    }
}

TEST(LargestPreconditionedEigenvalue, IsThatOfTheHessianSeenThroughThePreconditioner) {
    std::mt19937_64 generator(8);
    std::uniform_real_distribution<double> exponent(-4, 0);
    Vector P(kN), S(kN);
    for (size_t i = 0; i < kN; ++i) P[i] = std::pow(10, exponent(generator)), S[i] = std::sqrt(P[i]);
    const Vector values = spectrum(0.1, 10, 8);
    const Quadratic loss(values, 8, S);
    const auto diagonal = [&](int64_t i) { return P[size_t(i)]; };
    const auto found =
        largest_preconditioned_eigenvalue<double>(loss.gradient_along(Vector(kN)), kN, diagonal, kPatient);
    EXPECT_TRUE(found.converged);
    EXPECT_LT(std::abs(found.value - largest(values)), 1e-3 * largest(values));

    // Momentum with a constant preconditioner, as Adam has it, goes apart on one side of the edge alone.
    for (const double beta1 : {0.0, 0.5, 0.9}) {
        const auto after = [&](double lr) {
            Vector w(kN), m(kN);
            for (int step = 0; step < 500; ++step) {
                const Vector g = loss.gradient(w);
                for (size_t i = 0; i < kN; ++i) {
                    m[i] = beta1 * m[i] + (1 - beta1) * g[i];
                    w[i] -= lr * m[i] / P[i];
                }
            }
            const Vector g = loss.gradient(w);
            return std::sqrt(dot(g, g) / dot(loss.g, loss.g));
        };
        const double edge = adaptive_edge_of_stability(beta1, 1) / found.value;
        EXPECT_GT(after(1.01 * edge), 200) << beta1;
        EXPECT_LT(after(0.99 * edge), 1) << beta1;
    }
}

TEST(AdaptiveEdgeOfStability, IsTwoOverTheRateWithoutMomentumAnd38OverItAtNineTenths) {
    EXPECT_EQ(adaptive_edge_of_stability(0, 0.5), 4);
    EXPECT_NEAR(adaptive_edge_of_stability(0.9, 0.5), 76, 76 * 1e-15);
}

constexpr CriticalOptions kExact = {.accuracy = 1e-9, .max_evaluations = 100};

TEST(CriticalSharpness, OfGradientDescentIsTheCurvatureAlongTheGradient) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
        const Quadratic loss(spectrum(0.1, 10, seed), seed);
        const double lr = 0.1;
        const auto found = critical_sharpness(loss.loss_along(scaled(-lr, loss.g)), lr, kExact);
        const double expected = dot(loss.g, loss.times(loss.g)) / dot(loss.g, loss.g);
        EXPECT_EQ(found.outcome, CriticalSharpness::Found);
        EXPECT_NEAR(found.sharpness, expected, 1e-9 * expected) << seed;
        EXPECT_NEAR(found.lr * found.sharpness, 2, 1e-12);
        EXPECT_NEAR(found.alpha * lr, found.lr, 1e-12);
    }
}

TEST(CriticalSharpness, OfAnyDescendingUpdateIsItsCurvatureOverItsDescent) {
    std::mt19937_64 generator(3);
    const Quadratic loss(spectrum(0.1, 10, 3), 3);
    const double lr = 1e-3;
    for (int i = 0; i < 5; ++i) {
        // Momentum and a preconditioner: anything that goes downhill.
        Vector u = random_vector(generator);
        for (size_t k = 0; k < kN; ++k) u[k] = lr * (u[k] / 4 - loss.g[k] * double(k % 7 + 1));
        const double descent = -dot(loss.g, u), curvature = dot(u, loss.times(u));
        ASSERT_GT(descent, 0);
        const auto found = critical_sharpness(loss.loss_along(u), lr, kExact);
        EXPECT_EQ(found.outcome, CriticalSharpness::Found);
        EXPECT_NEAR(found.sharpness, curvature / (descent * lr), 1e-9 * found.sharpness);
        EXPECT_NEAR(found.alpha, 2 * descent / curvature, 1e-9 * found.alpha);
    }
}

TEST(CriticalSharpness, TellsWhetherTheStepRaisesTheLoss) {
    const Quadratic loss(spectrum(0.1, 10, 9), 9);
    const auto along = [&](double lr) { return loss.loss_along(scaled(-lr, loss.g)); };
    EXPECT_LT(along(0.1)(1), along(0.1)(0));
    EXPECT_LT(critical_sharpness(along(0.1), 0.1).sharpness, 2 / 0.1);
    EXPECT_GT(along(1)(1), along(1)(0));
    EXPECT_GT(critical_sharpness(along(1), 1).sharpness, 2 / 1.0);
}

TEST(CriticalSharpness, TakesEightLossesFromNearbyAndFourteenFromAfar) {
    for (double crossing = 0.01; crossing < 500; crossing *= 1.37) {
        for (const double off : {0.5, 0.9, 1.0, 1.1, 2.0, 1 / crossing}) {
            const double start = off * crossing;
            for (const double bend : {0.0, 0.5, -0.5}) {
                // Crosses its old value at `crossing` alone; a parabola, or steeper or flatter beyond.
                const auto loss = [&](double alpha) {
                    const double x = alpha / crossing;
                    return 4 + x * (x - 1) * (bend >= 0 ? 1 + bend * x : 1 / (1 - bend * x));
                };
                const auto found = critical_sharpness(loss, 0.1, {.start = start});
                EXPECT_EQ(found.outcome, CriticalSharpness::Found);
                EXPECT_LE(found.lower, crossing * (1 + 1e-14));
                EXPECT_GE(found.upper, crossing * (1 - 1e-14));
                EXPECT_LE(found.upper - found.lower, found.upper / 64);
                EXPECT_NEAR(found.alpha, crossing, crossing / 64);
                EXPECT_LE(found.evaluations, off == 1 / crossing ? 14 : 8)
                    << crossing << " from " << start << ", bend " << bend;
            }
        }
    }
}

TEST(CriticalSharpness, OfLossesFarFromQuadraticIsFoundToTheAccuracyToo) {
    // Each crosses its old value at 3.
    const std::function<double(double)> losses[] = {
        [](double x) { return x < 3 ? 2 - 0.1 * x : kInfinity; },
        [](double x) { return x < 3 ? -x : std::nan(""); },
        [](double x) { return std::exp(4 * (x - 3)) - std::exp(-12.0) - x / 3 * (1 - std::exp(-12.0)); },
        [](double x) { return x * (std::pow(x / 3, 12) - 1); },
        [](double x) { return x == 0 ? 0 : std::cbrt(x - 3); }};
    for (const auto& loss : losses) {
        const auto found = critical_sharpness(loss, 1);
        EXPECT_EQ(found.outcome, CriticalSharpness::Found);
        EXPECT_NEAR(found.alpha, 3, 3.0 / 64);
        EXPECT_LE(found.evaluations, 16);
    }
}

TEST(CriticalSharpness, OfALossThatOnlyFallsSaysHowFarItLooked) {
    const Quadratic saddle({-3, -1, -2}, 5);
    const auto found = critical_sharpness(saddle.loss_along(scaled(-0.1, saddle.g)), 0.1);
    EXPECT_EQ(found.outcome, CriticalSharpness::NoCrossing);
    EXPECT_TRUE(std::isnan(found.sharpness) && std::isnan(found.alpha) && std::isnan(found.lr));
    EXPECT_EQ(found.lower, 1024);
    EXPECT_EQ(found.upper, kInfinity);
    EXPECT_LE(found.evaluations, 12);
}

TEST(CriticalSharpness, OfAMixedSaddleFollowsTheCurvatureOfTheUpdate) {
    const Quadratic saddle({4, -1, 2, -3}, 11);
    int found_count = 0, none_count = 0;
    std::mt19937_64 generator(1);
    for (int i = 0; i < 20; ++i) {
        Vector u = random_vector(generator, 4);
        if (dot(saddle.g, u) > 0) u = scaled(-1, u);
        const double curvature = dot(u, saddle.times(u)), crossing = -2 * dot(saddle.g, u) / curvature;
        const auto found = critical_sharpness(saddle.loss_along(u), 1, kExact);
        if (crossing > 0 && crossing < 500) {
            EXPECT_EQ(found.outcome, CriticalSharpness::Found);
            EXPECT_NEAR(found.sharpness, 2 / crossing, 1e-8 / crossing);
            ++found_count;
        } else if (curvature < 0) {
            EXPECT_EQ(found.outcome, CriticalSharpness::NoCrossing);
            ++none_count;
        }
    }
    EXPECT_GT(found_count, 2);
    EXPECT_GT(none_count, 2);
}

TEST(CriticalSharpness, OfAnUphillUpdateIsSaidToRiseAtOnce) {
    const Quadratic loss({1, 2, 3}, 7);
    const auto found = critical_sharpness(loss.loss_along(scaled(0.1, loss.g)), 0.1);
    EXPECT_EQ(found.outcome, CriticalSharpness::RisesAtOnce);
    EXPECT_TRUE(std::isnan(found.sharpness));
    EXPECT_EQ(found.lower, 0);
    EXPECT_EQ(found.upper, 1.0 / 1024);
    EXPECT_LE(found.evaluations, 12);
}

TEST(CriticalSharpness, WithAZeroGradientIsUnboundedAndWithoutAnUpdateNothingCrosses) {
    // At a minimum, moved by momentum alone.
    Quadratic bowl({1, 2, 3}, 7);
    bowl.g = Vector(3);
    EXPECT_EQ(critical_sharpness(bowl.loss_along({0.1, 0, 0}), 0.1).outcome, CriticalSharpness::RisesAtOnce);
    EXPECT_EQ(critical_sharpness(bowl.loss_along({0, 0, 0}), 0.1).outcome, CriticalSharpness::NoCrossing);
}

TEST(CriticalSharpness, OfANonFiniteLossIsNotSearched) {
    const auto found = critical_sharpness([](double) { return std::nan(""); }, 1);
    EXPECT_EQ(found.outcome, CriticalSharpness::NotFinite);
    EXPECT_EQ(found.evaluations, 1);
    EXPECT_EQ(critical_sharpness([](double) { return 1.0; }, 1, {.start_loss = kInfinity}).outcome,
              CriticalSharpness::NotFinite);
}

TEST(CriticalSharpness, UsesTheOldLossItIsGiven) {
    const auto loss = [](double x) {
        EXPECT_GT(x, 0);
        return 5 + x * (x - 3);
    };
    const auto found = critical_sharpness(loss, 1, {.start_loss = 5});
    EXPECT_EQ(found.outcome, CriticalSharpness::Found);
    EXPECT_NEAR(found.alpha, 3, 3.0 / 64);
}

TEST(CriticalSharpness, OutOfEvaluationsSaysWhereTheCrossingLies) {
    const auto loss = [](double x) { return x * (x - 3); };
    const auto found = critical_sharpness(loss, 1, {.accuracy = 1e-6, .max_evaluations = 4});
    EXPECT_EQ(found.outcome, CriticalSharpness::Inexact);
    EXPECT_EQ(found.evaluations, 4);
    EXPECT_LE(found.lower, 3);
    EXPECT_GE(found.upper, 3);
    EXPECT_GT(found.sharpness, 0);
}

TEST(CriticalSharpness, IsNotMisledByRoundingItIsToldOf) {
    // An update so small that at first it changes the loss by less than the loss's own error, 5e-7 at most.
    // The loss crosses its old value at 100 with a slope of 4e-6; the error there and the rise let
    // pass, 1.5e-6 together, are 0.4 of α.
    const auto loss = [](double x) { return 4 + 4e-6 * x * (x / 100 - 1) + 5e-7 * std::sin(1000 * x); };
    const auto found = critical_sharpness(loss, 1, {.start = 0.001, .noise = 1e-6});
    EXPECT_EQ(found.outcome, CriticalSharpness::Found);
    EXPECT_NEAR(found.alpha, 100, 100.0 / 64 + 0.4);
    EXPECT_NE(critical_sharpness(loss, 1, {.start = 0.001}).outcome, CriticalSharpness::Found)
        << "a case in which it makes no difference";
}

}  // namespace
}  // namespace wobble
