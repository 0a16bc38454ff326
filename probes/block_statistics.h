// Statistics of a block of values that lie side by side: two passes over a kilobyte or four in the
// first-level cache.
#pragma once

#include <limits>

#include "probes/statistics.h"

namespace wobble {

/// Adds n values (at most a few thousand) to `moments`. The mean of the block is taken first, so the moments
/// are about it and nothing cancels; deviations are scaled by a power of two, so that their fourth powers
/// neither overflow nor vanish. When a value is not finite the block is gone through one by one, and
/// `position(i)`, the row and column of value i, is asked for.
template <class T, class Position>
void add_block(const T* values, int n, Moments& moments, Position position);

/// Adds n values to a histogram.
void add_block(const float* values, int n, Histogram& histogram);
void add_block(const double* values, int n, Histogram& histogram);

namespace detail {

/// Moments of n finite values; returns false, with nothing added, when one of them is not finite.
bool add_finite_block(const float* values, int n, Moments& moments);
bool add_finite_block(const double* values, int n, Moments& moments);

}  // namespace detail

template <class T, class Position>
void add_block(const T* values, int n, Moments& moments, Position position) {
    if (detail::add_finite_block(values, n, moments)) return;
    for (int i = 0; i < n; ++i) {
        const double x = double(values[i]);
        const auto [row, column] = std::isfinite(x) ? std::pair<int64_t, int64_t>{-1, -1} : position(i);
        moments.add(x, row, column, double(std::numeric_limits<T>::min()));
    }
}

}  // namespace wobble
