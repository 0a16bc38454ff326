// What the optimizer makes of all tensors together on the software machine: none is left out, the last
// neither.
#include <gtest/gtest.h>

#include "optim/optimizer.h"

namespace wobble {
namespace {

const ModelConfig config{.vocab = 11, .context = 5, .layers = 1, .heads = 1, .channels = 8};

/// A step whose gradient is zero but for one number in each of some tensors.
StepReport step_with(const std::vector<std::pair<std::string, float>>& numbers, std::vector<float>& weights) {
    const ParameterTable table(config);
    Optimizer<float> optimizer(table, {.clip = 1}, Device::Cuda);
    std::vector<float> gradients(size_t(table.buffer_size));
    for (const auto& [name, number] : numbers) {
        const Parameter& p = table.at(name);
        gradients[size_t(p.offset + p.size - 1)] = number;
    }
    weights.assign(gradients.size(), 1);
    const size_t bytes = weights.size() * sizeof(float);
    float* const w = static_cast<float*>(detail::cuda_allocate(bytes));
    float* const g = static_cast<float*>(detail::cuda_allocate(bytes));
    copy_in(Device::Cuda, w, weights.data(), table.buffer_size);
    copy_in(Device::Cuda, g, gradients.data(), table.buffer_size);
    Context context(1);
    context.device = Device::Cuda;
    const StepReport report = optimizer.step(context, w, g, 0.5, 1, OnNonfinite::Stop);
    copy_out(Device::Cuda, weights.data(), w, table.buffer_size);
    detail::cuda_release(w), detail::cuda_release(g);
    return report;
}

TEST(SoftwareMachineOptimizer, TakesTheNormOfAllTensors) {
    std::vector<float> weights;
    const ParameterTable table(config);
    for (const Parameter& p : table.parameters) {
        if (p.name == "wte.weight") continue;
        const StepReport report = step_with({{"wte.weight", 3}, {p.name, 4}}, weights);
        EXPECT_EQ(report.grad_norm, 5) << p.name;
        EXPECT_EQ(report.clip, 0.2) << p.name;
        EXPECT_TRUE(report.applied) << p.name;
        EXPECT_NE(weights[size_t(p.offset + p.size - 1)], 1) << p.name;
    }
}

TEST(SoftwareMachineOptimizer, NamesTheFirstTensorThatIsNotFiniteAndLeavesAllAsTheyAre) {
    std::vector<float> weights;
    const ParameterTable table(config);
    for (const Parameter& p : table.parameters) {
        const StepReport report = step_with({{p.name, NAN}, {table.parameters.back().name, NAN}}, weights);
        EXPECT_EQ(report.nonfinite, p.name);
        EXPECT_FALSE(report.applied);
        EXPECT_EQ(weights, std::vector<float>(weights.size(), 1)) << p.name;
    }
}

}  // namespace
}  // namespace wobble
