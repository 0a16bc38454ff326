// The machine's own roof, measured: how many multiply-adds its threads can do in a second, and how
// many bytes they can move.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace wobble::bench {

/// FLOP/s of `threads` threads in independent vector multiply-adds held in registers, the best of several
/// tries: the most that any matrix product of that precision could reach. In bfloat16 those are of pairs into
/// float32 sums where the machine has them, and float32's own elsewhere. Threads share cores as the system
/// places them.
double multiply_add_peak(int threads, wobble::Precision precision);

/// Bytes that copying one array to another moves in a second, read and written, with `threads` threads each
/// copying a part: the best of several tries, by the kernels' own loads and stores or by memcpy, whichever is
/// faster. The arrays are `copy_working_set()` bytes together.
double copy_bandwidth(int threads);

/// The same of a GPU: FLOP/s of cuBLASLt's product of 8,192² matrices, in float32 or bfloat16, and bytes/s of
/// a copy of 1 GiB within its memory.
double cuda_multiply_add_peak(wobble::Precision precision);
double cuda_copy_bandwidth();

/// Eight times the last-level cache, 256 MiB at least and 1 GiB at most.
int64_t copy_working_set();

/// Bytes of the largest cache that the system reports; 0 where it reports none.
int64_t last_level_cache();

}  // namespace wobble::bench
