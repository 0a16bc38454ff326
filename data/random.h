// Random numbers by counter, so that any of them can be had without drawing those before it.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11) turns a key and a
// 128-bit counter into 128 random bits. Here the key is the seed and the counter says what the bits are for;
// two uses that differ in any field are independent.
#pragma once

#include <Random123/philox.h>

#include <array>
#include <cstdint>

namespace wobble {

/// What random bits are used for. Each use has counters of its own.
enum class Purpose : uint32_t { Order = 1, Mixture = 2, MarkovTable = 3, MarkovDraw = 4 };

/// Four random words for (seed, purpose, stream, index, block). `stream` must be below 2^24.
inline std::array<uint32_t, 4> random_words(uint64_t seed, Purpose purpose, uint32_t stream, uint64_t index,
                                            uint32_t block) {
    // The tag keeps these numbers apart from those that other modules draw with the same seed.
    constexpr uint32_t kTag = 0x64617461;  // "data"
    const r123::Philox4x32::key_type key = {
        {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32) ^ kTag}};
    const r123::Philox4x32::ctr_type counter = {{block, static_cast<uint32_t>(purpose) | stream << 8,
                                                 static_cast<uint32_t>(index),
                                                 static_cast<uint32_t>(index >> 32)}};
    const r123::Philox4x32::ctr_type words = r123::Philox4x32{}(counter, key);
    return {words[0], words[1], words[2], words[3]};
}

/// A number in [0, 1) with 53 random bits.
inline double uniform(uint32_t high, uint32_t low) {
    const uint64_t bits = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace wobble
