// One token's way through the model, forward and then backward, in the order in which it happens: the text of
// Gpt<T>. It is compiled once for each element type, in gpt_float32.cu and its like.
#pragma once

#include "kernels/classifier.h"
#include "kernels/identities.h"
#include "kernels/reduce.h"
#include "kernels/round.h"
#include "model/gpt.h"

namespace wobble {

/// How many rows of logits are held at a time: with a large vocabulary they would be most of the memory. The
/// head's matrix is read and its gradient added to once for these many rows, which 2²⁵ logits make cheap; a
/// GPU, which multiplies so much faster, needs 2²⁹ for that.
inline int64_t logit_rows(int64_t rows, int64_t vocab, Device device) {
    constexpr int64_t step = 256;
    const int64_t most_logits = int64_t(1) << (device == Device::Cuda ? 29 : 25);
    return std::min(rows, std::max(step, most_logits / vocab / step * step));
}

template <class T>
Gpt<T>::Gpt(const ModelConfig& config, int64_t batch, bool training, bool stochastic)
    : Model<A>(config), batch_(batch), training_(training), stochastic_(stochastic) {
    if (config.embedding_norm) ln_0_.emplace(config, Site{"ln_0"});
    for (int64_t l = 0; l < config.layers; ++l) blocks_.emplace_back(config, l);
    if (config.final_norm()) ln_f_.emplace(config, Site{"ln_f"}, config.output_factor());
}

template <class T>
Gpt<T>::Gpt(const ModelConfig& config, int64_t batch, bool training, Device device, bool stochastic)
    : Gpt(config, batch, training, stochastic) {
    memory_.plan(device, [this](Memory& memory) { lay_out(memory); });
    bind({table_, compute_, gradients_});
    rotary_.fill(config, device);
}

template <class T>
auto Gpt<T>::plan(const ModelConfig& config, int64_t batch, bool training, Device device)
    -> std::vector<Memory::Section> {
    Gpt gpt(config, batch, training, false);
    return Memory().measure(device, [&](Memory& memory) { gpt.lay_out(memory); });
}

template <class T>
void Gpt<T>::lay_out(Memory& memory) {
    const int64_t rows = batch_ * config_.context, C = config_.channels;
    const int64_t wide = std::max(config_.qkv_width(), config_.fc_width());
    memory.begin("parameters");
    this->weights_ = memory.take<A>(table_.buffer_size);
    if constexpr (std::is_same_v<T, A>) compute_ = this->weights_;
    else compute_ = memory.take<T>(table_.buffer_size);
    memory.begin("gradients");
    if (training_) gradients_ = memory.take<A>(table_.buffer_size);

    memory.begin("activations");
    rotary_.lay_out(memory, config_);
    embedding_ = memory.take<T>(rows * C);
    if (ln_0_) ln_0_->lay_out(memory, rows);
    kept_.clear();
    const size_t begin = memory.bytes();
    for (TransformerBlock<T>& block : blocks_) {
        if (recomputes()) memory.reuse_from(begin);  // blocks are alike
        block.lay_out(memory, rows);
    }
    for (size_t l = 0; recomputes() && l < blocks_.size(); ++l) kept_.push_back(memory.take<T>(rows * C));
    if (ln_f_) ln_f_->lay_out(memory, rows);
    if (!ln_f_ && config_.output_factor() != 1) scaled_ = memory.take<T>(rows * C);
    logit_rows_ = logit_rows(rows, config_.vocab, memory.device());
    memory.begin("logits");
    logits_ = memory.take<T>(logit_rows_ * config_.vocab);
    losses_ = memory.take<A>(rows);
    totals_ = memory.take<double>(2);
    inputs_.lay_out(memory, rows, config_.vocab);
    if (!config_.objective_is_loss()) objectives_ = memory.take<A>(rows);

    memory.begin("workspace");
    if (training_) {
        workspace_.stream = memory.take<T>(rows * C);
        workspace_.channels = memory.take<T>(rows * C);
        workspace_.branch = memory.take<T>(rows * C);
        workspace_.wide = memory.take<T>(rows * wide);
        if (config_.value_residual > 0)
            workspace_.first_values = memory.take<T>(rows * config_.key_heads() * config_.head_size());
        workspace_.chunks_a = memory.take<A>(most_chunks * wide);
        workspace_.chunks_b = memory.take<A>(most_chunks * wide);
        workspace_.chunks_alpha = memory.take<A>(most_chunks);
        workspace_.examples = memory.take<A>(batch_ * 2 * C);
        dots_ = memory.take<double>(config_.layers * 6 * (config_.heads + 2 * config_.key_heads()));
        if (memory.device() == Device::Cuda) workspace_.delta = memory.take<A>(rows * config_.heads);
    }
}

template <class T>
void Gpt<T>::bind(const Tensors<T>& tensors) {
    wte_ = tensors.at("wte.weight"), wpe_ = tensors.at("wpe.weight");
    head_ = config_.tied ? wte_ : tensors.at("head.weight");
    if (ln_0_) ln_0_->bind(tensors);
    for (TransformerBlock<T>& block : blocks_) block.bind(tensors, rotary_, blocks_.front());
    if (ln_f_) ln_f_->bind(tensors);
}

template <class T>
void Gpt<T>::weights_changed([[maybe_unused]] Context& context) {
    if constexpr (!std::is_same_v<T, A>) {
        for (const Parameter& p : table_.parameters) {
            launch(context, flat_rows(p.size),
                   RoundWeights<T>{.master = this->weights_ + p.offset,
                                   .weight = compute_ + p.offset,
                                   .n = p.size,
                                   .stochastic = stochastic_,
                                   .offset = p.offset},
                   {p.name.c_str(), -1, Phase::Update, ".rounded"});
        }
    }
}

template <class T>
auto Gpt<T>::stream() const -> std::vector<A> {
    std::vector<T> last(size_t(workspace_.rows * config_.channels));
    copy_out(device(), last.data(), streams_.back(), int64_t(last.size()));
    return {last.begin(), last.end()};
}

// ------------------------------------------------------------------------------------------------------------
// forward

template <class T>
void Gpt<T>::forward(Context& context, const int32_t* tokens, const int32_t* targets, int64_t batch,
                     int64_t sequence, double scale, bool accumulate) {
    const int64_t rows = batch * sequence;
    inputs_.give(tokens, targets, rows, config_.vocab, !accumulate);
    workspace_.rows = rows, workspace_.sequence = sequence, workspace_.accumulate = accumulate;
    stream_forward(context, 0, shape(batch, sequence, sequence));
    for (int64_t first = 0; first < rows; first += logit_rows_) {
        const Range some{first, std::min(first + logit_rows_, rows)};
        logits_forward(context, some);
        launch(context, some.end - first,
               SoftmaxCrossEntropy<T>{.logits = logits_,
                                      .targets = inputs_.targets() + first,
                                      .losses = losses_ + first,
                                      .dlogits = scale == 0 ? nullptr : logits_,
                                      .V = config_.vocab,
                                      .scale = A(scale),
                                      .z_loss = A(config_.z_loss),
                                      .label_smoothing = A(config_.label_smoothing),
                                      .softcap = A(config_.logit_softcap),
                                      .objectives = objectives_ ? objectives_ + first : nullptr},
               Site{"loss"}.from_row(first));
        if (scale != 0) head_backward(context, some);
    }
    run_bare(context, 1, Total<A>{losses_, totals_, rows, accumulate});
    if (objectives_) run_bare(context, 1, Total<A>{objectives_, totals_ + 1, rows, accumulate});
}

template <class T>
auto Gpt<T>::append(Context& context, int32_t token, int64_t position) -> const A* {
    inputs_.give(&token, nullptr, 1, config_.vocab, true);
    stream_forward(context, position, shape(1, position + 1, 1));
    logits_forward(context, {0, 1});
    if constexpr (std::is_same_v<T, A>) {
        if (device() == Device::Cpu) return logits_;
    }
    std::vector<T> logits(static_cast<size_t>(config_.vocab));
    copy_out(device(), logits.data(), logits_, config_.vocab);
    appended_.assign(logits.begin(), logits.end());
    return appended_.data();
}

/// What the head is given of the `shape.queries` last positions of each sequence, the first of them at
/// `position`.
template <class T>
void Gpt<T>::stream_forward(Context& context, int64_t position, const AttentionShape& shape) {
    const int64_t rows = shape.batch * shape.queries, C = config_.channels;
    launch(context, rows,
           EmbeddingForward<T>{.tokens = inputs_.tokens(),
                               .wte = wte_.weight,
                               .wpe = wpe_ ? wpe_.weight + position * C : nullptr,
                               .y = embedding_,
                               .sequence = shape.queries,
                               .C = C,
                               .scale = A(config_.embedding_scale)},
           {"embedding"});
    streams_.assign(1, ln_0_ ? ln_0_->forward(context, embedding_, rows) : embedding_);
    for (TransformerBlock<T>& block : blocks_) {
        const T* stream = block.forward(context, streams_.back(), shape);
        if (recomputes()) {
            T* kept = kept_[streams_.size() - 1];
            copy_within(device(), kept, stream, rows * C);
            stream = kept;
        }
        streams_.push_back(stream);
    }
    head_in_ = ln_f_ ? ln_f_->forward(context, streams_.back(), rows) : streams_.back();
    if (scaled_) {
        launch(context, flat_rows(rows * C),
               Scale<T>{.x = head_in_, .y = scaled_, .n = rows * C, .factor = A(config_.output_factor())},
               {"head", -1, Phase::Forward, ".scale"});
        head_in_ = scaled_;
    }
}

template <class T>
void Gpt<T>::logits_forward(Context& context, Range rows) {
    const int64_t count = rows.end - rows.begin, C = config_.channels;
    launch(context,
           Product<T>{.a = head_in_ + rows.begin * C,
                      .b = head_.weight,
                      .c = logits_,
                      .m = count,
                      .n = config_.vocab,
                      .k = C,
                      .transpose_b = true},
           Site{"head"}.from_row(rows.begin));
    if (config_.logit_softcap > 0) {
        launch(context, count,
               LogitSoftcap<T>{.logits = logits_, .V = config_.vocab, .cap = A(config_.logit_softcap)},
               Site{"head", -1, Phase::Forward, ".softcap"}.from_row(rows.begin));
    }
}

// ------------------------------------------------------------------------------------------------------------
// backward

/// From the gradient of some rows' logits to that of what the head was given, and of its matrix.
template <class T>
void Gpt<T>::head_backward(Context& context, Range rows) {
    Workspace<T>& w = workspace_;
    const int64_t C = config_.channels, V = config_.vocab, count = rows.end - rows.begin;
    const T* dlogits = logits_;
    const Site site{"head", -1, Phase::Backward}, weight = site.of(".weight");
    const bool is_last = rows.end == w.rows;
    // Probes see the matrix's gradient when it is whole.
    Recorder* recorder = is_last ? context.recorder : std::exchange(context.recorder, nullptr);
    launch(context,
           Product<T, A>{.a = dlogits,
                         .b = head_in_ + rows.begin * C,
                         .c = head_.gradient,
                         .m = V,
                         .n = C,
                         .k = count,
                         .transpose_a = true,
                         .accumulate = w.accumulate || rows.begin > 0},
           weight);
    context.recorder = recorder;
    // Before the embedding adds its share to the matrix that both use. A row of dlogits adds up to something
    // with z-loss, and behind the slopes of a cap.
    const bool adds_up_to_zero = config_.z_loss == 0 && config_.logit_softcap == 0;
    if (is_last && adds_up_to_zero && !w.accumulate && recorder && recorder->tier(weight) == Tier::Full) {
        launch(context, ColumnTotals<A>::teams(C),
               ColumnTotals<A>{.x = head_.gradient, .out = w.chunks_a, .rows = V, .C = C}, weight);
    }
    T* dx = ln_f_ ? w.channels : w.stream;
    launch(context,
           Product<T>{.a = dlogits, .b = head_.weight, .c = dx + rows.begin * C, .m = count, .n = C, .k = V},
           site.from_row(rows.begin));
}

template <class T>
void Gpt<T>::backward(Context& context) {
    const int64_t sequence = workspace_.sequence;
    const AttentionShape whole = shape(workspace_.rows / sequence, sequence, sequence);
    last_norm_backward(context);
    for (size_t l = blocks_.size(); l-- > 0;) {
        // What the last block made is still there.
        if (recomputes() && l + 1 < blocks_.size()) recompute(context, l, whole);
        blocks_[l].backward(context, streams_[l], whole, workspace_);
    }
    embedding_backward(context);
}

/// Makes block l's activations again, the same to the last bit; probes have seen them.
template <class T>
void Gpt<T>::recompute(Context& context, size_t l, const AttentionShape& shape) {
    Recorder* recorder = std::exchange(context.recorder, nullptr);
    blocks_[l].forward(context, streams_[l], shape);
    context.recorder = recorder;
}

/// To the gradient of the residual stream behind the last block.
template <class T>
void Gpt<T>::last_norm_backward(Context& context) {
    Workspace<T>& w = workspace_;
    const int64_t n = w.rows * config_.channels;
    if (ln_f_) ln_f_->backward(context, streams_.back(), w.channels, nullptr, w.stream, w);
    if (scaled_) {
        launch(context, flat_rows(n),
               Scale<T>{.x = w.stream, .y = w.stream, .n = n, .factor = A(config_.output_factor())},
               {"head", -1, Phase::Backward, ".scale"});
    }
}

/// From the gradient of the stream before the first block to those of the embeddings.
template <class T>
void Gpt<T>::embedding_backward(Context& context) {
    Workspace<T>& w = workspace_;
    const int64_t C = config_.channels, V = config_.vocab;
    if (ln_0_) {
        ln_0_->backward(context, embedding_, w.stream, nullptr, w.branch, w);
        std::swap(w.stream, w.branch);
    }
    if (wpe_) {
        launch(context, w.sequence,
               PositionEmbeddingBackward<T>{.dy = w.stream,
                                            .dwpe = wpe_.gradient,
                                            .batch = w.rows / w.sequence,
                                            .sequence = w.sequence,
                                            .C = C,
                                            .accumulate = w.accumulate},
               {"wpe", -1, Phase::Backward, ".weight"});
    }
    const Inputs::Sorted sorted = inputs_.sorted();
    // Where the head has a matrix of its own, nothing has been written to this one yet.
    if (!config_.tied && !w.accumulate) clear(device(), wte_.gradient, V * C);
    launch(context, V,
           TokenEmbeddingBackward<T>{.order = sorted.order,
                                     .starts = sorted.starts,
                                     .dy = w.stream,
                                     .dwte = wte_.gradient,
                                     .C = C,
                                     .scale = A(config_.embedding_scale)},
           {"wte", -1, Phase::Backward, ".weight"});
}

}  // namespace wobble
