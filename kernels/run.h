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

/// One warp per row, or for every so many rows: `watch.teams(rows)` says how many warps or blocks there are.
/// `watch.probe(warp, lane, lanes)` is a probe for one lane of a warp's team.
template <class Kernel, class Watch>
__global__ void __launch_bounds__(block_threads, 1) warp_per_row(int64_t rows, Kernel kernel, Watch watch) {
    const int64_t warp = (int64_t(blockIdx.x) * block_threads + threadIdx.x) / 32, warps = watch.teams(rows);
    if (warp >= warps) return;  // all its lanes together
    auto probe = watch.probe(warp, int(threadIdx.x) & 31, 32);
    for (int64_t row = warp; row < rows; row += warps) kernel(Warp<cuda_pack<Kernel>>{}, row, probe);
    probe.finish();
}

/// The threads of a block. A kernel that cuts its work by blocks of another size says so in `cuda_threads`,
/// and in `shared_bytes` what memory they share.
template <class Kernel>
constexpr int threads_of = block_threads;
template <class Kernel>
requires requires {
    Kernel::cuda_threads;
}
constexpr int threads_of<Kernel> = Kernel::cuda_threads;
template <class Kernel>
constexpr int shared_bytes_of = 0;
template <class Kernel>
requires requires {
    Kernel::shared_bytes;
}
constexpr int shared_bytes_of<Kernel> = Kernel::shared_bytes;

/// Whether rows of a kernel are worth a block each. A kernel that goes over a few elements again and again
/// says `suits_warps`.
template <class Kernel>
constexpr bool always_warps = requires {
    Kernel::suits_warps;
};
template <class Kernel>
constexpr bool always_blocks = requires {
    Kernel::cuda_threads;
};

/// One block per row, in the same way: for rows that are long, or few. What memory they share besides their
/// arrays is part of the name, for `make kernels-report`.
template <class Kernel, class Watch, int shared = shared_bytes_of<Kernel>>
__global__ void __launch_bounds__(threads_of<Kernel>, 1)
    block_per_row(Kernel kernel, Watch watch, int64_t rows) {
    constexpr int threads = threads_of<Kernel>;
    auto probe =
        watch.probe(int64_t(blockIdx.x) * (threads / 32) + threadIdx.x / 32, int(threadIdx.x), threads);
    const Block<cuda_pack<Kernel>> team;
    if constexpr (always_blocks<Kernel>) {
        kernel(team, blockIdx.x, probe);  // one row: the probe is in no register before it sees something
    } else {
        for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) kernel(team, row, probe);
    }
    probe.finish();
}

template <class Kernel>
bool wants_blocks(const Context& context, const Kernel& kernel) {
    if (always_warps<Kernel> || always_blocks<Kernel>) return always_blocks<Kernel>;
    if (context.cuda_team != CudaTeam::ByLength) return context.cuda_team == CudaTeam::Block;
    return kernel.row_elements() > 2048;
}

/// How many warps, or blocks, work on so many rows for a probe that is dear to finish: as many as should keep
/// the memory of all processors busy. Tiles are worth a probe each.
template <class Kernel>
int64_t lasting_teams(const Context& context, int64_t rows, const Kernel& kernel) {
    constexpr int64_t warps = 16, blocks = warps * 32 / block_threads;  // of a processor
    if constexpr (always_blocks<Kernel>) return rows;
    const int64_t most = cuda_processors() * (wants_blocks(context, kernel) ? blocks : warps);
    return rows < most ? rows : most;
}
/// The warps that so many teams are.
template <class Kernel>
int64_t warps_for(const Context& context, int64_t teams, const Kernel& kernel) {
    return teams * (wants_blocks(context, kernel) ? threads_of<Kernel> / 32 : 1);
}

template <class Kernel, class Watch>
void run_blocks(int64_t rows, Kernel kernel, Watch watch) {
    constexpr int shared = shared_bytes_of<Kernel>, without_asking = 48 << 10;
    if constexpr (shared > without_asking) {
        check_cuda(cudaFuncSetAttribute(block_per_row<Kernel, Watch>,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
                   Kernel::name);
    }
    void* arguments[] = {&kernel, &watch, &rows};
    check_cuda(cudaLaunchKernel(block_per_row<Kernel, Watch>, dim3{unsigned(watch.teams(rows)), 1, 1},
                                dim3{threads_of<Kernel>, 1, 1}, arguments, shared, cuda_stream()),
               Kernel::name);
}

template <class Kernel, class Watch>
void run_warps(int64_t rows, Kernel kernel, Watch watch) {
    void* arguments[] = {&rows, &kernel, &watch};
    check_cuda(cudaLaunchKernel(warp_per_row<Kernel, Watch>,
                                dim3{unsigned(ceil_div(watch.teams(rows) * 32, block_threads)), 1, 1},
                                dim3{block_threads, 1, 1}, arguments, 0, cuda_stream()),
               Kernel::name);
}

/// The only launch of a row kernel on CUDA.
template <class Kernel, class Watch>
void run_on_cuda(const Context& context, int64_t rows, Kernel kernel, Watch watch) {
    if (rows == 0) return;
    if constexpr (always_blocks<Kernel>) {
        run_blocks(rows, kernel, watch);
    } else if constexpr (always_warps<Kernel>) {
        run_warps(rows, kernel, watch);
    } else {
        if (wants_blocks(context, kernel)) run_blocks(rows, kernel, watch);
        else run_warps(rows, kernel, watch);
    }
}

#endif

/// Runs a kernel that no probe is to see.
template <class Kernel>
void run_bare(Context& context, int64_t rows, const Kernel& kernel) {
    if (context.device == Device::Cuda) {
#ifdef WOBBLE_CUDA
        run_on_cuda(context, rows, kernel, NoWatch{});
        return;
#endif
    }
    NoWatch nobody;
    run_on_cpu(context, rows, kernel, nobody);
}

}  // namespace wobble
