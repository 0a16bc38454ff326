// The family of models: each of its choices is one line here, with what it computes, who proposed it, and the
// values besides the default that tests try, alone and with every other line's. Flags, help and config.toml
// follow.
#pragma once

#include "model/config.h"

namespace wobble {

/// Values that tests try besides the default.
using Others = std::vector<std::string>;

namespace detail {

// Of the table of norms: "word: formula; ...", sources, and the words of all but the default.
const char* norm_formulas();
const char* norm_sources();
Others other_norms();

}  // namespace detail

/// visit.group(title) starts a group; visit(name, value, what, source, others) is one choice. Another value
/// may need further choices: "true tied=false".
template <class Config, class Visit>
void for_each_choice(Config& c, Visit&& visit) {
    visit.group("Model: size");
    visit("context", c.context, "Tokens in a sequence, T", "", Others{});
    visit("layers", c.layers, "Layers, L", "", Others{});
    visit("heads", c.heads, "Attention heads, H; must divide the channels", "", Others{});
    visit("channels", c.channels, "Channels of the residual stream, C", "", Others{});
    visit("mlp-width", c.mlp_width,
          "Width of the network, F; 0: 4C, or gated 8C/3 rounded up to a multiple of 16", "", Others{"20"});

    visit.group("Model: norms");
    visit("norm", c.norm, detail::norm_formulas(), detail::norm_sources(), detail::other_norms());
    visit("norm-placement", c.norm_placement,
          "N beside a branch f: pre x + f(N(x)), post N(x + f(x)) without a last norm, peri x + N(f(N(x))), "
          "reordered x + N(f(x))",
          "Radford et al. 2019; Vaswani et al. 2017; Kim et al. 2025; OLMo 2, 2025",
          Others{"post", "peri", "reordered"});
    visit("norm-epsilon", c.norm_epsilon, "Added to the variance or mean square; dyt has none", "",
          Others{"0.01"});
    visit("norm-gain", c.norm_gain, "Norms multiply by a gain that is learned", "", Others{"false"});
    visit("norm-bias", c.norm_bias, "Layer norm and dyt add a bias that is learned", "", Others{"false"});
    visit("zero-centred-gain", c.zero_centred_gain,
          "The gain is 1 + weight and starts from weight 0, towards which decay pulls", "Shoeybi et al. 2019",
          Others{"true"});
    visit("norm-depth-scaling", c.norm_depth_scaling,
          "The norm before a branch of layer l, counted from 1, is multiplied by 1 / sqrt(l)",
          "Sun et al. 2025", Others{"true"});
    visit("residual-scale", c.residual_scale, "What a branch's output is multiplied by before it is added",
          "", Others{"0.5"});

    visit.group("Model: attention");
    visit("kv-heads", c.kv_heads, "Key and value heads, shared by groups of query heads; 0: one for each",
          "Shazeer 2019; Ainslie et al. 2023", Others{"1"});
    visit("qk-norm", c.qk_norm,
          "A norm of each head's queries and keys, with a gain for all heads: none, rmsnorm, layernorm",
          "Henry et al. 2020; Dehghani et al. 2023", Others{"rmsnorm", "layernorm"});
    visit("rotary-base", c.rotary_base,
          "Of a rotary embedding: pair i of R channels turns by position * base^(-2i/R)", "Su et al. 2021",
          Others{"100 position=rotary"});
    visit("rotary-fraction", c.rotary_fraction, "The share of a head's channels that it turns",
          "Black et al. 2022", Others{"0.5 position=rotary"});
    visit("attention-scale", c.attention_scale, "Logits are q.k times: root 1 / sqrt(D), inverse 1 / D",
          "Vaswani et al. 2017; Yang et al. 2022", Others{"inverse"});
    visit("attention-softcap", c.attention_softcap, "c > 0: logits s become c * tanh(s / c); 0: they stay",
          "Gemma 2, 2024", Others{"0.5"});
    visit("window", c.window, "w > 0: each token attends to itself and the w - 1 before it; 0: to all",
          "Child et al. 2019; Beltagy et al. 2020", Others{"2"});
    visit("sink", c.sink,
          "A logit for each head that is learned and takes part in the softmax without a value",
          "gpt-oss, 2025; Miller 2023", Others{"true"});
    visit("value-residual", c.value_residual,
          "lambda > 0: values of later layers become (1 - lambda) v + lambda v of the first layer",
          "Zhou et al. 2024", Others{"0.4"});

    visit.group("Model: network");
    visit("activation", c.activation,
          "gelu: its tanh form; gelu_exact: x * Phi(x); relu; relu2: relu(x)^2; silu",
          "Hendrycks & Gimpel 2016; So et al. 2021; Elfwing et al. 2018",
          Others{"gelu_exact", "relu", "relu2", "silu"});
    visit("gated", c.gated, "act(x W_gate) * (x W_up) in place of act(x W); SwiGLU with --activation silu",
          "Shazeer 2020", Others{"true", "true activation=silu"});

    visit.group("Model: linear layers, embedding, head");
    visit("bias", c.bias, "Linear layers add a bias", "", Others{"false"});
    visit(
        "position", c.position,
        "learned: a vector for each position is added to the embedding; rotary: queries and keys are turned; "
        "none",
        "Radford et al. 2019; Su et al. 2021; Haviv et al. 2022", Others{"rotary", "none"});
    visit("embedding-scale", c.embedding_scale,
          "What token embeddings are multiplied by; sqrt(C) in Vaswani et al.", "Vaswani et al. 2017",
          Others{"4"});
    visit("embedding-norm", c.embedding_norm, "A norm between embedding and first block",
          "Takase et al. 2023", Others{"true"});
    visit("tied", c.tied, "The output head is the token embedding", "Press & Wolf 2017", Others{"false"});
    visit("zero-head", c.zero_head, "An untied head starts at zero", "Yang et al. 2022",
          Others{"true tied=false"});
    visit("output-scale", c.output_scale, "What logits are multiplied by", "", Others{"0.5"});
    visit("logit-softcap", c.logit_softcap, "c > 0: logits z become c * tanh(z / c); 0: they stay",
          "Gemma 2, 2024", Others{"2"});
    visit("z-loss", c.z_loss,
          "c: c * log^2 Z of each token is minimised besides its loss, Z being the sum of exponentials",
          "Chowdhery et al. 2022", Others{"0.1"});
    visit("label-smoothing", c.label_smoothing,
          "e: what is minimised counts the target 1 - e and every token of the vocabulary e / V",
          "Szegedy et al. 2016", Others{"0.1"});

    visit.group("Model: initial weights");
    visit("init", c.init,
          "Matrices: normal N(0, std^2); truncated at 3 std; fan_in N(0, 1 / rows), embeddings and head "
          "N(0, 1 / C) with C of the base under a parametrization; "
          "orthogonal: rows or columns orthonormal",
          "Radford et al. 2019; Saxe et al. 2014", Others{"truncated", "fan_in", "orthogonal"});
    visit("init-std", c.init_std, "The standard deviation of normal and truncated", "", Others{"0.1"});
    visit("embedding-std", c.embedding_std, "That of the embeddings, always normal; 0: as --init-std", "",
          Others{"0.0001"});
    visit("residual-init", c.residual_init,
          "Projections that write to the stream are multiplied by: total 1 / sqrt(2L), depth 1 / sqrt(2l) in "
          "layer l counted from 1, same 1, zero 0",
          "Radford et al. 2019; Zhang et al. 2019; Goyal et al. 2017", Others{"depth", "same", "zero"});
    visit("init-scale", c.init_scale,
          "Factors on initial weights by pattern, 'h.3.attn.qkv=8,wte=0.5'; the first that matches decides",
          "", Others{"h.1.attn.*=3"});

    visit.group("Model: parametrization");
    visit("parametrization", c.parametrization,
          "How factors follow width m = C / base-channels and depth n = L / base-layers: standard; "
          "mup: matrices of the blocks start 1 / sqrt(m) as large (normal, truncated) and learn at 1 / m, "
          "logits times 1 / m (give --attention-scale inverse where heads widen); "
          "completep: besides, branches times 1 / n with --residual-init same, weight decay times m and "
          "Adam's epsilon times 1 / (m n) for these matrices, 1 / n for the blocks' vectors",
          "Yang et al. 2022; Dey et al. 2025",
          Others{"mup base-channels=4", "completep base-channels=4 base-layers=1"});
    visit("base-channels", c.base_channels, "The width at which a parametrization changes nothing", "",
          Others{});
    visit("base-layers", c.base_layers, "The depth at which a parametrization changes nothing", "", Others{});
}

/// The choices, but sizes, that are not the default's, as flags: "--norm rmsnorm --bias=false". Empty for a
/// GPT-2.
std::string flags_of(const ModelConfig& config);

/// Sets the choice of that name. UserError when there is none, or it cannot have this value.
void set_choice(ModelConfig& config, const std::string& name, const std::string& value);

}  // namespace wobble
