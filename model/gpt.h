// A GPT: token and position embedding, L blocks, a last norm, and an output head. Which kind of each is the
// configuration's choice (config.h); the default is GPT-2 (Radford et al. 2019). Forward and backward are
// written out in layers.h, the parts of a block in block.h and what it includes.
#pragma once

#include <optional>

#include "kernels/context.h"
#include "kernels/embedding.h"
#include "model/block.h"
#include "model/config.h"
#include "model/inputs.h"
#include "model/memory.h"
#include "model/model.h"
#include "model/parameters.h"

namespace wobble {

/// Weights, gradients and activations for up to `batch` sequences at a time, stored in T: float, bf16, or
/// double to check gradients.
template <class T>
class Gpt final : public Model<Accumulator<T>> {
  public:
    using A = Accumulator<T>;

    /// `stochastic`: how weights are rounded to T where that is bfloat16.
    Gpt(const ModelConfig& config, int64_t batch, bool training, Device device = Device::Cpu,
        bool stochastic = false);
    /// The memory that it takes, by section.
    static std::vector<Memory::Section> plan(const ModelConfig& config, int64_t batch, bool training,
                                             Device device);
    Device device() const override { return memory_.device(); }
    size_t bytes() const override { return memory_.bytes(); }
    void weights_changed(Context& context) override;
    void forward(Context& context, const int32_t* tokens, const int32_t* targets, int64_t batch,
                 int64_t sequence, double scale, bool accumulate = false) override;
    double loss() override { return total(0); }
    double objective() override { return total(objectives_ ? 1 : 0); }
    void backward(Context& context) override;
    void weight_identities(Context& context) override;
    const A* append(Context& context, int32_t token, int64_t position) override;
    std::vector<A> stream() const override;

  private:
    using Model<A>::config_, Model<A>::table_, Model<A>::gradients_, Model<A>::losses_, Model<A>::totals_;
    using Tensor = typename Tensors<T>::Tensor;

    /// Its blocks, without memory.
    Gpt(const ModelConfig& config, int64_t batch, bool training, bool stochastic);
    void lay_out(Memory& memory);
    AttentionShape shape(int64_t batch, int64_t sequence, int64_t queries) const {
        return {batch, sequence, config_.heads, config_.head_size(), queries, config_.key_heads()};
    }
    void bind(const Tensors<T>& tensors);
    double total(int which) const {
        double value;
        copy_out(device(), &value, totals_ + which, 1);
        return value;
    }
    void stream_forward(Context& context, int64_t position, const AttentionShape& shape);
    void logits_forward(Context& context, Range rows);
    bool recomputes() const { return training_ && config_.recompute; }
    void recompute(Context& context, size_t l, const AttentionShape& shape);
    void head_backward(Context& context, Range rows);
    void last_norm_backward(Context& context);
    void embedding_backward(Context& context);

    int64_t batch_;
    bool training_, stochastic_;
    Memory memory_;

    T* compute_ = nullptr;     // the weights that forward and backward use: the master's own where T is A
    Tensor wte_, wpe_, head_;  // [V, C], [T, C], [V, C]; head_ is wte_ where they are tied

    std::optional<Norm<T>> ln_0_, ln_f_;  // of the embedding, before the head
    std::vector<TransformerBlock<T>> blocks_;
    T* embedding_ = nullptr;   // [B·T, C]
    T* logits_ = nullptr;      // [some rows, V], then their gradient
    int64_t logit_rows_ = 0;   // that are held at a time
    A* objectives_ = nullptr;  // [B·T], where they are not the losses

    RotaryTable<T> rotary_;
    Workspace<T> workspace_;
    Inputs inputs_;
    double* dots_ = nullptr;  // [L, 3, 2, H + 2K], of `weight_identities`

    // The last forward.
    std::vector<const T*> streams_;  // [L + 1]: the residual stream before each block, and after the last
    std::vector<T*> kept_;           // [L] of [B·T, C]: those behind each block, where blocks share memory
    const T* head_in_ = nullptr;     // what the head was given
    std::vector<A> appended_;        // logits of the last append, where they must be copied
    T* scaled_ = nullptr;            // [B·T, C], where logits have a factor and no norm takes it up
};

}  // namespace wobble
