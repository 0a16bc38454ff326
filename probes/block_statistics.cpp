#include "probes/block_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/team.h"

namespace wobble {

namespace detail {

namespace {

/// Power sums of deviations from a provisional mean, moved to the true one and merged.
void merge_central(Moments& moments, Moments part, double provisional, double unit, double s1, double s2,
                   double s3, double s4) {
    const double n = double(part.count), c = s1 / n;
    const double u2 = unit * unit;
    part.mean = provisional + c * unit;
    part.m2 = std::max(0.0, s2 - n * c * c) * u2;
    part.m3 = (s3 - 3 * c * s2 + 2 * n * c * c * c) * u2 * unit;
    part.m4 = std::max(0.0, s4 - 4 * c * s3 + 6 * c * c * s2 - 3 * n * c * c * c * c) * u2 * u2;
    moments.merge(part);
}

template <class T>
bool add(const T* values, int n, Moments& moments) {
    if (n == 0) return true;
    const Lane lane;
    Sum<Lane, T> sum, poison, zeros, tiny;
    Largest<Lane, T> most, least;  // least: of -x
    lane.each(n, [&](auto at) {
        constexpr int N = decltype(at)::width;
        const auto one = splat<N>(T(1)), none = splat<N>(T(0));
        const auto x = load(values, at);
        const auto minus = none - x, size = larger(x, minus);
        sum += x;
        poison += x - x;  // NaN for what is not finite
        zeros += where_less(none, size, none, one);
        tiny += where_less(size, splat<N>(std::numeric_limits<T>::min()), one, none);
        most.take(x);
        least.take(minus);
    });
    const T total = sum.total();
    // An infinite sum of finite values has overflowed: left to the patient way as well.
    if (poison.total() != T(0) || !std::isfinite(total)) return false;

    Moments part;
    part.count = n;
    part.zeros = int64_t(zeros.total());
    part.subnormals = int64_t(tiny.total()) - part.zeros;
    part.min = -double(least.total()), part.max = double(most.total());

    const T provisional = total / T(n);
    // Deviations are counted in units of a power of two near the largest value, so that they stay around 1.
    const double largest = std::max(part.max, -part.min);
    constexpr int reach = std::numeric_limits<T>::max_exponent - 2;
    const int exponent = largest > 0 ? std::clamp(std::ilogb(largest), -reach, reach) : 0;
    const T per_unit = std::ldexp(T(1), -exponent), shift = -provisional * per_unit;
    Sum<Lane, T> s1, s2, s3, s4;
    lane.each(n, [&](auto at) {
        constexpr int N = decltype(at)::width;
        const auto d = fused(load(values, at), per_unit, splat<N>(shift));
        const auto d2 = d * d;
        s1 += d;
        s2 += d2;
        s3.add_product(d2, d);
        s4.add_product(d2, d2);
    });
    // The shift was rounded: the provisional mean is what it stands for.
    merge_central(moments, part, -double(shift) * std::ldexp(1.0, exponent), std::ldexp(1.0, exponent),
                  double(s1.total()), double(s2.total()), double(s3.total()), double(s4.total()));
    return true;
}

}  // namespace

bool add_finite_block(const float* values, int n, Moments& moments) {
    return add(values, n, moments);
}
bool add_finite_block(const double* values, int n, Moments& moments) {
    return add(values, n, moments);
}

}  // namespace detail

namespace {

template <class T>
void add_to(Histogram& histogram, const T* values, int n) {
    for (int i = 0; i < n; ++i) {
        const double size = std::fabs(double(values[i]));
        if (!(size > 0) || !std::isfinite(size)) continue;
        const int bin = std::clamp(std::ilogb(size) - Histogram::lowest, 0, Histogram::bins - 1);
        ++histogram.by_exponent[size_t(bin)];
    }
}

}  // namespace

namespace {

/// The exponent field of a float; 0 for zeros and subnormals, 255 for what is not finite.
int field(float x) {
    return int(std::bit_cast<uint32_t>(x) >> 23) & 255;
}

/// What a format would lose, as floats: |x| up to `flush` becomes zero, from `overflow` on infinity.
struct Losses {
    float flush, overflow;

    explicit Losses(const Format& format)
        : flush(float(format.smallest / 2)), overflow(float(format.largest)) {
        // The first float that is no smaller.
        if (double(overflow) < format.largest) overflow = std::nextafter(overflow, INFINITY);
    }
};

}  // namespace

void add_block(const float* values, int n, Histogram& histogram) {
    static const std::array<Losses, format_count> losses = {
        Losses(formats[0]), Losses(formats[1]), Losses(formats[2]), Losses(formats[3]), Losses(formats[4])};
    // Four tables in turn: neighbours often share an exponent, and would wait for each other's count.
    uint32_t tables[4][256] = {};
    for (int i = 0; i < n; ++i) ++tables[i & 3][field(values[i])];
    uint32_t counts[256];
    for (int e = 0; e < 256; ++e) counts[e] = tables[0][e] + tables[1][e] + tables[2][e] + tables[3][e];

    for (int e = 1; e < 255; ++e) histogram.by_exponent[size_t(e - 127 - Histogram::lowest)] += counts[e];
    int subnormals = 0;
    if (counts[0] > 0) {
        for (int i = 0; i < n; ++i) {
            if (field(values[i]) != 0 || values[i] == 0) continue;
            ++subnormals;
            add_to(histogram, values + i, 1);
        }
    }
    // Whole exponents are lost or kept; only in that of the threshold itself are values looked at one by one.
    for (size_t f = 0; f < format_count; ++f) {
        const auto [flush, overflow] = losses[f];
        const int lowest = field(flush), highest = field(overflow);
        uint64_t flushed = lowest > 0 ? uint64_t(subnormals) : 0, overflowed = 0;
        for (int e = 1; e < lowest; ++e) flushed += counts[e];
        for (int e = highest + 1; e < 255; ++e) overflowed += counts[e];
        int below = 0, beyond = 0;
        if (counts[lowest] > 0) {
            for (int i = 0; i < n; ++i) {
                const float size = std::fabs(values[i]);
                below += (field(size) == lowest) & (size > 0) & (size <= flush);
            }
        }
        if (counts[highest] > 0) {
            for (int i = 0; i < n; ++i) {
                const float size = std::fabs(values[i]);
                beyond += (field(size) == highest) & (size >= overflow);
            }
        }
        histogram.flushed[f] += flushed + uint64_t(below),
            histogram.overflowed[f] += overflowed + uint64_t(beyond);
    }
}

void add_block(const double* values, int n, Histogram& histogram) {
    add_to(histogram, values, n);
    for (int i = 0; i < n; ++i) {
        const double size = std::fabs(values[i]);
        for (size_t f = 0; f < format_count; ++f) {
            histogram.flushed[f] += size > 0 && size <= formats[f].smallest / 2;
            histogram.overflowed[f] += size >= formats[f].largest && std::isfinite(size);
        }
    }
}

}  // namespace wobble
