// Gram matrix, tridiagonal form, eigenvalues.
#include "probes/spectrum.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace wobble {

namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// 2^-e as two factors: 2^1074, which the smallest subnormal needs, is not a float64.
struct Scale {
    double first = 1, second = 1;

    explicit Scale(int e) : first(std::ldexp(1.0, -e / 2)), second(std::ldexp(1.0, -(e - e / 2))) {}
    double operator()(double x) const { return x * first * second; }
};

constexpr size_t kTile = 4;

/// The lower triangle of the Gram matrix, [m, m], of m vectors of length k. Element j of vector i is
/// scale(x[i * stride + j * step]). Tiles of 4 · 4 sums run side by side over a packed copy, so that no sum
/// waits for itself.
template <class T>
std::vector<double> gram(const T* x, size_t m, size_t k, size_t stride, size_t step, const Scale& scale) {
    const size_t tiles = (m + kTile - 1) / kTile;
    std::vector<double> packed(tiles * kTile * k);  // [tiles, k, 4]; 0 beyond the last vector
    for (size_t i = 0; i < m; ++i) {
        double* out = packed.data() + (i / kTile) * k * kTile + i % kTile;
        for (size_t j = 0; j < k; ++j) out[j * kTile] = scale(double(x[i * stride + j * step]));
    }
    std::vector<double> a(m * m);
    for (size_t row = 0; row < tiles; ++row) {
        for (size_t column = 0; column <= row; ++column) {
            const double* left = packed.data() + row * k * kTile;
            const double* right = packed.data() + column * k * kTile;
            double sums[kTile][kTile] = {};
            for (size_t l = 0; l < k; ++l, left += kTile, right += kTile) {
                for (size_t i = 0; i < kTile; ++i) {
                    for (size_t j = 0; j < kTile; ++j) sums[i][j] += left[i] * right[j];
                }
            }
            for (size_t i = 0; i < kTile && row * kTile + i < m; ++i) {
                for (size_t j = 0; j < kTile && column * kTile + j < m; ++j) {
                    a[(row * kTile + i) * m + column * kTile + j] = sums[i][j];
                }
            }
        }
    }
    return a;
}

/// Reduces the lower triangle of a [n, n] to a tridiagonal matrix with the same eigenvalues: `diagonal` [n]
/// and `off` [n], off[i] beside diagonal[i] and diagonal[i + 1], off[n - 1] = 0. Row by row from the last:
/// the reflection I - u uᵀ / h takes the part of row i before the diagonal to its last element, and the rest
/// of the matrix, A, becomes A - q uᵀ - u qᵀ with p = A u / h, q = p - u (uᵀp) / 2h.
void tridiagonalise(std::vector<double>& a, size_t n, std::vector<double>& diagonal,
                    std::vector<double>& off) {
    std::vector<double> p(n);
    for (size_t i = n - 1; i >= 1; --i) {
        double* u = a.data() + i * n;  // [i]
        diagonal[i] = u[i];
        double unit = 0;
        for (size_t k = 0; k < i; ++k) unit = std::max(unit, std::abs(u[k]));
        if (unit == 0) {
            off[i - 1] = 0;
            continue;
        }
        double square = 0;  // of the row over its largest element: it does not vanish
        for (size_t k = 0; k < i; ++k) u[k] /= unit, square += u[k] * u[k];
        const double last = u[i - 1], image = last > 0 ? -std::sqrt(square) : std::sqrt(square);
        off[i - 1] = unit * image;
        u[i - 1] = last - image;
        const double h = square - last * image;  // |u|² / 2
        // p = A u from the lower triangle: each row serves as a column too.
        std::fill(p.begin(), p.begin() + std::ptrdiff_t(i), 0.0);
        for (size_t j = 0; j < i; ++j) {
            const double* row = a.data() + j * n;
            const double uj = u[j];
            double sum = row[j] * uj;
            for (size_t k = 0; k < j; ++k) sum += row[k] * u[k], p[k] += row[k] * uj;
            p[j] += sum;
        }
        double up = 0;
        for (size_t k = 0; k < i; ++k) p[k] /= h, up += u[k] * p[k];
        for (size_t k = 0; k < i; ++k) p[k] -= up / (2 * h) * u[k];
        for (size_t j = 0; j < i; ++j) {
            double* row = a.data() + j * n;
            const double uj = u[j], qj = p[j];
            for (size_t k = 0; k <= j; ++k) row[k] -= uj * p[k] + qj * u[k];
        }
    }
    diagonal[0] = a[0];
    off[n - 1] = 0;
}

