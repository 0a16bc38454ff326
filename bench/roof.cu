#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>

#include "bench/roof.h"
#include "kernels/product.h"
#include "kernels/team.h"
#include "model/memory.h"
#include "probes/launch.h"

namespace wobble::bench {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Tries take this long together; a debugger's build gets no further than the first.
constexpr double patience = 0.5;

/// The register tile of the product over panels of S, without its loads: MR × 2 sums, far more than the
/// latency of one needs.
template <class S>
double peak_of_this_thread() {
    constexpr int sums = 2 * Tile<S>::MR, width = Tile<S>::width;
    constexpr int64_t rounds = 400000;
    using Vector = typename detail::HostVector<float, width>::type;
    // Values that the compiler cannot know, and of which no two are alike: nothing to fold, nothing to share.
    volatile float factor = 1.0000001f, addend = 1e-9f;
    const Vector x = float(factor) - Vector{}, y = float(addend) - Vector{};
    Vector a[sums];
    for (int i = 0; i < sums; ++i) a[i] = float(addend) * float(i) - Vector{};
    const auto begin = Clock::now();
    for (int64_t r = 0; r < rounds; ++r) {
        UNROLL for (int i = 0; i < sums; ++i) {
            if constexpr (std::is_same_v<S, float>) a[i] = detail::fused_vectors<float, width>(a[i], x, y);
            else a[i] = detail::add_pairs(a[i], x, y);
        }
    }
    const double seconds = seconds_since(begin);
    Vector all = a[0];
    for (int i = 1; i < sums; ++i) all += a[i];
    factor = all[0];
    return 2.0 * double(rounds * sums * width * Tile<S>::together) / seconds;
}

}  // namespace

double multiply_add_peak(int threads, wobble::Precision precision) {
    double best = 0;
    const auto first = Clock::now();
    for (int attempt = 0; attempt < 10 && (attempt == 0 || seconds_since(first) < patience); ++attempt) {
        double total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
        total += precision == wobble::Precision::Float32 ? peak_of_this_thread<float>()
                                                         : peak_of_this_thread<Panel<bf16>>();
        best = std::max(best, total);
    }
    return best;
}

int64_t last_level_cache() {
    int64_t largest = 0;
    for (int index = 0;; ++index) {
        const std::string directory =
            "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size";
        int64_t size = 0;
        char unit = 0;
        if (!(std::ifstream(directory) >> size >> unit)) return largest;
        largest = std::max(largest, size * (unit == 'M' ? 1 << 20 : unit == 'K' ? 1 << 10 : 1));
    }
}

int64_t copy_working_set() {
    return std::clamp<int64_t>(8 * last_level_cache(), int64_t(256) << 20, int64_t(1) << 30);
}

double copy_bandwidth(int threads) {
    const int64_t n = copy_working_set() / 2 / int64_t(sizeof(float));
    float *from = nullptr, *to = nullptr;
    Memory memory;
    memory.plan(Device::Cpu, [&](Memory& m) { from = m.take<float>(n), to = m.take<float>(n); });
    const auto by_parts = [&](auto copy) {
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int part = 0; part < threads; ++part) {
            const int64_t first = n * part / threads;
            copy(to + first, from + first, n * (part + 1) / threads - first);
        }
    };
    // Written once, or every page would be the same zeros.
    by_parts([&](float* out, const float* in, int64_t count) {
        std::fill(const_cast<float*>(in), const_cast<float*>(in) + count, 1.0f),
            std::fill(out, out + count, 0.0f);
    });
    double best = 0;
    const auto time = [&](auto copy) {
        const auto begin = Clock::now();
        by_parts(copy);
        best = std::max(best, 2.0 * double(n * int64_t(sizeof(float))) / seconds_since(begin));
    };
    const auto first = Clock::now();
    for (int attempt = 0; attempt < 8 && (attempt == 0 || seconds_since(first) < patience); ++attempt) {
        time([](float* out, const float* in, int64_t count) {
            std::memcpy(out, in, size_t(count) * sizeof(float));
        });
        time([](float* out, const float* in, int64_t count) {
            Lane{}.each(count, [&](auto at) { store(out, at, load(in, at)); });
        });
    }
    return best;
}

namespace {

/// Seconds that `work` takes a GPU, the best of several times.
template <class Work>
double best_on_gpu(Work work) {
    double best = INFINITY;
    for (int attempt = 0; attempt < 10; ++attempt) {
        wait_for(Device::Cuda);
        const auto begin = Clock::now();
        for (int i = 0; i < 4; ++i) work();
        wait_for(Device::Cuda);
        best = std::min(best, seconds_since(begin) / 4);
    }
    return best;
}

}  // namespace

double cuda_multiply_add_peak(wobble::Precision precision) {
    const int64_t n = 8192;
    Context context(1);
    context.device = Device::Cuda;
    const auto peak = [&](auto zero) {
        using T = decltype(zero);
        T* m = nullptr;
        Memory memory;
        memory.plan(Device::Cuda, [&](Memory& all) { m = all.take<T>(3 * n * n); });
        // Zeros would draw less power than numbers do.
        const std::vector<T> row(size_t(n), T(0.37f));
        for (int64_t i = 0; i < 2 * n; ++i) copy_in(Device::Cuda, m + i * n, row.data(), n);
        const Product<T> product{.a = m, .b = m + n * n, .c = m + 2 * n * n, .m = n, .n = n, .k = n};
        return 2.0 * double(n) * double(n) * double(n) /
               best_on_gpu([&] { launch(context, product, {"roof"}); });
    };
    return precision == wobble::Precision::Float32 ? peak(0.0f) : peak(bf16(0.0f));
}

double cuda_copy_bandwidth() {
    const int64_t bytes = int64_t(1) << 30;
    char* both = nullptr;
    Memory memory;
    memory.plan(Device::Cuda, [&](Memory& all) { both = all.take<char>(2 * bytes); });
    return 2.0 * double(bytes) / best_on_gpu([&] { copy_within(Device::Cuda, both + bytes, both, bytes); });
}

}  // namespace wobble::bench
