// How often each token is a target: what "rare" and "frequent" mean in the statistics by token frequency.
#pragma once

#include <cstdint>
#include <vector>

#include "data/dataset.h"

namespace wobble {

/// About a million: enough to tell tokens with one occurrence in 100,000 apart from those without, in less
/// time than a few steps take.
constexpr int64_t kTokenSample = int64_t{1} << 20;

/// counts [V] of the target tokens in a sample of the dataset's first epoch of at most `sample` tokens (one
/// sequence at least): whole sequences, at the indices floor(i n / k) for i below k of its n. The epoch holds
/// the sequences in permuted order, so the sample is spread over all the data and over the sources of a
/// mixture by weight. A function of the dataset, its seed among it, alone: a resumed run counts the same.
std::vector<int64_t> count_tokens(const Dataset& dataset, int64_t sample = kTokenSample);

}  // namespace wobble
