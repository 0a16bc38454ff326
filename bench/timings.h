// What was measured, in numbers: of kernels and of whole steps, at each tier of probes.
#pragma once

#include <string>
#include <vector>

#include "bench/kernel_case.h"
#include "bench/measure.h"
#include "model/config.h"
#include "model/parameters.h"

namespace wobble::bench {

/// The most that the machine could do, the best of what was measured so far.
struct Roofs {
    double multiply_add = 0, pair_multiply_add = 0;  // FLOP/s in float32, bfloat16
    double copy = 0;                                 // bytes/s
    std::vector<double> multiply_add_samples, pair_multiply_add_samples, copy_samples;

    /// Measures again; clocks and neighbours drift.
    void measure(int threads, Device device);
    void take_best();
    double multiply_add_of(wobble::Precision precision) const {
        return precision == wobble::Precision::Float32 ? multiply_add : pair_multiply_add;
    }
};

/// How closely probes look, in the order in which timings are reported.
constexpr const char* tiers[] = {"off", "moments", "full"};

/// One way of looking at something, against not looking.
struct Timing {
    std::string probes;  // off, moments, full …
    bool computed;       // from the parts of each round, rather than measured by itself
    int rounds;
    Middle seconds;
    double least_seconds;
    Middle overhead;            // as a share of what `off` took in the same round
    Middle processor_overhead;  // the same of processor time
};

/// The timing of `costs` against `off`.
Timing timing(const std::string& probes, bool computed, const Rounds& costs, const Rounds& off);

struct KernelTimings {
    KernelCase kernel;
    int64_t calls;                // of each tier in a round
    std::vector<Timing> timings;  // off, moments, full
};

struct StepModel {
    ModelConfig config;
    int64_t batch;
    wobble::Precision precision = wobble::Precision::Float32;

    /// "L6_H6_C384_T256_V256_B16", and "_bfloat16" where it is that
    std::string name() const;
    int64_t tokens() const { return batch * config.context; }
};

struct StepTimings {
    StepModel model;
    int64_t parameters;
    double flops;  // of a step
    /// off, moments, full, full on every tenth step and off on the others, or moments on the others
    std::vector<Timing> timings;
};

/// Tokens made one after the other, each of which reads all weights but the positions'.
struct GenerationTimings {
    StepModel model;  // of a batch of one
    int rounds;
    double bytes;    // of those weights
    Middle seconds;  // for a token
};

/// Of a training step: 6 for each parameter but embeddings that are only looked up (2 forward, 4 backward),
/// and causal attention's 6 · T · C a layer, or what a window leaves of them.
double flops_per_token(const ModelConfig& config, const ParameterTable& table);

/// The sizes that are timed, the largest in both precisions; on a GPU, GPT-2's 124M in bfloat16.
const std::vector<StepModel>& step_models(Device device);

/// Times one kernel, launches at the three tiers in turns. A launch is timed with all that comes with it: the
/// plan is asked, what was seen is put into the recorder, and the recorder is cleared.
KernelTimings time_kernel(const KernelCase& kernel, int threads, const Effort& effort);  // on shape::device

/// Times whole training steps as a run makes them: the next batch of a synthetic source, forward, backward,
/// clipping and update, and at tiers other than off all that is observed, to the rows that a run would hand
/// to the thread that writes run.db. Nothing is written.
StepTimings time_steps(const StepModel& model, int threads, Device device, const Effort& effort);

/// Times generation with a key-value cache, float32 and bfloat16 in turns.
std::vector<GenerationTimings> time_generation(const ModelConfig& config, int threads, const Effort& effort);

}  // namespace wobble::bench
