// Runs a kernel over its rows: on the CPU one chunk of rows per OpenMP task, on CUDA one warp or block per
// row.
//
// This is the only place that launches anything. Who watches is the caller's business.
#pragma once

#include "kernels/context.h"
#include "kernels/device.h"
#include "kernels/probe.h"
#include "kernels/rows.h"
#include "kernels/stream.h"
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

#ifdef WOBBLE_CUDA

constexpr int block_threads = 256;

/// 16 bytes of the kernel's elements.
template <class Kernel>
constexpr int cuda_pack = 16 / int(sizeof(typename Kernel::Element));

/// One warp per row. With probes, every lane keeps one of its own, a copy of `fresh` at first.
template <class Kernel, class Probe>
__global__ void __launch_bounds__(block_threads)
    warp_per_row(int64_t rows, Kernel kernel, Probe fresh, Probe* probes) {
    const int64_t thread = int64_t(blockIdx.x) * block_threads + threadIdx.x;
    if (thread / 32 >= rows) return;  // a whole warp leaves together
    Probe probe = fresh;
    kernel(Warp<cuda_pack<Kernel>>{}, thread / 32, probe);
    if constexpr (!std::is_same_v<Probe, NoProbe>) probes[thread] = probe;
}

/// One block per row: for rows that are long, or few.
template <class Kernel, class Probe>
__global__ void __launch_bounds__(block_threads) block_per_row(Kernel kernel, Probe fresh, Probe* probes) {
    Probe probe = fresh;
    kernel(Block<cuda_pack<Kernel>>{}, int64_t(blockIdx.x), probe);
    if constexpr (!std::is_same_v<Probe, NoProbe>) {
        probes[int64_t(blockIdx.x) * block_threads + threadIdx.x] = probe;
    }
}

/// Whether rows of a kernel are worth a block each. A kernel that goes over a few elements again and again
/// says `suits_warps`.
template <class Kernel>
bool wants_blocks(const Context& context, const Kernel& kernel) {
    if constexpr (requires { Kernel::suits_warps; }) return false;
    if (context.cuda_team != CudaTeam::ByLength) return context.cuda_team == CudaTeam::Block;
    return kernel.row_elements() > 2048;
}

/// The only launch of a row kernel on CUDA.
template <class Kernel, class Probe>
void run_rows(const Context& context, int64_t rows, Kernel kernel, Probe fresh, Probe* probes) {
    if (rows == 0) return;
    if (wants_blocks(context, kernel)) {
        void* arguments[] = {&kernel, &fresh, &probes};
        check_cuda(cudaLaunchKernel(block_per_row<Kernel, Probe>, dim3{unsigned(rows), 1, 1},
                                    dim3{block_threads, 1, 1}, arguments, 0, cuda_stream()),
                   Kernel::name);
    } else {
        void* arguments[] = {&rows, &kernel, &fresh, &probes};
        check_cuda(cudaLaunchKernel(warp_per_row<Kernel, Probe>,
                                    dim3{unsigned(ceil_div(rows * 32, block_threads)), 1, 1},
                                    dim3{block_threads, 1, 1}, arguments, 0, cuda_stream()),
                   Kernel::name);
    }
}

template <class Kernel>
void run_on_cuda(const Context& context, int64_t rows, const Kernel& kernel) {
    run_rows(context, rows, kernel, NoProbe{}, static_cast<NoProbe*>(nullptr));
}

/// Fills `probes` with one probe per lane, in the order of rows; each begins as a copy of `fresh`.
template <class Kernel, class Probe>
void run_on_cuda(const Context& context, int64_t rows, const Kernel& kernel, const Probe& fresh,
                 std::vector<Probe>& probes) {
    const int64_t lanes = wants_blocks(context, kernel) ? block_threads : 32;
    probes.assign(size_t(rows * lanes), fresh);
    const size_t bytes = probes.size() * sizeof(Probe);
    void* const on_device = detail::cuda_allocate(bytes);
    run_rows(context, rows, kernel, fresh, static_cast<Probe*>(on_device));
    detail::cuda_copy_out(probes.data(), on_device, bytes);
    detail::cuda_release(on_device);
}

#endif

}  // namespace wobble
