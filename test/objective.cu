// What is minimised besides the loss, and capped logits: the classifier's gradient is that of its objective
// in the logits before the cap, a model's objective is what the formula makes of its logits while its loss
// stays the cross-entropy, and the landscape around the weights is the objective's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/classifier.h"
#include "model/gpt.h"
#include "probes/launch.h"
#include "run/landscape.h"

namespace wobble::test {
namespace {

struct Result {
    std::vector<double> losses, objectives, gradient;
};

Result classify(std::vector<double> logits, double softcap) {
    const std::vector<int32_t> targets{3, -1, 0};
    const int64_t rows = 3, V = int64_t(logits.size()) / rows;
    Context context(1);
    if (softcap > 0)
        launch(context, rows, LogitSoftcap<double>{.logits = logits.data(), .V = V, .cap = softcap},
               {"test"});
    const std::vector<double> none(size_t(rows), 0.0);
    Result result{none, none, {}};
    launch(context, rows,
           SoftmaxCrossEntropy<double>{.logits = logits.data(),
                                       .targets = targets.data(),
                                       .losses = result.losses.data(),
                                       .dlogits = logits.data(),
                                       .V = V,
                                       .scale = 1,
                                       .z_loss = 0.02,
                                       .label_smoothing = 0.1,
                                       .softcap = softcap,
                                       .objectives = result.objectives.data()},
           {"test"});
    result.gradient = logits;
    return result;
}

TEST(Objective, HasTheGradientInLogitsBeforeTheCap) {
    std::vector<double> raw(3 * 19);
    for (size_t i = 0; i < raw.size(); ++i) raw[i] = 4 * std::sin(double(3 * i + 1));
    for (double softcap : {0.0, 3.0, 30.0}) {
        const Result here = classify(raw, softcap);
        EXPECT_EQ(here.objectives[1], 0) << "no target, no objective";
        for (size_t i = 0; i < raw.size(); ++i) {
            constexpr double h = 0x1p-12;
            const auto at = [&](double step) {
                std::vector<double> moved = raw;
                moved[i] += step;
                const auto objectives = classify(moved, softcap).objectives;
                return objectives[0] + objectives[1] + objectives[2];
            };
            const double slope = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
            EXPECT_NEAR(here.gradient[i], slope, 1e-10) << softcap << ", element " << i;
        }
    }
}

const std::vector<int32_t> tokens = {3, 0, 6, 1, 3}, targets = {0, 6, -1, 3, 2};
constexpr int64_t length = 5, counted = 4;
const ModelConfig plain{.vocab = 7, .context = 5, .layers = 1, .heads = 2, .channels = 8, .init_std = 0.5};

ModelConfig with_terms() {
    ModelConfig config = plain;
    config.logit_softcap = 2, config.z_loss = 0.3, config.label_smoothing = 0.2;
    return config;
}

TEST(Objective, OfAModelIsMadeOfItsLogitsAndItsLossStays) {
    const ModelConfig config = with_terms();
    Gpt<double> model(config, 1, true);
    initialise(model.table(), 1, model.weights());
    Context context(1);
    double loss = 0, objective = 0;
    for (int64_t t = 0; t < length; ++t) {
        const double* z = model.append(context, tokens[size_t(t)], t);
        double sum = 0, mean = 0;
        for (int64_t v = 0; v < config.vocab; ++v) {
            EXPECT_LT(std::abs(z[v]), config.logit_softcap);
            sum += std::exp(z[v]), mean += z[v] / double(config.vocab);
        }
        if (targets[size_t(t)] < 0) continue;
        const double log_z = std::log(sum), own = log_z - z[targets[size_t(t)]];
        loss += own;
        objective += 0.8 * own + 0.2 * (log_z - mean) + 0.3 * log_z * log_z;
    }
    model.forward(context, tokens.data(), targets.data(), 1, length, 0);
    EXPECT_NEAR(model.loss(), loss, 1e-12);
    EXPECT_NEAR(model.objective(), objective, 1e-12);
    EXPECT_GT(objective, loss + 0.1);
}

TEST(Objective, IsTheLossByDefault) {
    Gpt<float> model(plain, 1, true);
    initialise(model.table(), 1, model.weights());
    Context context(1);
    model.forward(context, tokens.data(), targets.data(), 1, length, 0);
    EXPECT_GT(model.loss(), 0);
    EXPECT_EQ(model.objective(), model.loss());
}

TEST(Objective, IsWhatTheLandscapeIsMadeOf) {
    Gpt<float> model(with_terms(), 1, true);
    initialise(model.table(), 1, model.weights());
    Context context(2);
    const Batch batch{.inputs = tokens, .targets = targets, .provenance = {}, .valid_targets = counted};
    Landscape landscape(context, model, 1);
    model.forward(context, tokens.data(), targets.data(), 1, length, 1.0 / counted);
    model.backward(context);
    const int64_t n = model.table().buffer_size;
    const std::vector<float> at(model.weights(), model.weights() + n);
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += double(model.gradients()[i]) * double(model.gradients()[i]);
    const double norm = std::sqrt(squares), h = 0x1p-6;
    const auto along_gradient = [&](double step, auto f) {
        for (int64_t i = 0; i < n; ++i)
            model.weights()[i] = float(double(at[size_t(i)]) + step * double(model.gradients()[i]) / norm);
        return f();
    };
    const auto slope = [&](auto f) { return (along_gradient(h, f) - along_gradient(-h, f)) / (2 * h); };
    EXPECT_NEAR(slope([&] { return landscape.objective(batch); }), norm, 2e-3 * norm);
    const double of_loss = slope([&] {
        model.forward(context, tokens.data(), targets.data(), 1, length, 0);
        return model.loss() / double(counted);
    });
    EXPECT_GT(std::abs(of_loss - norm), 0.02 * norm) << "the two are told apart";
}

}  // namespace
}  // namespace wobble::test
