// What a model is made of. Every field but the sizes is a choice within the family; the defaults are GPT-2's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation_kind.h"

namespace wobble {

enum class AttentionScale { InverseRoot, Inverse };
/// None, or a line of the table of norms (norms.h), counted from 1; the first two have names here.
enum class NormKind { None, LayerNorm, RMSNorm };
enum class Placement { Pre, Post, Peri, Reordered };
enum class Position { Learned, Rotary, None };
enum class QkNorm { None, RMSNorm, LayerNorm };
enum class Init { Normal, Truncated, FanIn, Orthogonal };
enum class ResidualInit { Total, Depth, Same, Zero };
/// What weights and activations are stored in, and in bfloat16 how weights come from their float32 masters.
/// Arithmetic, master weights, gradients of parameters, moments and losses are float32 in each.
enum class Precision { Float32, Bfloat16, Bfloat16Stochastic };
enum class Parametrization { Standard, MuP, CompleteP };

/// The words for a choice's values on the command line, in the order of the enumeration.
template <class Choice>
const std::vector<std::string>& words();

template <class Choice>
std::optional<Choice> choice_named(const std::string& word) {
    const std::vector<std::string>& all = words<Choice>();
    for (size_t i = 0; i < all.size(); ++i)
        if (all[i] == word) return Choice(i);
    return {};
}

/// "a, b or c"
std::string listed(const std::vector<std::string>& words);

/// Throws UserError: `flag` cannot have this value.
[[noreturn]] void refuse_value(const std::string& flag, const std::string& value,
                               const std::string& expected);

/// The choice of that name. UserError when there is none.
template <class Choice>
Choice choice_of(const std::string& flag, const std::string& word) {
    const std::optional<Choice> choice = choice_named<Choice>(word);
    if (!choice) refuse_value(flag, word, listed(words<Choice>()));
    return *choice;
}

/// What the table of norms says of each.
struct NormFacts {
    std::string word, what, source;  // for the command line
    bool has_bias;
    double alpha;  // where its learned number starts; 0: it has none
};
/// By NormKind.
const std::vector<NormFacts>& norm_facts();

struct ModelConfig {
    int64_t vocab = 256;     // V
    int64_t context = 64;    // T, the longest sequence
    int64_t layers = 4;      // L
    int64_t heads = 4;       // H
    int64_t channels = 128;  // C
    int64_t mlp_width = 0;   // F; 0: 4C, gated 8C/3

    // Norms
    NormKind norm = NormKind::LayerNorm;
    Placement norm_placement = Placement::Pre;
    double norm_epsilon = 1e-5;
    bool norm_gain = true, norm_bias = true;
    bool zero_centred_gain = false;
    bool norm_depth_scaling = false;

    // Attention
    int64_t kv_heads = 0;  // K; 0: H
    QkNorm qk_norm = QkNorm::None;
    double rotary_base = 10000, rotary_fraction = 1;
    AttentionScale attention_scale = AttentionScale::InverseRoot;
    double attention_softcap = 0;
    int64_t window = 0;
    bool sink = false;
    double value_residual = 0;  // lambda

    // The network
    Activation activation = Activation::Gelu;
    bool gated = false;

    // Branches
    double residual_scale = 1;
    bool bias = true;  // of linear layers

    // Embedding and head
    Position position = Position::Learned;
    double embedding_scale = 1;
    bool embedding_norm = false;
    bool tied = true;
    bool zero_head = false;
    double output_scale = 1;
    double logit_softcap = 0;

    // What is minimised besides the loss
    double z_loss = 0, label_smoothing = 0;

    // Initial weights
    Init init = Init::Normal;
    double init_std = 0.02, embedding_std = 0;  // 0: as init_std
    ResidualInit residual_init = ResidualInit::Total;
    std::string init_scale = {};

    /// Activations are made again for backward, block by block, rather than kept: the same bits in less
    /// memory.
    bool recompute = false;

    // How sizes, learning rates and factors follow width and depth
    Parametrization parametrization = Parametrization::Standard;
    int64_t base_channels = 128, base_layers = 4;

    int64_t head_size() const { return channels / heads; }  // D
    /// F. Gated, 8C/3 has as many weights as 4C without (Shazeer 2020); rounded up to a multiple of 16.
    int64_t width() const {
        if (mlp_width > 0) return mlp_width;
        return gated ? (8 * channels + 47) / 48 * 16 : 4 * channels;
    }
    int64_t key_heads() const { return kv_heads > 0 ? kv_heads : heads; }
    /// Columns of a row of queries, keys and values.
    int64_t qkv_width() const { return (heads + 2 * key_heads()) * head_size(); }
    /// Columns of the network's first matrix: gates come besides.
    int64_t fc_width() const { return (gated ? 2 : 1) * width(); }
    /// Channels of a head that a rotary embedding turns: an even number.
    int64_t rotated() const { return int64_t(double(head_size()) * rotary_fraction / 2 + 1e-9) * 2; }
    /// Times as wide and as deep as the base that a parametrization refers to.
    double width_ratio() const { return double(channels) / double(base_channels); }
    double depth_ratio() const { return double(layers) / double(base_layers); }
    /// What logits are multiplied by: in muP 1 / width ratio besides (Yang et al. 2022, table 8).
    double output_factor() const {
        return output_scale * (parametrization == Parametrization::Standard ? 1 : 1 / width_ratio());
    }
    /// What a branch's output is multiplied by: in CompleteP 1 / depth ratio besides (Dey et al. 2025, alpha
    /// 1).
    double branch_factor() const {
        return residual_scale * (parametrization == Parametrization::CompleteP ? 1 / depth_ratio() : 1);
    }
    /// Whether what is minimised is the loss alone.
    bool objective_is_loss() const { return z_loss == 0 && label_smoothing == 0; }
    /// Whether a norm stands before the head: not where each block's output is normalised already.
    bool final_norm() const { return norm != NormKind::None && norm_placement != Placement::Post; }
};

/// Throws UserError when there is no such model.
void check(const ModelConfig& config);

}  // namespace wobble
