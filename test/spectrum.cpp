// Singular values of matrices that were put together from known ones.
#include "probes/spectrum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <random>

namespace wobble {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Vector = std::vector<double>;

Vector random_matrix(size_t n, size_t d, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal;
    Vector x(n * d);
    for (double& value : x) value = normal(generator);
    return x;
}

/// The rows of x [n, d] under a random rotation: a few reflections I - 2 v vᵀ / vᵀv.
void rotate_rows(Vector& x, size_t n, size_t d, std::mt19937_64& generator) {
    std::normal_distribution<double> normal;
    Vector v(d);
    for (int reflection = 0; reflection < 8; ++reflection) {
        double square = 0;
        for (double& value : v) value = normal(generator), square += value * value;
        for (size_t i = 0; i < n; ++i) {
            double sum = 0;
            for (size_t j = 0; j < d; ++j) sum += x[i * d + j] * v[j];
            for (size_t j = 0; j < d; ++j) x[i * d + j] -= 2 * sum / square * v[j];
        }
    }
}

Vector transposed(const Vector& x, size_t n, size_t d) {
    Vector out(x.size());
    for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < d; ++j) out[j * n + i] = x[i * d + j];
    }
    return out;
}

/// A matrix [n, d] with these singular values, the rest 0.
Vector matrix_with(const Vector& values, size_t n, size_t d, uint64_t seed) {
    std::mt19937_64 generator(seed);
    Vector x(n * d);
    for (size_t i = 0; i < values.size(); ++i) x[i * d + i] = values[i];
    rotate_rows(x, n, d, generator);
    x = transposed(x, n, d);
    rotate_rows(x, d, n, generator);
    return transposed(x, d, n);
}

Spectrum of(const Vector& x, size_t n, size_t d) {
    return spectrum(x.data(), int64_t(n), int64_t(d));
}

/// The definitions, from singular values.
Spectrum expected(const Vector& values) {
    double sum = 0, squares = 0, fourths = 0, entropy = 0;
    for (const double s : values) sum += s, squares += s * s, fourths += s * s * s * s;
    for (const double s : values) entropy -= s == 0 ? 0 : s / sum * std::log(s / sum);
    const double largest = *std::max_element(values.begin(), values.end());
    return {std::exp(entropy), squares / (largest * largest), squares * squares / fourths};
}

void expect_close(const Spectrum& found, const Spectrum& right, double relative) {
    EXPECT_NEAR(found.effective_rank, right.effective_rank, relative * right.effective_rank);
    EXPECT_NEAR(found.stable_rank, right.stable_rank, relative * right.stable_rank);
    EXPECT_NEAR(found.participation_ratio, right.participation_ratio, relative * right.participation_ratio);
}

TEST(SymmetricEigenvalues, OfTheSecondDifferenceAreItsClosedForm) {
    for (const size_t n : {1u, 2u, 3u, 10u, 100u}) {
        Vector a(n * n);
        for (size_t i = 0; i < n; ++i) {
            a[i * n + i] = 2;
            if (i > 0) a[i * n + i - 1] = -1;
        }
        const Vector found = symmetric_eigenvalues(a, int64_t(n));
        for (size_t k = 0; k < n; ++k) {
            const double right = 2 + 2 * std::cos(double(k + 1) * std::numbers::pi / double(n + 1));
            EXPECT_NEAR(found[k], right, 4 * double(n) * kEpsilon * 4) << n << " " << k;
        }
    }
}

TEST(SymmetricEigenvalues, OfRotatedDiagonalsAreTheDiagonalRepeatedNegativeOrZero) {
    std::mt19937_64 generator(2);
    for (const Vector& diagonal : {Vector{5},
                                   {1, 2},
                                   {2, 2},
                                   {3, -3},
                                   {0, 0, 0},
                                   {1, 0, 0, 0},
                                   {4, 4, 4, -1, -1, 0},
                                   {1e8, 1, 1e-8},
                                   {-7, -6, -5, -4, -3}}) {
        const size_t n = diagonal.size();
        Vector a(n * n);
        for (size_t i = 0; i < n; ++i) a[i * n + i] = diagonal[i];
        const auto same_again = generator;
        rotate_rows(a, n, n, generator);
        generator = same_again;
        a = transposed(a, n, n);
        rotate_rows(a, n, n, generator);
        Vector right = diagonal;
        std::sort(right.begin(), right.end(), std::greater<>());
        const double size = std::max(std::abs(right.front()), std::abs(right.back()));
        const Vector found = symmetric_eigenvalues(a, int64_t(n));
        // Sixteen reflections and the reduction, each a few n roundings of the largest.
        for (size_t i = 0; i < n; ++i) EXPECT_NEAR(found[i], right[i], 64 * double(n) * kEpsilon * size) << n;
    }
}

