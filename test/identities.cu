// Residuals of the identities that exact arithmetic would make zero: no more than rounding in a whole model's
// gradient, and much more where a gradient is made of a wrong operand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/attention_blocks.h"
#include "kernels/classifier.h"
#include "kernels/layernorm.h"
#include "model/gpt.h"
#include "probes/launch.h"
#include "test/bf16.h"
#include "test/kernel_cases.h"

namespace wobble::test {
namespace {

// ------------------------------------------------------------------------------------------- a whole model
const ModelConfig config{.vocab = 65, .context = 40, .layers = 2, .heads = 6, .channels = 48};
constexpr int64_t batch = 3, length = 33;

/// A model with random weights, and a batch of which some targets are left out.
template <class T>
struct RandomModel {
    Gpt<T> model{config, batch, true};
    std::vector<int32_t> tokens, targets;

    RandomModel() {
        for (const Parameter& p : model.table().parameters) {
            const bool gain = p.role == Role::Gain;
            const Values values = random_values(p.name, p.size, 0.2, gain ? 1 : 0);
            std::copy(values.begin(), values.end(), model.weights() + p.offset);
        }
        const Values in = random_indices("tokens", batch * length, config.vocab);
        const Values out = random_indices("targets", batch * length, config.vocab);
        tokens.assign(in.begin(), in.end()), targets.assign(out.begin(), out.end());
        for (size_t i = 2; i < targets.size(); i += 7) targets[i] = -1;
    }

