// The first statistics of what passes through a channel: count, mean, RMS, minimum, maximum, non-finite
// values.
//
// Sums are float64 and about a shift, the first finite value seen, so a mean of 1000 with a spread of 1 does
// not cancel. Parts merge by the formulas of Chan, Golub & LeVeque (1979): merging is exact in the counts and
// extremes, and as good as one pass in the rest. Non-finite values are counted and kept out of everything
// else.
#pragma once

#include "kernels/pack.h"

namespace wobble {

struct Moments {
    int64_t count = 0;      // finite values
    int64_t nonfinite = 0;  // NaN and infinities
    double shift = 0;       // first finite value
    double sum = 0;         // Σ (x - shift)
    double squares = 0;     // Σ (x - shift)²
    double min = INFINITY, max = -INFINITY;

    HD void add(double x) {
        if (!(x - x == 0)) {
            ++nonfinite;
            return;
        }
        if (count++ == 0) shift = x;
        const double d = x - shift;
        sum += d;
        squares += d * d;
        min = larger(-min, -x) * -1;
        max = larger(max, x);
    }

    HD double mean() const { return count ? shift + sum / double(count) : NAN; }
    /// Σ (x - mean)²
    HD double spread() const {
        const double s = squares - (count ? sum * sum / double(count) : 0);
        return s > 0 ? s : 0;
    }
    HD double variance() const { return count ? spread() / double(count) : NAN; }
    HD double rms() const { return std::sqrt(variance() + mean() * mean()); }

    HD void merge(const Moments& other) {
        nonfinite += other.nonfinite;
        if (other.count == 0) return;
        if (count == 0) {
            const int64_t kept = nonfinite;
            *this = other;
            nonfinite = kept;
            return;
        }
        // The other's sums, moved to this shift.
        const double move = other.shift - shift, n = double(other.count);
        squares += other.squares + move * (2 * other.sum + n * move);
        sum += other.sum + n * move;
        count += other.count;
        min = -larger(-min, -other.min);
        max = larger(max, other.max);
    }
};

/// The probe that keeps Moments of each of a kernel's channels.
template <int channels>
struct MomentsProbe {
    Moments of[channels];

    template <class A, int N>
    HD void observe(int channel, int64_t, At<N>, Pack<A, N> value) {
        for (int i = 0; i < N; ++i) of[channel].add(double(value[i]));
    }
    HD void merge(const MomentsProbe& other) {
        for (int c = 0; c < channels; ++c) of[c].merge(other.of[c]);
    }
};

}  // namespace wobble
