// The shape of a GPT-2.
#pragma once

#include <cstdint>

namespace wobble {

struct ModelConfig {
    int64_t vocab = 256;     // V
    int64_t context = 64;    // T, the longest sequence
    int64_t layers = 4;      // L
    int64_t heads = 4;       // H
    int64_t channels = 128;  // C
    double epsilon = 1e-5;   // of the layer norms

    int64_t head_size() const { return channels / heads; }  // D
    int64_t mlp_width() const { return 4 * channels; }      // F
};

/// Throws UserError when no model has this shape.
void check(const ModelConfig& config);

}  // namespace wobble
