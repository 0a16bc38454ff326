// The optimizer's step: the norm that is recorded, clipping, which tensors decay, and what a non-finite
// gradient may touch, which is nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "optim/optimizer.h"
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
    StepReport step(int64_t number, double lr = 1e-2, OnNonfinite policy = OnNonfinite::Stop) {
        Context context(1);
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

}  // namespace
}  // namespace wobble::test
