#include <cstdlib>

#include "probes/profiler_range.h"

#ifdef __CUDACC__
#include <nvtx3/nvToolsExt.h>
#endif

namespace wobble {

#ifdef __CUDACC__

namespace {
/// A profiler that wants ranges names its library there, for NVTX to load.
const bool somebody_listens = std::getenv("NVTX_INJECTION64_PATH") != nullptr;
}  // namespace

ProfilerRange::ProfilerRange(const Site& site) {
    if (somebody_listens) nvtxRangePushA((site.full_name() + " " + phase_name(site.phase)).c_str());
}
ProfilerRange::~ProfilerRange() {
    if (somebody_listens) nvtxRangePop();
}

#else

ProfilerRange::ProfilerRange(const Site&) {}
ProfilerRange::~ProfilerRange() = default;

#endif

}  // namespace wobble
