// One token's way through the model, forward and then backward, in the order in which it happens: the text of
// Gpt<T>. It is compiled once for each element type, in gpt_float32.cu and gpt_float64.cu.
#pragma once

#include "kernels/attention_blocks.h"
#include "kernels/classifier.h"
#include "kernels/identities.h"
#include "kernels/layernorm.h"
#include "kernels/product.h"
#include "kernels/reduce.h"
#include "model/gpt.h"
#include "probes/launch.h"

namespace wobble {

namespace {

constexpr Phase backward_phase = Phase::Backward;

/// y = x W + b, then what `more` says (activation, residual).
template <class T>
void linear(Context& context, const Site& site, const T* x, const T* weight, const T* bias, T* y,
            int64_t rows, int64_t in, int64_t out, Product<T> more = {}) {
    more.a = x, more.b = weight, more.c = y, more.m = rows, more.n = out, more.k = in, more.bias = bias;
    launch(context, more, site);
}

}  // namespace

template <class T>
Gpt<T>::Gpt(const ModelConfig& config, int64_t batch, bool training)
    : config_(config), table_((check(config), config)), batch_(batch), training_(training) {
    memory_.plan([this](Memory& memory) { lay_out(memory); });
    weight_ = std::make_unique<Tensors<T>>(table_, config_, weights_);
    if (training_) gradient_ = std::make_unique<Tensors<A>>(table_, config_, gradients_);
}

template <class T>
void Gpt<T>::lay_out(Memory& memory) {
    const int64_t rows = batch_ * config_.context, C = config_.channels, F = config_.mlp_width();
    const int64_t wide = std::max(3 * C, F);
    weights_ = memory.take<T>(table_.buffer_size);
    if (training_) gradients_ = memory.take<A>(table_.buffer_size);

    embedding_ = memory.take<T>(rows * C);
    layers_.resize(size_t(config_.layers));
    for (LayerActivations<T>& a : layers_) {
        a.ln_1 = memory.take<T>(rows * C);
        a.ln_1_mean = memory.take<A>(rows), a.ln_1_rstd = memory.take<A>(rows);
        a.qkv = memory.take<T>(rows * 3 * C);
        a.lse = memory.take<A>(rows * config_.heads);
        a.attention = memory.take<T>(rows * C);
        a.middle = memory.take<T>(rows * C);
        a.ln_2 = memory.take<T>(rows * C);
        a.ln_2_mean = memory.take<A>(rows), a.ln_2_rstd = memory.take<A>(rows);
        a.fc = memory.take<T>(rows * F);
        a.gelu = memory.take<T>(rows * F);
        a.out = memory.take<T>(rows * C);
    }
    ln_f_ = memory.take<T>(rows * C);
    ln_f_mean_ = memory.take<A>(rows), ln_f_rstd_ = memory.take<A>(rows);
    logits_ = memory.take<T>(rows * config_.vocab);
    losses_ = memory.take<A>(rows);

    if (training_) {
        d_stream_ = memory.take<T>(rows * C);
        d_channels_ = memory.take<T>(rows * C);
        d_wide_ = memory.take<T>(rows * wide);
        chunks_a_ = memory.take<A>(most_chunks * wide);
        chunks_b_ = memory.take<A>(most_chunks * wide);
    }
}

// ------------------------------------------------------------------------------------------------------------
// forward

template <class T>
double Gpt<T>::forward(Context& context, const int32_t* tokens, const int32_t* targets, int64_t batch,
                       int64_t sequence, double scale) {
    tokens_ = tokens, rows_ = batch * sequence, sequence_ = sequence;
    logits_forward(context, tokens, 0, {batch, sequence, config_.heads, config_.head_size(), sequence});
    launch(context, rows_,
           SoftmaxCrossEntropy<T>{.logits = logits_,
                                  .targets = targets,
                                  .losses = losses_,
                                  .dlogits = scale == 0 ? nullptr : logits_,
                                  .V = config_.vocab,
                                  .scale = A(scale)},
           {"loss"});
    double loss = 0;
    for (int64_t row = 0; row < rows_; ++row) loss += double(losses_[row]);
    return loss;
}

template <class T>
const T* Gpt<T>::append(Context& context, int32_t token, int64_t position) {
    logits_forward(context, &token, position, {1, position + 1, config_.heads, config_.head_size(), 1});
    return logits_;
}

/// Logits of the `shape.queries` last positions of each sequence, the first of them at `position`.
template <class T>
void Gpt<T>::logits_forward(Context& context, const int32_t* tokens, int64_t position,
                            const AttentionShape& shape) {
    const int64_t rows = shape.batch * shape.queries, C = config_.channels;
    launch(context, rows,
           EmbeddingForward<T>{.tokens = tokens,
                               .wte = weight_->wte,
                               .wpe = weight_->wpe + position * C,
                               .y = embedding_,
                               .sequence = shape.queries,
                               .C = C},
           {"embedding"});
    const T* stream = embedding_;
    for (int64_t l = 0; l < config_.layers; ++l) {
        block_forward(context, l, stream, shape);
        stream = layers_[size_t(l)].out;
    }
    launch(context, rows,
           LayerNormForward<T>{.x = stream,
                               .weight = weight_->ln_f_weight,
                               .bias = weight_->ln_f_bias,
                               .y = ln_f_,
                               .mean = ln_f_mean_,
                               .rstd = ln_f_rstd_,
                               .C = C,
                               .epsilon = A(config_.epsilon)},
           {"ln_f"});
    launch(context,
           Product<T>{.a = ln_f_,
                      .b = weight_->wte,
                      .c = logits_,
                      .m = rows,
                      .n = config_.vocab,
                      .k = C,
                      .transpose_b = true},
           {"head"});
}

template <class T>
void Gpt<T>::block_forward(Context& context, int64_t layer, const T* in, const AttentionShape& shape) {
    const LayerTensors<T>& w = weight_->layers[size_t(layer)];
    LayerActivations<T>& a = layers_[size_t(layer)];
    const int64_t rows = shape.batch * shape.queries, C = config_.channels, F = config_.mlp_width();
    const int l = int(layer);
    const A epsilon = A(config_.epsilon);

    launch(context, rows,
           LayerNormForward<T>{.x = in,
                               .weight = w.ln_1_weight,
                               .bias = w.ln_1_bias,
                               .y = a.ln_1,
                               .mean = a.ln_1_mean,
                               .rstd = a.ln_1_rstd,
                               .C = C,
                               .epsilon = epsilon},
           {"ln_1", l});
    // With fewer queries than positions (one sequence then), qkv is the cache: new rows follow the ones that
    // are there.
    T* new_qkv = a.qkv + shape.qkv(0, shape.sequence - shape.queries, 0, 0);
    linear(context, {"attn.qkv", l}, a.ln_1, w.attn_qkv_weight, w.attn_qkv_bias, new_qkv, rows, C, 3 * C);
    const AttentionForward<T> attention{.qkv = a.qkv, .out = a.attention, .lse = a.lse, .shape = shape};
    if (shape.queries == shape.sequence) launch(context, attention, {"attn", l});
    else launch(context, shape.rows(), attention, {"attn", l});
    linear(context, {"attn.proj", l}, a.attention, w.attn_proj_weight, w.attn_proj_bias, a.middle, rows, C, C,
           {.residual = in});

    launch(context, rows,
           LayerNormForward<T>{.x = a.middle,
                               .weight = w.ln_2_weight,
                               .bias = w.ln_2_bias,
                               .y = a.ln_2,
                               .mean = a.ln_2_mean,
                               .rstd = a.ln_2_rstd,
                               .C = C,
                               .epsilon = epsilon},
           {"ln_2", l});
    linear(context, {"mlp.fc", l}, a.ln_2, w.mlp_fc_weight, w.mlp_fc_bias, a.gelu, rows, C, F,
           {.activation = Epilogue::Gelu, .before_activation = a.fc});
    linear(context, {"mlp.proj", l}, a.gelu, w.mlp_proj_weight, w.mlp_proj_bias, a.out, rows, F, C,
           {.residual = a.middle});
}

// -----------------------------------------------------------------------------------------------------------
// backward

namespace {

/// out [C] (+)= the sum of `count` chunks [count, C].
template <class T>
void sum_chunks(Context& context, const Site& site, const Accumulator<T>* chunks, Accumulator<T>* out,
                int64_t C, int64_t count, bool accumulate) {
    launch(context, SumChunks<T>::teams(C),
           SumChunks<T>{.chunks = chunks, .out = out, .count = count, .C = C, .accumulate = accumulate},
           site);
}

/// Gradients of y = x W + b: dW (+)= xᵀ dy, db (+)= Σ_rows dy, and dx = dy Wᵀ.
template <class T>
void linear_backward(Context& context, const Site& site, const T* x, const T* weight, const T* dy, T* dx,
                     Accumulator<T>* dweight, Accumulator<T>* dbias, Accumulator<T>* chunks, int64_t rows,
                     int64_t in, int64_t out, bool accumulate) {
    launch(context,
           Product<T>{.a = x,
                      .b = dy,
                      .c = dweight,
                      .m = in,
                      .n = out,
                      .k = rows,
                      .transpose_a = true,
                      .accumulate = accumulate},
           site.of(".weight"));
    launch(context, chunk_count(rows), ColumnSum<T>{.x = dy, .chunks = chunks, .rows = rows, .C = out},
           site.of(".bias"));
    sum_chunks<T>(context, site.of(".bias"), chunks, dbias, out, chunk_count(rows), accumulate);
    launch(context,
           Product<T>{.a = dy, .b = weight, .c = dx, .m = rows, .n = in, .k = out, .transpose_b = true},
           site);
}

/// dx = dresidual + the norm's gradient; gradients of gain and bias.
template <class T>
void norm_backward(Context& context, const Site& site, LayerNormBackward<T> norm, int64_t sequence,
                   Accumulator<T>* dweight, Accumulator<T>* dbias, bool accumulate) {
    const int64_t chunks = chunk_count(norm.rows);
    launch(context, chunks, norm, site);
    if (context.recorder && context.recorder->example_squares()) {
        const int64_t batch = norm.rows / sequence;
        launch(context, batch,
               LayerNormExamples<T>{.x = norm.x,
                                    .mean = norm.mean,
                                    .rstd = norm.rstd,
                                    .dy = norm.dy,
                                    .workspace = context.scratch.get<Accumulator<T>>(batch * 2 * norm.C),
                                    .squares = context.recorder->example_squares(),
                                    .sequence = sequence,
                                    .C = norm.C},
               site.of(".examples"));
    }
    sum_chunks<T>(context, site.of(".weight"), norm.dweight_chunks, dweight, norm.C, chunks, accumulate);
    sum_chunks<T>(context, site.of(".bias"), norm.dbias_chunks, dbias, norm.C, chunks, accumulate);
}

}  // namespace

template <class T>
void Gpt<T>::backward(Context& context, bool accumulate) {
    const int64_t C = config_.channels, V = config_.vocab, batch = rows_ / sequence_;
    const T* dlogits = logits_;

    launch(context,
           Product<T>{.a = dlogits,
                      .b = ln_f_,
                      .c = gradient_->wte,
                      .m = V,
                      .n = C,
                      .k = rows_,
                      .transpose_a = true,
                      .accumulate = accumulate},
           {"head", -1, backward_phase, ".weight"});
    // Before the embedding adds its share to the matrix that both use.
    const Site head_weight{"head", -1, backward_phase, ".weight"};
    if (!accumulate && context.recorder && context.recorder->tier(head_weight) == Tier::Full) {
        launch(context, ColumnTotals<T>::teams(C),
               ColumnTotals<A>{.x = gradient_->wte, .out = chunks_a_, .rows = V, .C = C}, head_weight);
    }
    launch(context, Product<T>{.a = dlogits, .b = weight_->wte, .c = d_channels_, .m = rows_, .n = C, .k = V},
           {"head", -1, backward_phase});
    norm_backward(context, {"ln_f", -1, backward_phase},
                  LayerNormBackward<T>{.x = layers_.back().out,
                                       .weight = weight_->ln_f_weight,
                                       .mean = ln_f_mean_,
                                       .rstd = ln_f_rstd_,
                                       .dy = d_channels_,
                                       .dresidual = nullptr,
                                       .dx = d_stream_,
                                       .dweight_chunks = chunks_a_,
                                       .dbias_chunks = chunks_b_,
                                       .rows = rows_,
                                       .C = C,
                                       .epsilon = A(config_.epsilon)},
                  sequence_, gradient_->ln_f_weight, gradient_->ln_f_bias, accumulate);

    for (int64_t l = config_.layers - 1; l >= 0; --l) block_backward(context, l, accumulate);

    launch(context, sequence_,
           PositionEmbeddingBackward<T>{.dy = d_stream_,
                                        .dwpe = gradient_->wpe,
                                        .batch = batch,
                                        .sequence = sequence_,
                                        .C = C,
                                        .accumulate = accumulate},
           {"wpe", -1, backward_phase, ".weight"});
    index_.build(tokens_, rows_, V);
    launch(context, V,
           TokenEmbeddingBackward<T>{.order = index_.order.data(),
                                     .starts = index_.starts.data(),
                                     .dy = d_stream_,
                                     .dwte = gradient_->wte,
                                     .C = C},
           {"wte", -1, backward_phase, ".weight"});
}

/// d_stream_ holds the gradient of the block's output on entry and of its input on return.
template <class T>
void Gpt<T>::block_backward(Context& context, int64_t layer, bool accumulate) {
    const LayerTensors<T>& w = weight_->layers[size_t(layer)];
    const LayerTensors<A>& g = gradient_->layers[size_t(layer)];
    const LayerActivations<T>& a = layers_[size_t(layer)];
    const T* in = layer == 0 ? embedding_ : layers_[size_t(layer) - 1].out;
    const int64_t rows = rows_, C = config_.channels, F = config_.mlp_width();
    const auto site = [&](const char* name) { return Site{name, int(layer), backward_phase}; };

    linear_backward(context, site("mlp.proj"), a.gelu, w.mlp_proj_weight, d_stream_, d_wide_,
                    g.mlp_proj_weight, g.mlp_proj_bias, chunks_a_, rows, F, C, accumulate);
    launch(context, flat_rows(rows * F),
           ActivationBackward<T>{.x = a.fc, .dy = d_wide_, .dx = d_wide_, .n = rows * F}, site("mlp.gelu"));
    linear_backward(context, site("mlp.fc"), a.ln_2, w.mlp_fc_weight, d_wide_, d_channels_, g.mlp_fc_weight,
                    g.mlp_fc_bias, chunks_a_, rows, C, F, accumulate);
    norm_backward(context, site("ln_2"),
                  LayerNormBackward<T>{.x = a.middle,
                                       .weight = w.ln_2_weight,
                                       .mean = a.ln_2_mean,
                                       .rstd = a.ln_2_rstd,
                                       .dy = d_channels_,
                                       .dresidual = d_stream_,
                                       .dx = d_stream_,
                                       .dweight_chunks = chunks_a_,
                                       .dbias_chunks = chunks_b_,
                                       .rows = rows,
                                       .C = C,
                                       .epsilon = A(config_.epsilon)},
                  sequence_, g.ln_2_weight, g.ln_2_bias, accumulate);

    linear_backward(context, site("attn.proj"), a.attention, w.attn_proj_weight, d_stream_, d_channels_,
                    g.attn_proj_weight, g.attn_proj_bias, chunks_a_, rows, C, C, accumulate);
    launch(context,
           AttentionBackward<T>{
               .qkv = a.qkv,
               .out = a.attention,
               .dout = d_channels_,
               .lse = a.lse,
               .dqkv = d_wide_,
               .shape = {rows / sequence_, sequence_, config_.heads, config_.head_size(), sequence_}},
           site("attn"));
    linear_backward(context, site("attn.qkv"), a.ln_1, w.attn_qkv_weight, d_wide_, d_channels_,
                    g.attn_qkv_weight, g.attn_qkv_bias, chunks_a_, rows, C, 3 * C, accumulate);
    norm_backward(context, site("ln_1"),
                  LayerNormBackward<T>{.x = in,
                                       .weight = w.ln_1_weight,
                                       .mean = a.ln_1_mean,
                                       .rstd = a.ln_1_rstd,
                                       .dy = d_channels_,
                                       .dresidual = d_stream_,
                                       .dx = d_stream_,
                                       .dweight_chunks = chunks_a_,
                                       .dbias_chunks = chunks_b_,
                                       .rows = rows,
                                       .C = C,
                                       .epsilon = A(config_.epsilon)},
                  sequence_, g.ln_1_weight, g.ln_1_bias, accumulate);
}

}  // namespace wobble
