// Weights in the precision that the model computes with, rounded from their master copies: to nearest, or
// stochastically, up with a probability that is the share of the way there, so that a change too small for
// one rounding is there in the mean over many (Gupta et al. 2015).
//
// The dither is a hash of the weight's bits and of its index. It has no state: a weight that has not changed
// keeps its rounding, a resumed run makes the same, and so does any number of threads.
#pragma once

#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// Austin Appleby's finaliser of MurmurHash3: each bit of x decides each bit of the result with a chance of a
/// half.
HD uint32_t mixed(uint32_t x) {
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

/// x rounded to one of the two bfloat16 beside it, which may be infinity above the largest; what is not
/// finite stays so. `index`: of the first element.
template <int N>
HD Pack<float, N> stochastically_rounded(Pack<float, N> x, uint32_t index) {
    float values[N];
    uint32_t bits[N];
    UNROLL for (int i = 0; i < N; ++i) values[i] = x[i];
    std::memcpy(bits, values, sizeof bits);
    SIMD for (int i = 0; i < N; ++i) {
        const uint32_t dither = mixed(bits[i] ^ mixed(index + uint32_t(i))) >> 16;
        bits[i] = (bits[i] & 0x7f800000u) == 0x7f800000u ? bits[i] : (bits[i] + dither) & 0xffff0000u;
    }
    std::memcpy(values, bits, sizeof bits);
    return generate<float, N>([&](int i) { return values[i]; });
}

template <class T>
struct RoundWeights {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "round_weights";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const A* master;  // [n]
    T* weight;        // [n]
    int64_t n;
    bool stochastic = false;  // to bfloat16
    int64_t offset = 0;       // of the first weight among those of the model, where stochastic

    int64_t row_elements() const { return flat_row; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t first = row * flat_row, length = flat_row_length(row, n);
        team.each(length, [&](auto at) INLINED {
            auto value = load(master + first, at);
            if constexpr (std::is_same_v<T, bf16>) {
                if (stochastic) value = stochastically_rounded(value, uint32_t(offset + first + at.index));
            }
            store(weight + first, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, weight + first, length);
    }
};

}  // namespace wobble
