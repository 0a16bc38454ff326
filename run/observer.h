// What a training run looks at besides its loss, step by step: which probes are on, what is made of the
// losses of single tokens and of the gradients of micro-batches, and the ring of the last steps.
#pragma once

#include <memory>
#include <vector>

#include "data/batch.h"
#include "kernels/context.h"
#include "model/memory.h"
#include "model/parameters.h"
#include "probes/noise_scale.h"
#include "probes/recorder.h"
#include "probes/ring.h"
#include "probes/token_losses.h"
#include "run/options.h"

namespace wobble {

class Observer {
  public:
    /// UserError when --noise-scale has no micro-batches to compare.
    Observer(const Options& options, const ParameterTable& table, const Dataset& data,
             Device device = Device::Cpu);

    /// Before the step that follows `steps_done`: gives the context a recorder where somebody wants to see
    /// it.
    /// `faults` are done to the step.
    void begin(Context& context, int64_t steps_done, std::vector<Injection> faults = {});
    /// Steps before this one are not looked at.
    void begin_at(int64_t step) { first_ = step; }
    /// Whether the step is one that goes into run.db, with everything that was asked for.
    bool records() const { return records_; }
    /// How closely the step is looked at.
    Tier tier() const { return tier_; }

    /// After the forward and after the backward pass of micro-batch `micro` of a batch. `losses` [B, T];
    /// `gradients` is the sum so far [buffer_size]; both in the device's memory. Nobody waits for it.
    void after_forward(int64_t micro, const float* losses);
    void after_backward(Context& context, int64_t micro, const float* gradients);

    /// After the step: takes the recorder away again, and hands over what is to be recorded of step number
    /// `step` (empty when nothing is). `grad_norm`: the batch's, before clipping. `finite`: otherwise
    /// estimates over steps leave this one out.
    Observation end(Context& context, int64_t step, const Batch& batch, double grad_norm, bool finite);

    /// The moments of the last steps, which the ring gives up.
    RingDump take_ring() { return ring_.take(); }

    /// The decile of frequency of each token [V]; empty when no probe looks.
    std::vector<int> decile_of_token() const;
    /// The weights at the start, in the device's memory, for the distance from there; null when it is not
    /// wanted.
    const float* initial_weights() const { return initial_; }

  private:
    void lay_out(Memory& memory);
    int64_t micro_rows() const { return options_.batch * options_.model.context; }
    void add_losses(Observation& seen, const Batch& batch);
    void add_noise(Observation& seen, const Batch& batch, double grad_norm, bool finite);
    void add_examples(Observation& seen, const Batch& batch, bool finite);
    /// Targets of some sequences of the batch that have a loss.
    int64_t targets_in(const Batch& batch, int64_t first_sequence, int64_t sequences) const;

    const Options& options_;
    const ParameterTable& table_;
    ProbePlan plan_;
    Recorder recorder_;
    Ring ring_;
    std::unique_ptr<TokenFrequency> frequency_;
    int64_t first_ = 0;
    bool records_ = false;
    Tier tier_ = Tier::Off;

    Memory memory_;
    float* initial_ = nullptr;           // [buffer_size]
    float* losses_ = nullptr;            // [accum, B, T]
    float* gradients_before_ = nullptr;  // [buffer_size]
    double* partials_ = nullptr;         // [flat_rows(buffer_size)]
    double* micro_squares_ = nullptr;    // [accum]
    double* example_squares_ = nullptr;  // [accum, B]
    double* norms_squares_ = nullptr;    // [1]

    // The noise scale, by micro-batches and by the norms' gradients of single sequences.
    NoiseScale noise_, norm_noise_;
};

}  // namespace wobble
