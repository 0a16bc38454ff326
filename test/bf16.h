// Rounding to bfloat16, for tests of what its storage would do.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace wobble::test {

/// x rounded to bfloat16, to nearest and ties to even, in integers; NaN stays NaN.
inline float to_bf16(float x) {
    if (std::isnan(x)) return x;
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

}  // namespace wobble::test