/// Eigenvalues of a tridiagonal matrix, into `diagonal`. A step shifts by an eigenvalue of the leading 2 · 2
/// block of the part that has not come apart and chases the bulge from its end to its beginning.
void diagonalise(std::vector<double>& diagonal, std::vector<double>& off) {
    const size_t n = diagonal.size();
    double norm = 0;
    for (size_t i = 0; i < n; ++i) norm = std::max(norm, std::abs(diagonal[i]) + std::abs(off[i]));
    // About two steps an eigenvalue are usual; thirty are EISPACK's limit. The diagonal is then as good as it
    // gets.
    constexpr int kSteps = 30;
    for (size_t l = 0; l < n; ++l) {
        for (int step = 0; step < kSteps; ++step) {
            size_t m = l;
            // Elements left out move an eigenvalue by at most twice their size.
            while (m + 1 < n && std::abs(off[m]) > kEpsilon * norm) ++m;
            if (m == l) break;
            const double ratio = (diagonal[l + 1] - diagonal[l]) / (2 * off[l]);
            const double root = std::hypot(ratio, 1.0);
            double g = diagonal[m] - diagonal[l] + off[l] / (ratio + std::copysign(root, ratio));
            double sine = 1, cosine = 1, shift = 0;
            bool split = false;
            for (size_t i = m; i-- > l;) {
                const double f = sine * off[i], b = cosine * off[i];
                const double r = std::hypot(f, g);
                off[i + 1] = r;
                if (r == 0) {  // the part fell in two
                    diagonal[i + 1] -= shift;
                    off[m] = 0;
                    split = true;
                    break;
                }
                sine = f / r, cosine = g / r;
                g = diagonal[i + 1] - shift;
                const double t = (diagonal[i] - g) * sine + 2 * cosine * b;
                shift = sine * t;
                diagonal[i + 1] = g + shift;
                g = cosine * t - b;
            }
            if (split) continue;
            diagonal[l] -= shift;
            off[l] = g;
            off[m] = 0;
        }
    }
}

/// σ / 2^exponent, largest first.
struct ScaledValues {
    std::vector<double> values;
    int exponent = 0;
};

template <class T>
ScaledValues scaled_values(const T* x, int64_t n, int64_t d) {
    const size_t rows = static_cast<size_t>(n), columns = static_cast<size_t>(d);
    const size_t small = std::min(rows, columns), large = std::max(rows, columns);
    double largest = 0;
    bool finite = true;
    for (size_t i = 0; i < rows * columns; ++i) {
        const double size = std::abs(double(x[i]));
        finite &= size <= std::numeric_limits<double>::max();
        largest = std::max(largest, size);
    }
    if (!finite) return {std::vector<double>(small, kNaN)};
    if (largest == 0) return {std::vector<double>(small, 0.0)};
    const int exponent = std::ilogb(largest);
    const Scale scale(exponent);
    std::vector<double> values =
        symmetric_eigenvalues(rows <= columns ? gram(x, rows, columns, columns, 1, scale)
                                              : gram(x, columns, rows, 1, columns, scale),
                              static_cast<int64_t>(small));
    const double noise = double(large) * kEpsilon * values[0];
    for (double& value : values) value = value > noise ? std::sqrt(value) : 0;
    return {values, exponent};
}

Spectrum summarise(const std::vector<double>& values) {
    const double largest = values.empty() ? 0 : values[0];
    if (largest == 0) return {0, 0, 0};
    double sum = 0, squares = 0, fourths = 0;  // of σ / σ_1
    for (const double value : values) {
        const double s = value / largest;
        sum += s, squares += s * s, fourths += s * s * s * s;
    }
    double entropy = 0;
    for (const double value : values) {
        const double p = value / largest / sum;
        if (p != 0) entropy -= p * std::log(p);
    }
    return {std::exp(entropy), squares, squares * squares / fourths};
}

}  // namespace

std::vector<double> symmetric_eigenvalues(std::vector<double> a, int64_t n) {
    if (n == 0) return {};
    std::vector<double> diagonal(static_cast<size_t>(n)), off(static_cast<size_t>(n));
    tridiagonalise(a, static_cast<size_t>(n), diagonal, off);
    diagonalise(diagonal, off);
    std::sort(diagonal.begin(), diagonal.end(), std::greater<>());
    return diagonal;
}

template <class T>
std::vector<double> singular_values(const T* x, int64_t n, int64_t d) {
    ScaledValues scaled = scaled_values(x, n, d);
    for (double& value : scaled.values) value = std::ldexp(value, scaled.exponent);
    return scaled.values;
}

template <class T>
Spectrum spectrum(const T* x, int64_t n, int64_t d) {
    return summarise(scaled_values(x, n, d).values);
}

template std::vector<double> singular_values(const float*, int64_t, int64_t);
template std::vector<double> singular_values(const double*, int64_t, int64_t);
template Spectrum spectrum(const float*, int64_t, int64_t);
template Spectrum spectrum(const double*, int64_t, int64_t);

}  // namespace wobble
