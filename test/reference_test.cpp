// Whether the references can be trusted: every backward against finite differences of its forward, and every
// forward against values that follow from its definition by hand.
#include "test/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <random>

namespace wobble::reference {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

Values normal_values(int64_t n, uint64_t seed, double deviation = 1) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal(0, deviation);
    Values result(static_cast<size_t>(n));
    for (double& x : result) x = normal(generator);
    return result;
}

double dot(const Values& a, const Values& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
    return sum;
}

// Compares `gradient` with differences of `loss`, a function of x, at every element of x.
//
// The five-point formula errs by h⁴ f⁽⁵⁾ / 30, at h = 1e-3 some 3e-14 of the fifth derivative, and by about ε
// |f| / h = 2e-13 |f| from rounding. For functions of order one a thousand times the larger leaves 1e-9,
// which is relative to the largest gradient of the tensor; a lost term or a swapped index is of order one.
void expect_gradient(const Values& gradient, Values& x, const std::function<double()>& loss) {
    constexpr double h = 1e-3, tolerance = 1e-9;
    ASSERT_EQ(gradient.size(), x.size());
    double largest = 0;
    for (double g : gradient) largest = std::max(largest, std::abs(g));
    ASSERT_GT(largest, 0) << "a gradient of zeros would show nothing";
    for (size_t i = 0; i < x.size(); i++) {
        const double at = x[i];
        const auto shifted = [&](double by) {
            x[i] = at + by;
            return loss();
        };
        const double difference =
            (8 * (shifted(h) - shifted(-h)) - (shifted(2 * h) - shifted(-2 * h))) / (12 * h);
        x[i] = at;
        ASSERT_NEAR(gradient[i], difference, tolerance * std::max(1.0, largest)) << "element " << i;
    }
}

// ------------------------------------------------------------------------------------------------- embedding
TEST(Reference, EmbeddingAddsTokenAndPositionRows) {
    EXPECT_EQ(embedding_forward({1, 0, 1, 1}, {1, 2, 10, 20}, {100, 200, 300, 400}, 2, 2, 2),
              (Values{110, 220, 301, 402, 110, 220, 310, 420}));
}

TEST(Reference, EmbeddingBackwardAgreesWithFiniteDifferences) {
    const int64_t B = 2, T = 3, C = 4, V = 5;
    const Tokens tokens{4, 0, 4, 4, 2, 1};
    Values wte = normal_values(V * C, 1), wpe = normal_values(T * C, 2);
    const Values dout = normal_values(B * T * C, 3);
    const auto loss = [&] { return dot(dout, embedding_forward(tokens, wte, wpe, B, T, C)); };
    const EmbeddingGradients gradients = embedding_backward(tokens, dout, B, T, C, V);
    expect_gradient(gradients.dwte, wte, loss);
    expect_gradient(gradients.dwpe, wpe, loss);
}

// ------------------------------------------------------------------------------------------------ layer norm
TEST(Reference, LayerNormOfASmallRowIsWhatItsDefinitionGives) {
    const LayerNorm result = layer_norm_forward({1, 3}, {2, 2}, {5, 7}, 1, 2, 0);
    EXPECT_EQ(result.mean, Values{2});
    EXPECT_EQ(result.rstd, Values{1});
    EXPECT_EQ(result.y, (Values{3, 9}));
}

TEST(Reference, LayerNormKeepsItsSpreadFarFromZero) {
    const LayerNorm near = layer_norm_forward({1, 2, 3, 4}, {}, {}, 1, 4, 1e-5);
    const LayerNorm far = layer_norm_forward({1 + 1e9, 2 + 1e9, 3 + 1e9, 4 + 1e9}, {}, {}, 1, 4, 1e-5);
    EXPECT_EQ(near.y, far.y);  // the shift is exact in double
}

TEST(Reference, LayerNormOfOneChannelIsItsBias) {
    EXPECT_EQ(layer_norm_forward({7, -3}, {4}, {0.5}, 2, 1, 1e-5).y, (Values{0.5, 0.5}));
}

TEST(Reference, LayerNormBackwardAgreesWithFiniteDifferences) {
    const int64_t rows = 3, C = 7;
    const double epsilon = 1e-5;
    Values x = normal_values(rows * C, 1), weight = normal_values(C, 2), bias = normal_values(C, 3);
    const Values dout = normal_values(rows * C, 4);
    const auto loss = [&] { return dot(dout, layer_norm_forward(x, weight, bias, rows, C, epsilon).y); };
    const LayerNormGradients gradients = layer_norm_backward(dout, x, weight, rows, C, epsilon);
    expect_gradient(gradients.dx, x, loss);
    expect_gradient(gradients.dweight, weight, loss);
    expect_gradient(gradients.dbias, bias, loss);
}

