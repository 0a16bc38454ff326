// Causal self-attention of a block: queries, keys and values from one product, attention, projection; and
// between them what the configuration adds: norms of queries and keys, values of the first layer, rotation.
#pragma once

#include <optional>
#include <vector>

#include "kernels/attention_blocks.h"
#include "kernels/rotary.h"
#include "kernels/value_residual.h"
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
    void fill(const ModelConfig& config, Device device) const {
        if (!cosine) return;
        using A = Accumulator<T>;
        const int64_t size = config.context * config.rotated() / 2;
        std::vector<A> cosines(static_cast<size_t>(size)), sines(cosines);
        fill_rotary(cosines.data(), sines.data(), config.context, config.rotated(), config.rotary_base);
        copy_in(device, cosine, cosines.data(), size), copy_in(device, sine, sines.data(), size);
    }
};

template <class T>
class SelfAttention {
  public:
    using A = Accumulator<T>;

    SelfAttention(const ModelConfig& config, int layer)
        : qkv({"attn.qkv", layer}, config.channels, config.qkv_width()),
          proj({"attn.proj", layer}, config.channels, config.channels),
          layer_(layer),
          layers_(config.layers),
          C_(config.channels),
          heads_(config.heads),
          key_heads_(config.key_heads()),
          width_(config.qkv_width()),
          rotated_(config.rotated()),
          value_residual_(config.value_residual),
          has_sink_(config.sink),
          options_{
              .scale = config.attention_scale == AttentionScale::Inverse ? 1 / double(config.head_size()) : 0,
              .softcap = config.attention_softcap,
              .window = config.window} {
        if (config.qk_norm == QkNorm::None) return;
        q_norm_.emplace(config, Site{"attn.q_norm", layer}, heads_);
        k_norm_.emplace(config, Site{"attn.k_norm", layer}, key_heads_);
    }

    void lay_out(Memory& memory, int64_t rows) {
        qkv_ = memory.take<T>(rows * width_);
        lse_ = memory.take<A>(rows * heads_);
        out_ = memory.take<T>(rows * C_);
        if (has_sink_) dsinks_ = memory.take<T>(rows * heads_);
        if (q_norm_) q_norm_->lay_out(memory, rows), k_norm_->lay_out(memory, rows);
    }
    void bind(const Tensors<T>& tensors, const RotaryTable<T>& table, const SelfAttention& first) {
        qkv.bind(tensors), proj.bind(tensors);
        sinks_ = tensors.at(Site{"attn.sink", layer_, Phase::Forward, ".weight"}.full_name());
        first_qkv_ = first.qkv_;
        if (q_norm_) q_norm_->bind(tensors), k_norm_->bind(tensors);
        table_ = table;
    }

    /// x, y: [shape.batch · shape.queries, C]
    void forward(Context& context, const T* x, T* y, const AttentionShape& shape,
                 const Product<T>& more) const {
        const int64_t rows = shape.batch * shape.queries;
        // With fewer queries than positions (one sequence then), qkv is the cache: new rows follow the ones
        // that are there.
        const int64_t offset = shape.qkv(0, shape.sequence - shape.queries, 0, 0);
        T* fresh = qkv_ + offset;
        qkv.forward(context, x, fresh, rows);
        mix_values(context, fresh, first_qkv_ + offset, rows, shape);
        if (q_norm_) {
            q_norm_->forward(context, fresh, width_, rows);
            k_norm_->forward(context, fresh + shape.column(0, 1), width_, rows);
        }
        turn(context, {"attn.rotary", layer_}, fresh, rows, shape, false);
        const AttentionForward<T> attention{.qkv = qkv_,
                                            .out = out_,
                                            .lse = lse_,
                                            .shape = shape,
                                            .options = options_,
                                            .sinks = sinks_.weight};
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
                                    .delta = w.delta,
                                    .shape = shape,
                                    .options = options_,
                                    .sinks = sinks_.weight,
                                    .dsinks = dsinks_},
               {"attn", layer_, Phase::Backward});
        if (sinks_) {
            const Site site{"attn.sink", layer_, Phase::Backward, ".weight"};
            const int64_t chunks = chunk_count(w.rows);
            launch(context, chunks,
                   ColumnSum<T>{.x = dsinks_, .chunks = w.chunks_a, .rows = w.rows, .C = heads_}, site);
            sum_chunks<T>(context, site, w.chunks_a, sinks_.gradient, heads_, chunks, w.accumulate);
        }
        turn(context, {"attn.rotary", layer_, Phase::Backward}, w.wide, w.rows, shape, true);
        if (q_norm_) {
            q_norm_->backward(context, w.wide, width_, w);
            k_norm_->backward(context, w.wide + shape.column(0, 1), width_, w);
        }
        unmix_values(context, shape, w);
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
                         .row_stride = width_,
                         .heads = heads_ + key_heads_,
                         .head_size = shape.head_size,
                         .rotated = rotated_,
                         .first = shape.sequence - shape.queries,
                         .sequence = shape.queries,
                         .inverse = inverse},
               site);
    }

    /// Layers after the first take a share of its values.
    void mix_values(Context& context, T* rows_of_qkv, const T* first_rows, int64_t rows,
                    const AttentionShape& shape) const {
        if (value_residual_ == 0 || layer_ == 0) return;
        launch(context, rows,
               ValueResidualForward<T>{.v = rows_of_qkv + shape.column(0, 2),
                                       .v_first = first_rows + shape.column(0, 2),
                                       .stride = width_,
                                       .first_stride = width_,
                                       .width = key_heads_ * shape.head_size,
                                       .lambda = A(value_residual_)},
               {"attn.value_residual", layer_});
    }
    /// Later layers leave the first one's share in w.first_values, from which it takes everything.
    void unmix_values(Context& context, const AttentionShape& shape, const Workspace<T>& w) const {
        if (value_residual_ == 0) return;
        T* dv = w.wide + shape.column(0, 2);
        const int64_t width = key_heads_ * shape.head_size;
        const Site site{"attn.value_residual", layer_, Phase::Backward};
        if (layer_ > 0) {
            launch(context, w.rows,
                   ValueResidualBackward<T>{.dv = dv,
                                            .dv_first = w.first_values,
                                            .stride = width_,
                                            .first_stride = width,
                                            .width = width,
                                            .lambda = A(value_residual_),
                                            .accumulate = layer_ + 1 < layers_},
                   site);
        } else if (layers_ > 1) {
            launch(context, w.rows,
                   ValueResidualBackward<T>{.dv = w.first_values,
                                            .dv_first = dv,
                                            .stride = width,
                                            .first_stride = width_,
                                            .width = width,
                                            .lambda = A(1),
                                            .accumulate = true},
                   site);
        }
    }

    int layer_;
    int64_t layers_, C_, heads_, key_heads_, width_, rotated_;
    double value_residual_;
    bool has_sink_;
    AttentionOptions options_;
    std::optional<HeadNorm<T>> q_norm_, k_norm_;
    RotaryTable<T> table_;
    typename Tensors<T>::Tensor sinks_;  // [H], may be missing
    const T* first_qkv_ = nullptr;       // of the first layer
    T *qkv_ = nullptr, *out_ = nullptr;  // [rows, (H + 2K) D], [rows, C]
    T* dsinks_ = nullptr;                // [rows, H]
    A* lse_ = nullptr;                   // [B, H, T]
};

}  // namespace wobble