TEST(SymmetricEigenvalues, ReadTheLowerTriangleAlone) {
    const Vector found = symmetric_eigenvalues({2, kNaN, 1, 2}, 2);
    EXPECT_NEAR(found[0], 3, 8 * kEpsilon);
    EXPECT_NEAR(found[1], 1, 8 * kEpsilon);
}

TEST(Spectrum, OfRowsAtRightAnglesByHand) {
    // Lengths 3 and 4: p = 3/7, 4/7; (9 + 16) / 16; 25² / (81 + 256).
    const Vector x = {0, 3, 0, 0, -4, 0, 0, 0};
    const Spectrum found = of(x, 2, 4);
    const double entropy = 3.0 / 7 * std::log(7.0 / 3) + 4.0 / 7 * std::log(7.0 / 4);
    expect_close(found, {std::exp(entropy), 25.0 / 16, 625.0 / 337}, 16 * kEpsilon);
    EXPECT_EQ(singular_values(x.data(), 2, 4), (Vector{4, 3}));
}

TEST(Spectrum, OfRowsOfEqualLengthAtRightAnglesIsTheirNumber) {
    for (const size_t n : {1u, 2u, 7u, 40u}) {
        const Spectrum found = of(matrix_with(Vector(n, 2.5), n, 50, n), n, 50);
        expect_close(found, {double(n), double(n), double(n)}, 64 * 50 * kEpsilon);
    }
}

TEST(Spectrum, OfKnownSingularValuesInAnyShape) {
    std::mt19937_64 generator(5);
    std::uniform_real_distribution<double> exponent(-5, 3);
    for (const auto& [n, d] : {std::pair<size_t, size_t>{1, 1},
                               {1, 9},
                               {9, 1},
                               {2, 3},
                               {5, 5},
                               {8, 16},
                               {17, 64},
                               {64, 17},
                               {33, 250},
                               {100, 40}}) {
        Vector values(std::min(n, d));
        for (double& value : values) value = std::exp2(exponent(generator));
        const Vector x = matrix_with(values, n, d, n * d);
        std::sort(values.begin(), values.end(), std::greater<>());
        const Vector found = singular_values(x.data(), int64_t(n), int64_t(d));
        ASSERT_EQ(found.size(), values.size());
        // Squares are right to rounding errors of the largest square: those of sixteen reflections and the
        // Gram matrix.
        const double error = 64 * double(n + d) * kEpsilon * values[0] * values[0];
        for (size_t i = 0; i < values.size(); ++i)
            EXPECT_NEAR(found[i] * found[i], values[i] * values[i], error);
        // σ >= σ_1 / 256, so each σ is right to 2^16 errors of the largest.
        expect_close(of(x, n, d), expected(values), 64 * double(n + d) * kEpsilon * 0x1p16);
        const Vector turned = transposed(x, n, d);
        if (n != d) {
            EXPECT_EQ(singular_values(turned.data(), int64_t(d), int64_t(n)), found)
                << "the same Gram matrix";
        }
    }
}

TEST(Spectrum, OfAProductOfRankKHasKSingularValues) {
    for (const size_t k : {1u, 3u, 10u}) {
        const size_t n = 40, d = 90;
        const Vector left = random_matrix(n, k, k), right = random_matrix(k, d, k + 100);
        Vector x(n * d);
        for (size_t i = 0; i < n; ++i) {
            for (size_t l = 0; l < k; ++l) {
                for (size_t j = 0; j < d; ++j) x[i * d + j] += left[i * k + l] * right[l * d + j];
            }
        }
        const Vector values = singular_values(x.data(), int64_t(n), int64_t(d));
        EXPECT_EQ(n - size_t(std::count(values.begin(), values.end(), 0.0)), k) << "the others are rounding";
        const Spectrum found = of(x, n, d);
        expect_close(found, expected(values), 64 * kEpsilon);
        for (const double rank : {found.effective_rank, found.stable_rank, found.participation_ratio}) {
            EXPECT_GE(rank, 1 - 8 * kEpsilon);
            EXPECT_LE(rank, double(k) * (1 + 8 * kEpsilon));
        }
        EXPECT_LE(found.stable_rank, found.participation_ratio) << "Σλ²/λ_1 <= Σλ";
    }
}

