// What storing a number in bfloat16 makes of it.
#pragma once

#include "kernels/bf16.h"

namespace wobble::test {

inline float to_bf16(float x) {
    return float(bf16(x));
}

}  // namespace wobble::test
