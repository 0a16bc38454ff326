#include "bench/timings.h"

#include <algorithm>

#include "bench/roof.h"
#include "model/gpt.h"
#include "optim/optimizer.h"

namespace wobble::bench {

void Roofs::measure(int threads) {
    multiply_add_samples.push_back(multiply_add_peak(threads));
    copy_samples.push_back(copy_bandwidth(threads));
    multiply_add = std::max(multiply_add, multiply_add_samples.back());
    copy = std::max(copy, copy_samples.back());
}

Timing timing(const std::string& probes, bool computed, const Rounds& costs, const Rounds& off) {
    return {.probes = probes,
            .computed = computed,
            .rounds = int(costs.wall.size()),
            .seconds = middle(costs.wall),
            .least_seconds = *std::min_element(costs.wall.begin(), costs.wall.end()),
            .overhead = middle(paired_overheads(costs.wall, off.wall)),
            .processor_overhead = middle(paired_overheads(costs.processor, off.processor))};
}

namespace {

constexpr const char* tiers[] = {"off", "moments", "full"};

/// `work` at each tier, and then what is to become of what was seen. As in training, nothing is asked when
/// nothing is to be seen.
Turns at_each_tier(Context& context, const std::function<void()>& work,
                   const std::function<void(Recorder&)>& afterwards, const Effort& effort) {
    std::vector<std::unique_ptr<Recorder>> recorders;
    std::vector<std::function<void()>> variants;
    for (const char* tier : tiers) {
        const ProbePlan plan(tier);
        recorders.push_back(plan.looks() ? std::make_unique<Recorder>(plan) : nullptr);
        variants.push_back([&, recorder = recorders.back().get()] {
            context.recorder = recorder;
            work();
            if (recorder) afterwards(*recorder);
        });
    }
    Turns turns = measure_in_turns(variants, effort);
    context.recorder = nullptr;
    return turns;
}

/// Nine steps of one kind and one of the other, per step, round by round.
Rounds one_in_ten(const Rounds& usual, const Rounds& tenth) {
    const auto mix = [](std::vector<double> nine, const std::vector<double>& one) {
        for (size_t i = 0; i < nine.size(); ++i) nine[i] = (9 * nine[i] + one[i]) / 10;
        return nine;
    };
    return {mix(usual.wall, tenth.wall), mix(usual.processor, tenth.processor)};
}

}  // namespace

KernelTimings time_kernel(const KernelCase& kernel, int threads, const Effort& effort) {
    const Prepared prepared = kernel.prepare();
    Context context(threads);
    Effort with_reset = effort;
    with_reset.before_round = [&] {
        prepared.reset();
        if (effort.before_round) effort.before_round();
    };
    const Turns turns = at_each_tier(
        context, [&] { prepared.launch(context); }, [](Recorder& r) { r.clear(); }, with_reset);
    KernelTimings result{kernel, turns.calls, {}};
    for (size_t t = 0; t < std::size(tiers); ++t) {
        result.timings.push_back(timing(tiers[t], false, turns.variants[t], turns.variants[0]));
    }
    return result;
}

std::string StepModel::name() const {
    const auto n = [](const char* letter, int64_t value) { return letter + std::to_string(value); };
    return n("L", config.layers) + n("_H", config.heads) + n("_C", config.channels) +
           n("_T", config.context) + n("_V", config.vocab) + n("_B", batch);
}

const std::vector<StepModel>& step_models() {
    static const std::vector<StepModel> models = {
        {{.vocab = 256, .context = 64, .layers = 2, .heads = 2, .channels = 64}, 8},
        {{.vocab = 256, .context = 64, .layers = 4, .heads = 4, .channels = 128}, 12},
        {{.vocab = 256, .context = 256, .layers = 6, .heads = 6, .channels = 384}, 16}};
    return models;
}

StepTimings time_steps(const StepModel& step_model, int threads, const Effort& effort) {
    const ModelConfig& config = step_model.config;
    Context context(threads);
    Gpt<float> model(config, step_model.batch, true);
    Optimizer<float> optimizer(model.table(), {});
    initialise(model.table(), 1, model.weights());
    std::vector<int32_t> tokens(size_t(step_model.tokens()));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(i * 7919 % size_t(config.vocab));
    int64_t n = 0;
    const auto one_step = [&] {
        model.forward(context, tokens.data(), tokens.data(), step_model.batch, config.context,
                      1 / double(tokens.size()));
        model.backward(context, false);
        optimizer.step(context, model.weights(), model.gradients(), 1e-4, ++n, OnNonfinite::Stop);
    };
    const Turns turns = at_each_tier(
        context, one_step, [](Recorder& r) { r.take(); }, effort);
    const Rounds &off = turns.variants[0], &moments = turns.variants[1], &full = turns.variants[2];

    // 6 for each weight and token (2 forward, 4 backward; the position table multiplies nothing), and causal
    // attention's 6 · T · C a token and layer.
    const double weights = double(model.table().count() - config.context * config.channels);
    const double attention = 6.0 * double(config.layers * config.context * config.channels);
    return {step_model,
            model.table().count(),
            (6 * weights + attention) * double(tokens.size()),
            {timing("off", false, off, off), timing("moments", false, moments, off),
             timing("full", false, full, off),
             timing("full every 10th, else off", true, one_in_ten(off, full), off),
             timing("full every 10th, else moments", true, one_in_ten(moments, full), off)}};
}

}  // namespace wobble::bench
