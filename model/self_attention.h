// Causal self-attention of a block: queries, keys and values from one product, attention, projection.
#pragma once

#include "kernels/attention_blocks.h"
#include "model/linear.h"
#include "model/memory.h"

namespace wobble {

template <class T>
class SelfAttention {
  public:
    using A = Accumulator<T>;

    SelfAttention(const ModelConfig& config, int layer)
        : qkv({"attn.qkv", layer}, config.channels, 3 * config.channels),
          proj({"attn.proj", layer}, config.channels, config.channels),
          layer_(layer),
          C_(config.channels),
          heads_(config.heads) {}

    void lay_out(Memory& memory, int64_t rows) {
        qkv_ = memory.take<T>(rows * 3 * C_);
        lse_ = memory.take<A>(rows * heads_);
        out_ = memory.take<T>(rows * C_);
    }
    void bind(const Tensors<T>& tensors) { qkv.bind(tensors), proj.bind(tensors); }

    /// x, y: [shape.batch · shape.queries, C]
    void forward(Context& context, const T* x, T* y, const AttentionShape& shape,
                 const Product<T>& more) const {
        const int64_t rows = shape.batch * shape.queries;
        // With fewer queries than positions (one sequence then), qkv is the cache: new rows follow the ones
        // that are there.
        qkv.forward(context, x, qkv_ + shape.qkv(0, shape.sequence - shape.queries, 0, 0), rows);
        const AttentionForward<T> attention{.qkv = qkv_, .out = out_, .lse = lse_, .shape = shape};
        if (shape.queries == shape.sequence) launch(context, attention, {"attn", layer_});
        else launch(context, shape.rows(), attention, {"attn", layer_});
        proj.forward(context, out_, y, rows, more);
    }
    /// Leaves the gradient of x in w.channels.
    void backward(Context& context, const T* x, const T* dy, const AttentionShape& shape,
                  const Workspace<T>& w) const {
        proj.backward(context, out_, dy, w.channels, w);
        launch(context,
               AttentionBackward<T>{
                   .qkv = qkv_, .out = out_, .dout = w.channels, .lse = lse_, .dqkv = w.wide, .shape = shape},
               {"attn", layer_, Phase::Backward});
        qkv.backward(context, x, w.wide, w.channels, w);
    }

    Linear<T> qkv, proj;

  private:
    int layer_;
    int64_t C_, heads_;
    T *qkv_ = nullptr, *out_ = nullptr;  // [rows, 3C], [rows, C]
    A* lse_ = nullptr;                   // [B, H, T]
};

}  // namespace wobble
