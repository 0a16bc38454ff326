// Gathers a batch from a dataset.
#include "data/batch.h"

#include <algorithm>

namespace wobble {

Batch read_batch(const Dataset& dataset, int64_t first_index, int sequences) {
    const size_t T = static_cast<size_t>(dataset.context());
    const size_t rows = static_cast<size_t>(sequences);
    Batch batch{.inputs = std::vector<int32_t>(rows * T),
                .targets = std::vector<int32_t>(rows * T),
                .provenance = std::vector<Provenance>(rows)};
    for (size_t row = 0; row < rows; ++row) {
        batch.provenance[row] = dataset.read(first_index + static_cast<int64_t>(row),
                                             batch.inputs.data() + row * T, batch.targets.data() + row * T);
    }
    batch.valid_targets =
        static_cast<int64_t>(rows * T) - std::count(batch.targets.begin(), batch.targets.end(), -1);
    return batch;
}

}  // namespace wobble
