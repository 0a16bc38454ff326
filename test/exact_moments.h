// What the statistics of some numbers are, in extended precision, and how far their arithmetic may stray from
// it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "probes/statistics.h"

namespace wobble {

/// Bounds on the error of moments, to first order, u being the unit roundoff of T.
///
/// Power sums of d = x - a are taken in T, the shift a being a number of T, so that d is rounded once and d^4
/// has seen 7 roundings at most. A term then goes through some `additions` in T. With 100 more roundings of
/// float64 for the way from sums to moments, Σ d^p is right to epsilon = (additions + 8) u + 100 · 2^-53
/// times the sum of its sizes.
///
/// The moments about the mean M are these sums moved, Σ_k C(p, k) s_k (a - M)^(p - k), so they are off by
/// epsilon A_p, A_p = Σ (|x - a| + |a - M|)^p; M, itself off by epsilon A_1 / n, costs p times that again;
/// and one more stands for the higher orders: (p + 2) epsilon A_p in all.
///
/// By Minkowski's inequality A_p ≤ (growth ‖x - M‖_p + shift ‖x‖_p)^p:
///   one block   a is the block's mean, made in T, |a - M| ≤ (additions + 8) u mean |x|: that twice for
///               `shift`. Or it was made of other values and serves: then it is √(1/3) spreads off at most,
///               and growth is 1 + 2 · 0.58
///   several     |x - a| + |a - M| ≤ |x - μ| + 2 |a - μ| + |μ - M|, μ being the mean of the block. Over all
///               blocks ‖x - μ‖_p ≤ 2 ‖x - M‖_p, and the spreads and ‖μ - M‖_p ≤ ‖x - M‖_p: growth 2 + 2 ·
///               0.58 + 1
/// (for p = 1, with √n ‖x - M‖_2 in place of ‖x - M‖_1).
///
/// A unit is at most 2^8 times the largest value: what underflows of a fourth power is below 2^32 of its
/// fourth power times the smallest number of T.
///
/// Merging is in float64: 16 roundings a merge, on moments of parts, which are at most 2^p times those of the
/// whole. The running mean is rounded every time, which moves all distances by up to drift = 16 merges 2^-53
/// max |x|, and the moment by p 2^p drift ‖x - M‖_(p-1)^(p-1).
struct Rounding {
    double epsilon = 0, growth = 1, shift = 0, underflow = 0;
    int64_t merges = 0;

    /// The additions in T that a term goes through, where packs of 16 and what is left of each row are summed
    /// apart.
    static int64_t additions(int64_t rows, int64_t columns) {
        return rows * std::max(columns / 16, columns % 16);
    }