TEST(Reference, LayerNormWithoutAffineIsThatOfOnesAndZeros) {
    const int64_t rows = 2, C = 5;
    const Values x = normal_values(rows * C, 1), dout = normal_values(rows * C, 2), ones(C, 1.0),
                 none(C, 0.0);
    EXPECT_EQ(layer_norm_forward(x, {}, {}, rows, C, 0.1).y,
              layer_norm_forward(x, ones, none, rows, C, 0.1).y);
    EXPECT_EQ(layer_norm_backward(dout, x, {}, rows, C, 0.1).dx,
              layer_norm_backward(dout, x, ones, rows, C, 0.1).dx);
}

// ------------------------------------------------------------------------------------------- matrix products
TEST(Reference, ProductAgreesForEveryCombinationOfTransposes) {
    const Values A{1, 2, 3, 4, 5, 6}, A_transposed{1, 4, 2, 5, 3, 6};  // [2,3]
    const Values B{1, 0, 2, 1, 3, 1, 1, 2, 0, 5, 1, 4};                // [3,4]
    const Values B_transposed{1, 3, 0, 0, 1, 5, 2, 1, 1, 1, 2, 4};
    for (bool a : {false, true})
        for (bool b : {false, true})
            EXPECT_EQ(product({.M = 2, .N = 4, .K = 3, .transpose_a = a, .transpose_b = b},
                              a ? A_transposed : A, b ? B_transposed : B)
                          .output,
                      (Values{7, 17, 7, 17, 19, 35, 19, 38}))
                << a << b;
}

TEST(Reference, ProductAppliesBiasThenActivationThenResidual) {
    const ProductShape shape{.M = 1, .N = 2, .K = 1, .activation = Activation::Gelu};
    const Product result = product(shape, {2}, {3, 4}, {10, 20}, {100, -1028}, {0.5, 0.25});
    EXPECT_EQ(result.preactivation, (Values{116, -1000}));
    EXPECT_EQ(result.output, (Values{116.5, 0.25}));
}

TEST(Reference, LinearBackwardAgreesWithFiniteDifferences) {
    const int64_t rows = 3, in = 4, out = 5;
    Values x = normal_values(rows * in, 1), weight = normal_values(in * out, 2), bias = normal_values(out, 3);
    const Values dout = normal_values(rows * out, 4);
    const auto loss = [&] {
        return dot(dout, product({.M = rows, .N = out, .K = in}, x, weight, {}, bias).output);
    };
    const LinearGradients gradients = linear_backward(dout, x, weight, rows, in, out);
    expect_gradient(gradients.dx, x, loss);
    expect_gradient(gradients.dweight, weight, loss);
    expect_gradient(gradients.dbias, bias, loss);
}

// ------------------------------------------------------------------------------------------------------ GELU
TEST(Reference, GeluIsHalfOfXTimesOnePlusTanh) {
    for (double x : {-3.0, -1.0, -1e-8, 0.0, 1e-8, 0.5, 2.0, 10.0}) {
        const double tanh_form =
            x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
        // 1 + tanh loses up to ε absolutely, times x/2
        EXPECT_NEAR(gelu(x), tanh_form, 1e-15 * std::abs(x)) << x;
    }
    EXPECT_NEAR(gelu(1) + gelu(-1), gelu(1) * 2 - 1, 1e-15);  // gelu(x) - gelu(-x) = x
}

TEST(Reference, GeluOfExtremeInputsIsFiniteOrItsLimit) {
    for (double x : {88.0, 1e4, 1e200, infinity}) {
        EXPECT_EQ(gelu(x), x);
        EXPECT_EQ(gelu(-x), 0);
        EXPECT_EQ(gelu_derivative(x), 1);
        EXPECT_EQ(gelu_derivative(-x), 0);
    }
    EXPECT_TRUE(std::isnan(gelu(nan)));
    EXPECT_TRUE(std::isnan(gelu_derivative(nan)));
}

TEST(Reference, GeluDerivativeAgreesWithFiniteDifferences) {
    Values x{-10, -5, -2, -0.7, -1e-8, 0, 1e-8, 0.3, 1, 2, 5, 10};
    Values gradient;
    for (double value : x) gradient.push_back(gelu_derivative(value));
    expect_gradient(gradient, x, [&] {
        double sum = 0;
        for (double value : x) sum += gelu(value);
        return sum;
    });
}

