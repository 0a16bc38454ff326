// Adam on one weight: the loss x²/2 has curvature 1 everywhere, yet training wobbles. While the gradient
// vanishes, v̂ forgets that it was ever larger, and the step that Adam takes per unit of gradient grows past
// what the curvature bears, 1 / sqrt(v̂) = (2 + 2 β1) / (η (1 - β1)) (Cohen et al. 2022). Then x grows again,
// for hundreds of steps, until the gradient is far above sqrt(v̂), which RMS_t shows, and v̂ has caught up.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/adamw.h"
#include "optim/record.h"
#include "probes/launch.h"

namespace wobble::test {
namespace {

constexpr double lr = 0.15, beta1 = 0, beta2 = 0.99, epsilon = 1e-8;
constexpr double threshold = (2 + 2 * beta1) / (lr * (1 - beta1));  // 13.33

/// What a step began with, and what the optimizer's own sums say of it.
struct Step {
    double loss, inverse_root, rms_t;
};

/// Steps 1 to `count` from x = 1; index 0 is unused.
std::vector<Step> minimise(int64_t count) {
    double x = 1, m = 0, v = 0, update_squares = 0, weight_squares = 0;
    std::vector<Step> steps(1);
    Recorder recorder{ProbePlan("moments")};
    Context context(1);
    context.recorder = &recorder;
    const Site site{"x", -1, Phase::Update};
    for (int64_t t = 1; t <= count; ++t) {
        const double gradient = x, loss = x * x / 2, bias2 = 1 / (1 - std::pow(beta2, double(t)));
        launch(context, 1,
               AdamW<double>{.weight = &x,
                             .gradient = &gradient,
                             .m = &m,
                             .v = &v,
                             .update_squares = &update_squares,
                             .weight_squares = &weight_squares,
                             .n = 1,
                             .clip = 1,
                             .lr = lr,
                             .decay = 0,
                             .beta1 = beta1,
                             .beta2 = beta2,
                             .epsilon = epsilon,
                             .one_minus_beta1 = 1 - beta1,
                             .one_minus_beta2 = 1 - beta2,
                             .bias1 = 1,
                             .bias2 = bias2},
               site);
        const TensorRow row = tensor_row("x", 1, recorder.sums(site), 1, 1, update_squares, weight_squares,
                                         std::abs(gradient), false);
        steps.push_back({loss, 1 / std::sqrt(v * bias2), row.rms_t});
        recorder.clear();
    }
    return steps;
}

TEST(AdamInstability, CrossesTheThresholdThenPeaksWhereItComesBackBelow) {
    const std::vector<Step> steps = minimise(760);
    std::vector<int64_t> above, below, peaks;
    for (size_t t = 2; t < steps.size(); ++t) {
        if ((steps[t].inverse_root > threshold) == (steps[t - 1].inverse_root > threshold)) continue;
        (steps[t].inverse_root > threshold ? above : below).push_back(int64_t(t));
    }
    // Largest losses between one crossing and the next.
    for (size_t i = 0; i < below.size(); ++i) {
        const int64_t end = i + 1 < above.size() ? above[i + 1] : int64_t(steps.size());
        int64_t peak = above[i];
        for (int64_t t = above[i]; t < end; ++t)
            if (steps[size_t(t)].loss > steps[size_t(peak)].loss) peak = t;
        peaks.push_back(peak);
    }
    ASSERT_GE(above.size(), 3u);
    EXPECT_EQ(std::vector(above.begin(), above.begin() + 3), (std::vector<int64_t>{191, 500, 643}));
    EXPECT_EQ(below, (std::vector<int64_t>{422, 591, 700}));
    EXPECT_EQ(peaks, below) << "each peak is where the step becomes small enough again";

    // To the digits that are given.
    EXPECT_NEAR(std::log10(steps[191].loss), -196, 0.5);
    const double losses[] = {0.41, 0.12, 0.057}, rms_t[] = {9.0, 6.0, 4.4};
    const double loss_digits[] = {0.005, 0.005, 0.0005};
    for (size_t i = 0; i < 3; ++i) {
        const Step& peak = steps[size_t(peaks[i])];
        EXPECT_NEAR(peak.loss, losses[i], loss_digits[i]) << "step " << peaks[i];
        EXPECT_NEAR(peak.rms_t, rms_t[i], 0.05) << "step " << peaks[i];
        for (int64_t t = peaks[i] - 20; t <= peaks[i] + 20; ++t)
            EXPECT_LE(steps[size_t(t)].rms_t, peak.rms_t) << "step " << t;
    }
}

// β1 = 0 and v̂ alone: RMS_t is |g| / sqrt(v̂), and 2.3 is passed some steps before each peak.
TEST(AdamInstability, RmsTRunsAheadOfThePeaks) {
    const std::vector<Step> steps = minimise(760);
    for (int64_t peak : {422, 591, 700}) {
        int64_t first = peak;
        while (steps[size_t(first - 1)].rms_t > 2.3) --first;
        EXPECT_GE(peak - first, 1) << peak;
        EXPECT_LE(peak - first, 8) << peak;
    }
    for (size_t t = 2; t < steps.size(); ++t)
        ASSERT_NEAR(steps[t].rms_t, std::sqrt(2 * steps[t].loss) * steps[t].inverse_root,
                    1e-14 * steps[t].rms_t + 1e-300)
            << t;
}

}  // namespace
}  // namespace wobble::test
