// A GPT: token and position embedding, L blocks, a last norm, and an output head. Which kind of each is the
// configuration's choice (config.h); the default is GPT-2 (Radford et al. 2019). Forward and backward are
// written out in layers.h, the parts of a block in block.h and what it includes.
#pragma once

#include <optional>

#include "kernels/context.h"
#include "kernels/embedding.h"
#include "model/block.h"
#include "model/config.h"
#include "model/memory.h"
#include "model/parameters.h"

namespace wobble {

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
    /// The residual stream behind the last block in the last forward [batch · sequence, C].
    const T* stream() const { return streams_.back(); }

    /// What the gradient is that of, Σ over the rows of the last forward: the loss, and what z-loss and label
    /// smoothing make of it.
    double objective() const { return objective_; }

  private:
    using Tensor = typename Tensors<T>::Tensor;

    void lay_out(Memory& memory);
    AttentionShape shape(int64_t batch, int64_t sequence, int64_t queries) const {
        return {batch, sequence, config_.heads, config_.head_size(), queries, config_.key_heads()};
    }
    void bind(const Tensors<T>& tensors);
    void logits_forward(Context& context, const int32_t* tokens, int64_t position,
                        const AttentionShape& shape);
    void head_backward(Context& context);
    void embedding_backward(Context& context);

    ModelConfig config_;
    ParameterTable table_;
    int64_t batch_;
    bool training_;
    Memory memory_;

    T* weights_ = nullptr;
    A* gradients_ = nullptr;
    Tensor wte_, wpe_, head_;  // [V, C], [T, C], [V, C]; head_ is wte_ where they are tied

    std::optional<Norm<T>> ln_0_, ln_f_;  // of the embedding, before the head
    std::vector<TransformerBlock<T>> blocks_;
    T *embedding_ = nullptr, *logits_ = nullptr;  // [B·T, C], [B·T, V]
    A* losses_ = nullptr;                         // [B·T]
    A* objectives_ = nullptr;                     // [B·T], where they are not the losses

    RotaryTable<T> rotary_;
    Workspace<T> workspace_;
    TokenIndex index_;

    // The last forward.
    double objective_ = 0;
    const int32_t* tokens_ = nullptr;
    std::vector<const T*> streams_;  // [L + 1]: the residual stream before each block, and after the last
    const T* head_in_ = nullptr;     // what the head was given
    T* scaled_ = nullptr;            // [B·T, C], where logits have a factor and no norm takes it up
};

}  // namespace wobble
