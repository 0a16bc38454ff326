// What the software machine must find: each fault is planted in a kernel, and the launch must stop and say
// where.
#include <gtest/gtest.h>

#include "kernels/device.h"
#include "kernels/stream.h"
#include "kernels/team.h"

namespace wobble::test {
namespace {

enum class Plant {
    Nothing,
    MissingLane,
    OtherMask,
    MissingThread,
    OutOfBounds,
    Uninitialised,
    Race,
    Misaligned,
    BeyondMemory,
    HostMemory
};

constexpr int threads = 64;

/// Sums `x` over the block, with a fault planted in it.
__global__ void sum_of_block(Plant plant, float* x, float* sum) {
    const int thread = int(threadIdx.x), lane = thread % 32;
    if (plant == Plant::MissingThread && thread == 40) return;
    float value = x[thread];
    if (plant == Plant::BeyondMemory && thread == 3) value += x[1 << 20];
    if (plant == Plant::Misaligned && thread == 5) value += load(x, At<4>{1})[0];
    const bool left_out = thread == 7 && plant == Plant::MissingLane;
    if (!left_out) {
        const unsigned mask = thread == 9 && plant == Plant::OtherMask ? 0xffffu : 0xffffffffu;
        for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(mask, value, offset);
    }
    SHARED(float, partial, 2);
    const int warp = plant == Plant::OutOfBounds ? thread / 32 * 2 : thread / 32;
    if (lane == 0 && !(plant == Plant::Uninitialised && thread == 32)) partial[warp] = value;
    if (plant != Plant::Race) __syncthreads();
    if (thread == 0) sum[0] = partial[0] + partial[1];
}

/// What a launch says, empty where it goes well; `sum`: what it made.
std::string complaint(Plant plant, float* sum = nullptr) {
    const std::vector<float> ones(threads, 1.0f);
    float* memory = static_cast<float*>(detail::cuda_allocate((threads + 1) * sizeof(float)));
    copy_in(Device::Cuda, memory, ones.data(), threads);
    float on_host = 0;
    float *x = memory, *out = plant == Plant::HostMemory ? &on_host : memory + threads;
    void* arguments[] = {&plant, &x, &out};
    std::string said;
    try {
        check_cuda(
            cudaLaunchKernel(sum_of_block, dim3{1, 1, 1}, dim3{threads, 1, 1}, arguments, 0, cuda_stream()),
            "sum_of_block");
        check_cuda(cudaStreamSynchronize(cuda_stream()), "sum_of_block");
        if (sum) copy_out(Device::Cuda, sum, out, 1);
    } catch (const simt::Fault& fault) {
        said = fault.what();
    }
    detail::cuda_release(memory);
    return said;
}

void expect_found(Plant plant, const std::string& what) {
    for (uint64_t seed : {1, 2, 3, 4, 5}) {
        simt::set_seed(seed);
        EXPECT_NE(complaint(plant).find(what), std::string::npos) << complaint(plant);
    }
    simt::set_seed(1);
}

TEST(SoftwareMachine, FindsNothingWrongWithASoundKernel) {
    float sum = 0;
    EXPECT_EQ(complaint(Plant::Nothing, &sum), "");
    EXPECT_EQ(sum, threads);
}

TEST(SoftwareMachine, FindsALaneThatIsMissing) {
    expect_found(Plant::MissingLane, "at __syncthreads");
    expect_found(Plant::OtherMask, "mask");
    expect_found(Plant::MissingThread, "which has returned");
}

TEST(SoftwareMachine, FindsWhatIsWrongInSharedMemory) {
    expect_found(Plant::OutOfBounds, "partial[2] is outside of the 2 elements");
    expect_found(Plant::Uninitialised,
                 "partial[1] in shared memory is read before anything was written there");
    expect_found(Plant::Race, "partial[1] in shared memory is read");
}

TEST(SoftwareMachine, FindsAccessesThatADeviceCannotMake) {
    expect_found(Plant::Misaligned, "an access of 16 bytes is not aligned");
    expect_found(Plant::BeyondMemory, "outside of all that is allocated on the device");
    expect_found(Plant::HostMemory, "the address of host memory");
}

TEST(SoftwareMachine, NamesBlockThreadAndLine) {
    const std::string said = complaint(Plant::OutOfBounds);
    EXPECT_NE(said.find("block 0, thread 32, test/simt/faults.cu:"), std::string::npos) << said;
}

TEST(SoftwareMachine, KeepsTheHostOutOfDeviceMemory) {
    const auto memory = static_cast<volatile float*>(detail::cuda_allocate(sizeof(float)));
    EXPECT_THROW(static_cast<void>(*memory), simt::Fault);
    detail::cuda_release(const_cast<float*>(memory));
}

}  // namespace
}  // namespace wobble::test
