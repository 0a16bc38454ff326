// The parameter table: one line per tensor, from which memory layout, initialisation, weight decay,
// checkpoints and names follow. Linear layers compute y = x W + b with W [in, out].
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace wobble {

enum class Role { Embedding, Matrix, Gain, Bias };

struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    Role role;
    double init_mean;  // initialised to N(init_mean, init_std²)
    double init_std;
    bool decay;      // weight decay applies: matrices and embeddings, as in GPT-2's training code
    int64_t offset;  // of its first element in a buffer that holds all parameters
    int64_t size;    // elements
};

/// Every tensor starts at a multiple of 64 bytes of float32, so the buffer has gaps; they hold zeros.
struct ParameterTable {
    std::vector<Parameter> parameters;
    int64_t buffer_size = 0;  // elements, gaps included

    explicit ParameterTable(const ModelConfig& config);
    /// The number of weights, gaps not counted.
    int64_t count() const;
    /// Tensor named `name`, which must exist.
    const Parameter& at(const std::string& name) const;
};

/// Pointers into a buffer laid out by the table: weights, gradients or moments.
template <class T>
struct LayerTensors {
    T *ln_1_weight, *ln_1_bias;            // [C]
    T *attn_qkv_weight, *attn_qkv_bias;    // [C, 3C], [3C]
    T *attn_proj_weight, *attn_proj_bias;  // [C, C], [C]
    T *ln_2_weight, *ln_2_bias;            // [C]
    T *mlp_fc_weight, *mlp_fc_bias;        // [C, F], [F]
    T *mlp_proj_weight, *mlp_proj_bias;    // [F, C], [C]
};

template <class T>
struct Tensors {
    T* wte;  // [V, C], also the output head
    T* wpe;  // [T, C]
    std::vector<LayerTensors<T>> layers;
    T *ln_f_weight, *ln_f_bias;  // [C]

    Tensors(const ParameterTable& table, const ModelConfig& config, T* buffer) {
        const auto at = [&](const std::string& name) { return buffer + table.at(name).offset; };
        wte = at("wte.weight"), wpe = at("wpe.weight");
        for (int64_t l = 0; l < config.layers; ++l) {
            const std::string h = "h." + std::to_string(l) + ".";
            layers.push_back({at(h + "ln_1.weight"), at(h + "ln_1.bias"), at(h + "attn.qkv.weight"),
                              at(h + "attn.qkv.bias"), at(h + "attn.proj.weight"), at(h + "attn.proj.bias"),
                              at(h + "ln_2.weight"), at(h + "ln_2.bias"), at(h + "mlp.fc.weight"),
                              at(h + "mlp.fc.bias"), at(h + "mlp.proj.weight"), at(h + "mlp.proj.bias")});
        }
        ln_f_weight = at("ln_f.weight"), ln_f_bias = at("ln_f.bias");
    }
};

/// Draws all parameters of the table into `buffer`. Element i of a tensor is a function of (seed, the
/// tensor's name, i) alone (Philox): the same seed gives the same tensor in a deeper or otherwise changed
/// model.
template <class T>
void initialise(const ParameterTable& table, uint64_t seed, T* buffer);

}  // namespace wobble
