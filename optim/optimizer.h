// One optimizer step over all parameters: the gradient's norm, clipping, AdamW.
#pragma once

#include <string>
#include <vector>

#include "kernels/context.h"
#include "kernels/pack.h"
#include "model/memory.h"
#include "model/parameters.h"

namespace wobble {

struct AdamWSettings {
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
    double weight_decay = 0.1;
    bool decay_everything = false;  // gains and biases too
    double clip = 1.0;              // largest gradient norm; 0 for none
};

/// Norms are over all parameters, in the 2-norm.
struct StepReport {
    double grad_norm = 0;  // before clipping
    double clip = 1;       // the factor that clipping applied
    double update_norm = 0;
    double weight_norm = 0;  // after the update
    bool applied = false;
    std::string nonfinite;  // the first tensor in the table whose gradient is not finite; empty when all are
};

class Recorder;

enum class OnNonfinite { Stop, Skip, Continue };

template <class T>
class Optimizer {
  public:
    Optimizer(const ParameterTable& table, const AdamWSettings& settings);

    /// For the record of how far weights have come; [table.buffer_size], held by the caller. Null: not
    /// wanted.
    void measure_distance_from(const T* initial) { initial_ = initial; }
    /// The tokens of `wte.weight` by decile of frequency [V], for the record. Empty: not wanted.
    void group_tokens(std::vector<int> decile_of_token) { decile_of_token_ = std::move(decile_of_token); }

    /// Updates the weights with learning rate `lr`; `step` counts from 1. What the recorder wants to know of
    /// the tensors goes into its observation. When a gradient is not finite nothing is touched, neither
    /// weights nor moments, unless `policy` is Continue.
    StepReport step(Context& context, T* weights, const Accumulator<T>* gradients, double lr, int64_t step,
                    OnNonfinite policy);

    Accumulator<T>* m() { return m_; }  // [table.buffer_size]
    Accumulator<T>* v() { return v_; }  // [table.buffer_size]

  private:
    void record(Recorder& recorder, const Parameter& p, double clip, double per_unit, double update_squares,
                double weight_squares) const;
    /// Elements of a row of the update's work: embeddings go token by token, so that their sums can be
    /// grouped.
    static int64_t row_length(const Parameter& p);

    const ParameterTable& table_;
    AdamWSettings settings_;
    Memory memory_;
    Accumulator<T>*m_ = nullptr, *v_ = nullptr;
    const T* initial_ = nullptr;
    std::vector<int> decile_of_token_;
    std::vector<double> token_gradient_squares_;  // [V], when deciles are wanted
    // Sums of squares by row: [the most rows of a tensor].
    double *gradient_squares_ = nullptr, *update_squares_ = nullptr, *weight_squares_ = nullptr;
};

}  // namespace wobble