// ------------------------------------------------------------------------------------------ causal attention
TEST(Reference, AttentionOfEqualScoresAveragesTheVisibleValues) {
    // q = 0, so all scores are 0: token t sees the mean of v over 0..t, and its lse is log(t + 1).
    const Attention result = attention_forward({0, 5, 1, 0, 6, 2, 0, 7, 6}, 1, 3, 1, 1);
    EXPECT_EQ(result.out[0], 1);
    EXPECT_DOUBLE_EQ(result.out[1], 1.5);
    EXPECT_DOUBLE_EQ(result.out[2], 3);
    EXPECT_DOUBLE_EQ(result.lse[0], 0);
    EXPECT_DOUBLE_EQ(result.lse[1], std::log(2));
    EXPECT_DOUBLE_EQ(result.lse[2], std::log(3));
}

TEST(Reference, AttentionScalesScoresByTheRootOfTheHeadSize) {
    // Two heads of size 4; the only score of token 0 in head h is q·k / 2, which is also its lse.
    Values qkv(24, 0.0);
    for (size_t d = 0; d < 4; d++) {
        qkv[d] = 3, qkv[8 + d] = 5;
        qkv[4 + d] = -1, qkv[12 + d] = 2;
    }
    EXPECT_EQ(attention_forward(qkv, 1, 1, 8, 2).lse, (Values{30, -4}));
}

TEST(Reference, AttentionStaysFiniteForHugeScores) {
    const Values qkv{1e3, 1e3, 1, 1e3, 1e3, 2};
    EXPECT_EQ(attention_forward(qkv, 1, 2, 1, 1).out, (Values{1, 1.5}));
    EXPECT_EQ(attention_forward(qkv, 1, 2, 1, 1).lse[0], 1e6);
}

TEST(Reference, AttentionDoesNotSeeTheFuture) {
    const int64_t B = 2, T = 5, C = 6, H = 2;
    Values qkv = normal_values(B * T * 3 * C, 1);
    const Values before = attention_forward(qkv, B, T, C, H).out;
    const size_t last = static_cast<size_t>((T - 1) * 3 * C);  // of sequence 0
    for (size_t i = last; i < last + static_cast<size_t>(3 * C); i++) qkv[i] += 10;
    const Values after = attention_forward(qkv, B, T, C, H).out;
    for (size_t i = 0; i < before.size(); i++) {
        const bool is_last_token = i / static_cast<size_t>(C) == static_cast<size_t>(T - 1);
        if (is_last_token) EXPECT_NE(before[i], after[i]);
        else EXPECT_EQ(before[i], after[i]);
    }
}

TEST(Reference, AttentionBackwardAgreesWithFiniteDifferences) {
    for (int64_t T : {1, 4}) {
        const int64_t B = 2, C = 6, H = 2;
        Values qkv = normal_values(B * T * 3 * C, 1);
        const Values dout = normal_values(B * T * C, 2);
        expect_gradient(attention_backward(dout, qkv, B, T, C, H), qkv,
                        [&] { return dot(dout, attention_forward(qkv, B, T, C, H).out); });
    }
}

// --------------------------------------------------------------------------------------------- cross-entropy
TEST(Reference, CrossEntropyOfEqualLogitsIsLogV) {
    const CrossEntropy result = cross_entropy({7, 7, 7, 7}, {2}, 1, 4, 2);
    EXPECT_DOUBLE_EQ(result.loss[0], std::log(4));
    EXPECT_DOUBLE_EQ(result.logsumexp[0], 7 + std::log(4));
    EXPECT_EQ(result.dlogits, (Values{0.5, 0.5, -1.5, 0.5}));
}

TEST(Reference, CrossEntropyKeepsTinyAndHugeLosses) {
    const CrossEntropy sure = cross_entropy({90, -90}, {0}, 1, 2, 1);
    EXPECT_DOUBLE_EQ(sure.loss[0], std::exp(-180));
    EXPECT_DOUBLE_EQ(sure.dlogits[0], -std::exp(-180));
    const CrossEntropy wrong = cross_entropy({1e4, -1e4}, {1}, 1, 2, 1);
    EXPECT_EQ(wrong.loss[0], 2e4);
    EXPECT_EQ(wrong.dlogits, (Values{1, -1}));
}

TEST(Reference, CrossEntropyLeavesOutTargetsOfMinusOne) {
    const CrossEntropy result = cross_entropy({1, 2, 3, 4}, {-1, 0}, 2, 2, 1);
    EXPECT_EQ(result.loss[0], 0);
    EXPECT_GT(result.loss[1], 0);
    EXPECT_EQ(result.dlogits[0], 0);
    EXPECT_EQ(result.dlogits[1], 0);
    EXPECT_GT(result.logsumexp[0], 2);
}