    /// What a recorder sees of a forward and a backward.
    wobble::Observation observe(Recorder& recorder) {
        Context context(1);
        context.recorder = &recorder;
        model.forward(context, tokens.data(), targets.data(), batch, length, 1.0 / double(targets.size()));
        model.backward(context);
        model.weight_identities(context);
        return recorder.take();
    }
};

std::string name_of(const ResidualRow& row) {
    return row.site + " " + phase_name(row.phase) + " " + row.kernel + ": " + row.identity;
}

template <class T>
void expect_rounding_only(double bound) {
    Recorder recorder{ProbePlan("full")};
    const wobble::Observation seen = RandomModel<T>().observe(recorder);
    ASSERT_FALSE(seen.residuals.empty());
    for (const ResidualRow& row : seen.residuals) {
        EXPECT_GT(row.scale, 0) << name_of(row);
        EXPECT_LE(row.value, bound * row.scale) << name_of(row);
        EXPECT_LE(row.worst, bound) << name_of(row);
    }
}

TEST(Identities, LeaveOnlyRoundingOfFloat64InARandomModel) {
    expect_rounding_only<double>(1e-12);
}

TEST(Identities, LeaveOnlyRoundingOfFloat32InARandomModel) {
    expect_rounding_only<float>(1e-5);
}

TEST(Identities, AreCheckedWhereverTheyHold) {
    Recorder recorder{ProbePlan("full")};
    std::set<std::string> found;
    for (const ResidualRow& row : RandomModel<float>().observe(recorder).residuals)
        found.insert(row.site + ": " + row.identity);
    std::set<std::string> expected{"loss: sum dlogits", "ln_f: sum dx", "ln_f: sum dx * x_hat",
                                   "head.weight: sum over rows"};
    for (int64_t l = 0; l < config.layers; ++l) {
        const std::string layer = "h." + std::to_string(l) + ".";
        expected.insert({layer + "attn: sum dS", layer + "attn.qkv: <Wq, dWq> = <Wk, dWk>",
                         layer + "attn.proj: <Wv, dWv> = <Wo, dWo>"});
        for (const char* norm : {"ln_1", "ln_2"})
            expected.insert({layer + norm + ": sum dx", layer + norm + ": sum dx * x_hat"});
    }
    EXPECT_EQ(found, expected);
}

// One number of attention's output is wrong, as it would be if its memory had been overwritten: of all
// identities those that are about it show it, at its layer alone.
TEST(Identities, FindAWrongNumberInTheModel) {
    RandomModel<float> random;
    Recorder healthy{ProbePlan("full")}, faulty{ProbePlan("full")};
    const wobble::Observation before = random.observe(healthy);
    faulty.inject({"h.1.attn", Phase::Forward, "attention_forward", "output", 17, 5, 3.0});
    const wobble::Observation after = random.observe(faulty);
    ASSERT_EQ(before.residuals.size(), after.residuals.size());
    for (size_t i = 0; i < before.residuals.size(); ++i) {
        const ResidualRow &a = before.residuals[i], &b = after.residuals[i];
        const double jump = (b.value / b.scale) / (a.value / a.scale);
        if (b.site == "h.1.attn") {
            EXPECT_GT(jump, 1e3) << name_of(b);
            EXPECT_GT(b.worst, 1e-2) << name_of(b);
            EXPECT_EQ(b.worst_row, (0 * config.heads + 5 / config.head_size()) * length + 17);
        } else if (b.identity != "<Wv, dWv> = <Wo, dWo>" && b.identity != "<Wq, dWq> = <Wk, dWk>") {
            EXPECT_LE(b.value, 1e-5 * b.scale) << name_of(b);
        }
    }
}

// ------------------------------------------------------------------------------------------ wrong operands
/// Share of the residuals of one identity in its scale, after a run of a kernel over `rows` rows.
template <class Launch>
double share(const std::string& identity, Launch launch_kernel) {
    Recorder recorder{ProbePlan("full")};
    Context context(1);
    context.recorder = &recorder;
    launch_kernel(context);
    const wobble::Observation seen = recorder.take();
    for (const ResidualRow& row : seen.residuals)
        if (row.identity == identity) return row.value / row.scale;
    ADD_FAILURE() << "no residual of " << identity;
    return 0;
}

template <class T>
std::vector<T> as(const Values& x) {
    return std::vector<T>(x.begin(), x.end());
}

constexpr int64_t rows = 40, C = 96;

/// A layer norm's backward whose mean is off.
template <class T>
double layernorm_share(const std::string& identity, double off) {
    const Values x_values = random_values("x", rows * C, 2, 0.5);
    auto norm = reference::layer_norm_forward(x_values, {}, {}, rows, C, 1e-5);
    for (double& mean : norm.mean) mean += off;
    const auto x = as<T>(x_values), weight = as<T>(random_values("weight", C, 0.5, 1));
    const auto dy = as<T>(random_values("dy", rows * C)), mean = as<T>(norm.mean), rstd = as<T>(norm.rstd);
    std::vector<T> dx(x.size()), chunks_a(size_t(chunk_count(rows) * C)), chunks_b(chunks_a);
    return share(identity, [&](Context& context) {
        launch(context, chunk_count(rows),
               LayerNormBackward<T>{.x = x.data(),
                                    .weight = weight.data(),
                                    .mean = mean.data(),
                                    .rstd = rstd.data(),
                                    .dy = dy.data(),
                                    .dresidual = nullptr,
                                    .dx = dx.data(),
                                    .dweight_chunks = chunks_a.data(),
                                    .dbias_chunks = chunks_b.data(),
                                    .rows = rows,
                                    .C = C,
                                    .epsilon = T(1e-5)},
               {"norm", -1, Phase::Backward});
    });
}

/// An attention's backward whose `out` is off: not the output that belongs to these queries and keys.
template <class T>
double attention_share(double off) {
    constexpr int64_t B = 2, tokens = 50, heads = 3, D = 16;
    const AttentionShape shape{B, tokens, heads, D, tokens};
    const auto qkv = as<T>(random_values("qkv", B * tokens * 3 * heads * D));
    const auto dout = as<T>(random_values("dout", B * tokens * heads * D));
    std::vector<T> out(dout.size()), lse(size_t(shape.rows())), dqkv(qkv.size());
    Context bare(1);
    launch(bare, AttentionForward<T>{.qkv = qkv.data(), .out = out.data(), .lse = lse.data(), .shape = shape},
           {"attn"});
    for (T& x : out) x += T(off);
    return share("sum dS", [&](Context& context) {
        launch(context,
               AttentionBackward<T>{.qkv = qkv.data(),
                                    .out = out.data(),
                                    .dout = dout.data(),
                                    .lse = lse.data(),
                                    .dqkv = dqkv.data(),
                                    .shape = shape},
               {"attn", -1, Phase::Backward});
    });
}

enum class Wrong { Nothing, Target, Place };

/// A classifier with a target beyond the vocabulary, or whose gradient lies a place off the logits that it
/// is to replace, so that each pack of it is written over a logit that is still to be read.
template <class T>
double classifier_share(Wrong wrong) {
    constexpr int64_t V = 65;
    auto logits = as<T>(random_values("logits", rows * V + 1, 3));
    std::vector<int32_t> targets(static_cast<size_t>(rows), 7);
    if (wrong == Wrong::Target) targets[3] = int32_t(V);
    std::vector<T> losses(static_cast<size_t>(rows));
    return share("sum dlogits", [&](Context& context) {
        launch(context, rows,
               SoftmaxCrossEntropy<T>{.logits = logits.data(),
                                      .targets = targets.data(),
                                      .losses = losses.data(),
                                      .dlogits = logits.data() + (wrong == Wrong::Place),
                                      .V = V,
                                      .scale = T(1.0 / rows)},
               {"loss"});
    });
}

// The error that is made on purpose is 1e-3 or larger, so a wrong gradient stands out from rounding by the
// digits that lie between: three in float32, ten and more in float64.
template <class T>
void expect_jumps(double bound, double least_jump) {
    for (const char* identity : {"sum dx", "sum dx * x_hat"}) {
        const double right = layernorm_share<T>(identity, 0);
        EXPECT_LE(right, bound) << identity;
        EXPECT_GT(layernorm_share<T>(identity, 1e-3), least_jump * right) << identity;
    }
    EXPECT_LE(attention_share<T>(0), bound);
    EXPECT_GT(attention_share<T>(1e-3), least_jump * attention_share<T>(0));
    const double right = classifier_share<T>(Wrong::Nothing);
    EXPECT_LE(right, bound);
    EXPECT_GT(classifier_share<T>(Wrong::Target), least_jump * right);
    EXPECT_GT(classifier_share<T>(Wrong::Place), least_jump * right);
}

TEST(Identities, FindAWrongOperandInFloat32) {
    expect_jumps<float>(1e-5, 100);
}

TEST(Identities, FindAWrongOperandInFloat64) {
    expect_jumps<double>(1e-12, 1e9);
}

// Where the target has almost all of the probability, what its gradient loses to rounding is of the size of
// the probability, not of what is left.
TEST(Identities, AreNotAlarmedByConfidentPredictions) {
    constexpr int64_t V = 65;
    for (float confident : {0.0f, 10.0f, 20.0f, 40.0f}) {
        auto logits = as<float>(random_values("logits", rows * V));
        const std::vector<int32_t> targets(static_cast<size_t>(rows), 7);
        for (int64_t row = 0; row < rows; ++row) logits[size_t(row * V + 7)] += confident;
        std::vector<float> losses(static_cast<size_t>(rows));
        const double found = share("sum dlogits", [&](Context& context) {
            launch(context, rows,
                   SoftmaxCrossEntropy<float>{.logits = logits.data(),
                                              .targets = targets.data(),
                                              .losses = losses.data(),
                                              .dlogits = logits.data(),
                                              .V = V,
                                              .scale = float(1.0 / rows)},
                   {"loss"});
        });
        EXPECT_LE(found, 1e-5) << confident;
    }
}

// ---------------------------------------------------------------------------------------------------- bf16
// No kernel stores bfloat16 yet; here operands and results are rounded to it around float32 kernels, as they
// would be in memory. Rounding a result errs by 2^-9 at most, and of many errors most cancel.
constexpr double bf16_bound = 1e-2;

std::vector<float> rounded(const Values& x) {
    std::vector<float> result;
    for (double value : x) result.push_back(to_bf16(float(value)));
    return result;
}

TEST(Identities, HoldToTwoDigitsForALayerNormStoredInBf16) {
    const auto x = rounded(random_values("x", rows * C, 2, 0.5)), dy = rounded(random_values("dy", rows * C));
    const auto weight = rounded(random_values("weight", C, 0.5, 1));
    const auto norm =
        reference::layer_norm_forward(reference::values(x.data(), rows * C), {}, {}, rows, C, 1e-5);
    const auto mean = as<float>(norm.mean), rstd = as<float>(norm.rstd);
    std::vector<float> dx(x.size()), chunks_a(size_t(chunk_count(rows) * C)), chunks_b(chunks_a);
    Context context(1);
    launch(context, chunk_count(rows),
           LayerNormBackward<float>{.x = x.data(),
                                    .weight = weight.data(),
                                    .mean = mean.data(),
                                    .rstd = rstd.data(),
                                    .dy = dy.data(),
                                    .dresidual = nullptr,
                                    .dx = dx.data(),
                                    .dweight_chunks = chunks_a.data(),
                                    .dbias_chunks = chunks_b.data(),
                                    .rows = rows,
                                    .C = C,
                                    .epsilon = 1e-5f},
           {"norm"});
    double value = 0, value_x = 0, scale = 0, scale_x = 0;
    for (int64_t row = 0; row < rows; ++row) {
        double sum = 0, sum_x = 0;
        for (int64_t c = 0; c < C; ++c) {
            const size_t i = size_t(row * C + c);
            const double stored = to_bf16(dx[i]),
                         n = (x[i] - norm.mean[size_t(row)]) * norm.rstd[size_t(row)];
            sum += stored, sum_x += stored * n;
            scale += std::abs(stored), scale_x += std::abs(stored * n);
        }
        value += std::abs(sum), value_x += std::abs(sum_x);
    }
    EXPECT_LE(value, bf16_bound * scale);
    EXPECT_LE(value_x, bf16_bound * scale_x);
    EXPECT_GT(value, 1e-6 * scale) << "nothing was rounded";
}

TEST(Identities, HoldToTwoDigitsForAttentionStoredInBf16) {
    constexpr int64_t B = 2, T = 50, H = 3, D = 16;
    const AttentionShape shape{B, T, H, D, T};
    const auto qkv = rounded(random_values("qkv", B * T * 3 * H * D));
    const auto dout = rounded(random_values("dout", B * T * H * D));
    std::vector<float> out(dout.size()), lse(size_t(shape.rows())), dqkv(qkv.size());
    Context bare(1);
    launch(bare,
           AttentionForward<float>{.qkv = qkv.data(), .out = out.data(), .lse = lse.data(), .shape = shape},
           {"attn"});
    for (float& x : out) x = to_bf16(x);
    const double found = share("sum dS", [&](Context& context) {
        launch(context,
               AttentionBackward<float>{.qkv = qkv.data(),
                                        .out = out.data(),
                                        .dout = dout.data(),
                                        .lse = lse.data(),
                                        .dqkv = dqkv.data(),
                                        .shape = shape},
               {"attn"});
    });
    EXPECT_LE(found, bf16_bound);
    EXPECT_GT(found, 1e-6) << "nothing was rounded";
}

TEST(Identities, HoldToTwoDigitsForAClassifierStoredInBf16) {
    constexpr int64_t V = 65;
    auto logits = rounded(random_values("logits", rows * V, 3));
    const std::vector<int32_t> targets(static_cast<size_t>(rows), 7);
    std::vector<float> losses(static_cast<size_t>(rows));
    Context context(1);
    launch(context, rows,
           SoftmaxCrossEntropy<float>{.logits = logits.data(),
                                      .targets = targets.data(),
                                      .losses = losses.data(),
                                      .dlogits = logits.data(),
                                      .V = V,
                                      .scale = float(1.0 / rows)},
           {"loss"});
    double value = 0, scale = 0;
    for (int64_t row = 0; row < rows; ++row) {
        double sum = 0;
        for (int64_t v = 0; v < V; ++v) {
            const double stored = to_bf16(logits[size_t(row * V + v)]);
            sum += stored, scale += std::abs(stored);
        }
        value += std::abs(sum);
    }
    EXPECT_LE(value, bf16_bound * scale);
    EXPECT_GT(value, 1e-6 * scale) << "nothing was rounded";
}

}  // namespace
}  // namespace wobble::test
