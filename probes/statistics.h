// What is known of the values that passed through a channel. Everything here merges: the statistics of parts,
// merged in order, are those of the whole, exactly in counts, extremes and histograms, to float64 rounding in
// the moments.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/pack.h"

namespace wobble {

/// Moments about the mean, counts of special values, extremes. Non-finite values are counted by kind and kept
/// out of the rest. Right for all of float32; the fourth powers of float64 values beyond 1e±77 are lost.
/// Merging follows Pébay (2008), the generalisation of Chan, Golub & LeVeque to fourth
/// order.
struct Moments {
    int64_t count = 0;  // finite values
    int64_t zeros = 0, subnormals = 0, nans = 0, positive_infinities = 0, negative_infinities = 0;
    double mean = 0;                // of the finite values; 0 when there are none
    double m2 = 0, m3 = 0, m4 = 0;  // Σ (x - mean)^p
    double min = INFINITY, max = -INFINITY;
    int64_t first_row = -1, first_column = -1;  // where the first non-finite value stood; -1: nowhere

    HD int64_t nonfinite() const { return nans + positive_infinities + negative_infinities; }
    HD double variance() const { return count ? m2 / double(count) : NAN; }
    HD double rms() const { return count ? std::sqrt(mean * mean + m2 / double(count)) : NAN; }
    HD double absmax() const { return count ? larger(max, -min) : NAN; }
    /// Third moment over the spread cubed; NaN when all values are equal.
    HD double skew() const { return m2 > 0 ? std::sqrt(double(count)) * m3 / (m2 * std::sqrt(m2)) : NAN; }
    /// Fourth moment over the variance squared, 3 for a normal distribution; NaN when all values are equal.
    HD double kurtosis() const { return m2 > 0 ? double(count) * (m4 / m2) / m2 : NAN; }

    /// One value, as if it were merged.
    HD void add(double x, int64_t row, int64_t column, double smallest_normal) {
        if (!(x - x == 0)) {
            if (nonfinite() == 0) first_row = row, first_column = column;
            if (x != x) ++nans;
            else if (x > 0) ++positive_infinities;
            else ++negative_infinities;
            return;
        }
        const double size = x < 0 ? -x : x;
        Moments one;
        one.count = 1, one.zeros = x == 0, one.subnormals = size > 0 && size < smallest_normal;
        one.mean = one.min = one.max = x;
        merge(one);
    }

    /// Takes in what `other` saw, later than this one.
    HD void merge(const Moments& other) {
        if (nonfinite() == 0) first_row = other.first_row, first_column = other.first_column;
        zeros += other.zeros, subnormals += other.subnormals, nans += other.nans;
        positive_infinities += other.positive_infinities, negative_infinities += other.negative_infinities;
        min = -larger(-min, -other.min), max = larger(max, other.max);
        if (other.count == 0) return;
        if (count == 0) {
            count = other.count, mean = other.mean, m2 = other.m2, m3 = other.m3, m4 = other.m4;
            return;
        }
        const double na = double(count), nb = double(other.count), n = na + nb;
        const double d = other.mean - mean, share = d / n;
        // Before m2 changes, from the highest order down.
        m4 += other.m4 + d * share * share * share * na * nb * (na * na - na * nb + nb * nb) +
              6 * share * share * (na * na * other.m2 + nb * nb * m2) + 4 * share * (na * other.m3 - nb * m3);
        m3 += other.m3 + d * share * share * na * nb * (na - nb) + 3 * share * (na * other.m2 - nb * m2);
        m2 += other.m2 + d * share * na * nb;
        mean += share * nb;
        count += other.count;
    }
};

/// Number formats that a tensor might be cast to.
struct Format {
    const char* name;
    double smallest;  // the smallest subnormal: what is at most half of it rounds to zero (to even)
    double largest;   // what rounds beyond the largest number starts here, halfway to the next one (to even)
};
/// Largest number plus half a step of its binade: 65504 + 16, (2 - 2^-8) 2^127 + 2^119, 448 + 16, 57344 +
/// 4096, 6 + 1. 448 is even, so 464 still rounds to it: there the next float64 above is the first beyond.
/// e4m3 and e5m2 as in the OCP 8-bit floating point specification (2023), e2m1 as in its microscaling formats
/// (2023).
constexpr Format formats[] = {{"fp16", 0x1p-24, 65520.0},
                              {"bf16", 0x1p-133, 0x1.ffp127},
                              {"e4m3", 0x1p-9, 0x1.d000000000001p8},
                              {"e5m2", 0x1p-16, 61440.0},
                              {"e2m1", 0.5, 7.0}};
constexpr int format_count = 5;

/// Counts of finite, non-zero values by exponent, floor(log2 |x|), and of what each format would lose.
struct Histogram {
    static constexpr int lowest = -150,
                         bins = 280;  // of float32: the smallest subnormal is 2^-149; the rest is held
    std::array<uint64_t, bins> by_exponent{};         // bin i: 2^(i + lowest) ≤ |x| < 2^(i + lowest + 1)
    std::array<uint64_t, format_count> flushed{};     // would round to zero
    std::array<uint64_t, format_count> overflowed{};  // would round beyond the largest number

    void merge(const Histogram& other) {
        for (int i = 0; i < bins; ++i) by_exponent[size_t(i)] += other.by_exponent[size_t(i)];
        for (size_t f = 0; f < format_count; ++f) {
            flushed[f] += other.flushed[f];
            overflowed[f] += other.overflowed[f];
        }
    }
};

/// Sums over the rows of each column (channel of the model) of a matrix; a part of the work may have seen
/// some columns only.
struct Columns {
    int64_t first = 0;                   // the column that the vectors begin at
    std::vector<double> sizes, squares;  // Σ |x|, Σ x²

    /// n values of one row, from `column` on.
    template <class T>
    void add(int64_t column, const T* values, int64_t n) {
        cover(column, n);
        double* size = sizes.data() + (column - first);
        double* square = squares.data() + (column - first);
        for (int64_t i = 0; i < n; ++i) {
            const double x = double(values[i]);
            size[i] += std::fabs(x), square[i] += x * x;
        }
    }
    void merge(const Columns& other) {
        const int64_t n = int64_t(other.sizes.size());
        if (n == 0) return;
        cover(other.first, n);
        for (int64_t i = 0; i < n; ++i) {
            sizes[size_t(other.first - first + i)] += other.sizes[size_t(i)];
            squares[size_t(other.first - first + i)] += other.squares[size_t(i)];
        }
    }

  private:
    void cover(int64_t column, int64_t n) {
        if (sizes.empty()) first = column;
        if (column < first) {
            sizes.insert(sizes.begin(), size_t(first - column), 0.0);
            squares.insert(squares.begin(), size_t(first - column), 0.0);
            first = column;
        }
        if (size_t(column + n - first) > sizes.size()) {
            sizes.resize(size_t(column + n - first));
            squares.resize(size_t(column + n - first));
        }
    }
};

/// Some rows of a matrix, evenly spread.
struct SampledRows {
    int64_t rows = 0, columns = 0;
    std::vector<float> values;  // [rows, columns]
};

/// What is kept of one channel: moments always, the rest where it was asked for.
struct Statistics {
    Moments moments;
    std::unique_ptr<Histogram> histogram;
    std::unique_ptr<Columns> columns;
    std::unique_ptr<SampledRows> sample;

    /// Samples of different launches are not pooled: the first is kept.
    void merge(const Statistics& other) {
        moments.merge(other.moments);
        if (histogram && other.histogram) histogram->merge(*other.histogram);
        if (columns && other.columns) columns->merge(*other.columns);
    }
};

}  // namespace wobble
