// A block of the model: attention and the network, each as a branch of the residual stream.
#pragma once

#include "model/mlp.h"
#include "model/residual_branch.h"
#include "model/self_attention.h"

namespace wobble {

template <class T>
class TransformerBlock {
  public:
    TransformerBlock(const ModelConfig& config, int64_t layer)
        : attention(config, int(layer)),
          mlp_(config, int(layer)),
          first_(config, layer, "ln_1", "ln_1_out", "attn.add"),
          second_(config, layer, "ln_2", "ln_2_out", "mlp.add") {}

    void lay_out(Memory& memory, int64_t rows) {
        first_.lay_out(memory, rows), attention.lay_out(memory, rows);
        second_.lay_out(memory, rows), mlp_.lay_out(memory, rows);
    }
    /// `first`: the model's first block, which may be this one.
    void bind(const Tensors<T>& tensors, const RotaryTable<T>& table, const TransformerBlock& first) {
        first_.bind(tensors), attention.bind(tensors, table, first.attention);
        second_.bind(tensors), mlp_.bind(tensors);
    }

    /// What the stream x [rows, C] becomes.
    const T* forward(Context& context, const T* x, const AttentionShape& shape) {
        const int64_t rows = shape.batch * shape.queries;
        middle_ = first_.forward(context, x, rows, [&](const T* in, T* out, const Product<T>& more) {
            attention.forward(context, in, out, shape, more);
        });
        return second_.forward(context, middle_, rows, [&](const T* in, T* out, const Product<T>& more) {
            mlp_.forward(context, in, out, rows, more);
        });
    }
    /// Turns w.stream from the gradient of forward's result into that of x.
    void backward(Context& context, const T* x, const AttentionShape& shape, Workspace<T>& w) const {
        second_.backward(context, middle_, w,
                         [&](const T* in, const T* dout) { mlp_.backward(context, in, dout, w); });
        first_.backward(context, x, w,
                        [&](const T* in, const T* dout) { attention.backward(context, in, dout, shape, w); });
    }

    SelfAttention<T> attention;

  private:
    Mlp<T> mlp_;
    ResidualBranch<T> first_, second_;
    const T* middle_ = nullptr;  // the stream between the two
};

}  // namespace wobble
