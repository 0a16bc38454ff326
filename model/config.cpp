#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "kernels/error.h"

namespace wobble {

template <>
const std::vector<std::string>& words<Placement>() {
    static const std::vector<std::string> all = {"pre", "post", "peri", "reordered"};
    return all;
}
template <>
const std::vector<std::string>& words<Position>() {
    static const std::vector<std::string> all = {"learned", "rotary", "none"};
    return all;
}

template <>
const std::vector<std::string>& words<AttentionScale>() {
    static const std::vector<std::string> all = {"root", "inverse"};
    return all;
}
template <>
const std::vector<std::string>& words<Activation>() {
    static const std::vector<std::string> all = {"gelu", "gelu_exact", "relu", "relu2", "silu"};
    return all;
}
template <>
const std::vector<std::string>& words<QkNorm>() {
    static const std::vector<std::string> all = {"none", "rmsnorm", "layernorm"};
    return all;
}
template <>
const std::vector<std::string>& words<Init>() {
    static const std::vector<std::string> all = {"normal", "truncated", "fan_in", "orthogonal"};
    return all;
}
template <>
const std::vector<std::string>& words<ResidualInit>() {
    static const std::vector<std::string> all = {"total", "depth", "same", "zero"};
    return all;
}
template <>
const std::vector<std::string>& words<Precision>() {
    static const std::vector<std::string> all = {"fp32", "bf16", "bf16-stochastic"};
    return all;
}
template <>
const std::vector<std::string>& words<Parametrization>() {
    static const std::vector<std::string> all = {"standard", "mup", "completep"};
    return all;
}

std::string listed(const std::vector<std::string>& words) {
    std::string text;
    for (size_t i = 0; i < words.size(); ++i)
        text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
    return text;
}

void refuse_value(const std::string& flag, const std::string& value, const std::string& expected) {
    throw UserError(flag + " " + value + " is unknown; expected " + expected);
}

void check(const ModelConfig& c) {
    const auto at_least = [](int64_t value, int64_t least, const char* flag) {
        if (value < least) {
            throw UserError(std::string(flag) + " is " + std::to_string(value) + "; expected at least " +
                            std::to_string(least));
        }
    };
    const auto finite = [](double value, double above, const char* flag) {
        if (!(value > above && std::isfinite(value))) {
            throw UserError(std::string(flag) + " is " + std::to_string(value) +
                            "; expected a finite number greater than " + std::to_string(above));
        }
    };
    const auto finite_or_none = [](double value, const char* flag) {
        if (!(value >= 0 && std::isfinite(value))) {
            throw UserError(std::string(flag) + " is " + std::to_string(value) +
                            "; expected a finite number greater than 0, or 0 for none");
        }
    };
    at_least(c.vocab, 1, "--vocab"), at_least(c.context, 1, "--context"), at_least(c.layers, 1, "--layers");
    at_least(c.heads, 1, "--heads"), at_least(c.channels, 1, "--channels");
    at_least(c.mlp_width, 0, "--mlp-width"), at_least(c.window, 0, "--window");
    finite_or_none(c.attention_softcap, "--attention-softcap");
    finite_or_none(c.logit_softcap, "--logit-softcap"), finite_or_none(c.z_loss, "--z-loss");
    if (!(c.label_smoothing >= 0 && c.label_smoothing < 1)) {
        throw UserError(
            "--label-smoothing is " + std::to_string(c.label_smoothing) +
            "; expected at least 0 and less than 1, the share of probability that all tokens get");
    }
    finite(c.norm_epsilon, 0, "--norm-epsilon"), finite(c.residual_scale, 0, "--residual-scale");
    finite(c.embedding_scale, 0, "--embedding-scale"), finite(c.output_scale, 0, "--output-scale");
    finite(c.init_std, 0, "--init-std");
    if (c.embedding_std != 0) finite(c.embedding_std, 0, "--embedding-std");
    at_least(c.base_channels, 1, "--base-channels"), at_least(c.base_layers, 1, "--base-layers");
    if (c.channels % c.heads != 0) {
        int64_t below = c.heads;
        while (c.channels % below != 0) --below;
        throw UserError(
            "--heads " + std::to_string(c.heads) + " does not divide --channels " +
            std::to_string(c.channels) + "; every head needs the same number of channels; try --heads " +
            std::to_string(below) + " or --channels " + std::to_string((c.channels / c.heads + 1) * c.heads));
    }
    at_least(c.kv_heads, 0, "--kv-heads");
    if (c.kv_heads > 0 && c.heads % c.kv_heads != 0) {
        int64_t below = std::min(c.kv_heads, c.heads);
        while (c.heads % below != 0) --below;
        throw UserError("--kv-heads " + std::to_string(c.kv_heads) + " does not divide --heads " +
                        std::to_string(c.heads) +
                        "; as many query heads must share each key head; try --kv-heads " +
                        std::to_string(below));
    }
    if (c.recompute && c.value_residual > 0) {
        throw UserError(
            "--recompute and --value-residual were both given, but every block needs the values of the "
            "first; leave one of them out");
    }
    if (!(c.value_residual >= 0 && c.value_residual < 1)) {
        throw UserError("--value-residual is " + std::to_string(c.value_residual) +
                        "; expected at least 0 and less than 1");
    }
    finite(c.rotary_base, 1, "--rotary-base");
    if (!(c.rotary_fraction > 0 && c.rotary_fraction <= 1)) {
        throw UserError("--rotary-fraction is " + std::to_string(c.rotary_fraction) +
                        "; expected more than 0 and at most 1");
    }
    if (c.position == Position::Rotary && c.rotated() == 0) {
        throw UserError("--position rotary turns pairs of a head's channels, but a fraction of " +
                        std::to_string(c.rotary_fraction) + " of " + std::to_string(c.head_size()) +
                        " leaves none; choose fewer --heads or a larger --rotary-fraction");
    }
    if (c.tied && c.zero_head) {
        throw UserError("--zero-head needs a head of its own, but the head is the embedding; add --no-tied");
    }
    const bool norm_before = c.norm != NormKind::None &&
                             (c.norm_placement == Placement::Pre || c.norm_placement == Placement::Peri);
    if (c.norm_depth_scaling && !norm_before) {
        throw UserError(
            "--norm-depth-scaling multiplies the norm before a branch, and there is none; choose "
            "--norm-placement pre or peri with a norm, or leave it out");
    }
    if (c.zero_centred_gain && !(c.norm_gain && c.norm != NormKind::None)) {
        throw UserError(
            "--zero-centred-gain is about the gain of a norm, and there is none; choose a norm with "
            "--norm-gain, or leave it out");
    }
    if (c.norm == NormKind::None && c.embedding_norm) {
        throw UserError("--embedding-norm needs a norm, but --norm is none; choose one or leave it out");
    }
}

}  // namespace wobble
