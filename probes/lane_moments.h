// What one CUDA thread knows of the values of a channel: power sums about the first of them, in units of a
// power of two, in registers.
//
// Sums of some dozen values are made in the kernel's precision and then added up in float64; so are those in
// another unit, which follows the largest value: fourth powers neither overflow nor vanish. Lanes are taken
// together in float64 about one centre, and only there do moments about the mean come of it.
#pragma once

#include "probes/statistics.h"

namespace wobble {

template <class A>
struct LaneMoments {
    A shift = 0, inverse = 0, limit = 0;  // x counts as (x - shift) · inverse; |x| is at most `limit`
    A sums[4] = {};                       // of its powers, for the last `recent` values
    double totals[4] = {};                // Σ (x - shift)^p of those before
    int32_t recent = 0, zeros = 0, subnormals = 0;
    int64_t earlier = 0;
    A min = INFINITY, max = -INFINITY;

    /// A finite value.
    HD void add(A x) {
        constexpr A smallest_normal = sizeof(A) == sizeof(float) ? A(0x1p-126) : A(0x1p-1022);
        constexpr int32_t most_recent = 64;
        const A size = x < 0 ? -x : x;
        if (earlier + recent == 0) shift = x;
        if (size > limit || recent == most_recent) {
            settle();
            if (size > limit) measure(size);
        }
        const A u = std::fma(x, inverse, -shift * inverse), u2 = u * u;
        sums[0] += u, sums[1] += u2;
        sums[2] = std::fma(u2, u, sums[2]), sums[3] = std::fma(u2, u2, sums[3]);
        ++recent;
        zeros += size == 0, subnormals += size > 0 && size < smallest_normal;
        min = x < min ? x : min, max = x > max ? x : max;
    }

    /// Takes the recent values' sums into the totals.
    HD void settle() {
        double power = 1;
        UNROLL for (int p = 0; p < 4; ++p) {
            power *= inverse > 0 ? 1 / double(inverse) : 1;
            if (sums[p] != 0) totals[p] += double(sums[p]) * power;
            sums[p] = 0;
        }
        earlier += recent, recent = 0;
    }

    /// Σ (x - centre)^p of all values, p = 1 … 4.
    struct Powers {
        double sums[4];
    };
    HD Powers about(double centre) {
        settle();
        const double n = double(earlier), d = double(shift) - centre, d2 = d * d;
        if (n == 0) return {};
        const double* s = totals;
        return {{s[0] + n * d, s[1] + 2 * d * s[0] + n * d2, s[2] + 3 * d * s[1] + 3 * d2 * s[0] + n * d2 * d,
                 s[3] + 4 * d * s[2] + 6 * d2 * s[1] + 4 * d2 * d * s[0] + n * d2 * d2}};
    }

  private:
    /// The unit of values up to `size`, so that none is larger than 1; as far as its inverse is a number.
    HD void measure(A size) {
        constexpr int least = sizeof(A) == sizeof(float) ? -125 : -1021,
                      most = sizeof(A) == sizeof(float) ? 128 : 1023;
        const int exponent = std::ilogb(size) + 1;
        const int held = exponent < least ? least : exponent > most ? most : exponent;
        inverse = std::ldexp(A(1), -held), limit = std::ldexp(A(1), held);
    }
};

/// Moments of n values, from their power sums about a centre.
HD void set_moments(Moments& m, double n, double centre, const double (&s)[4]) {
    const double c = s[0] / n;
    m.mean = centre + c;
    m.m2 = larger(0.0, s[1] - c * s[0]);
    m.m3 = s[2] - 3 * c * s[1] + 2 * c * c * s[0];
    m.m4 = larger(0.0, s[3] - 4 * c * s[2] + 6 * c * c * s[1] - 3 * c * c * c * s[0]);
}

}  // namespace wobble
