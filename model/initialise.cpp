// Initial weights: element i of a tensor is a function of (seed, the tensor's name, i) alone; an orthogonal
// matrix is one of (seed, name).
#include <Random123/philox.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/parameters.h"

namespace wobble {

namespace {

/// A standard normal number for each counter: Box and Muller's transform of two 32-bit uniforms in (0, 1].
double normal(uint64_t seed, uint32_t stream, uint64_t element, uint32_t attempt = 0) {
    const r123::Philox4x32::ctr_type counter = {
        {uint32_t(element), uint32_t(element >> 32), stream,
         0x77656967u /* "weig": apart from other uses of the seed */ + attempt}};
    const r123::Philox4x32::key_type key = {{uint32_t(seed), uint32_t(seed >> 32)}};
    const auto bits = r123::Philox4x32{}(counter, key);
    const double u = (double(bits[0]) + 1) * 0x1p-32, angle = double(bits[1]) * 0x1p-32;
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * angle);
}

/// FNV-1a, 32 bits.
uint32_t hash(const std::string& name) {
    uint32_t h = 2166136261u;
    for (const char c : name) h = (h ^ uint8_t(c)) * 16777619u;
    return h;
}

/// One that lies within three deviations: the first that does (one in 370 does not).
double truncated_normal(uint64_t seed, uint32_t stream, uint64_t element) {
    for (uint32_t attempt = 0;; ++attempt) {
        const double x = normal(seed, stream, element, attempt);
        if (std::abs(x) <= 3) return x;
    }
}

/// A matrix [rows, columns] whose shorter side's vectors are orthonormal: Gram and Schmidt's process, twice
/// over for orthogonality to rounding, on normal numbers.
std::vector<double> orthogonal(uint64_t seed, uint32_t stream, int64_t rows, int64_t columns) {
    const int64_t count = std::min(rows, columns), length = std::max(rows, columns);
    std::vector<double> vectors(size_t(count * length));  // [count, length]
    for (int64_t i = 0; i < count * length; ++i) vectors[size_t(i)] = normal(seed, stream, uint64_t(i));
    const auto dot = [&](const double* a, const double* b) {
        double sum = 0;
        for (int64_t k = 0; k < length; ++k) sum += a[k] * b[k];
        return sum;
    };
    for (int64_t i = 0; i < count; ++i) {
        double* v = vectors.data() + i * length;
        for (int pass = 0; pass < 2; ++pass) {
            for (int64_t j = 0; j < i; ++j) {
                const double* u = vectors.data() + j * length;
                const double along = dot(u, v);
                for (int64_t k = 0; k < length; ++k) v[k] -= along * u[k];
            }
        }
        const double size = std::sqrt(dot(v, v));
        for (int64_t k = 0; k < length; ++k) v[k] /= size;
    }
    if (rows <= columns) return vectors;
    std::vector<double> turned(vectors.size());
    for (int64_t i = 0; i < count; ++i)
        for (int64_t k = 0; k < length; ++k)
            turned[size_t(k * columns + i)] = vectors[size_t(i * length + k)];
    return turned;
}

}  // namespace

template <class T>
void initialise(const ParameterTable& table, uint64_t seed, T* buffer) {
    for (const Parameter& p : table.parameters) {
        T* out = buffer + p.offset;
        const uint32_t stream = hash(p.name);
        if (p.draw == Init::Orthogonal && p.init_std != 0) {
            const std::vector<double> q = orthogonal(seed, stream, p.shape[0], p.shape[1]);
            for (int64_t i = 0; i < p.size; ++i) out[i] = T(p.init_std * q[size_t(i)]);
            continue;
        }
        const bool truncated = p.draw == Init::Truncated;
#pragma omp parallel for
        for (int64_t i = 0; i < p.size; ++i) {
            double x = p.init_mean;
            if (p.init_std != 0) {
                x += p.init_std * (truncated ? truncated_normal(seed, stream, uint64_t(i))
                                             : normal(seed, stream, uint64_t(i)));
            }
            out[i] = T(x);
        }
    }
}

template void initialise(const ParameterTable&, uint64_t, float*);
template void initialise(const ParameterTable&, uint64_t, double*);

}  // namespace wobble
