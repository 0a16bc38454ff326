// The parameter table: one line per tensor, from which memory layout, initialisation, weight decay,
// checkpoints and names follow. Linear layers compute y = x W + b with W [in, out].
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace wobble {

enum class Role { Embedding, Matrix, Gain, Bias };

struct Parameter {
    std::string name = {};
    std::vector<int64_t> shape = {};
    Role role = Role::Matrix;
    Init draw = Init::Normal;
    double init_mean = 0;  // drawn with this mean
    double init_std = 0;   // and deviation; of an orthogonal matrix, what it is multiplied by
    bool decay = false;    // weight decay applies: matrices and embeddings, as in GPT-2's training code
    // Factors on what the optimizer is told.
    double lr_factor = 1, decay_factor = 1, epsilon_factor = 1;
    double multiplier = 1;  // on what comes out of the tensor in forward; applied there, shown here
    int64_t offset = 0;     // of its first element in a buffer that holds all parameters
    int64_t size = 0;       // elements
};

/// Every tensor starts at a multiple of 64 bytes of float32, so the buffer has gaps; they hold zeros.
struct ParameterTable {
    std::vector<Parameter> parameters;
    int64_t buffer_size = 0;  // elements, gaps included

    /// UserError when a pattern of config.init_scale matches no tensor.
    explicit ParameterTable(const ModelConfig& config);
    /// The number of weights, gaps not counted.
    int64_t count() const;
    /// Tensor named `name`, which must exist.
    const Parameter& at(const std::string& name) const;
    /// Null when the model has no such tensor.
    const Parameter* find(const std::string& name) const;
};

/// Draws all parameters of the table into `buffer`. Element i of a tensor is a function of (seed, the
/// tensor's name, i) alone (Philox): the same seed gives the same tensor in a deeper or otherwise changed
/// model.
template <class T>
void initialise(const ParameterTable& table, uint64_t seed, T* buffer);

}  // namespace wobble
