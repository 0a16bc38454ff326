// The gradient noise scale on gradients of known mean and covariance.
#include "probes/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace wobble {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Gradients mu + e in d dimensions, where e of one sequence is A z: Σ = A Aᵀ is neither diagonal nor equal
/// in all directions.
class Gradients {
  public:
    Gradients(size_t d, double mean, uint64_t seed) : d_(d), mu_(d), a_(d * d), generator_(seed) {
        for (size_t i = 0; i < d; ++i) {
            mu_[i] = mean * (i % 2 ? -1 : 2);
            for (size_t j = 0; j <= i; ++j) a_[i * d + j] = normal_(generator_) * (i == j ? 3 : 1);
        }
    }

    double trace() const {
        double sum = 0;
        for (const double a : a_) sum += a * a;
        return sum;
    }
    double squared_norm() const { return square(mu_); }
    double scale() const { return trace() / squared_norm(); }

    /// The estimate of one step whose micro-batches hold `sizes` sequences.
    NoiseEstimate step(const std::vector<double>& sizes) {
        std::vector<double> whole(d_), part(d_), z(d_);
        std::vector<GradientNorm> parts;
        double total = 0;
        for (const double size : sizes) {
            for (double& x : z) x = normal_(generator_);
            for (size_t i = 0; i < d_; ++i) {
                double noise = 0;
                for (size_t j = 0; j <= i; ++j) noise += a_[i * d_ + j] * z[j];
                part[i] = mu_[i] + noise / std::sqrt(size);
                whole[i] += size * part[i];
            }
            parts.push_back({size, square(part)});
            total += size;
        }
        for (double& x : whole) x /= total;
        return estimate_noise(parts, {total, square(whole)});
    }

  private:
    static double square(const std::vector<double>& v) {
        double sum = 0;
        for (const double x : v) sum += x * x;
        return sum;
    }

    size_t d_;
    std::vector<double> mu_, a_;
    std::mt19937_64 generator_;
    std::normal_distribution<double> normal_;
};

/// Means of the estimates of many steps, and the covariance of these means.
struct Summary {
    double trace = 0, squared_norm = 0;
    double trace_variance = 0, norm_variance = 0, covariance = 0;

    explicit Summary(const std::vector<NoiseEstimate>& steps) {
        const double n = double(steps.size());
        for (const NoiseEstimate& step : steps)
            trace += step.trace / n, squared_norm += step.squared_norm / n;
        for (const NoiseEstimate& step : steps) {
            const double t = step.trace - trace, s = step.squared_norm - squared_norm;
            trace_variance += t * t, norm_variance += s * s, covariance += t * s;
        }
        for (double* sum : {&trace_variance, &norm_variance, &covariance}) *sum /= n * (n - 1);
    }

    double ratio() const { return trace / squared_norm; }
    /// Of the ratio, from those of its parts (the delta method): d(t/s) = (dt - (t/s) ds) / s.
    double ratio_error() const {
        const double r = ratio();
        return std::sqrt(trace_variance - 2 * r * covariance + r * r * norm_variance) / squared_norm;
    }
};

struct Case {
    size_t d;
    double mean;
    std::vector<double> sizes;
};

std::vector<Case> cases() {
    const std::vector<double> ones(16, 1.0);
    return {{1, 1, {4, 4}},
            {6, 1, {2, 2, 2, 2}},
            {6, 0.5, {1, 8}},              // as unequal as can be
            {6, 1, {4, 4, 4, 1.25, 0.5}},  // padding
            {40, 0.3, {8, 7, 3, 8}},
            {6, 2, ones}};  // per-example norms
}

TEST(NoiseScale, EstimatesOfAStepAreUnbiasedWhateverTheSizesOfTheMicroBatches) {
    constexpr int kTrials = 4000;
    for (const Case& c : cases()) {
        Gradients gradients(c.d, c.mean, 17);
        std::vector<NoiseEstimate> steps;
        for (int i = 0; i < kTrials; ++i) steps.push_back(gradients.step(c.sizes));
        const Summary summary(steps);
        // Four standard errors: a right estimate is farther off once in 16,000.
        EXPECT_LT(std::abs(summary.trace - gradients.trace()), 4 * std::sqrt(summary.trace_variance))
            << c.d << " dimensions, " << c.sizes.size() << " parts";
        EXPECT_LT(std::abs(summary.squared_norm - gradients.squared_norm()),
                  4 * std::sqrt(summary.norm_variance))
            << c.d << " dimensions, " << c.sizes.size() << " parts";
        EXPECT_LT(std::abs(summary.ratio() - gradients.scale()), 4 * summary.ratio_error());
        // The intervals say something.
        EXPECT_LT(summary.ratio_error(), 0.1 * gradients.scale());
    }
}

