// Runs a kernel over its rows: on the CPU one chunk of rows per OpenMP task, on CUDA one warp or block per
// row.
//
// This is the only place that launches anything. Who watches is the caller's business.
#pragma once

#include "kernels/context.h"
#include "kernels/error.h"
#include "kernels/probe.h"
#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// `watch.probe(chunk)` watches one chunk of rows.
template <class Kernel, class Watch>
void run_on_cpu(Context& context, int64_t rows, const Kernel& kernel, Watch& watch) {
    const int64_t chunks = chunk_count(rows);
#pragma omp parallel for schedule(dynamic, 1) \
    num_threads(context.threads) if (chunks > 1 && context.worth_sharing(rows * kernel.row_elements()))
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        auto probe = watch.probe(chunk);
        const Range range = chunk_rows(chunk, rows);
        for (int64_t row = range.begin; row < range.end; ++row) kernel(Lane{}, row, probe);
    }
}

#ifdef __CUDACC__

constexpr int block_threads = 256;

/// One warp per row. With probes, every lane keeps one of its own, a copy of `fresh` at first.
template <class Kernel, class Probe>
__global__ void __launch_bounds__(block_threads)
    warp_per_row(int64_t rows, Kernel kernel, Probe fresh, Probe* probes) {
    using Team = Warp<16 / int(sizeof(typename Kernel::Element))>;
    const int64_t thread = int64_t(blockIdx.x) * block_threads + threadIdx.x;
    if (thread / 32 >= rows) return;  // a whole warp leaves together
    Probe probe = fresh;
    kernel(Team{}, thread / 32, probe);
    if constexpr (!std::is_same_v<Probe, NoProbe>) probes[thread] = probe;
}

template <class Kernel, class Probe>
void run_warps(int64_t rows, const Kernel& kernel, const Probe& fresh, Probe* probes) {
    if (rows == 0) return;
    warp_per_row<<<unsigned(ceil_div(rows * 32, block_threads)), block_threads>>>(rows, kernel, fresh,
                                                                                  probes);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) {
        throw std::runtime_error(std::string(Kernel::name) + ": " + cudaGetErrorString(error));
    }
}

template <class Kernel>
void run_on_cuda(int64_t rows, const Kernel& kernel) {
    run_warps(rows, kernel, NoProbe{}, static_cast<NoProbe*>(nullptr));
}

/// Fills `probes` with one probe per lane, in the order of rows; each begins as a copy of `fresh`.
template <class Kernel, class Probe>
void run_on_cuda(int64_t rows, const Kernel& kernel, const Probe& fresh, std::vector<Probe>& probes) {
    probes.assign(size_t(rows) * 32, fresh);
    Probe* on_device = nullptr;
    const size_t bytes = probes.size() * sizeof(Probe);
    if (cudaMalloc(&on_device, bytes) != cudaSuccess) throw std::bad_alloc();
    run_warps(rows, kernel, fresh, on_device);
    const cudaError_t error = cudaMemcpy(probes.data(), on_device, bytes, cudaMemcpyDeviceToHost);
    cudaFree(on_device);
    if (error != cudaSuccess) {
        throw std::runtime_error(std::string(Kernel::name) + ": " + cudaGetErrorString(error));
    }
}

#endif

}  // namespace wobble
