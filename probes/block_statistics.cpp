#include "probes/block_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/team.h"

namespace wobble {

namespace {

/// f(pointer, at) for all values.
template <class T, class F>
HOST void each(const Region<T>* regions, int count, F&& f) {
    for (int b = 0; b < count; ++b) {
        const Region<T> block = regions[b];
        for (int64_t r = 0; r < block.rows; ++r) {
            const T* row = block.p + r * block.stride;
            Lane{}.each(block.columns, [&](auto at) { f(row, at); });
        }
    }
}

/// The largest and smallest values and the smallest magnitude, found among the values' bits: four comparisons
/// of integers, which leave the floating-point units to the sums. Read as integers, floats that are not
/// negative are in order and lie below the negative ones (unsigned) or above them (signed); negative ones are
/// in order of magnitude.
template <class T>
class Extremes {
    using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
    using S = std::make_signed_t<U>;

  public:
    template <int N>
    HOST void take(Pack<T, N> x) {
        Pack<U, N> u;
        Pack<S, N> s;
        std::memcpy(&u.v, &x.v, sizeof u.v), std::memcpy(&s.v, &x.v, sizeof s.v);
        if constexpr (N == Lane::width) {
            // Written on bare vectors: GCC 12 makes one instruction of each line only so.
            const auto a = u.v;
            const auto b = s.v;
            high_.v = a > high_.v ? a : high_.v;
            low_.v = a < low_.v ? a : low_.v;
            signed_high_.v = b > signed_high_.v ? b : signed_high_.v;
            signed_low_.v = b < signed_low_.v ? b : signed_low_.v;
        } else {
            high_tail_ = larger(high_tail_, u), low_tail_ = smaller(low_tail_, u);
            signed_high_tail_ = larger(signed_high_tail_, s), signed_low_tail_ = smaller(signed_low_tail_, s);
        }
    }

    struct Result {
        T min, max, nearest;  // nearest to zero, a magnitude
    };
    HOST Result result() const {
        const auto most = [](auto a, auto b) { return larger(a, b); };
        const auto least = [](auto a, auto b) { return smaller(a, b); };
        const U high = larger(detail::fold(high_, most), high_tail_[0]);
        const U low = smaller(detail::fold(low_, least), low_tail_[0]);
        const S signed_high = larger(detail::fold(signed_high_, most), signed_high_tail_[0]);
        const S signed_low = smaller(detail::fold(signed_low_, least), signed_low_tail_[0]);
        const auto value = [](auto bits) { return std::bit_cast<T>(bits); };
        const bool any_negative = signed_low < 0, any_other = S(low) >= 0;
        T nearest = std::numeric_limits<T>::infinity();
        if (any_negative) nearest = -value(signed_low);
        if (any_other) nearest = std::min(nearest, value(low));
        return {.min = value(any_negative ? high : low),
                .max = any_other ? value(signed_high) : value(signed_low),
                .nearest = nearest};
    }

  private:
    template <class I, int N>
    static HOST Pack<I, N> smaller(Pack<I, N> a, Pack<I, N> b) {
        return where_less(b, a, b, a);
    }
    template <class I>
    static HOST I smaller(I a, I b) {
        return b < a ? b : a;
    }

