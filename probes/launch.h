// launch(context, rows, kernel, site): CPU or CUDA, bare or instrumented, is decided here and nowhere else.
#pragma once

#include <iterator>

#include "kernels/run.h"
#include "probes/recorder.h"
#include "probes/watch.h"

namespace wobble {

namespace detail {

template <class Kernel>
constexpr int channel_count = int(std::size(Kernel::channels));

template <class Kernel>
struct Observed {
    using type = Accumulator<typename Kernel::Element>;
};
template <class Kernel>
requires requires {
    typename Kernel::Observed;
}
struct Observed<Kernel> {
    using type = typename Kernel::Observed;
};

/// Runs `run(watch)`, with a watch where the recorder wants one.
template <class Kernel, class Run>
void watched(Context& context, int64_t parts, const Site& site, Run run) {
    const Tier tier = context.recorder ? context.recorder->tier(site) : Tier::Off;
    if (tier == Tier::Off) {
        NoWatch nobody;
        run(nobody);
        return;
    }
    Watch<typename Observed<Kernel>::type, channel_count<Kernel>> watch(parts, tier);
    run(watch);
    for (int c = 0; c < channel_count<Kernel>; ++c) {
        context.recorder->record(site, Kernel::name, Kernel::channels[c], watch.total(c));
    }
}

}  // namespace detail

/// Runs a row kernel over `rows` rows.
template <class Kernel>
void launch(Context& context, int64_t rows, const Kernel& kernel, const Site& site) {
    if (context.device == Device::Cuda) {
#ifdef __CUDACC__
        // float64 is for checking gradients on the CPU.
        if constexpr (!std::is_same_v<typename Kernel::Element, double>) {
            if (!context.recorder || context.recorder->tier(site) == Tier::Off) {
                run_on_cuda(rows, kernel);
                return;
            }
            std::vector<LaneProbe<detail::channel_count<Kernel>>> probes;
            run_on_cuda(rows, kernel, probes);
            for (int c = 0; c < detail::channel_count<Kernel>; ++c) {
                Statistics all;
                for (const auto& probe : probes) all.moments.merge(probe.of[c]);
                context.recorder->record(site, Kernel::name, Kernel::channels[c], std::move(all));
            }
            return;
        }
#endif
        throw UserError(std::string(Kernel::name) + " has no CUDA text in this build; use --device cpu");
    }
    detail::watched<Kernel>(context, chunk_count(rows), site,
                            [&](auto& watch) { run_on_cpu(context, rows, kernel, watch); });
}

/// Runs a kernel that has a CPU text of its own (products, attention): it spreads its work over the threads
/// itself.
template <class Kernel>
void launch(Context& context, const Kernel& kernel, const Site& site) {
    if (context.device == Device::Cuda) {
        throw UserError(std::string(Kernel::name) + " has no CUDA text in this build; use --device cpu");
    }
    detail::watched<Kernel>(context, kernel.parts(), site, [&](auto& watch) { kernel(context, watch); });
}

}  // namespace wobble
