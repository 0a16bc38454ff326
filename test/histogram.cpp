// Histograms put every number in its bin, and know what each format would lose.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "probes/block_statistics.h"

namespace wobble {
namespace {

template <class T>
Histogram of(const std::vector<T>& values) {
    Histogram h;
    for (size_t begin = 0; begin < values.size(); begin += 1024)
        add_block(&values[begin], int(std::min<size_t>(1024, values.size() - begin)), h);
    return h;
}

bool same(const Histogram& a, const Histogram& b) {
    return a.by_exponent == b.by_exponent && a.flushed == b.flushed && a.overflowed == b.overflowed;
}

uint64_t total(const Histogram& h) {
    uint64_t sum = 0;
    for (uint64_t count : h.by_exponent) sum += count;
    return sum;
}

/// Every power of two of float32, the numbers next to it, and random ones between.
template <class T>
std::vector<T> floats() {
    std::mt19937_64 generator(3);
    std::uniform_real_distribution<double> mantissa(1, 2);
    std::vector<T> values;
    for (int e = -149; e <= 127; ++e) {
        const float power = std::ldexp(1.0f, e);
        for (float x : {power, std::nextafter(power, 0.0f), std::nextafter(power, INFINITY),
                        float(std::ldexp(mantissa(generator), e))}) {
            if (std::isfinite(x)) values.push_back(T(x)), values.push_back(T(-x));
        }
    }
    return values;
}

template <class T>
class Histograms : public testing::Test {};
using Elements = testing::Types<float, double>;
TYPED_TEST_SUITE(Histograms, Elements);

TYPED_TEST(Histograms, PutEveryFloatInTheBinOfItsExponent) {
    for (const TypeParam x : floats<TypeParam>()) {
        const Histogram h = of<TypeParam>({x});
        int exponent = -150;  // the largest power of two that is no larger
        while (exponent < 127 && std::ldexp(1.0, exponent + 1) <= std::abs(double(x))) ++exponent;
        EXPECT_EQ(total(h), x == 0 ? 0 : 1) << x;
        const size_t bin = size_t(exponent - Histogram::lowest);
        EXPECT_EQ(h.by_exponent[bin], x == 0 ? 0 : 1) << x;
    }
}

TYPED_TEST(Histograms, LeaveOutZerosAndWhatIsNotFinite) {
    using T = TypeParam;
    const std::vector<T> values = {T(0), -T(0), T(NAN), T(INFINITY), -T(INFINITY)};
    EXPECT_TRUE(same(of(values), Histogram()));
}

TYPED_TEST(Histograms, OfPartsMergeExactly) {
    const auto values = floats<TypeParam>();
    for (size_t split : {size_t(0), size_t(1), size_t(500), values.size()}) {
        Histogram merged = of<TypeParam>({values.begin(), values.begin() + long(split)});
        merged.merge(of<TypeParam>({values.begin() + long(split), values.end()}));
        EXPECT_TRUE(same(merged, of(values)));
    }
}

TEST(Histograms, HoldNumbersBeyondFloatInTheLastBins) {
    const Histogram h = of<double>({1e300, -0x1p130, 1e-300, -std::numeric_limits<double>::denorm_min()});
    EXPECT_EQ(h.by_exponent.front(), 2);
    EXPECT_EQ(h.by_exponent.back(), 2);
}

/// A format by its parameters, and rounding to it, to even at ties, as if its exponents had no upper end.
struct Rounded {
    const char* name;
    int mantissa_bits, lowest_exponent;
    double largest;

    double operator()(double x) const {
        const int step = std::max(std::ilogb(x), lowest_exponent) - mantissa_bits;
        return std::ldexp(std::nearbyint(std::ldexp(x, -step)), step);
    }
};
constexpr Rounded rounded[] = {{"fp16", 10, -14, 65504},
                               {"bf16", 7, -126, 0x1.fep127},
                               {"e4m3", 3, -6, 448},
                               {"e5m2", 2, -14, 57344},
                               {"e2m1", 1, 0, 6}};

TYPED_TEST(Histograms, CountWhatACastWouldFlushOrOverflow) {
    using T = TypeParam;
    for (size_t f = 0; f < format_count; ++f) {
        ASSERT_STREQ(formats[f].name, rounded[f].name);
        // Both thresholds, where ties are, and the numbers on either side.
        const double smallest = std::ldexp(1.0, rounded[f].lowest_exponent - rounded[f].mantissa_bits);
        const double step = std::ldexp(1.0, std::ilogb(rounded[f].largest) - rounded[f].mantissa_bits);
        std::vector<T> values = floats<T>();
        for (double tie : {smallest / 2, rounded[f].largest + step / 2}) {
            for (T end : {T(0), std::numeric_limits<T>::max()}) values.push_back(std::nextafter(T(tie), end));
            values.push_back(T(tie)), values.push_back(-T(tie));
        }
        values.push_back(T(rounded[f].largest)), values.push_back(T(smallest));
        for (T x : values) {
            const Histogram h = of<T>({x});
            const double cast = rounded[f](std::abs(double(x)));
            EXPECT_EQ(h.flushed[f], x != 0 && cast == 0) << rounded[f].name << ' ' << double(x);
            EXPECT_EQ(h.overflowed[f], cast > rounded[f].largest) << rounded[f].name << ' ' << double(x);
        }
    }
}

// P(|x| ≤ s/2) for a standard normal x and the smallest subnormal s; four standard deviations of a binomial.
TEST(Histograms, OfAMillionNormalNumbersFlushTheExpectedShare) {
    constexpr int n = 1000000;
    std::mt19937_64 generator(11);
    std::normal_distribution<double> distribution;
    std::vector<float> values;
    for (int i = 0; i < n; ++i) values.push_back(float(distribution(generator)));
    const Histogram h = of(values);
    EXPECT_EQ(total(h), n);
    const std::pair<size_t, double> expected[] = {{2, 7.79e-4}, {3, 6.09e-6}, {4, 0.1974}};
    for (const auto& [f, share] : expected) {
        EXPECT_NEAR(double(h.flushed[f]), share * n, 4 * std::sqrt(share * (1 - share) * n))
            << formats[f].name;
        uint64_t flushed = 0;
        for (float x : values) flushed += rounded[f](std::abs(double(x))) == 0;
        EXPECT_EQ(h.flushed[f], flushed) << formats[f].name;
    }
}

}  // namespace
}  // namespace wobble
