// Counts the targets of evenly spread sequences.
#include "data/token_counts.h"

#include <algorithm>

namespace wobble {

std::vector<int64_t> count_tokens(const Dataset& dataset, int64_t sample) {
    const int64_t T = dataset.context();
    const int64_t n = dataset.sequences_per_epoch();
    const int64_t k = std::clamp<int64_t>(sample / T, 1, n);
    std::vector<int64_t> counts(static_cast<size_t>(dataset.vocab()));
    std::vector<int32_t> inputs(static_cast<size_t>(T)), targets(static_cast<size_t>(T));
    for (int64_t i = 0; i < k; ++i) {
        // floor(i n / k), without the product that might overflow.
        const int64_t index = n / k * i + n % k * i / k;
        dataset.read(index, inputs.data(), targets.data());
        for (const int32_t target : targets) {
            if (target >= 0) ++counts[static_cast<size_t>(target)];
        }
    }
    return counts;
}

}  // namespace wobble
