// launch(context, rows, kernel, site): CPU or CUDA, bare or instrumented, is decided here and nowhere else.
#pragma once

#include <iterator>

#include "kernels/run.h"
#include "probes/recorder.h"

namespace wobble {

namespace detail {

/// Merges the probes in order and hands each channel's moments to the recorder.
template <class Kernel, class Probe>
void report(Context& context, const Site& site, std::vector<Probe>& probes) {
    Probe all;
    for (const Probe& probe : probes) all.merge(probe);
    for (size_t c = 0; c < std::size(Kernel::channels); ++c) {
        context.recorder->record(site, Kernel::name, Kernel::channels[c], all.of[c]);
    }
}

template <class Kernel>
using ProbeOf = MomentsProbe<int(std::size(Kernel::channels))>;

}  // namespace detail

/// Runs a row kernel over `rows` rows.
template <class Kernel>
void launch(Context& context, int64_t rows, const Kernel& kernel, const Site& site) {
    using Probe = detail::ProbeOf<Kernel>;
    const bool look = context.recorder && context.recorder->wants(site);
    if (context.device == Device::Cuda) {
#ifdef __CUDACC__
        // float64 is for checking gradients on the CPU.
        if constexpr (!std::is_same_v<typename Kernel::Element, double>) {
            if (look) {
                std::vector<Probe> probes;
                run_on_cuda(rows, kernel, probes);
                detail::report<Kernel>(context, site, probes);
            } else {
                run_on_cuda(rows, kernel);
            }
            return;
        }
#endif
        throw UserError(std::string(Kernel::name) + " has no CUDA text in this build; use --device cpu");
    }
    if (look) {
        std::vector<Probe> probes(size_t(chunk_count(rows)));
        run_on_cpu(context, rows, kernel, probes.data());
        detail::report<Kernel>(context, site, probes);
    } else {
        run_on_cpu(context, rows, kernel, static_cast<NoProbe*>(nullptr));
    }
}

/// Runs a kernel that has a CPU text of its own (products, attention): it spreads its work over the threads
/// itself.
template <class Kernel>
void launch(Context& context, const Kernel& kernel, const Site& site) {
    if (context.device == Device::Cuda) {
        throw UserError(std::string(Kernel::name) + " has no CUDA text in this build; use --device cpu");
    }
    if (context.recorder && context.recorder->wants(site)) {
        std::vector<detail::ProbeOf<Kernel>> probes(size_t(kernel.probe_count()));
        kernel(context, probes.data());
        detail::report<Kernel>(context, site, probes);
    } else {
        kernel(context, static_cast<NoProbe*>(nullptr));
    }
}

}  // namespace wobble
