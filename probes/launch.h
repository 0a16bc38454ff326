// launch(context, rows, kernel, site): CPU or CUDA, bare or instrumented, is decided here and nowhere else.
#pragma once

#include "kernels/error.h"
#include "kernels/run.h"
#ifdef WOBBLE_CUDA
#include "kernels/product_cuda.h"
#include "probes/profiler_range.h"
#include "probes/watch_on_cuda.h"
#endif
#include "probes/recorder.h"
#include "probes/watch.h"

namespace wobble {

namespace detail {

/// How to look at this launch of a kernel whose work is `rows` rows, unless it knows better.
template <class Kernel>
Look look(const Context& context, const Kernel& kernel, const Site& site, int64_t rows) {
    if (!context.recorder) return {};
    int64_t columns = 0;
    if constexpr (requires { kernel.observed(); }) {
        const auto matrix = kernel.observed();
        columns = matrix.columns;
        if (matrix.rows > 0) rows = matrix.rows;
    }
    return context.recorder->look<Kernel>(site, rows, columns);
}

/// Runs `run(watch)`, with a watch where the recorder wants one.
template <class Kernel, class Run>
void watched(Context& context, int64_t parts, const Site& site, const Look& look, Run run) {
    if (look.tier == Tier::Off && look.fault.channel < 0) {
        NoWatch nobody;
        run(nobody);
        return;
    }
    Watch<Kernel> watch(parts, look);
    run(watch);
    if (look.tier != Tier::Off) context.recorder->record(site, watch.total(), look.rows);
}

}  // namespace detail

/// Runs a row kernel over `rows` rows.
template <class Kernel>
void launch(Context& context, int64_t rows, const Kernel& kernel, const Site& site) {
    const Look look = detail::look(context, kernel, site, rows);
    if (context.device == Device::Cuda) {
#ifdef WOBBLE_CUDA
        // float64 is for checking gradients on the CPU.
        if constexpr (!std::is_same_v<typename Kernel::Element, double>) {
            const ProfilerRange range(site);
            if (look.tier == Tier::Off && look.fault.channel < 0)
                run_on_cuda(context, rows, kernel, NoWatch{});
            else watch_on_cuda(context, rows, kernel, site, look);
            return;
        }
#endif
        throw UserError(std::string(Kernel::name) + " has no CUDA text in this build; use --device cpu");
    }
    detail::watched<Kernel>(context, chunk_count(rows), site, look,
                            [&](auto& watch) { run_on_cpu(context, rows, kernel, watch); });
}

/// Runs a kernel that has a text of its own for each device (products, attention): on the CPU it spreads its
/// work over the threads itself, on CUDA it runs row kernels and what else it likes.
template <class Kernel>
void launch(Context& context, const Kernel& kernel, const Site& site) {
    const Look look = detail::look(context, kernel, site, 0);
    if (context.device == Device::Cuda) {
#ifdef WOBBLE_CUDA
        if constexpr (!std::is_same_v<typename Kernel::Element, double>) {
            const ProfilerRange range(site);
            kernel.on_cuda(
                context, look.tier != Tier::Off || look.fault.channel >= 0,
                [&](int64_t rows, const auto& row_kernel) { launch(context, rows, row_kernel, site); });
            return;
        }
#endif
        throw UserError(std::string(Kernel::name) + " has no CUDA text in this build; use --device cpu");
    }
    detail::watched<Kernel>(context, kernel.parts(), site, look,
                            [&](auto& watch) { kernel(context, watch); });
}

}  // namespace wobble

#include "probes/launch_attention.h"
