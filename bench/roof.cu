#include <algorithm>
#include <chrono>

#include "bench/roof.h"
#include "kernels/product.h"

namespace wobble::bench {

namespace {

/// The register tile of the product, without its loads: MR × 2 sums, far more than the latency of one needs.
double peak_of_this_thread() {
    constexpr int sums = 2 * Tile<float>::MR, width = Tile<float>::width;
    constexpr int64_t rounds = 400000;
    using Vector = detail::HostVector<float, width>::type;
    // Values that the compiler cannot know, and of which no two are alike: nothing to fold, nothing to share.
    volatile float factor = 1.0000001f, addend = 1e-9f;
    const Vector x = float(factor) - Vector{}, y = float(addend) - Vector{};
    Vector a[sums];
    for (int i = 0; i < sums; ++i) a[i] = float(addend) * float(i) - Vector{};
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t r = 0; r < rounds; ++r) {
        UNROLL for (int i = 0; i < sums; ++i) a[i] = detail::fused_vectors<float, width>(a[i], x, y);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    Vector all = a[0];
    for (int i = 1; i < sums; ++i) all += a[i];
    factor = all[0];
    return 2.0 * double(rounds * sums * width) / seconds;
}

}  // namespace

double multiply_add_peak(int threads) {
    double best = 0;
    for (int attempt = 0; attempt < 10; ++attempt) {
        double total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
        total += peak_of_this_thread();
        best = std::max(best, total);
    }
    return best;
}

}  // namespace wobble::bench
