// The optimizer's step: the norm that is recorded, clipping, which tensors decay, what a non-finite gradient
// may touch, which is nothing, and the rows in which a recorder has it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "optim/optimizer.h"
#include "probes/recorder.h"
#include "test/kernel_cases.h"

namespace wobble::test {
namespace {

const ModelConfig config{.vocab = 65, .context = 7, .layers = 2, .heads = 3, .channels = 48};

/// An optimizer, weights and gradients for all of a small model's tensors.
template <class T>
struct Fixture {
    ParameterTable table{config};
    Optimizer<T> optimizer;
    std::vector<T> weights, gradients;

    explicit Fixture(const AdamWSettings& settings)
        : optimizer(table, settings), weights(size_t(table.buffer_size)), gradients(weights) {
        for (const Parameter& p : table.parameters) set(weights, p, random_values(p.name, p.size));
    }
    void set(std::vector<T>& buffer, const Parameter& p, const Values& values) {
        std::copy(values.begin(), values.end(), buffer.begin() + p.offset);
    }
    void random_gradients(const std::string& seed, double size) {
        for (const Parameter& p : table.parameters)
            set(gradients, p, random_values(seed + p.name, p.size, size));
    }
    StepReport step(int64_t number, double lr = 1e-2, OnNonfinite policy = OnNonfinite::Stop,
                    Recorder* recorder = nullptr) {
        Context context(1);
        context.recorder = recorder;
        return optimizer.step(context, weights.data(), gradients.data(), lr, number, policy);
    }
    std::vector<T> state() {
        std::vector<T> all = weights;
        all.insert(all.end(), optimizer.m(), optimizer.m() + table.buffer_size);
        all.insert(all.end(), optimizer.v(), optimizer.v() + table.buffer_size);
        return all;
    }
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

TEST(Optimizer, ClipsThreeAndFourToSixAndEightTenthsAndRecordsFive) {
    Fixture<float> f({.beta1 = 0.5, .clip = 1});
    const Parameter &first = f.table.at("wte.weight"), &second = f.table.at("ln_f.bias");
    f.gradients[size_t(first.offset)] = 3;
    f.gradients[size_t(second.offset + second.size - 1)] = 4;
    const StepReport report = f.step(1);
    EXPECT_EQ(report.grad_norm, 5);
    EXPECT_EQ(report.clip, 0.2);
    EXPECT_TRUE(report.applied);
    // m is half the clipped gradient; one rounding of the factor and one of the product.
    EXPECT_NEAR(f.optimizer.m()[first.offset], 0.3, 0.3 * 0x1p-23);
    EXPECT_NEAR(f.optimizer.m()[second.offset + second.size - 1], 0.4, 0.4 * 0x1p-23);
}

TEST(Optimizer, LeavesASmallGradientAsItIs) {
    Fixture<float> f({.beta1 = 0.5, .clip = 5});
    f.gradients[0] = 3, f.gradients[1] = 4;
    const StepReport report = f.step(1);
    EXPECT_EQ(report.grad_norm, 5);
    EXPECT_EQ(report.clip, 1);
    EXPECT_EQ(f.optimizer.m()[0], 1.5f);
}

TEST(Optimizer, DoesNotClipWhenToldNotTo) {
    Fixture<float> f({.beta1 = 0.5, .clip = 0});
    f.gradients[0] = 1000;
    EXPECT_EQ(f.step(1).clip, 1);
    EXPECT_EQ(f.optimizer.m()[0], 500);
}

// Each step is some ten operations; each of five of them may err by ten units of the largest weight.
template <class T>
void expect_reference(bool decay_everything, double unit) {
    const AdamWSettings settings{.weight_decay = 0.1, .decay_everything = decay_everything, .clip = 1};
    Fixture<T> f(settings);
    std::vector<Values> weights, m, v;
    for (const Parameter& p : f.table.parameters) {
        weights.push_back(reference::values(f.weights.data() + p.offset, p.size));
        m.emplace_back(size_t(p.size)), v.emplace_back(size_t(p.size));
    }
    for (int64_t step = 1; step <= 5; ++step) {
        f.random_gradients(std::to_string(step), step == 3 ? 1e-3 : 0.1);  // the third is not clipped
        const StepReport report = f.step(step, 1e-2);

        std::vector<Values> gradients;
        for (const Parameter& p : f.table.parameters)
            gradients.push_back(reference::values(f.gradients.data() + p.offset, p.size));
        const double norm = reference::clip_by_global_norm(gradients, 1);
        double updates = 0;
        for (size_t i = 0; i < weights.size(); ++i) {
            const Parameter& p = f.table.parameters[i];
            const reference::AdamW options{.lr = 1e-2,
                                           .beta1 = settings.beta1,
                                           .beta2 = settings.beta2,
                                           .epsilon = settings.epsilon,
                                           .weight_decay = p.decay || decay_everything ? 0.1 : 0};
            const Values before = weights[i];
            reference::adamw_step(options, step, gradients[i], weights[i], m[i], v[i]);
            for (size_t j = 0; j < before.size(); ++j) updates += std::pow(weights[i][j] - before[j], 2);
        }
        // Norms are roots of sums of rows of 4096 in the accumulator type.
        const double sums = (4 + std::sqrt(4096.0)) * unit;
        EXPECT_NEAR(report.grad_norm, norm, 1e-12 * norm);
        EXPECT_EQ(report.clip<1, norm> 1);
        EXPECT_NEAR(report.update_norm, std::sqrt(updates), sums * std::sqrt(updates) + 1e-12);
        const double weight_norm = reference::global_norm(weights);
        EXPECT_NEAR(report.weight_norm, weight_norm, sums * weight_norm);
    }
    for (size_t i = 0; i < weights.size(); ++i) {
        const Parameter& p = f.table.parameters[i];
        const double tolerance = 5 * 10 * unit * largest_magnitude(weights[i]);
        for (int64_t j = 0; j < p.size; ++j)
            ASSERT_NEAR(double(f.weights[size_t(p.offset + j)]), weights[i][size_t(j)], tolerance) << p.name;
    }
}

TEST(Optimizer, FollowsTheReferenceStepByStep) {
    expect_reference<float>(false, 0x1p-24);
    expect_reference<double>(false, 0x1p-53);
    expect_reference<double>(true, 0x1p-53);
}

TEST(Optimizer, TouchesNothingAndNamesTheTensorWhenAGradientIsNotFinite) {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
        for (OnNonfinite policy : {OnNonfinite::Stop, OnNonfinite::Skip}) {
            for (const char* name : {"wte.weight", "h.0.attn.qkv.bias", "h.1.mlp.fc.weight", "ln_f.bias"}) {
                Fixture<float> f({});
                f.random_gradients("1", 0.1);
                EXPECT_TRUE(f.step(1).applied);
                const auto before = f.state();
                const Parameter& p = f.table.at(name);
                f.gradients[size_t(p.offset + p.size - 1)] = bad;
                const StepReport report = f.step(2, 1e-2, policy);
                EXPECT_FALSE(report.applied);
                EXPECT_EQ(report.nonfinite, name);
                EXPECT_FALSE(std::isfinite(report.grad_norm));
                EXPECT_TRUE(same_bits(f.state(), before)) << name;
            }
        }
    }
}

TEST(Optimizer, GoesOnAfterANonFiniteGradientOnlyWhenToldTo) {
    Fixture<float> f({.clip = 0});
    f.gradients[0] = std::numeric_limits<float>::quiet_NaN();
    const StepReport report = f.step(1, 1e-2, OnNonfinite::Continue);
    EXPECT_TRUE(report.applied);
    EXPECT_EQ(report.nonfinite, "wte.weight");
    EXPECT_TRUE(std::isnan(f.weights[0]));
    EXPECT_TRUE(std::isfinite(f.weights[1]));
}

// Their squares do not fit float32, the norm and the clipped gradient do.
TEST(Optimizer, ClipsGradientsNearTheLargestFloat) {
    Fixture<float> f({.beta1 = 0.5, .clip = 1});
    f.gradients[0] = 3e37f, f.gradients[1] = -4e37f;
    const StepReport report = f.step(1);
    EXPECT_TRUE(report.applied);
    EXPECT_NEAR(report.grad_norm, 5e37, 5e37 * 0x1p-23);
    // The factor 2e-38 is barely a normal number.
    EXPECT_NEAR(f.optimizer.m()[0], 0.3, 0.3 * 0x1p-22);
    EXPECT_NEAR(f.optimizer.m()[1], -0.4, 0.4 * 0x1p-22);
}

TEST(Optimizer, KeepsTheGapsBetweenTensorsAtZero) {
    Fixture<float> f({});
    f.random_gradients("1", 0.1);
    f.step(1);
    const auto state = f.state();
    std::vector<char> used(size_t(f.table.buffer_size), 0);
    for (const Parameter& p : f.table.parameters) std::fill_n(used.begin() + p.offset, p.size, char(1));
    for (size_t i = 0; i < state.size(); ++i) ASSERT_TRUE(used[i % used.size()] || state[i] == 0) << i;
}

// ------------------------------------------------------------------------------------------------------ rows
double dot(const Values& x, const Values& y) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
    return sum;
}
double rms(const Values& x) {
    return std::sqrt(dot(x, x) / double(x.size()));
}
/// x rounded to 8 significant bits, to even.
double bf16_of(double x) {
    int exponent;
    const double mantissa = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

/// The rows of the third step beside float64 formulas, from the bits that were in memory before and after.
template <class T>
void expect_rows(const AdamWSettings& settings, double lr, double unit) {
    Fixture<T> f(settings);
    const std::vector<T> initial = f.weights;
    f.optimizer.measure_distance_from(initial.data());
    for (int64_t step : {1, 2}) {
        f.random_gradients(std::to_string(step), 0.1);
        f.step(step, 1e-2);
    }
    f.random_gradients("3", 0.1);
    const std::vector<T> before = f.weights;
    Recorder recorder{ProbePlan("moments")};
    const StepReport report = f.step(3, lr, OnNonfinite::Stop, &recorder);
    const wobble::Observation seen = recorder.take();
    ASSERT_EQ(seen.tensors.size(), f.table.parameters.size());
    EXPECT_TRUE(seen.embeddings.empty());

    const double bias1 = 1 - std::pow(settings.beta1, 3), bias2 = 1 - std::pow(settings.beta2, 3);
    // A row of 4,096 in the kernel's precision, 256 to a lane, and the roundings of an element.
    const double near = (4 * 16 + 32) * unit;
    for (size_t i = 0; i < seen.tensors.size(); ++i) {
        const Parameter& p = f.table.parameters[i];
        const TensorRow& row = seen.tensors[i];
        SCOPED_TRACE(p.name);
        EXPECT_EQ(row.name, p.name);
        const auto values = [&](const auto* all) { return reference::values(all + p.offset, p.size); };
        const Values gradient = values(f.gradients.data()), w = values(before.data());
        const Values new_w = values(f.weights.data()), first = values(initial.data());
        const Values m = values(f.optimizer.m()), v = values(f.optimizer.v());
        Values update, moved, ratio;
        double below = 0, lost = 0, lost_in_bf16 = 0;
        const double n = double(p.size), decay = p.decay ? settings.weight_decay : 0;
        for (size_t j = 0; j < w.size(); ++j) {
            const double root = std::sqrt(v[j] / bias2);
            update.push_back(lr * (m[j] / bias1 / (root + settings.epsilon) + decay * w[j]));
            moved.push_back(new_w[j] - first[j]);
            ratio.push_back(gradient[j] * report.clip / std::max(root, settings.epsilon));
            below += root < settings.epsilon;
            lost += new_w[j] == w[j], lost_in_bf16 += bf16_of(new_w[j]) == bf16_of(w[j]);
        }
        const auto expect = [&](double found, double expected, const char* what, double scale) {
            EXPECT_NEAR(found, expected, near * scale) << what;
        };
        expect(row.grad_rms, rms(gradient), "grad_rms", rms(gradient));
        EXPECT_EQ(row.grad_max, largest_magnitude(gradient));
        expect(row.weight_rms, rms(new_w), "weight_rms", rms(new_w));
        // Weights near 1 are known to a unit, so is what they have moved by.
        expect(row.distance_rms, rms(moved), "distance_rms", rms(moved) + largest_magnitude(new_w));
        expect(row.update_rms, rms(update), "update_rms", rms(update));
        expect(row.update_ratio, rms(update) / rms(w), "update_ratio", rms(update) / rms(w));
        expect(row.rms_t, rms(ratio), "rms_t", rms(ratio));
        const double cosine = dot(gradient, m) / (n * rms(gradient) * rms(m));
        expect(row.cos_grad_momentum, cosine, "cos_grad_momentum", 2);
        EXPECT_EQ(row.epsilon_share, below / n);
        EXPECT_EQ(row.lost_share, lost / n);
        EXPECT_EQ(row.lost_share_bf16, lost_in_bf16 / n);
        expect(row.weight_dot_grad, dot(w, gradient), "weight_dot_grad", n * rms(w) * rms(gradient));
        expect(row.cos_weight_grad, dot(w, gradient) / (n * rms(w) * rms(gradient)), "cos_weight_grad", 2);
    }
}

TEST(Optimizer, RecordsWhatEachTensorDid) {
    for (double lr : {1e-2, 1e-4, 1e-8}) {
        SCOPED_TRACE(lr);
        expect_rows<float>({}, lr, 0x1p-24);
        expect_rows<double>({}, lr, 0x1p-53);
        expect_rows<float>({.epsilon = 1e-2, .clip = 0}, lr, 0x1p-24);
        expect_rows<double>({.beta1 = 0.5, .epsilon = 1e-2, .clip = 1e-3}, lr, 0x1p-53);
    }
}

TEST(Optimizer, SaysWhichUpdatesAreLostToRounding) {
    const auto shares = [](double lr) {
        Fixture<float> f({.weight_decay = 0});
        f.random_gradients("1", 0.1);
        for (float& w : f.weights) w = 1;
        Recorder recorder{ProbePlan("moments")};
        f.step(1, lr, OnNonfinite::Stop, &recorder);
        const TensorRow row = recorder.take().tensors.at(0);
        return std::pair(row.lost_share, row.lost_share_bf16);
    };
    // Adam's first step is lr in size. Below 1 float32 has steps of 2^-24 and bfloat16 of 2^-8, above it
    // twice these; half a step is lost.
    EXPECT_EQ(shares(0x1p-6), std::pair(0.0, 0.0));
    EXPECT_EQ(shares(0x1p-10), std::pair(0.0, 1.0));
    EXPECT_EQ(shares(0x1p-26), std::pair(1.0, 1.0));
}

TEST(Optimizer, RecordsGradientsNearTheLargestFloatBeforeTheyWereClipped) {
    Fixture<float> f({.beta1 = 0.5, .clip = 1});
    const Parameter& p = f.table.parameters[0];
    f.gradients[0] = 3e37f, f.gradients[1] = -4e37f;
    Recorder recorder{ProbePlan("moments")};
    f.step(1, 1e-2, OnNonfinite::Stop, &recorder);
    const wobble::Observation seen = recorder.take();
    const double expected = 5e37 / std::sqrt(double(p.size));
    EXPECT_NEAR(seen.tensors[0].grad_rms, expected, expected * 0x1p-20);
    EXPECT_EQ(seen.tensors[0].grad_max, double(4e37f));
    EXPECT_NEAR(seen.tensors[0].cos_grad_momentum, 1, 0x1p-20);
    EXPECT_EQ(seen.tensors[1].grad_rms, 0);
    EXPECT_TRUE(std::isnan(seen.tensors[0].distance_rms)) << "nobody asked for it";
}

TEST(Optimizer, ShowsANanGradientInItsTensorsRow) {
    Fixture<float> f({.clip = 0});
    f.random_gradients("1", 0.1);
    const Parameter& p = f.table.at("h.0.mlp.fc.weight");
    f.gradients[size_t(p.offset + 17)] = std::numeric_limits<float>::quiet_NaN();
    Recorder recorder{ProbePlan("moments")};
    f.step(1, 1e-2, OnNonfinite::Continue, &recorder);
    for (const TensorRow& row : recorder.take().tensors) {
        const bool is_nan = row.name == p.name;
        for (double x : {row.grad_rms, row.weight_rms, row.update_rms, row.update_ratio, row.rms_t,
                         row.cos_grad_momentum, row.weight_dot_grad, row.cos_weight_grad})
            EXPECT_EQ(std::isnan(x), is_nan) << row.name;
    }
}

TEST(Optimizer, RecordsTheRowsOfTheTokenTableByDecile) {
    const auto expect_groups = [](auto zero) {
        using E = decltype(zero);
        Fixture<E> f({.clip = 1e-2});
        const Parameter& p = f.table.at("wte.weight");
        const int64_t V = p.shape[0], C = p.shape[1];
        std::vector<int> decile;  // the fifth is empty
        for (int64_t v = 0; v < V; ++v) decile.push_back(v % 10 == 4 ? 9 : int(v % 10));
        f.optimizer.group_tokens(decile);
        f.random_gradients("1", 0.1);
        const std::vector<E> before = f.weights;
        Recorder recorder{ProbePlan("moments")};
        f.step(1, 1e-2, OnNonfinite::Stop, &recorder);
        const wobble::Observation seen = recorder.take();
        ASSERT_EQ(seen.embeddings.size(), 9u);
        for (const EmbeddingRow& row : seen.embeddings) {
            Values weight, gradient, update;
            int64_t tokens = 0;
            for (int64_t v = 0; v < V; ++v) {
                if (decile[size_t(v)] != row.decile) continue;
                ++tokens;
                for (int64_t i = p.offset + v * C; i < p.offset + (v + 1) * C; ++i) {
                    weight.push_back(double(f.weights[size_t(i)]));
                    gradient.push_back(double(f.gradients[size_t(i)]));
                    update.push_back(double(before[size_t(i)]) - double(f.weights[size_t(i)]));
                }
            }
            EXPECT_EQ(row.name, "wte.weight");
            EXPECT_EQ(row.rows, tokens);
            EXPECT_NEAR(row.weight_rms, rms(weight), 1e-12 * rms(weight));
            EXPECT_NEAR(row.grad_rms, rms(gradient), 1e-12 * rms(gradient));
            // The difference of two weights near 1 is known to a unit of these.
            EXPECT_NEAR(row.update_rms, rms(update), 1e-6);
        }
    };
    expect_groups(float{});
    expect_groups(double{});
}

}  // namespace
}  // namespace wobble::test
