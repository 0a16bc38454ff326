// Causal self-attention of a block: queries, keys and values from one product, attention, projection.
#pragma once

#include <optional>

#include "kernels/attention_blocks.h"
#include "kernels/rotary.h"
#include "model/head_norm.h"

namespace wobble {

/// Cosines and sines of a rotary embedding, for all layers.
template <class T>
struct RotaryTable {
    Accumulator<T>*cosine = nullptr, *sine = nullptr;  // [context, R/2]; null: nothing turns

    void lay_out(Memory& memory, const ModelConfig& config) {
        if (config.position != Position::Rotary) return;
        const int64_t size = config.context * config.rotated() / 2;
        cosine = memory.take<Accumulator<T>>(size), sine = memory.take<Accumulator<T>>(size);
    }
    void fill(const ModelConfig& config) const {
        if (cosine) fill_rotary(cosine, sine, config.context, config.rotated(), config.rotary_base);
    }
};

template <class T>
class SelfAttention {
  public:
    using A = Accumulator<T>;

    SelfAttention(const ModelConfig& config, int layer)
        : qkv({"attn.qkv", layer}, config.channels, 3 * config.channels),
          proj({"attn.proj", layer}, config.channels, config.channels),
          layer_(layer),
          C_(config.channels),
          heads_(config.heads),
          rotated_(config.rotated()),
          options_{
              .scale = config.attention_scale == AttentionScale::Inverse ? 1 / double(config.head_size()) : 0,
              .softcap = config.attention_softcap,
              .window = config.window} {
        if (config.qk_norm == QkNorm::None) return;
        q_norm_.emplace(config, Site{"attn.q_norm", layer});
        k_norm_.emplace(config, Site{"attn.k_norm", layer});
    }

    void lay_out(Memory& memory, int64_t rows) {
        qkv_ = memory.take<T>(rows * 3 * C_);
        lse_ = memory.take<A>(rows * heads_);
        out_ = memory.take<T>(rows * C_);
        if (q_norm_) q_norm_->lay_out(memory, rows), k_norm_->lay_out(memory, rows);
    }
    void bind(const Tensors<T>& tensors, const RotaryTable<T>& table) {
        qkv.bind(tensors), proj.bind(tensors);
        if (q_norm_) q_norm_->bind(tensors), k_norm_->bind(tensors);
        table_ = table;
    }

    /// x, y: [shape.batch · shape.queries, C]
    void forward(Context& context, const T* x, T* y, const AttentionShape& shape,
                 const Product<T>& more) const {
        const int64_t rows = shape.batch * shape.queries;
        // With fewer queries than positions (one sequence then), qkv is the cache: new rows follow the ones
        // that are there.
        T* fresh = qkv_ + shape.qkv(0, shape.sequence - shape.queries, 0, 0);
        qkv.forward(context, x, fresh, rows);
        if (q_norm_) {
            q_norm_->forward(context, fresh, 3 * C_, rows);
            k_norm_->forward(context, fresh + C_, 3 * C_, rows);
        }
        turn(context, {"attn.rotary", layer_}, fresh, rows, shape, false);
        const AttentionForward<T> attention{
            .qkv = qkv_, .out = out_, .lse = lse_, .shape = shape, .options = options_};
        if (shape.queries == shape.sequence) launch(context, attention, {"attn", layer_});
        else launch(context, shape.rows(), attention, {"attn", layer_});
        proj.forward(context, out_, y, rows, more);
    }
    /// Leaves the gradient of x in w.channels.
    void backward(Context& context, const T* x, const T* dy, const AttentionShape& shape,
                  const Workspace<T>& w) const {
        proj.backward(context, out_, dy, w.channels, w);
        launch(context,
               AttentionBackward<T>{.qkv = qkv_,
                                    .out = out_,
                                    .dout = w.channels,
                                    .lse = lse_,
                                    .dqkv = w.wide,
                                    .shape = shape,
                                    .options = options_},
               {"attn", layer_, Phase::Backward});
        turn(context, {"attn.rotary", layer_, Phase::Backward}, w.wide, w.rows, shape, true);
        if (q_norm_) {
            q_norm_->backward(context, w.wide, 3 * C_, w);
            k_norm_->backward(context, w.wide + C_, 3 * C_, w);
        }
        qkv.backward(context, x, w.wide, w.channels, w);
    }

    Linear<T> qkv, proj;

  private:
    /// Rotary embedding of the queries and keys of `rows` rows, the last positions of each sequence.
    void turn(Context& context, const Site& site, T* x, int64_t rows, const AttentionShape& shape,
              bool inverse) const {
        if (!table_.cosine) return;
        launch(context, rows,
               Rotary<T>{.x = x,
                         .cosine = table_.cosine,
                         .sine = table_.sine,
                         .row_stride = 3 * C_,
                         .heads = 2 * heads_,
                         .head_size = shape.head_size,
                         .rotated = rotated_,
                         .first = shape.sequence - shape.queries,
                         .sequence = shape.queries,
                         .inverse = inverse},
               site);
    }

    int layer_;
    int64_t C_, heads_, rotated_;
    AttentionOptions options_;
    std::optional<HeadNorm<T>> q_norm_, k_norm_;
    RotaryTable<T> table_;
    T *qkv_ = nullptr, *out_ = nullptr;  // [rows, 3C], [rows, C]
    A* lse_ = nullptr;                   // [B, H, T]
};

}  // namespace wobble
