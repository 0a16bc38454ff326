// What the statistics of some numbers are, in extended precision, and how far float arithmetic may stray from
// it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "probes/statistics.h"

namespace wobble {

/// Bounds on the error of the sums, u being the unit roundoff of the type they are taken in.
///
/// A block is summed in T, in 16 lanes that are folded in a tree, then the rest one by one: a term goes
/// through at most n/16 + 4 + 15 + 1 additions. The term itself, d^p with d rounded once, has seen at most 6
/// roundings, and the corrections that follow (in float64) 10 at most: everything is right to
/// epsilon = (n/16 + 40) u times the sum of the sizes. The provisional mean is one such sum, so it is off by
/// at most shift = epsilon · mean |x| (and a subnormal, to which it may be rounded). By Minkowski's
/// inequality the p-th powers of the deviations from it add up to at most
///     A_p = (‖x - mean‖_p + n^(1/p) shift)^p.
/// With c, the true mean less the provisional one, |c| ≤ shift, known to epsilon A_1 / n, the terms of the
/// central moments in powers of c, each at most A_p, are in error by these many epsilon A_p, to first order:
///     m2 = s2 - n c²                          1 + 2
///     m3 = s3 - 3 c s2 + 2 n c³               1 + (3 + 3) + 6
///     m4 = s4 - 4 c s3 + 6 c² s2 - 3 n c⁴     1 + (4 + 4) + (6 + 12) + 12
/// One more of each stands for the higher orders.
///
/// Merging, of single values too, is in float64: 16 roundings a merge, so epsilon grows by 16 n 2^-53, on
/// central moments of parts, which are at most 2^p times those about the mean of the whole. The running mean
/// is rounded every time, which moves all distances by up to drift = 16 n 2^-53 max |x|, and the moment by
/// p 2^p drift A_(p-1).
struct Rounding {
    double epsilon = 0, shift = 0;
    bool merges = false;

    /// One block of n values of type T.
    template <class T>
    static Rounding block(size_t n) {
        const double epsilon = (double(n) / 16 + 40) * double(std::numeric_limits<T>::epsilon()) / 2;
        return {epsilon, double(std::numeric_limits<T>::denorm_min()), false};
    }
    /// Blocks that were merged, or blocks that were left to the slow path.
    template <class T>
    static Rounding blocks(size_t n) {
        Rounding r = block<T>(std::min<size_t>(n, 1024));
        return {r.epsilon + 16 * double(n) * 0x1p-53, r.shift, true};
    }
    static Rounding values(size_t n) { return {16 * double(n) * 0x1p-53, 0, true}; }
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
    Long mean = 0, rest = 0, sizes = 0;
    for (Long v : x) mean += v / n, sizes += std::abs(v) / n;
    for (Long v : x) rest += (v - mean) / n;
    Long central[5] = {}, absolute[5] = {n};  // Σ (x - mean)^p and Σ |x - mean|^p
    for (Long v : x) {
        const Long d = (v - mean) - rest;  // the mean itself has no room for the rest
        for (int p = 1; p <= 4; ++p) {
            central[p] += std::pow(d, Long(p)), absolute[p] += std::pow(std::abs(d), Long(p));
        }
    }
    mean += rest;
    const Long epsilon = rounding.epsilon, shift = rounding.shift + epsilon * sizes;
    const Long drift = rounding.merges ? 16 * n * 0x1p-53L * Long(largest) : 0;
    const auto deviations = [&](int p) {
        return p == 0
                   ? n
                   : std::pow(std::pow(absolute[p], 1 / Long(p)) + std::pow(n, 1 / Long(p)) * shift, Long(p));
    };
    constexpr Long terms[] = {0, 1, 4, 14, 40};
    const auto error = [&](int p) {
        const Long growth = rounding.merges ? Long(1 << p) : 1;
        return growth * (terms[p] * epsilon * deviations(p) + Long(p) * drift * deviations(p - 1));
    };
    // Results are rounded to float64, which has an end below as well.
    const Long ulp = 8 * 0x1p-53L, tiny = 4 * Long(std::numeric_limits<double>::denorm_min());
    const Long mean_error = error(1) / n + std::abs(mean) * ulp + tiny;
    EXPECT_LE(std::abs(m.mean - mean), mean_error) << m.mean << " is not " << mean;

    if (*least == *most) {  // deviations are a few units in the last place, and their squares exact
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
    ASSERT_LT(spread_error, 0.5L) << "nothing would be tested";
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