TEST(Spectrum, OfOneRowOrEqualRowsIsOne) {
    const Vector row = random_matrix(1, 30, 3);
    expect_close(of(row, 1, 30), {1, 1, 1}, 4 * kEpsilon);
    expect_close(of(row, 30, 1), {1, 1, 1}, 4 * kEpsilon);
    Vector rows;
    for (int i = 0; i < 20; ++i) rows.insert(rows.end(), row.begin(), row.end());
    expect_close(of(rows, 20, 30), {1, 1, 1}, 4 * kEpsilon);
}

TEST(Spectrum, DoesNotDependOnTheScaleOfTheValues) {
    const size_t n = 6, d = 11;
    const Vector x = random_matrix(n, d, 4);
    const Spectrum right = of(x, n, d);
    // Powers of two change no bit, down to where the smallest value is subnormal.
    for (const int power : {-1010, -300, -100, 100, 300, 1020}) {
        Vector scaled = x;
        for (double& value : scaled) value = std::ldexp(value, power);
        const Spectrum found = of(scaled, n, d);
        EXPECT_EQ(found.effective_rank, right.effective_rank) << power;
        EXPECT_EQ(found.stable_rank, right.stable_rank) << power;
        EXPECT_EQ(found.participation_ratio, right.participation_ratio) << power;
    }
    for (const float size : {1e-30f, 1e30f}) {
        std::vector<float> scaled;
        for (const double value : x) scaled.push_back(float(value) * size);
        // Each element is rounded twice to 24 bits, which moves no σ by more than 2^-23 |X|; six of them, and
        // each rank changes by a few times the relative change of a σ.
        expect_close(spectrum(scaled.data(), int64_t(n), int64_t(d)), right, 100 * 0x1p-23);
    }
    std::vector<float> subnormal = {1e-45f, 0, 0, 1e-45f};
    expect_close(spectrum(subnormal.data(), 2, 2), {2, 2, 2}, 8 * kEpsilon);
    EXPECT_EQ(singular_values(subnormal.data(), 2, 2)[0], double(subnormal[0]));
    const Vector tiny = {5e-324, 0, 0, 5e-324};
    expect_close(of(tiny, 2, 2), {2, 2, 2}, 8 * kEpsilon);
    const Vector huge(16, std::numeric_limits<double>::max());
    expect_close(of(huge, 4, 4), {1, 1, 1}, 8 * kEpsilon);
}

TEST(Spectrum, OfZerosAndOfNothingIsZero) {
    for (const Spectrum& found : {of(Vector(12), 3, 4), of({}, 0, 4), of({}, 3, 0)}) {
        EXPECT_EQ(found.effective_rank, 0);
        EXPECT_EQ(found.stable_rank, 0);
        EXPECT_EQ(found.participation_ratio, 0);
    }
    // Zero rows among others take part in nothing.
    expect_close(of({0, 0, 3, 0, 0, 0, 0, 3}, 4, 2), {2, 2, 2}, 8 * kEpsilon);
}

TEST(Spectrum, WithAValueThatIsNotFiniteIsNaN) {
    for (const double bad : {kNaN, kInfinity, -kInfinity}) {
        Vector x = random_matrix(5, 7, 1);
        x[17] = bad;
        const Spectrum found = of(x, 5, 7);
        EXPECT_TRUE(std::isnan(found.effective_rank));
        EXPECT_TRUE(std::isnan(found.stable_rank));
        EXPECT_TRUE(std::isnan(found.participation_ratio));
        EXPECT_TRUE(std::isnan(singular_values(x.data(), 5, 7)[4]));
    }
}

TEST(Spectrum, OfManyRowsMatchesTheTracesOfTheGramMatrix) {
    const size_t n = 256, d = 300;
    const Vector x = random_matrix(n, d, 12), values = singular_values(x.data(), n, d);
    double trace = 0, squares = 0, sum = 0, fourths = 0;
    for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) {
            double dot = 0;
            for (size_t k = 0; k < d; ++k) dot += x[i * d + k] * x[j * d + k];
            if (i == j) trace += dot;
            squares += dot * dot;
        }
    }
    for (const double value : values) sum += value * value, fourths += std::pow(value, 4);
    EXPECT_NEAR(sum, trace, double(n) * kEpsilon * trace);
    EXPECT_NEAR(fourths, squares, double(n) * kEpsilon * squares);
    EXPECT_NEAR(of(x, n, d).participation_ratio, trace * trace / squares, 1e-10);
}

}  // namespace
}  // namespace wobble
