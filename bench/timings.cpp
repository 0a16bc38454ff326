#include "bench/timings.h"

#include <algorithm>

#include "bench/roof.h"

namespace wobble::bench {

void Roofs::measure(int threads, Device device) {
    if (device == Device::Cuda) {
        multiply_add_samples.push_back(cuda_multiply_add_peak(wobble::Precision::Float32));
        pair_multiply_add_samples.push_back(cuda_multiply_add_peak(wobble::Precision::Bfloat16));
        copy_samples.push_back(cuda_copy_bandwidth());
        take_best();
        return;
    }
    multiply_add_samples.push_back(multiply_add_peak(threads, wobble::Precision::Float32));
    pair_multiply_add_samples.push_back(multiply_add_peak(threads, wobble::Precision::Bfloat16));
    copy_samples.push_back(copy_bandwidth(threads));
    take_best();
}

void Roofs::take_best() {
    multiply_add = std::max(multiply_add, multiply_add_samples.back());
    pair_multiply_add = std::max(pair_multiply_add, pair_multiply_add_samples.back());
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

KernelTimings time_kernel(const KernelCase& kernel, int threads, const Effort& effort) {
    const Prepared prepared = kernel.prepare();
    Context context(threads);
    context.device = shape::device;
    std::vector<std::unique_ptr<Recorder>> recorders;
    std::vector<std::function<void()>> variants;
    for (const char* tier : tiers) {
        const ProbePlan plan(tier);
        // As in training, nothing is asked when nothing is to be seen.
        recorders.push_back(plan.looks() ? std::make_unique<Recorder>(plan) : nullptr);
        variants.push_back([&, recorder = recorders.back().get()] {
            context.recorder = recorder;
            prepared.launch(context);
            if (recorder && shape::device == Device::Cpu) recorder->clear();
        });
    }
    Effort with_reset = effort;
    with_reset.before_round = [&] {
        prepared.reset();
        if (effort.before_round) effort.before_round();
        wait_for(shape::device);
    };
    // What was seen of all calls of a round comes from a GPU at once.
    with_reset.finish = [&] {
        for (const auto& recorder : recorders)
            if (recorder && shape::device == Device::Cuda) recorder->clear();
        wait_for(shape::device);
    };
    const Turns turns = measure_in_turns(variants, with_reset);
    KernelTimings result{kernel, turns.calls, {}};
    for (size_t t = 0; t < std::size(tiers); ++t) {
        result.timings.push_back(timing(tiers[t], false, turns.variants[t], turns.variants[0]));
    }
    return result;
}

}  // namespace wobble::bench
