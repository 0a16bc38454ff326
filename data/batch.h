// The sequences of one optimizer step, side by side, as the model takes them.
#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"

namespace wobble {

struct Batch {
    std::vector<int32_t> inputs;         ///< [sequences, T]
    std::vector<int32_t> targets;        ///< [sequences, T], -1 where there is no loss
    std::vector<Provenance> provenance;  ///< [sequences]
    int64_t valid_targets = 0;           ///< targets that are not -1
};

/// Reads the sequences first_index, first_index + 1, ...; `sequences` of them. Both >= 0.
Batch read_batch(const Dataset& dataset, int64_t first_index, int sequences);

}  // namespace wobble
