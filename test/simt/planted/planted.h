// Faults planted in the text of kernels: test/simt/mutate.py writes `planted(k)` wherever an index, a barrier
// or a mask could be wrong, includes this before everything, and compiles once for all of them.
#pragma once

#include <type_traits>

namespace simt {

extern bool in_kernel;

constexpr int most_faults = 4096;
/// The one that is there: WOBBLE_FAULT, or none.
extern int fault_that_is_planted;
/// Those whose place a kernel has come to since the test began.
extern bool fault_was_reached[most_faults];

}  // namespace simt

/// Whether fault `k` is there. Where the compiler wants a constant, none is.
constexpr bool planted(int k) {
    if (std::is_constant_evaluated()) return false;
    if (simt::in_kernel) simt::fault_was_reached[k] = true;
    return k == simt::fault_that_is_planted;
}
