// Why flash attention in bfloat16 drifts (Qiu & Yao 2025), and how a probe sees it.
//
// Where several keys share a row's largest logit, their unnormalised probabilities e^(s - max) are exactly 1,
// and P·V adds up values as they are. The sum of two bfloat16 numbers of one binade has one bit more than
// fits: half of all sums lie halfway between two numbers. Rounding to even would send as many of those up as
// down, but the other keys' small probabilities, times values of mostly one sign, push the sum past the
// middle, always to the same side. So errors of the output lean away from zero, and δ = rowsum(dO ∘ O), in
// backward, with them. A larger maximum in the exponent (twice the largest logit, or 0 where it is negative)
// makes all probabilities odd fractions, and errors fall to either side.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention_blocks.h"
#include "probes/launch.h"
#include "test/bf16.h"
#include "test/kernel_cases.h"

namespace wobble::test {
namespace {

constexpr int64_t sequences = 600, length = 12, D = 16;
const AttentionShape shape{sequences, length, 1, D, length};

/// Queries, keys and values in bfloat16, one head. The first two keys are the same and have the largest
/// logits, 2 to 3; the others' are lower by 9 and more, so that they hold a thousandth of the probability.
std::vector<float> tied_rows(double mean_value, double deviation) {
    const int64_t tokens = sequences * length;
    const Values query = random_values("queries", tokens), key = random_values("keys", tokens);
    const Values value = random_values("values", tokens * D, deviation, mean_value);
    std::vector<float> qkv(size_t(tokens * 3 * D), 0.0f);
    for (int64_t b = 0; b < sequences; ++b) {
        for (int64_t t = 0; t < length; ++t) {
            const size_t i = size_t(b * length + t);
            qkv[size_t(shape.qkv(b, t, 0, 0))] = to_bf16(float(1.25 + 0.05 * query[i]));
            qkv[size_t(shape.qkv(b, t, 0, 1))] = t < 2 ? 8.0f : to_bf16(float(-30 + 2 * key[i]));
            for (int64_t d = 0; d < D; ++d)
                qkv[size_t(shape.qkv(b, t, 0, 2) + d)] = to_bf16(float(value[i * size_t(D) + size_t(d)]));
        }
    }
    return qkv;
}

/// Values from -2 to -1: one sign, one binade.
std::vector<float> tied_rows_of_one_sign() {
    return tied_rows(-1.5, 0.14);
}

/// Attention's output as bfloat16 hardware makes it: products and sums in float32, probabilities, P·V and the
/// output rounded. `raise`: repeated maxima are doubled in the exponent.
std::vector<float> output_in_bf16(const std::vector<float>& qkv, bool raise) {
    std::vector<float> out(size_t(sequences * length * D));
    for (int64_t b = 0; b < sequences; ++b) {
        for (int64_t t = 0; t < length; ++t) {
            std::vector<float> p;
            for (int64_t j = 0; j <= t; ++j) {
                p.push_back(qkv[size_t(shape.qkv(b, t, 0, 0))] * qkv[size_t(shape.qkv(b, j, 0, 1))] / 4);
            }
            float maximum = *std::max_element(p.begin(), p.end());
            if (raise && std::count(p.begin(), p.end(), maximum) > 1) maximum = maximum > 0 ? 2 * maximum : 0;
            float sum = 0;
            for (float& x : p) x = to_bf16(std::exp(x - maximum)), sum += x;
            for (int64_t d = 0; d < D; ++d) {
                float product = 0;
                for (int64_t j = 0; j <= t; ++j)
                    product += p[size_t(j)] * qkv[size_t(shape.qkv(b, j, 0, 2) + d)];
                out[size_t((b * length + t) * D + d)] = to_bf16(to_bf16(product) / sum);
            }
        }
    }
    return out;
}

Values exact_output(const std::vector<float>& qkv) {
    return reference::attention_forward(reference::values(qkv.data(), int64_t(qkv.size())), sequences, length,
                                        D, 1)
        .out;
}

/// Mean and mean magnitude of errors, of which `together` one after the other share a row and so depend on
/// each other; the standard error of that mean, and how many rows' means are below zero, in standard
/// deviations of a fair coin.
struct Lean {
    double mean = 0, size = 0, standard_error = 0, sign = 0;

