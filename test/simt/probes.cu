// What kernel cases are too small or too forgiving to show of probes and random rounding on the software
// machine.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kernels/round.h"
#include "probes/watch_on_cuda.h"

namespace wobble {
namespace {

using Kernel = RoundWeights<float>;
using Saw = WarpSaw<Kernel>;

template <class T>
T* on_device(const std::vector<T>& values) {
    T* const p = static_cast<T*>(detail::cuda_allocate(values.size() * sizeof(T)));
    detail::cuda_copy_in(p, values.data(), values.size() * sizeof(T));
    return p;
}

// Whoever rounds a weight draws the same numbers for it.
TEST(SoftwareMachineProbes, RoundStochasticallyToTheBitsOfTheCpu) {
    constexpr int64_t n = 1003, offset = 77;
    std::mt19937_64 generator(1);
    std::normal_distribution<float> normal;
    std::vector<float> master;
    for (int64_t i = 0; i < n; ++i) master.push_back(normal(generator));
    master[5] = INFINITY, master[6] = -INFINITY, master[7] = 0x1p-140f;
    std::vector<bf16> expected(n), found(n);
    const auto round = [&](Device device, const float* from, bf16* to) {
        const RoundWeights<bf16> kernel{
            .master = from, .weight = to, .n = n, .stochastic = true, .offset = offset};
        Context context(1);
        context.device = device;
        NoWatch watch;
        if (device == Device::Cpu) run_on_cpu(context, flat_rows(n), kernel, watch);
        else run_on_cuda(context, flat_rows(n), kernel, watch);
    };
    round(Device::Cpu, master.data(), expected.data());
    float* const from = on_device(master);
    bf16* const to = on_device(found);
    round(Device::Cuda, from, to);
    copy_out(Device::Cuda, found.data(), to, n);
    detail::cuda_release(from), detail::cuda_release(to);
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(found[size_t(i)].bits, expected[size_t(i)].bits) << i;
}

// One block takes all warps of a launch together: also more of them than it has threads.
TEST(SoftwareMachineProbes, AreTakenTogetherInOrder) {
    for (const int64_t count : {1, 2, 255, 256, 257, 700}) {
        SCOPED_TRACE(count);
        auto warps = std::vector<Saw>(size_t(count));
        Saw expected;
        for (int64_t w = 0; w < count; ++w) {
            Moments& m = warps[size_t(w)].channels[0];
            for (int i = 0; i <= w % 3; ++i) m.add(double(w) + 0.5 * i, w, i, 0x1p-126);
            if (w % 5 == 4) m.add(NAN, w, 9, 0x1p-126);
        }
        for (const Saw& saw : warps) expected.merge(saw);
        Saw* on = on_device(warps);
        Saw* all = on_device(std::vector<Saw>(1));
        HeadTally* heads = nullptr;
        int64_t number = count, head_count = 0;
        void* arguments[] = {&on, &number, &all, &heads, &head_count};
        check_cuda(cudaLaunchKernel(merge_warps<Kernel>, dim3{1, 1, 1}, dim3{block_threads, 1, 1}, arguments,
                                    0, cuda_stream()),
                   "merge_warps");
        std::vector<Saw> found(1);
        detail::cuda_copy_out(found.data(), all, sizeof(Saw));
        detail::cuda_release(on), detail::cuda_release(all);
        const Moments &a = found[0].channels[0], &b = expected.channels[0];
        EXPECT_EQ(a.count, b.count);
        EXPECT_EQ(a.nans, b.nans);
        EXPECT_EQ(a.min, b.min);
        EXPECT_EQ(a.max, b.max);
        EXPECT_EQ(a.first_row, b.first_row);
        EXPECT_NEAR(a.mean, b.mean, 1e-12 * std::fabs(b.mean));
        EXPECT_NEAR(a.m2, b.m2, 1e-10 * b.m2);
        EXPECT_NEAR(a.m4, b.m4, 1e-10 * b.m4);
    }
}

}  // namespace
}  // namespace wobble