TEST(NoiseScale, NinetyFivePercentIntervalsCoverTheTruthThatOften) {
    constexpr int kIntervals = 200, kSteps = 200;
    Gradients gradients(6, 1, 5);
    int covered = 0;
    for (int i = 0; i < kIntervals; ++i) {
        std::vector<NoiseEstimate> steps;
        for (int j = 0; j < kSteps; ++j) steps.push_back(gradients.step({4, 4, 4, 2}));
        const Summary summary(steps);
        covered += std::abs(summary.ratio() - gradients.scale()) < 1.96 * summary.ratio_error();
    }
    // Binomial(200, 0.95) has mean 190 and standard deviation 3.1; four of them.
    EXPECT_GE(covered, 178);
    EXPECT_LT(covered, 200) << "intervals that never miss are too wide";
}

TEST(NoiseScale, RunningRatioIsTheTruthWithinTheErrorOfItsWindow) {
    Gradients gradients(6, 1, 9);
    NoiseScale scale;
    std::vector<NoiseEstimate> steps;
    for (int i = 0; i < 2000; ++i) {
        steps.push_back(gradients.step({4, 4, 4, 4}));
        scale.add(steps.back());
    }
    constexpr double kWindow = (1 + NoiseScale::kDecay) / (1 - NoiseScale::kDecay);
    const double error = Summary(steps).ratio_error() * std::sqrt(double(steps.size()) / kWindow);
    EXPECT_LT(std::abs(scale.scale() - gradients.scale()), 4 * error);
}

TEST(NoiseScale, OfTwoPartsByHand) {
    // One dimension. Gradients 4 of 1 sequence and 0 of 3; of all four, 1. The parts count as two of size 2
    // with mean square (1·16 + 3·0) / 4 = 4. tr Σ = (4 - 1) / (1/2 - 1/4) = 12, which is also the spread
    // 1·(4 - 1)² + 3·(0 - 1)² over n - 1 = 1; |G|² = (4·1 - 2·4) / (4 - 2) = -2.
    const NoiseEstimate step = estimate_noise({{1, 16}, {3, 0}}, {4, 1});
    EXPECT_EQ(step.trace, 12);
    EXPECT_EQ(step.squared_norm, -2);
}

TEST(NoiseScale, WithoutNoiseHasTraceZero) {
    const NoiseEstimate step = estimate_noise({{2, 9}, {2, 9}, {2, 9}, {2, 9}}, {8, 9});
    EXPECT_EQ(step.trace, 0);
    EXPECT_EQ(step.squared_norm, 9);
}

TEST(NoiseScale, PartsThatAreAllPaddingChangeNothing) {
    const NoiseEstimate with = estimate_noise({{1, 16}, {0, 0}, {3, 0}}, {4, 1});
    EXPECT_EQ(with.trace, 12);
    EXPECT_EQ(with.squared_norm, -2);
}

TEST(NoiseScale, IsUnknownFromOneSizeAloneAndFromGradientsThatAreNotFinite) {
    EXPECT_FALSE(estimate_noise({{4, 1}}, {4, 1}).finite());
    EXPECT_FALSE(estimate_noise({}, {4, 1}).finite());
    EXPECT_FALSE(estimate_noise({{0, 0}}, {4, 1}).finite());
    EXPECT_FALSE(estimate_noise({{4, 1}, {4, 1}}, {2, 1}).finite());
    for (const double bad : {kNaN, kInfinity}) {
        const NoiseEstimate part = estimate_noise({{2, 1}, {2, bad}}, {4, 1});
        const NoiseEstimate whole = estimate_noise({{2, 1}, {2, 1}}, {4, bad});
        EXPECT_TRUE(std::isnan(part.trace) && std::isnan(part.squared_norm));
        EXPECT_TRUE(std::isnan(whole.trace) && std::isnan(whole.squared_norm));
    }
}

TEST(NoiseScale, MeansAreFreeOfTheirStartAndWeighRecentStepsMore) {
    NoiseScale scale(0.5);
    EXPECT_TRUE(std::isnan(scale.scale()));
    EXPECT_TRUE(std::isnan(scale.mean().trace));
    scale.add({12, 3});
    EXPECT_EQ(scale.scale(), 4);
    EXPECT_EQ(scale.mean().trace, 12);
    scale.add({24, 6});
    EXPECT_EQ(scale.mean().trace, 20) << "weights 1 to 2";
    EXPECT_EQ(scale.mean().squared_norm, 5);
    EXPECT_EQ(scale.scale(), 4);
}

TEST(NoiseScale, IsNaNWhereTheAveragedNormIsNotPositiveAndComesBack) {
    NoiseScale scale(0.5);
    scale.add({12, -2});
    EXPECT_TRUE(std::isnan(scale.scale()));
    EXPECT_EQ(scale.mean().squared_norm, -2);
    scale.add({12, 7});
    EXPECT_EQ(scale.scale(), 3);
}

TEST(NoiseScale, PassesOverStepsThatAreNotFinite) {
    NoiseScale scale;
    scale.add({12, 4});
    scale.add({kNaN, 4});
    scale.add({12, kInfinity});
    EXPECT_DOUBLE_EQ(scale.scale(), 3);
    EXPECT_DOUBLE_EQ(scale.mean().trace, 12);
}

}  // namespace
}  // namespace wobble
