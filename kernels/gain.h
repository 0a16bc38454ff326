// The gain of a norm: a weight for each channel, kept as it is or about zero, or none.
#pragma once

#include "kernels/pack.h"

namespace wobble {

/// What the channels `at` are multiplied by: weight; 1 + weight where it is kept about zero, so that weight
/// decay pulls gains towards 1 (`layernorm_1p` of Megatron-LM); 1 where `weight` is null. The common case
/// is a weight as it is: then nothing is asked.
template <bool Common, class T, int N>
HD Pack<Accumulator<T>, N> gain_at(const T* weight, bool zero_centred, At<N> at) {
    using A = Accumulator<T>;
    if constexpr (Common) {
        return load(weight, at);
    } else {
        if (!weight) return splat<N>(A(1));
        const auto value = load(weight, at);
        return zero_centred ? value + A(1) : value;
    }
}

}  // namespace wobble
