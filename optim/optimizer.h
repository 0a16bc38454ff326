// One optimizer step over all parameters: the gradient's norm, clipping, AdamW.
#pragma once

#include <string>

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

enum class OnNonfinite { Stop, Skip, Continue };

template <class T>
class Optimizer {
  public:
    Optimizer(const ParameterTable& table, const AdamWSettings& settings);

    /// Updates the weights with learning rate `lr`; `step` counts from 1. When a gradient is not finite
    /// nothing is touched, neither weights nor moments, unless `policy` is Continue.
    StepReport step(Context& context, T* weights, const Accumulator<T>* gradients, double lr, int64_t step,
                    OnNonfinite policy);

    Accumulator<T>* m() { return m_; }  // [table.buffer_size]
    Accumulator<T>* v() { return v_; }  // [table.buffer_size]

  private:
    const ParameterTable& table_;
    AdamWSettings settings_;
    Memory memory_;
    Accumulator<T>*m_ = nullptr, *v_ = nullptr;
    double *partials_a_ = nullptr, *partials_b_ = nullptr;  // [flat_rows(buffer_size)]
};

}  // namespace wobble
