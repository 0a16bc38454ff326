// bfloat16: float32 with the upper 16 bits only, 8 significant bits over the same range.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cuda.h"

namespace wobble {

/// Storage alone: arithmetic is done in float32. Rounding is to nearest, ties to even; NaN stays NaN, and
/// what is subnormal stays so.
struct bf16 {
    uint16_t bits;

    bf16() = default;
    HD explicit bf16(float x) {
        uint32_t b;
        memcpy(&b, &x, sizeof b);
        const bool nan = (b & 0x7fffffffu) > 0x7f800000u;
        bits = uint16_t(nan ? b >> 16 | 0x40u : (b + 0x7fffu + (b >> 16 & 1)) >> 16);
    }
    HD operator float() const {
        const uint32_t b = uint32_t(bits) << 16;
        float x;
        memcpy(&x, &b, sizeof x);
        return x;
    }
};

}  // namespace wobble
