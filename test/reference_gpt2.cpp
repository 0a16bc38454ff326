// A whole GPT-2 in double precision, forward and backward, composed of the steps in reference.cpp.
#include <random>

#include "test/reference.h"

namespace wobble::reference {

namespace {

constexpr double epsilon = 1e-5;  // of every layer norm, as published

// What one block keeps from its forward pass.
struct Block {
    Values x;         // [rows,C] the residual stream at its entry
    Values norm_1;    // [rows,C]
    Values qkv;       // [rows,3C]
    Values attended;  // [rows,C]
    Values middle;    // [rows,C] the residual stream between attention and MLP
    Values norm_2;    // [rows,C]
    Product fc;       // [rows,4C] before and after the activation
};

struct Forward {
    std::vector<Block> blocks;
    Values x;       // [rows,C] the residual stream after the last block
    Values norm_f;  // [rows,C]
    Values logits;  // [rows,V]
};

std::string block_name(int64_t layer, const char* name) {
    return "h." + std::to_string(layer) + "." + name;
}

Forward forward(const Gpt2& model, const Tokens& tokens, int64_t B, int64_t T) {
    const int64_t V = model.V, C = model.C, rows = B * T;
    const auto p = [&](const std::string& name) -> const Values& { return model.parameters.at(name); };

    Forward result;
    Values x = embedding_forward(tokens, p("wte.weight"), p("wpe.weight"), B, T, C);
    for (int64_t layer = 0; layer < model.L; layer++) {
        const auto h = [&](const char* name) -> const Values& { return p(block_name(layer, name)); };
        Block block;
        block.x = x;
        block.norm_1 = layer_norm_forward(x, h("ln_1.weight"), h("ln_1.bias"), rows, C, epsilon).y;
        block.qkv = product({.M = rows, .N = 3 * C, .K = C}, block.norm_1, h("attn.qkv.weight"), {},
                            h("attn.qkv.bias"))
                        .output;
        block.attended = attention_forward(block.qkv, B, T, C, model.H).out;
        block.middle = product({.M = rows, .N = C, .K = C}, block.attended, h("attn.proj.weight"), {},
                               h("attn.proj.bias"), block.x)
                           .output;
        block.norm_2 = layer_norm_forward(block.middle, h("ln_2.weight"), h("ln_2.bias"), rows, C, epsilon).y;
        block.fc = product({.M = rows, .N = 4 * C, .K = C, .activation = Activation::Gelu}, block.norm_2,
                           h("mlp.fc.weight"), {}, h("mlp.fc.bias"));
        x = product({.M = rows, .N = C, .K = 4 * C}, block.fc.output, h("mlp.proj.weight"), {},
                    h("mlp.proj.bias"), block.middle)
                .output;
        result.blocks.push_back(block);
    }
    result.x = x;
    result.norm_f = layer_norm_forward(x, p("ln_f.weight"), p("ln_f.bias"), rows, C, epsilon).y;
    result.logits =
        product({.M = rows, .N = V, .K = C, .transpose_b = true}, result.norm_f, p("wte.weight")).output;
    return result;
}

// The factor that turns a sum of losses into their mean.
double per_target(const Tokens& targets) {
    int64_t counted = 0;
    for (int32_t target : targets) counted += target != -1;
    return counted > 0 ? 1 / static_cast<double>(counted) : 0;
}

void add(Values& sum, const Values& x) {
    for (size_t i = 0; i < x.size(); i++) sum[i] += x[i];
}

}  // namespace

std::vector<std::pair<std::string, std::vector<int64_t>>> Gpt2::shapes() const {
    std::vector<std::pair<std::string, std::vector<int64_t>>> result{{"wte.weight", {V, C}},
                                                                     {"wpe.weight", {T, C}}};
    for (int64_t layer = 0; layer < L; layer++) {
        const auto add_block = [&](const char* name, std::vector<int64_t> shape) {
            result.emplace_back(block_name(layer, name), std::move(shape));
        };
        add_block("ln_1.weight", {C});
        add_block("ln_1.bias", {C});
        add_block("attn.qkv.weight", {C, 3 * C});
        add_block("attn.qkv.bias", {3 * C});
        add_block("attn.proj.weight", {C, C});
        add_block("attn.proj.bias", {C});
        add_block("ln_2.weight", {C});
        add_block("ln_2.bias", {C});
        add_block("mlp.fc.weight", {C, 4 * C});
        add_block("mlp.fc.bias", {4 * C});
        add_block("mlp.proj.weight", {4 * C, C});
        add_block("mlp.proj.bias", {C});
    }
    result.emplace_back("ln_f.weight", std::vector<int64_t>{C});
    result.emplace_back("ln_f.bias", std::vector<int64_t>{C});
    return result;
}

void Gpt2::initialise(uint64_t seed, double deviation) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal(0, deviation);
    for (const auto& [name, shape] : shapes()) {
        int64_t size = 1;
        for (int64_t extent : shape) size *= extent;
        const bool is_gain = name.find("ln_") != std::string::npos && name.ends_with(".weight");
        Values& tensor = parameters[name];
        tensor.resize(static_cast<size_t>(size));
        for (double& x : tensor) x = normal(generator) + (is_gain ? 1 : 0);
    }
}

