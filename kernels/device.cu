#include <string>

#include "kernels/cuda.h"
#include "kernels/device.h"
#include "kernels/error.h"
#include "kernels/stream.h"

namespace wobble {

#ifdef WOBBLE_CUDA

void check_cuda(cudaError_t error, const char* what) {
    if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

const std::string& cuda_absence() {
    static const std::string absence = []() -> std::string {
        int devices = 0, driver = 0;
        const cudaError_t error = cudaGetDeviceCount(&devices);
        if (error == cudaSuccess && devices > 0) return "";
        cudaGetLastError();  // it is told of here
        if (error == cudaSuccess || error == cudaErrorNoDevice) return "this machine shows no NVIDIA GPU";
        if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
            return "this machine has no NVIDIA driver";
        return std::string("CUDA says: ") + cudaGetErrorString(error);
    }();
    return absence;
}

std::string cuda_name() {
    int device = 0;
    cudaDeviceProp properties = {};
    check_cuda(cudaGetDevice(&device), "the GPU");
    check_cuda(cudaGetDeviceProperties(&properties, device), "the GPU's properties");
    return std::string(properties.name) + ", " + std::to_string(properties.totalGlobalMem >> 30) + " GiB";
}

int cuda_processors() {
    static const int processors = [] {
        int device = 0, count = 0;
        check_cuda(cudaGetDevice(&device), "the GPU");
        check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "the GPU");
        return count;
    }();
    return processors;
}

cudaStream_t cuda_stream() {
    static const cudaStream_t stream = [] {
        cudaStream_t created = nullptr;
        check_cuda(cudaStreamCreate(&created), "the CUDA stream");
        return created;
    }();
    return stream;
}

namespace detail {

void* cuda_allocate(size_t bytes) {
    void* p = nullptr;
    if (cudaMalloc(&p, bytes) != cudaSuccess) {
        cudaGetLastError();  // it is told of below; the next call begins afresh
        throw UserError("the GPU has no room for " + std::to_string(bytes >> 20) +
                        " MiB; choose a smaller --batch, or --recompute");
    }
    check_cuda(cudaMemsetAsync(p, 0, bytes, cuda_stream()), "zeros on the GPU");
    return p;
}

void cuda_release(void* p) {
    cudaFree(p);
}

void cuda_copy_in(void* to, const void* from, size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cuda_stream()), "a copy to the GPU");
    check_cuda(cudaStreamSynchronize(cuda_stream()), "a copy to the GPU");
}

void cuda_copy_in_later(void* to, const void* from, size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, cuda_stream()), "a copy to the GPU");
}

void cuda_clear(void* p, size_t bytes) {
    check_cuda(cudaMemsetAsync(p, 0, bytes, cuda_stream()), "zeros on the GPU");
}

void cuda_wait() {
    check_cuda(cudaStreamSynchronize(cuda_stream()), "the GPU");
}

void* cuda_allocate_pinned(size_t bytes) {
    void* p = nullptr;
    check_cuda(cudaMallocHost(&p, bytes), "pinned memory");
    return p;
}

void cuda_release_pinned(void* p) {
    cudaFreeHost(p);
}

void cuda_copy_out(void* to, const void* from, size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, cuda_stream()),
               "a copy from the GPU");
    check_cuda(cudaStreamSynchronize(cuda_stream()), "a copy from the GPU");
}

void cuda_copy_within(void* to, const void* from, size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream()),
               "a copy on the GPU");
}

}  // namespace detail

#else

const std::string& cuda_absence() {
    static const std::string absence = "this build has no CUDA kernels";
    return absence;
}

std::string cuda_name() {
    return "no GPU";
}
int cuda_processors() {
    return 0;
}

namespace detail {

namespace {
[[noreturn]] void refuse() {
    throw UserError("this build has no CUDA kernels; choose --device cpu, or build where nvcc is");
}
}  // namespace

void* cuda_allocate(size_t) {
    refuse();
}
void cuda_release(void*) {}
void cuda_copy_in(void*, const void*, size_t) {
    refuse();
}
void cuda_copy_in_later(void*, const void*, size_t) {
    refuse();
}
void cuda_copy_out(void*, const void*, size_t) {
    refuse();
}
void cuda_clear(void*, size_t) {
    refuse();
}
void cuda_wait() {
    refuse();
}
void* cuda_allocate_pinned(size_t) {
    refuse();
}
void cuda_release_pinned(void*) {}
void cuda_copy_within(void*, const void*, size_t) {
    refuse();
}
}  // namespace detail

#endif

}  // namespace wobble