    static constexpr U top = std::numeric_limits<U>::max();
    static constexpr S signed_top = std::numeric_limits<S>::max(),
                       signed_bottom = std::numeric_limits<S>::min();
    Pack<U, Lane::width> high_ = splat<Lane::width>(U(0)), low_ = splat<Lane::width>(top);
    Pack<S, Lane::width> signed_high_ = splat<Lane::width>(signed_bottom),
                         signed_low_ = splat<Lane::width>(signed_top);
    Pack<U, 1> high_tail_ = splat<1>(U(0)), low_tail_ = splat<1>(top);
    Pack<S, 1> signed_high_tail_ = splat<1>(signed_bottom), signed_low_tail_ = splat<1>(signed_top);
};

template <class T>
int64_t size_of(const Region<T>* regions, int count) {
    int64_t n = 0;
    for (int b = 0; b < count; ++b) n += regions[b].rows * regions[b].columns;
    return n;
}

}  // namespace

// -------------------------------------------------------------------------------------------- moments

/// A power of two near the largest value, and a shift near the mean. Returns false when a value is not
/// finite.
template <class T>
bool RunningMoments<T>::choose_shift(const Region<T>* regions, int count) {
    settle();
    Sum<Lane, T> poison;
    Largest<Lane, T> most;
    each(regions, count, [&](const T* values, auto at) {
        const auto x = load(values, at);
        poison += x - x;  // NaN for what is not finite
        most.take(magnitude(x));
    });
    if (poison.total() != T(0)) return false;
    const T largest = most.total();
    // Held where both the unit and its inverse are normal numbers.
    constexpr int reach = std::numeric_limits<T>::max_exponent - 2;
    exponent_ = largest > 0 ? std::clamp(std::ilogb(largest), -reach, reach) : 0;
    per_unit_ = std::ldexp(T(1), -exponent_);
    Sum<Lane, T> sum;  // in units, so that it does not overflow
    each(regions, count, [&](const T* values, auto at) { sum += load(values, at) * per_unit_; });
    shift_ = -sum.total() / T(size_of(regions, count));
    suits_up_to_ = std::ldexp(T(1), std::min(exponent_ + 8, reach));
    has_shift_ = true;
    return true;
}

/// One pass of power sums. Returns false, with nothing added, when shift or unit do not suit these values
/// (with `any_shift` they are taken as they are).
template <class T>
bool RunningMoments<T>::pass(const Region<T>* regions, int count, bool any_shift) {
    const int64_t n = size_of(regions, count);
    Sum<Lane, T> s1, s2, s3, s4;
    Extremes<T> extremes;
    each(regions, count, [&](const T* values, auto at) {
        constexpr int N = decltype(at)::width;
        const auto x = load(values, at);
        extremes.take(x);
        const auto d = fused(x, splat<N>(per_unit_), splat<N>(shift_));
        const auto d2 = d * d;
        s1 += d;
        s2 += d2;
        s3.add_product(d2, d);
        s4.add_product(d2, d2);
    });
    const double t1 = double(s1.total()), t2 = double(s2.total());
    if (!(t2 - t2 == 0)) return false;
    const auto [low, high, nearest] = extremes.result();
    const T largest = larger(high, -low);
    if (!any_shift) {
        // The mean of these values is at most half a spread away from the shift: power sums about it lose
        // less than a digit. Values far below the unit would lose their fourth powers.
        if (t1 * t1 > 0.25 * double(n) * t2) return false;
        if (largest > suits_up_to_ || (largest > 0 && largest * T(0x1p16) < suits_up_to_)) return false;
    }
    if (nearest < std::numeric_limits<T>::min()) {
        Sum<Lane, T> zeros, tiny;
        each(regions, count, [&](const T* values, auto at) {
            constexpr int N = decltype(at)::width;
            const auto x = load(values, at), none = splat<N>(T(0)), one = splat<N>(T(1));
            const auto size = magnitude(x);
            zeros += where_less(none, size, none, one);
            tiny += where_less(size, splat<N>(std::numeric_limits<T>::min()), one, none);
        });
        zeros_ += int64_t(zeros.total());
        subnormals_ += int64_t(tiny.total()) - int64_t(zeros.total());
    }
    const Sum<Lane, T>* sums[] = {&s1, &s2, &s3, &s4};
    UNROLL for (int k = 0; k < 4; ++k) {
        sums_[k] = sums_[k] + convert<double>(sums[k]->lanes);
        tails_[k] += double(sums[k]->tail);
    }
    count_ += n;
    min_ = low < min_ ? low : min_, max_ = larger(max_, high);
    return true;
}

/// A shift from a few hundred values: the pass over all of them will tell whether it suits.
template <class T>
void RunningMoments<T>::guess_shift(const Region<T>& region) {
    Region<T> beginning = region;
    beginning.columns = std::min<int64_t>(region.columns, 256);
    beginning.rows = 1;
    choose_shift(&beginning, 1);
}

template <class T>
void RunningMoments<T>::add(const Region<T>* regions, int count) {
    const int64_t n = size_of(regions, count);
    if (n == 0) return;
    if (n <= 2 * most_in_a_block) return add_block(regions, count);
    // A sum in T of many more values would lose digits.
    for (int i = 0; i < count; ++i) {
        const Region<T>& whole = regions[i];
        const int64_t columns = std::min(whole.columns, most_in_a_block);
        const int64_t rows = columns > 0 ? std::max<int64_t>(1, most_in_a_block / columns) : 1;
        for (int64_t r = 0; r < whole.rows; r += rows) {
            for (int64_t c = 0; c < whole.columns; c += columns) {
                const Region<T> piece{whole.p + r * whole.stride + c,
                                      whole.stride,
                                      whole.row + r,
                                      whole.column + c,
                                      std::min(rows, whole.rows - r),
                                      std::min(columns, whole.columns - c)};
                add_block(&piece, 1);
            }
        }
    }
}

template <class T>
void RunningMoments<T>::add_block(const Region<T>* regions, int count) {
    if (!has_shift_ && regions[0].rows > 0 && regions[0].columns > 0) guess_shift(regions[0]);
    if (has_shift_ && pass(regions, count, false)) return;
    if (choose_shift(regions, count) && pass(regions, count, true)) return;
    settle();
    for (int b = 0; b < count; ++b) {
        for (int64_t r = 0; r < regions[b].rows; ++r) {
            for (int64_t c = 0; c < regions[b].columns; ++c) {
                settled_.add(double(regions[b].p[r * regions[b].stride + c]), regions[b].row + r,
                             regions[b].column + c, double(std::numeric_limits<T>::min()));
            }
        }
    }
}

template <class T>
void RunningMoments<T>::settle() {
    if (count_ == 0) return;
    double s[4];
    for (int k = 0; k < 4; ++k) {
        s[k] = detail::fold(sums_[k], [](auto a, auto b) { return a + b; }) + tails_[k];
        sums_[k] = splat<width>(0.0), tails_[k] = 0;
    }
    // From power sums about the shift to moments about the mean.
    const double n = double(count_), c = s[0] / n, unit = std::ldexp(1.0, exponent_), u2 = unit * unit;
    Moments part;
    part.count = count_, part.zeros = zeros_, part.subnormals = subnormals_;
    part.min = double(min_), part.max = double(max_);
    part.mean = (c - double(shift_)) * unit;
    part.m2 = std::max(0.0, s[1] - n * c * c) * u2;
    part.m3 = (s[2] - 3 * c * s[1] + 2 * n * c * c * c) * u2 * unit;
    part.m4 = std::max(0.0, s[3] - 4 * c * s[2] + 6 * c * c * s[1] - 3 * n * c * c * c * c) * u2 * u2;
    // Of equal values the sum of what their shift left is no spread.
    if (min_ == max_) part.mean = double(min_), part.m2 = part.m3 = part.m4 = 0;
    settled_.merge(part);
    count_ = zeros_ = subnormals_ = 0;
    min_ = std::numeric_limits<T>::infinity(), max_ = -min_;
}

template class RunningMoments<float>;
template class RunningMoments<double>;

// ----------------------------------------------------------------------------------------- histograms

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
