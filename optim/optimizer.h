// One optimizer step over all parameters: the gradient's norm, clipping, AdamW.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/adamw.h"
#include "kernels/context.h"
#include "kernels/reduce.h"
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
    using A = Accumulator<T>;

    Optimizer(const ParameterTable& table, const AdamWSettings& settings, Device device = Device::Cpu);

    /// The memory that it takes, by section.
    static std::vector<Memory::Section> plan(const ParameterTable& table, Device device);

    /// For the record of how far weights have come; [table.buffer_size] in the device's memory, held by the
    /// caller. Null: not wanted.
    void measure_distance_from(const T* initial) { initial_ = initial, updates_.clear(); }
    /// The tokens of `wte.weight` by decile of frequency [V], for the record. Empty: not wanted.
    void group_tokens(std::vector<int> decile_of_token) { decile_of_token_ = std::move(decile_of_token); }

    /// Updates the weights with learning rate `lr`; `step` counts from 1. Nobody waits: `report` does, and
    /// must be called before the next step. When a gradient or `loss` (in the device's memory; may be null)
    /// is not finite nothing is touched, neither weights nor moments, unless `policy` is Continue. All of
    /// weights and gradients is the device's memory, the same in every step.
    void launch(Context& context, T* weights, const A* gradients, double lr, int64_t step, OnNonfinite policy,
                const double* loss = nullptr);
    /// Shows the recorder the gradients alone.
    void look_at_gradients(Context& context, T* weights, const A* gradients);
    /// Of the last launch. What the recorder wants to know of the tensors goes into its observation.
    StepReport report(Context& context);
    StepReport step(Context& context, T* weights, const A* gradients, double lr, int64_t step,
                    OnNonfinite policy) {
        launch(context, weights, gradients, lr, step, policy);
        return report(context);
    }

    A* m() { return m_; }  // [table.buffer_size], in the device's memory
    A* v() { return v_; }  // [table.buffer_size]

  private:
    int64_t tensors() const { return int64_t(table_.parameters.size()); }
    int64_t rows() const { return first_row_.back(); }
    /// Elements of a row of the update's work: embeddings go token by token, so that their sums can be
    /// grouped.
    static int64_t row_length(const Parameter& p);
    /// Its rows, without memory.
    struct Unplaced {};
    Optimizer(Unplaced, const ParameterTable& table, const AdamWSettings& settings);
    void lay_out(Memory& memory);
    void point_at(T* weights, const A* gradients);
    template <class Kernel>
    void run(Context& context, const std::vector<Kernel>& kernels, const Kernel* on_device);
    void record(Recorder& recorder, const UpdateScalars<A>& now, const double* totals) const;

    const ParameterTable& table_;
    AdamWSettings settings_;
    const T* initial_ = nullptr;
    std::vector<int> decile_of_token_;

    // One kernel for each tensor, and its rows among those of all.
    std::vector<SquaredSum<A>> squares_;
    std::vector<AdamWAtStep<T>> updates_;
    std::vector<int64_t> first_row_;  // [tensors + 1]

    Memory memory_;
    A *m_ = nullptr, *v_ = nullptr;
    struct OnDevice {
        SquaredSum<A>* squares;
        AdamWAtStep<T>* updates;
        int64_t* first_row;
        int32_t* of_row;
        double* partials;  // [3, rows]: squares of gradient, update, weight
        double* totals;    // [3, tensors]
        UpdateScalars<A>* now;
    } on_{};
    std::unique_ptr<Pinned> scalars_;  // the step's lr, bias1, bias2
    bool reported_ = true;
};

}  // namespace wobble
