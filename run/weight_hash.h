// What a step leaves behind so that a later one can be held against it: a hash of all weights, and one of the
// tokens that were trained on.
#pragma once

#include <cstdint>
#include <string>

#include "data/batch.h"
#include "kernels/context.h"
#include "model/memory.h"

namespace wobble {

class WeightHash {
  public:
    /// Of buffers of n floats in the device's memory.
    WeightHash(int64_t n, Device device);

    /// Nobody waits for it. May be captured in a graph.
    void launch(Context& context, const float* weights);
    /// Of the weights of the last launch; waits for it.
    uint64_t value() const;

  private:
    int64_t n_;
    Memory memory_;
    double* partials_ = nullptr;  // [flat_rows(n)], in the device's memory
};

/// Of its tokens, and of which of them are targets.
uint64_t hash_of(const Batch& batch);

/// Sixteen hexadecimal digits.
std::string hexadecimal(uint64_t hash);

}  // namespace wobble
