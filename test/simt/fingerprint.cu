// The fingerprint of weights on the software machine is that of the CPU: the sums in it are exact.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/fingerprint.h"
#include "probes/launch.h"

namespace wobble {
namespace {

std::vector<double> fingerprint(const std::vector<float>& x, Device device, CudaTeam team) {
    const int64_t n = int64_t(x.size()), rows = flat_rows(n);
    Context context(1);
    context.device = device, context.cuda_team = team;
    std::vector<double> partials(static_cast<size_t>(rows));
    if (device == Device::Cpu) {
        run_bare(context, rows, Fingerprint{.x = x.data(), .partials = partials.data(), .n = n});
        return partials;
    }
    auto* const on_device = static_cast<float*>(detail::cuda_allocate(x.size() * sizeof(float)));
    auto* const sums = static_cast<double*>(detail::cuda_allocate(partials.size() * sizeof(double)));
    copy_in(device, on_device, x.data(), n);
    run_bare(context, rows, Fingerprint{.x = on_device, .partials = sums, .n = n});
    copy_out(device, partials.data(), sums, rows);
    detail::cuda_release(on_device), detail::cuda_release(sums);
    return partials;
}

TEST(SoftwareMachineFingerprint, IsThatOfTheCpu) {
    for (const size_t n : {1, 100, 4096, 8199}) {
        std::vector<float> x(n);
        for (size_t i = 0; i < n; ++i) x[i] = std::cos(float(i));
        x[n / 2] = NAN;
        const auto expected = fingerprint(x, Device::Cpu, CudaTeam::ByLength);
        for (const CudaTeam team : {CudaTeam::Warp, CudaTeam::Block})
            EXPECT_EQ(fingerprint(x, Device::Cuda, team), expected) << n;
    }
}

}  // namespace
}  // namespace wobble
