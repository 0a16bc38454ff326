// The machine's own roof, measured: how many fused multiply-adds a second its threads can do in float32.
#pragma once

namespace wobble::bench {

/// FLOP/s of `threads` threads in independent vector multiply-adds held in registers, the best of several
/// tries: the most that any matrix product could reach. Threads share cores as the system places them.
double multiply_add_peak(int threads);

}  // namespace wobble::bench