TEST(Reference, CrossEntropyShowsANaNOrAnInfiniteLogit) {
    for (double bad : {nan, infinity}) {
        EXPECT_TRUE(std::isnan(cross_entropy({1, bad, 2}, {0}, 1, 3, 1).loss[0]));
        EXPECT_TRUE(std::isnan(cross_entropy({1, bad, 2}, {1}, 1, 3, 1).loss[0]));
    }
    EXPECT_EQ(cross_entropy({1, -infinity}, {1}, 1, 2, 1).loss[0], infinity);
    EXPECT_EQ(cross_entropy({1, -infinity}, {0}, 1, 2, 1).loss[0], 0);
}

TEST(Reference, CrossEntropyGradientAgreesWithFiniteDifferences) {
    const int64_t rows = 4, V = 6;
    const Tokens targets{3, -1, 0, 5};
    Values logits = normal_values(rows * V, 1);
    expect_gradient(cross_entropy(logits, targets, rows, V, 0.3).dlogits, logits, [&] {
        double sum = 0;
        for (double loss : cross_entropy(logits, targets, rows, V, 0.3).loss) sum += 0.3 * loss;
        return sum;
    });
}

// ------------------------------------------------------------------------------------------------- optimizer
TEST(Reference, FirstAdamWStepMovesEachWeightByTheLearningRate) {
    // m̂ = g and v̂ = g² after one step, whatever the betas.
    Values weight{1, 1, 1}, m(3, 0.0), v(3, 0.0);
    adamw_step({.lr = 0.1, .epsilon = 0}, 1, {5, -1e-3, 1e3}, weight, m, v);
    EXPECT_DOUBLE_EQ(weight[0], 0.9);
    EXPECT_DOUBLE_EQ(weight[1], 1.1);
    EXPECT_DOUBLE_EQ(weight[2], 0.9);
}

TEST(Reference, AdamWDecayDoesNotDependOnTheGradient) {
    Values weight{2, -4}, m(2, 0.0), v(2, 0.0);
    adamw_step({.lr = 0.1, .weight_decay = 0.5}, 1, {0, 0}, weight, m, v);
    EXPECT_EQ(weight, (Values{2 - 0.1 * 0.5 * 2, -4 + 0.1 * 0.5 * 4}));
}

TEST(Reference, SecondAdamWStepIsWhatItsDefinitionGives) {
    Values weight{0}, m{0}, v{0};
    const AdamW options{.lr = 1, .beta1 = 0.5, .beta2 = 0.75, .epsilon = 1};
    adamw_step(options, 1, {4}, weight, m, v);  // m̂ = 4, v̂ = 16
    EXPECT_DOUBLE_EQ(weight[0], -4.0 / 5);
    adamw_step(options, 2, {-2}, weight, m, v);  // m = 1 - 1, v = 3 + 1
    EXPECT_DOUBLE_EQ(m[0], 0);
    EXPECT_DOUBLE_EQ(v[0], 4);
    EXPECT_DOUBLE_EQ(weight[0], -4.0 / 5);
    adamw_step(options, 3, {7}, weight, m, v);  // m = 3.5, 1 - 1/8; v = 3 + 12.25, 1 - 27/64
    EXPECT_DOUBLE_EQ(weight[0], -4.0 / 5 - 4 / (std::sqrt(15.25 * 64 / 37) + 1));
}

TEST(Reference, ClippingScalesToTheMaximumAndReturnsTheNormBefore) {
    std::vector<Values> gradients{{3}, {4, 0}};
    EXPECT_EQ(clip_by_global_norm(gradients, 1), 5);
    EXPECT_DOUBLE_EQ(gradients[0][0], 0.6);
    EXPECT_DOUBLE_EQ(gradients[1][0], 0.8);
    std::vector<Values> small{{0.3}, {0.4}};
    EXPECT_DOUBLE_EQ(clip_by_global_norm(small, 1), 0.5);
    EXPECT_EQ(small, (std::vector<Values>{{0.3}, {0.4}}));
}

// ------------------------------------------------------------------------------------------------- schedules
TEST(Reference, WarmupOfEveryScheduleRisesToTheFullRateAtItsLastStep) {
    const ScheduleOptions options{.lr = 2, .minimum = 0.2, .steps = 100, .warmup = 10, .cooldown = 20};
    for (Schedule schedule : {Schedule::Constant, Schedule::Linear, Schedule::Cosine,
                              Schedule::WarmupStableDecay, Schedule::InverseSqrt}) {
        EXPECT_DOUBLE_EQ(learning_rate(schedule, options, 0), 0.2);
        EXPECT_DOUBLE_EQ(learning_rate(schedule, options, 4), 1);
        EXPECT_DOUBLE_EQ(learning_rate(schedule, options, 9), 2);
    }
}

