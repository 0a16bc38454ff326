// A fingerprint of numbers: two arrays with the same one have the same bits, but for a chance of about
// 2^-32 for each row that differs. It is cheap beside a training step, so that every step can leave its own.
#pragma once

#include "kernels/round.h"

namespace wobble {

/// partials[row] = Σ of a hash of each element's bits and index, over a flat row. Hashes are integers of 32
/// bits and a row has 4,096: the sum is exact in float64, in whatever order a team takes it.
struct Fingerprint {
    using Element = float;
    static constexpr const char* name = "fingerprint";

    const float* x;    // [n]
    double* partials;  // [flat_rows(n)]
    int64_t n;

    int64_t row_elements() const { return flat_row; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe&) const {
        const int64_t first = row * flat_row;
        Sum<Team, double> sum;
        team.each(flat_row_length(row, n),
                  [&](auto at) INLINED { sum += hashes(load(x + first, at), uint32_t(first + at.index)); });
        const double total = team.sum(sum);
        if (team.leads()) partials[row] = total;
    }

  private:
    template <int N>
    HD static Pack<double, N> hashes(Pack<float, N> x, uint32_t index) {
        // The golden ratio's bits: neighbours begin far apart.
        constexpr uint32_t apart = 0x9e3779b9u;
        float values[N];
        uint32_t bits[N];
        double sums[N];
        UNROLL for (int i = 0; i < N; ++i) values[i] = x[i];
        std::memcpy(bits, values, sizeof bits);
        SIMD for (int i = 0; i < N; ++i) sums[i] =
            double(int32_t(mixed(bits[i] + (index + uint32_t(i)) * apart)));
        return generate<double, N>([&](int i) { return sums[i]; });
    }
};

}  // namespace wobble
