// How rows are cut up. Everything here depends on shapes alone, never on the number of threads, so neither do
// results.
#pragma once

#include "kernels/pack.h"

namespace wobble {

struct Range {
    int64_t begin, end;
};

HD constexpr int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/// Sums over rows are made in two stages: one partial sum per chunk of rows, then the partial sums in order.
/// 64 chunks keep 64 threads busy; more would only make the second stage longer.
constexpr int64_t most_chunks = 64;

HD constexpr int64_t chunk_count(int64_t rows) {
    return rows < most_chunks ? rows : most_chunks;
}

/// The rows of one of the `chunk_count(rows)` chunks; they differ in length by one at most.
HD constexpr Range chunk_rows(int64_t chunk, int64_t rows) {
    const int64_t chunks = chunk_count(rows);
    return {chunk * rows / chunks, (chunk + 1) * rows / chunks};
}

/// Flat arrays are worked on in rows of this many elements, the last one ragged.
constexpr int64_t flat_row = 4096;

HD constexpr int64_t flat_rows(int64_t n) {
    return ceil_div(n, flat_row);
}

HD constexpr int64_t flat_row_length(int64_t row, int64_t n, int64_t length = flat_row) {
    const int64_t rest = n - row * length;
    return rest < length ? rest : length;
}

/// The matrix that channel 0 of a kernel writes.
template <class E>
struct ObservedMatrix {
    const E* p;
    int64_t columns;
    int64_t rows = 0;   // 0: as many as the kernel has
    int64_t first = 0;  // the columns from this one on are the kernel's own, ...
    int64_t own = 0;    // ... so many of them; 0: all
};

}  // namespace wobble