TEST(Reference, SchedulesPassThroughTheirDefiningPoints) {
    const ScheduleOptions options{.lr = 2, .minimum = 0.2, .steps = 110, .warmup = 10, .cooldown = 40};
    const auto rate = [&](Schedule schedule, int64_t step) { return learning_rate(schedule, options, step); };
    EXPECT_DOUBLE_EQ(rate(Schedule::Constant, 109), 2);
    EXPECT_DOUBLE_EQ(rate(Schedule::Linear, 10), 2);
    EXPECT_DOUBLE_EQ(rate(Schedule::Linear, 60), 1.1);
    EXPECT_DOUBLE_EQ(rate(Schedule::Linear, 110), 0.2);
    EXPECT_DOUBLE_EQ(rate(Schedule::Cosine, 10), 2);
    EXPECT_DOUBLE_EQ(rate(Schedule::Cosine, 60), 1.1);
    EXPECT_DOUBLE_EQ(rate(Schedule::Cosine, 35), 0.2 + 1.8 * (1 + std::sqrt(0.5)) / 2);
    EXPECT_DOUBLE_EQ(rate(Schedule::Cosine, 110), 0.2);
    EXPECT_DOUBLE_EQ(rate(Schedule::Cosine, 500), 0.2);
    EXPECT_DOUBLE_EQ(rate(Schedule::WarmupStableDecay, 70), 2);
    EXPECT_DOUBLE_EQ(rate(Schedule::WarmupStableDecay, 80), 1.1);  // a quarter of the cooldown
    EXPECT_DOUBLE_EQ(rate(Schedule::WarmupStableDecay, 110), 0.2);
    EXPECT_DOUBLE_EQ(rate(Schedule::InverseSqrt, 39), 1);  // four times the warm-up
}

// ----------------------------------------------------------------------------------------------------- GPT-2
Gpt2 tiny_model() {
    Gpt2 model{.V = 7, .T = 4, .L = 2, .H = 2, .C = 4, .parameters = {}};
    model.initialise(1, 0.3);
    return model;
}

TEST(Reference, ModelOfZeroEmbeddingsHasTheLossOfAUniformGuess) {
    Gpt2 model = tiny_model();
    model.parameters.at("wte.weight").assign(28, 0.0);  // tied, so all logits are 0
    EXPECT_DOUBLE_EQ(model.loss({1, 2, 3}, {2, 3, 4}, 1, 3), std::log(7));
}

TEST(Reference, ModelLossIsTheMeanOverCountedTargets) {
    const Gpt2 model = tiny_model();
    const Tokens tokens{1, 2, 3, 4, 5, 6};
    const double first = model.loss(tokens, {2, -1, -1, -1, -1, -1}, 2, 3);
    const double last = model.loss(tokens, {-1, -1, -1, -1, -1, 0}, 2, 3);
    EXPECT_NEAR(model.loss(tokens, {2, -1, -1, -1, -1, 0}, 2, 3), (first + last) / 2, 1e-14);
    EXPECT_EQ(model.loss(tokens, Tokens(6, -1), 2, 3), 0);
}

TEST(Reference, ModelLogitsOfAPrefixDoNotDependOnWhatFollows) {
    const Gpt2 model = tiny_model();
    const Values whole = model.logits({1, 2, 3, 4}, 1, 4), prefix = model.logits({1, 2}, 1, 2);
    EXPECT_EQ(prefix, Values(whole.begin(), whole.begin() + 14));
}

TEST(Reference, ModelGradientAgreesWithFiniteDifferences) {
    Gpt2 model = tiny_model();
    const Tokens tokens{1, 6, 1, 0, 3, 1}, targets{6, 1, -1, 3, 1, 2};  // shorter than the longest context
    const Gpt2::Gradient gradient = model.gradient(tokens, targets, 2, 3);
    EXPECT_EQ(gradient.loss, model.loss(tokens, targets, 2, 3));
    ASSERT_EQ(gradient.parameters.size(), model.parameters.size());
    for (auto& [name, values] : model.parameters) {
        SCOPED_TRACE(name);
        expect_gradient(gradient.parameters.at(name), values,
                        [&] { return model.loss(tokens, targets, 2, 3); });
    }
}

}  // namespace
}  // namespace wobble::reference