    Lean(const Values& errors, size_t together) {
        const double n = double(errors.size() / together);
        double squares = 0, below = 0;
        for (size_t row = 0; row < errors.size() / together; ++row) {
            double row_mean = 0;
            for (size_t i = row * together; i < (row + 1) * together; ++i) {
                row_mean += errors[i] / double(together);
                size += std::abs(errors[i]) / double(errors.size());
            }
            mean += row_mean / n, squares += row_mean * row_mean / n, below += row_mean < 0;
        }
        standard_error = std::sqrt((squares - mean * mean) / n);
        sign = (below - n / 2) / std::sqrt(n / 4);
    }
};

/// Errors of the last query of each sequence: those of other queries share its values.
Values errors_of_output(const std::vector<float>& out, const Values& exact) {
    Values errors;
    for (int64_t b = 0; b < sequences; ++b) {
        for (int64_t d = 0; d < D; ++d) {
            const size_t i = size_t((b * length + length - 1) * D + d);
            errors.push_back(out[i] - exact[i]);
        }
    }
    return errors;
}

/// Errors of δ of the same queries, for gradients of one sign.
Values errors_of_delta(const Values& errors, const std::vector<float>& dout) {
    Values deltas;
    for (int64_t b = 0; b < sequences; ++b) {
        double sum = 0;
        for (int64_t d = 0; d < D; ++d)
            sum += dout[size_t((b * length + length - 1) * D + d)] * errors[size_t(b * D + d)];
        deltas.push_back(sum);
    }
    return deltas;
}

/// Gradients of one sign, as where the output leans for long: from -2 to -1.
std::vector<float> gradients() {
    std::vector<float> dout;
    for (double x : random_values("gradients", sequences * length * D, 0.14, -1.5))
        dout.push_back(to_bf16(float(x)));
    return dout;
}

/// The residual that backward's probe reports when it is given this output.
ResidualRow residual_of(const std::vector<float>& qkv, const std::vector<float>& out,
                        const std::vector<float>& lse) {
    const std::vector<float> dout = gradients();
    std::vector<float> dqkv(qkv.size());
    Recorder recorder{ProbePlan("full")};
    Context context(1);
    context.recorder = &recorder;
    launch(context,
           AttentionBackward<float>{.qkv = qkv.data(),
                                    .out = out.data(),
                                    .dout = dout.data(),
                                    .lse = lse.data(),
                                    .dqkv = dqkv.data(),
                                    .shape = shape},
           {"attn", -1, Phase::Backward});
    return recorder.take().residuals.at(0);
}

/// This kernel's own output and log-sum-exp, in float32.
struct Forward {
    std::vector<float> out = std::vector<float>(size_t(sequences * length * D));
    std::vector<float> lse = std::vector<float>(size_t(sequences * length));