Values Gpt2::logits(const Tokens& tokens, int64_t B, int64_t length) const {
    return forward(*this, tokens, B, length).logits;
}

double Gpt2::loss(const Tokens& tokens, const Tokens& targets, int64_t B, int64_t length) const {
    const double scale = per_target(targets);
    double mean = 0;
    for (double loss : cross_entropy(logits(tokens, B, length), targets, B * length, V, scale).loss)
        mean += loss * scale;
    return mean;
}

Gpt2::Gradient Gpt2::gradient(const Tokens& tokens, const Tokens& targets, int64_t B, int64_t length) const {
    const int64_t rows = B * length;
    const auto p = [&](const std::string& name) -> const Values& { return parameters.at(name); };
    const Forward kept = forward(*this, tokens, B, length);
    const double scale = per_target(targets);
    const CrossEntropy classifier = cross_entropy(kept.logits, targets, rows, V, scale);

    Gradient result{.loss = 0, .parameters = {}};
    for (double loss : classifier.loss) result.loss += loss * scale;
    for (const auto& [name, values] : parameters) result.parameters[name] = Values(values.size(), 0.0);
    const auto store_norm = [&](const std::string& name, const LayerNormGradients& gradients) {
        result.parameters.at(name + ".weight") = gradients.dweight;
        result.parameters.at(name + ".bias") = gradients.dbias;
    };
    const auto store_linear = [&](const std::string& name, const LinearGradients& gradients) {
        result.parameters.at(name + ".weight") = gradients.dweight;
        result.parameters.at(name + ".bias") = gradients.dbias;
    };

    // logits = norm_f wteᵀ
    const Values dnorm_f = product({.M = rows, .N = C, .K = V}, classifier.dlogits, p("wte.weight")).output;
    add(result.parameters.at("wte.weight"),
        product({.M = V, .N = C, .K = rows, .transpose_a = true}, classifier.dlogits, kept.norm_f).output);
    LayerNormGradients norm = layer_norm_backward(dnorm_f, kept.x, p("ln_f.weight"), rows, C, epsilon);
    store_norm("ln_f", norm);
    Values dx = norm.dx;  // of the residual stream, from here to the embedding

    for (int64_t layer = L - 1; layer >= 0; layer--) {
        const Block& block = kept.blocks[static_cast<size_t>(layer)];
        const auto name = [&](const char* part) { return block_name(layer, part); };

        LinearGradients linear =
            linear_backward(dx, block.fc.output, p(name("mlp.proj.weight")), rows, 4 * C, C);
        store_linear(name("mlp.proj"), linear);
        Values dfc = linear.dx;
        for (size_t i = 0; i < dfc.size(); i++) dfc[i] *= gelu_derivative(block.fc.preactivation[i]);
        linear = linear_backward(dfc, block.norm_2, p(name("mlp.fc.weight")), rows, C, 4 * C);
        store_linear(name("mlp.fc"), linear);
        norm = layer_norm_backward(linear.dx, block.middle, p(name("ln_2.weight")), rows, C, epsilon);
        store_norm(name("ln_2"), norm);
        add(dx, norm.dx);

        linear = linear_backward(dx, block.attended, p(name("attn.proj.weight")), rows, C, C);
        store_linear(name("attn.proj"), linear);
        const Values dqkv = attention_backward(linear.dx, block.qkv, B, length, C, H);
        linear = linear_backward(dqkv, block.norm_1, p(name("attn.qkv.weight")), rows, C, 3 * C);
        store_linear(name("attn.qkv"), linear);
        norm = layer_norm_backward(linear.dx, block.x, p(name("ln_1.weight")), rows, C, epsilon);
        store_norm(name("ln_1"), norm);
        add(dx, norm.dx);
    }

    const EmbeddingGradients embedding = embedding_backward(tokens, dx, B, length, C, V);
    add(result.parameters.at("wte.weight"), embedding.dwte);
    add(result.parameters.at("wpe.weight"), embedding.dwpe);
    return result;
}

}  // namespace wobble::reference
