// Stands in for the header of the CUDA toolkit: the part of it that wobble uses, carried out by simt.h.
#pragma once

#include <cmath>
#include <memory>
#include <tuple>
#include <utility>

#include "test/simt/simt.h"
#include "test/simt/tensor_core.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

using dim3 = simt::Index3;

#define threadIdx (simt::current.thread)
#define blockIdx (simt::current.block)
#define blockDim (simt::current.block_size)
#define gridDim (simt::current.grid_size)

// ----------------------------------------------------------------------------------------------- device code
inline void __syncthreads(simt::Place place = simt::Place::current()) {
    simt::block_barrier(place);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, simt::Place place = simt::Place::current()) {
    simt::warp_barrier(mask, place);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, simt::Place place = simt::Place::current()) {
    return simt::exchange(mask, value, (int(threadIdx.x) & 31) ^ lanes, place);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, simt::Place place = simt::Place::current()) {
    return simt::exchange(mask, value, lane & 31, place);
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value, simt::Place place = simt::Place::current()) {
    return simt::sum_of_warp(mask, value, place);
}

/// One fiber runs at a time: nothing needs to be done for these. 64 bits, as they are used.
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long value) {
    return std::exchange(*p, *p + value);
}
inline unsigned long long atomicMax(unsigned long long* p, unsigned long long value) {
    return std::exchange(*p, *p < value ? value : *p);
}

// ------------------------------------------------------------------------------------------------- host code
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorNoDevice = 100 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
using cudaStream_t = struct SimtStream*;

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDriverGetVersion(int* version);
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem;
};
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** memory, size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);

/// A graph is the work that was enqueued while the stream was captured.
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
struct cudaGraphExecUpdateResultInfo {
    int result;
};
using cudaGraph_t = struct SimtGraph*;
using cudaGraphExec_t = struct SimtGraphExec*;
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t ready, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info);
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready);

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <class T>
cudaError_t cudaFuncSetAttribute(T*, cudaFuncAttribute, int bytes) {
    return bytes <= 163 << 10 ? cudaSuccess : cudaErrorInvalidValue;  // what every GPU compiled for has
}

/// Arguments are copied here, as they are by the real one.
template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             size_t shared, cudaStream_t) {
    const std::string name = simt::readable(typeid(void (*)(Parameters...)));
    const auto copied = [&]<size_t... I>(std::index_sequence<I...>) {
        (simt::check_argument(name, *static_cast<Parameters*>(arguments[I])), ...);
        return std::make_shared<std::tuple<Parameters...>>(*static_cast<Parameters*>(arguments[I])...);
    }
    (std::index_sequence_for<Parameters...>{});
    simt::enqueue([=] {
        simt::run(
            {name, grid, block, shared, [=] { std::apply(kernel, std::tuple<Parameters...>(*copied)); }});
    });
    return cudaSuccess;
}