    explicit Forward(const std::vector<float>& qkv) {
        Context context(1);
        launch(
            context,
            AttentionForward<float>{.qkv = qkv.data(), .out = out.data(), .lse = lse.data(), .shape = shape},
            {"attn"});
    }
};

TEST(SoftmaxBias, Bf16RoundsToNearestAndTiesToEven) {
    EXPECT_EQ(to_bf16(1.0f), 1.0f);
    EXPECT_EQ(to_bf16(1 + 0x1p-8f), 1.0f) << "a tie, to even";
    EXPECT_EQ(to_bf16(1 + 0x1.8p-7f), 1 + 0x1p-6f) << "a tie, to even";
    EXPECT_EQ(to_bf16(1 + 0x1.001p-8f), 1 + 0x1p-7f);
    EXPECT_EQ(to_bf16(-1 - 0x1.001p-8f), -1 - 0x1p-7f);
    EXPECT_EQ(to_bf16(0x1.ffp127f), INFINITY);
    EXPECT_EQ(to_bf16(0x1p-133f), 0x1p-133f);
}

TEST(SoftmaxBias, RepeatedMaximaMakeErrorsOfOneSign) {
    const std::vector<float> qkv = tied_rows_of_one_sign();
    const Values errors = errors_of_output(output_in_bf16(qkv, false), exact_output(qkv));
    const Lean output(errors, D);
    EXPECT_LT(output.mean, -20 * output.standard_error) << "values are negative: away from zero is down";
    EXPECT_GT(output.sign, 20);
    EXPECT_GT(-output.mean, output.size / 4) << "a large part of the error is the lean";
    const Lean delta(errors_of_delta(errors, gradients()), 1);
    EXPECT_GT(delta.mean, 20 * delta.standard_error);
    EXPECT_GT(delta.mean, delta.size / 2);
}

TEST(SoftmaxBias, ErrorsFollowTheSignOfTheValues) {
    const std::vector<float> positive = tied_rows(1.5, 0.14), mixed = tied_rows(0, 1);
    const Lean up(errors_of_output(output_in_bf16(positive, false), exact_output(positive)), D);
    EXPECT_GT(up.mean, 20 * up.standard_error);
    const Lean even(errors_of_output(output_in_bf16(mixed, false), exact_output(mixed)), D);
    EXPECT_LT(std::abs(even.mean), 4 * even.standard_error);
}

TEST(SoftmaxBias, AHigherMaximumTakesTheLeanAwayAndLeavesErrorsAsLarge) {
    const std::vector<float> qkv = tied_rows_of_one_sign();
    const Values exact = exact_output(qkv);
    const Lean leaning(errors_of_output(output_in_bf16(qkv, false), exact), D);
    const Values errors = errors_of_output(output_in_bf16(qkv, true), exact);
    const Lean output(errors, D), delta(errors_of_delta(errors, gradients()), 1);
    EXPECT_LT(std::abs(output.mean), 4 * output.standard_error);
    EXPECT_LT(std::abs(output.sign), 4);
    EXPECT_LT(std::abs(delta.mean), 4 * delta.standard_error);
    EXPECT_LT(std::abs(output.mean), std::abs(leaning.mean) / 10);
    EXPECT_GT(output.size, leaning.size / 2);
    EXPECT_LT(output.size, leaning.size * 2);
}

// The same in the probe's own words: what the residual of Σ dS adds up to is all of what its magnitudes add
// up to, or next to nothing of it.
TEST(SoftmaxBias, ShowsInTheBiasOfTheResidual) {
    const std::vector<float> qkv = tied_rows_of_one_sign();
    const Forward own(qkv);
    const ResidualRow leaning = residual_of(qkv, output_in_bf16(qkv, false), own.lse);
    const ResidualRow raised = residual_of(qkv, output_in_bf16(qkv, true), own.lse);
    EXPECT_LT(leaning.bias, -0.8 * leaning.value) << "δ is too large, and is taken away";
    // Sequences are independent; their residuals' signs would be a coin's.
    const double coin = 4 / std::sqrt(double(sequences));
    EXPECT_LT(std::abs(raised.bias), coin * raised.value);
    EXPECT_GT(raised.value, leaning.value / 10);
}

TEST(SoftmaxBias, IsNotInTheFloat32Kernel) {
    const std::vector<float> qkv = tied_rows_of_one_sign();
    const Forward own(qkv);
    const Lean output(errors_of_output(own.out, exact_output(qkv)), D);
    EXPECT_LT(output.size, 1e-6);
    EXPECT_LT(std::abs(output.mean), 4 * output.standard_error);
    const ResidualRow residual = residual_of(qkv, own.out, own.lse);
    EXPECT_LE(residual.value, 1e-5 * residual.scale);
    EXPECT_LT(std::abs(residual.bias), 4 / std::sqrt(double(sequences)) * residual.value);
}

}  // namespace
}  // namespace wobble::test
