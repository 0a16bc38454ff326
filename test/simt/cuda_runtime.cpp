// The host's side of the stand-in for the CUDA runtime.
#include "cuda_runtime.h"

#include <cstdio>
#include <cstdlib>

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "no error";
        case cudaErrorInvalidValue:
            return "invalid argument";
        case cudaErrorNoDevice:
            return "no device";
    }
    return "unknown error";
}

cudaError_t cudaGetLastError() {
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
/// One, so that its teams share the rows of a launch early.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
    *value = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
    std::snprintf(properties->name, sizeof properties->name, "software machine");
    properties->totalGlobalMem = size_t(1) << 30;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
    *memory = simt::allocate(bytes);
    return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
    simt::synchronize();
    return !memory || simt::release(memory) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
    *memory = std::malloc(bytes);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
    simt::synchronize();
    std::free(memory);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    *stream = nullptr;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
    simt::synchronize();
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t) {
    const bool to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
    if (simt::is_device(to) != to_device || simt::is_device(from) != from_device)
        return cudaErrorInvalidValue;
    simt::enqueue([=] { std::memmove(to, from, bytes); });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
    if (!simt::is_device(to)) return cudaErrorInvalidValue;
    simt::enqueue([=] { std::memset(to, value, bytes); });
    return cudaSuccess;
}

struct SimtGraph {
    std::vector<std::function<void()>> work;
};
struct SimtGraphExec {
    std::vector<std::function<void()>> work;
};

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
    simt::begin_capture();
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
    *graph = new SimtGraph{simt::end_capture()};
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
    *ready = new SimtGraphExec{graph->work};
    return cudaSuccess;
}
/// The real one compares node by node.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t ready, cudaGraph_t graph, cudaGraphExecUpdateResultInfo*) {
    if (ready->work.size() != graph->work.size()) return cudaErrorInvalidValue;
    ready->work = graph->work;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t) {
    simt::enqueue([work = ready->work] {
        for (const auto& item : work) item();
    });
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) {
    delete ready;
    return cudaSuccess;
}