    template <class T>
    static Rounding block(int64_t additions) {
        const double u = double(std::numeric_limits<T>::epsilon()) / 2, sum = double(additions + 8) * u;
        return {sum + 100 * 0x1p-53, 2.2, 2 * sum, double(std::numeric_limits<T>::denorm_min()), 1};
    }
    /// `merges`: the number of blocks, and of values in blocks with one that is not finite.
    template <class T>
    static Rounding blocks(int64_t additions, int64_t merges) {
        Rounding r = block<T>(additions);
        r.growth = 4.2, r.merges = merges, r.epsilon += double(merges) * 0x1p-53;
        return r;
    }
    /// Values that were added one by one.
    static Rounding values(size_t n) { return {.merges = int64_t(n)}; }
};

/// Fails where `m` is not what `all`, in this order, amounts to. The position of the first non-finite value
/// is left to the caller.
template <class T>
void expect_moments(const Moments& m, const std::vector<T>& all, Rounding rounding) {
    using Long = long double;
    std::vector<Long> x;
    int64_t zeros = 0, subnormals = 0, nans = 0, positive = 0, negative = 0;
    for (const T value : all) {
        nans += std::isnan(value), positive += value == T(INFINITY), negative += value == -T(INFINITY);
        zeros += value == 0, subnormals += std::fpclassify(value) == FP_SUBNORMAL;
        if (std::isfinite(value)) x.push_back(Long(value));
    }
    EXPECT_EQ(m.count, int64_t(x.size()));
    EXPECT_EQ(m.zeros, zeros);
    EXPECT_EQ(m.subnormals, subnormals);
    EXPECT_EQ(m.nans, nans);
    EXPECT_EQ(m.positive_infinities, positive);
    EXPECT_EQ(m.negative_infinities, negative);
    EXPECT_EQ(m.nonfinite(), nans + positive + negative);
    if (x.empty()) {
        EXPECT_EQ(m.mean, 0);
        EXPECT_EQ(m.m2, 0);
        for (double undefined : {m.variance(), m.rms(), m.absmax(), m.skew(), m.kurtosis()})
            EXPECT_TRUE(std::isnan(undefined));
        return;
    }
    const auto [least, most] = std::minmax_element(x.begin(), x.end());
    const double largest = double(std::max(*most, -*least));
    EXPECT_EQ(m.min, double(*least));
    EXPECT_EQ(m.max, double(*most));
    EXPECT_EQ(m.absmax(), largest);

    const Long n = Long(x.size());
    Long mean = 0, rest = 0;
    for (Long v : x) mean += v / n;
    for (Long v : x) rest += (v - mean) / n;
    Long central[5] = {}, deviations[5] = {n}, sizes[5] = {};  // Σ (x - M)^p, Σ |x - M|^p, Σ |x|^p
    for (Long v : x) {
        const Long d = (v - mean) - rest;  // the mean itself has no room for the rest
        Long power = 1, size = 1;
        for (int p = 1; p <= 4; ++p) {
            power *= d, size *= std::abs(v);
            central[p] += power, deviations[p] += std::abs(power), sizes[p] += size;
        }
    }
    mean += rest;
    const auto error = [&](int p) {
        const Long norm = p == 1 ? std::sqrt(n * deviations[2]) : std::pow(deviations[p], 1 / Long(p));
        const Long reach = rounding.growth * norm + rounding.shift * std::pow(sizes[p], 1 / Long(p));
        const Long merging = 16 * Long(rounding.merges) * 0x1p-53L, growth = Long(1 << p);
        return Long(p + 2) * rounding.epsilon * std::pow(reach, Long(p)) +
               growth * merging * (deviations[p] + Long(p) * Long(largest) * deviations[p - 1]) +
               (p > 1 ? n * rounding.underflow * std::pow(256 * Long(largest), Long(p)) : 0);
    };
    // Results are rounded to float64, which has an end below as well.
    const Long ulp = 8 * 0x1p-53L, tiny = 4 * Long(std::numeric_limits<double>::denorm_min());
    const Long mean_error = error(1) / n + std::abs(mean) * ulp + tiny;
    EXPECT_LE(std::abs(m.mean - mean), mean_error) << m.mean << " is not " << mean;

    if (*least == *most) {
        EXPECT_EQ(m.variance(), 0);
        EXPECT_NEAR(m.rms(), largest, largest * double(ulp));
        EXPECT_TRUE(std::isnan(m.skew()));
        EXPECT_TRUE(std::isnan(m.kurtosis()));
        return;
    }
    const Long variance = central[2] / n, rms = std::sqrt(mean * mean + variance);
    EXPECT_LE(std::abs(m.variance() - variance), error(2) / n + variance * ulp + tiny)
        << m.variance() << " is not " << variance;
    EXPECT_LE(std::abs(m.rms() - rms),
              (2 * std::abs(mean) * mean_error + mean_error * mean_error + error(2) / n) / rms + rms * ulp)
        << m.rms() << " is not " << rms;
    // A quotient's error: that of its numerator, and of the power of m2 = central (1 ± spread_error).
    const Long spread_error = error(2) / central[2] + ulp;
    ASSERT_LT(spread_error, 0.25L) << "nothing would be tested";
    const auto check = [&](double found, int p, const char* name) {
        const Long unit = std::pow(central[2], Long(p) / 2) / std::pow(n, Long(p) / 2 - 1);
        const Long expected = central[p] / unit, grown = std::pow(1 - spread_error, -Long(p) / 2);
        EXPECT_LE(std::abs(found - expected),
                  std::abs(expected) * (grown - 1 + ulp) + (error(p) / unit + ulp) * grown)
            << name << ' ' << found << " is not " << expected;
    };
    check(m.skew(), 3, "skew");
    check(m.kurtosis(), 4, "kurtosis");
}

}  // namespace wobble
