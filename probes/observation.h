// What the probes saw in one step, gathered by the recorder and the trainer, as it goes into run.db: one
// struct per table. Plain values, so that a step can be handed to another thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "probes/statistics.h"

namespace wobble {

enum class Phase { Forward, Backward, Update };
const char* phase_name(Phase phase);

/// One channel of one kernel at one site, over all launches of a step: its micro-batches.
struct Record {
    std::string site;  // h.3.attn.qkv
    int layer;         // -1: outside the layers
    Phase phase;
    const char* kernel;
    const char* channel;
    Statistics statistics;
    int64_t rows = 0;  // that its kernel counts; 0: not known

    const Moments& moments() const { return statistics.moments; }
};

/// One head of one attention site, over all queries of a step. Logits are the scaled q · k that enter the
/// softmax.
struct HeadRow {
    std::string site;
    int layer;
    int64_t head;
    double max_logit;    // signed
    double abs_logit;    // largest |logit|
    double entropy;      // nats, mean over queries
    double entropy_min;  // over queries with at least two keys; NaN when there is none
    double sink;         // mean probability of the first key
    double ties;         // share of queries whose largest logit is reached by more than one key
    double saturated;    // share of queries with at least two keys whose top probability rounds to 1
};

/// An identity that exact arithmetic would make zero, at one site. A residual is made of each row (or head,
/// or column), beside its scale: the sum of the magnitudes that should cancel.
struct ResidualRow {
    std::string site;
    int layer;
    Phase phase;
    std::string kernel;
    std::string identity;
    int64_t rows;
    double value;  // Σ_rows |residual|
    double bias;   // Σ_rows residual: far from ±value unless the errors lean to one side
    double scale;  // Σ_rows scale
    double worst;  // largest |residual| / scale of a row
    int64_t worst_row;
};

/// One tensor in one update. Gradients are those before clipping.
struct TensorRow {
    std::string name;
    double grad_rms, grad_max;
    double weight_rms;         // after the update
    double distance_rms;       // RMS of weight - initial weight; NaN when it was not asked for
    double update_rms;         // of what was subtracted, learning rate and decay included
    double update_ratio;       // |update| / |weight before the update|
    double rms_t;              // sqrt(mean(g² / max(v̂, ε²))), g after clipping
    double cos_grad_momentum;  // g and the m that took it in
    double epsilon_share;      // of weights with sqrt(v̂) < ε
    double lost_share;         // of weights with an update that left them unchanged
    double
        lost_share_bf16;  // of weights with an update that would leave them unchanged were they kept in bf16
    double weight_dot_grad;  // ⟨W, dW⟩ before the update
    double cos_weight_grad;  // ⟨W, dW⟩ / (|W| |dW|)
};

/// The rows of an embedding whose tokens fall in one decile of frequency.
struct EmbeddingRow {
    std::string name;
    int decile;    // 0: the rarest tokens; each decile holds about a tenth of the occurrences
    int64_t rows;  // tokens
    double weight_rms, grad_rms, update_rms;
};

/// What a branch added to the residual stream.
struct StreamRow {
    std::string site;  // the branch's last product
    int layer;
    double stream_rms;  // before the branch wrote
    double write_rms;
    double ratio;   // |write| / |stream|
    double cosine;  // of write and stream
};

/// What lies across the channels (columns) of a site that was watched at tier full: neuron RMS s_j over the
/// rows.
struct ChannelRow {
    std::string site;
    int layer;
    Phase phase;
    const char* kernel;
    const char* channel;
    int64_t columns;
    double kurtosis;  // E_j[s_j⁴] / E_j[s_j²]², 1 when all channels are equally large (He et al. 2024)
    double dormant;   // share of channels with mean |x| at most 0.025 of the channels' average (Sokar et al.
                      // 2023)
    double dead;      // share of channels that were zero in every row
    int64_t largest;  // the channel with the largest s_j
    double largest_rms;  // and that
    double
        effective_rank;  // exp(entropy of σ / Σσ) of sampled rows (Roy & Vetterli 2007); NaN when not sampled
    double stable_rank;  // Σσ² / max σ²
    int64_t sampled_rows;
};

/// Mean loss of a group of tokens.
struct LossRow {
    std::string kind;  // "percentile" (loss is the quantile), "frequency" (decile of the target), "position"
    int64_t key;       // 1, 5, 25, 50, 75, 95, 99, 100; 0-9; first position of the range
    double loss;       // nats
    int64_t tokens;
};

/// One of the tokens with the largest loss, and where it stands in the data.
struct TokenRow {
    int64_t rank;  // 0: the largest
    int64_t micro, row, position;
    int32_t token;  // the target
    double loss;
    int source;
    int64_t document, offset;  // of the target
};

/// The gradient of one sequence's mean loss with respect to the gains and biases of all norms.
struct ExampleRow {
    int64_t micro, row;
    double norm;
};

/// A number about the whole step: "noise.scale", "sharpness.critical" …
struct MeasureRow {
    std::string name;
    double value;
};

struct Observation {
    std::vector<Record> records;
    std::vector<HeadRow> heads;
    std::vector<ResidualRow> residuals;
    std::vector<TensorRow> tensors;
    std::vector<EmbeddingRow> embeddings;
    std::vector<StreamRow> streams;
    std::vector<ChannelRow> channels;
    std::vector<LossRow> losses;
    std::vector<TokenRow> largest_losses;
    std::vector<ExampleRow> examples;
    std::vector<MeasureRow> measures;
};

}  // namespace wobble
