// What a model must be able to learn.

#include <gtest/gtest.h>

#include <cmath>

#include "run/trainer.h"

namespace wobble::test {

namespace {

// Under the sanitizers a step takes a hundred times as long: the same paths in fewer steps, and less to be
// learnt.
#ifdef __SANITIZE_ADDRESS__
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

TEST(Training, OverfitsOneBatchToALossBelowOneHundredth) {
    const ModelConfig config{.vocab = 31, .context = 16, .layers = 2, .heads = 2, .channels = 32};
    const int64_t batch = 4;
    Context context(2);
    Gpt<float> model(config, batch, true);
    Optimizer<float> optimizer(model.table(), {.weight_decay = 0});
    initialise(model.table(), 1, model.weights());
    // Tokens without any rule: they can only be remembered. A sequence starts with its own token, since what
    // follows the first token could not be known otherwise.
    std::vector<int32_t> tokens, targets;
    uint32_t state = 12345;
    const auto next = [&] { return int32_t((state = state * 1664525u + 1013904223u) >> 16) % 31; };
    for (int64_t b = 0; b < batch; ++b) {
        std::vector<int32_t> sequence{int32_t(b)};
        for (int64_t t = 0; t < config.context; ++t) sequence.push_back(next());
        tokens.insert(tokens.end(), sequence.begin(), sequence.end() - 1);
        targets.insert(targets.end(), sequence.begin() + 1, sequence.end());
    }
    const double rows = double(targets.size());
    double loss = 0;
    for (int64_t step = 1; step <= (sanitized ? 30 : 300); ++step) {
        model.forward(context, tokens.data(), targets.data(), batch, config.context, 1 / rows);
        loss = model.loss() / rows;
        model.backward(context);
        optimizer.step(context, model.weights(), model.gradients(), 3e-3, step, OnNonfinite::Stop);
    }
    EXPECT_LT(loss, sanitized ? std::log(31) : 0.01);
}

TEST(Training, ComesWithinThreePercentOfTheEntropyRateOfAMarkovChain) {
    Options options;
    options.data = "synthetic:markov?order=1&vocab=24&seed=5";
    options.model.layers = 2, options.model.heads = 2, options.model.channels = 48,
    options.model.context = 32, options.batch = 16;
    options.steps = sanitized ? 10 : 600, options.warmup = 30, options.lr = 4e-3,
    options.eval_sequences = sanitized ? 20 : 400;
    Trainer trainer(options);
    for (int64_t i = 0; i < options.steps; ++i) trainer.step();
    const double loss = trainer.evaluate().at(0).loss, floor = trainer.data().loss_floor().value();
    EXPECT_LT(loss, sanitized ? std::log(24) : 1.03 * floor);
    // Below the entropy rate there is only luck: 12,800 tokens leave a standard error of about 1 %.
    EXPECT_GT(loss, 0.97 * floor);
}

TEST(Training, AccumulatedMicroBatchesGiveTheStepOfOneBatch) {
    Options one, parts;
    one.data = parts.data = "synthetic:markov?order=1&vocab=24&seed=5";
    one.holdout = parts.holdout = 0;
    one.model.layers = parts.model.layers = 1, one.model.channels = parts.model.channels = 32,
    one.model.context = parts.model.context = 16;
    one.batch = 8, parts.batch = 2, parts.accum = 4;
    Trainer whole(one), micro(parts);
    const StepRow a = whole.step(), b = micro.step();
    EXPECT_NEAR(a.loss, b.loss, 1e-6 * a.loss);
    EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5 * a.grad_norm);
    EXPECT_EQ(a.tokens, b.tokens);
}

}  // namespace

}  // namespace wobble::test
