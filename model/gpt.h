// GPT-2 (Radford et al. 2019): token and position embedding, L pre-norm blocks of causal attention and a GELU
// network, a last norm, and the embedding again as output head. Forward and backward are written out layer by
// layer in layers.h.
#pragma once

#include <memory>

#include "kernels/attention.h"
#include "kernels/context.h"
#include "kernels/embedding.h"
#include "model/config.h"
#include "model/memory.h"
#include "model/parameters.h"

namespace wobble {

/// One block's activations that backward needs.
template <class T>
struct LayerActivations {
    T* ln_1;                               // [B·T, C]
    Accumulator<T>*ln_1_mean, *ln_1_rstd;  // [B·T]
    T* qkv;                                // [B·T, 3C]
    Accumulator<T>* lse;                   // [B, H, T]
    T* attention;                          // [B·T, C]
    T* middle;                             // [B·T, C]: the residual stream between attention and network
    T* ln_2;                               // [B·T, C]
    Accumulator<T>*ln_2_mean, *ln_2_rstd;  // [B·T]
    T* fc;                                 // [B·T, F], before GELU
    T* gelu;                               // [B·T, F]
    T* out;                                // [B·T, C]: the residual stream after the block
};

/// Weights, gradients and activations for up to `batch` sequences at a time. T: float, or double to check
/// gradients.
template <class T>
class Gpt {
  public:
    using A = Accumulator<T>;

    /// Memory for sequences of up to config.context tokens. Without `training`, nothing is held for backward.
    Gpt(const ModelConfig& config, int64_t batch, bool training);

    const ModelConfig& config() const { return config_; }
    const ParameterTable& table() const { return table_; }
    T* weights() { return weights_; }      // [table().buffer_size]
    A* gradients() { return gradients_; }  // [table().buffer_size], the sum over micro-batches
    size_t bytes() const { return memory_.bytes(); }

    /// Σ over the rows of their loss, in nats; a target of -1 has none. `scale` is what each row's loss
    /// counts in the gradient, 1 / (targets in the whole step) for a mean; 0 when no backward follows.
    /// tokens, targets: [batch, sequence].
    double forward(Context& context, const int32_t* tokens, const int32_t* targets, int64_t batch,
                   int64_t sequence, double scale);

    /// Gradient of the last forward, written to gradients() or, if `accumulate`, added to them.
    void backward(Context& context, bool accumulate);

    /// Where the recorder looks at attention's weights at tier full: the identities that tie their gradients
    /// (the whole step's, after its last backward) to the weights.
    void weight_identities(Context& context);

    /// The logits of one more token at `position` of a single sequence [V]. Keys and values of the positions
    /// before it are the ones that `append` left behind; position 0 starts afresh.
    const T* append(Context& context, int32_t token, int64_t position);

    /// Losses of the last forward, row by row [batch · sequence].
    const A* losses() const { return losses_; }

  private:
    void lay_out(Memory& memory);
    void logits_forward(Context& context, const int32_t* tokens, int64_t position,
                        const AttentionShape& shape);
    void block_forward(Context& context, int64_t layer, const T* in, const AttentionShape& shape);
    void block_backward(Context& context, int64_t layer, bool accumulate);

    ModelConfig config_;
    ParameterTable table_;
    int64_t batch_;
    bool training_;
    Memory memory_;

    T* weights_ = nullptr;
    A* gradients_ = nullptr;
    std::unique_ptr<Tensors<T>> weight_, gradient_;

    std::vector<LayerActivations<T>> layers_;
    T *embedding_ = nullptr, *ln_f_ = nullptr, *logits_ = nullptr;       // [B·T, C], [B·T, C], [B·T, V]
    A *ln_f_mean_ = nullptr, *ln_f_rstd_ = nullptr, *losses_ = nullptr;  // [B·T]

    // Backward's own, used by one layer after the other.
    T *d_stream_ = nullptr, *d_channels_ = nullptr,
      *d_wide_ = nullptr;                          // [B·T, C], [B·T, C], [B·T, max(3C, F)]
    A *chunks_a_ = nullptr, *chunks_b_ = nullptr;  // [chunks, max(3C, F)]
    TokenIndex index_;

    // The last forward.
    const int32_t* tokens_ = nullptr;
    int64_t rows_ = 0, sequence_ = 0;
};

}  // namespace wobble
