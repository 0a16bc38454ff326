// What CUDA code stands on. A file that includes this can launch kernels on CUDA where nvcc compiles it, or
// where g++ does with the software machine of test/simt in place of the toolkit (WOBBLE_SIMT).
#pragma once

#if defined(__CUDACC__) || defined(WOBBLE_SIMT)
#define WOBBLE_CUDA
#include <cuda_runtime.h>
#endif

#ifdef __CUDACC__
#define HD __host__ __device__ __forceinline__
#else
#define HD inline __attribute__((always_inline))
#endif

// Stops the software machine where a device's access of so many bytes is not aligned to them.
#ifdef WOBBLE_SIMT
#define CHECK_ALIGNED(p, bytes) simt::check_aligned(p, bytes)
#else
#define CHECK_ALIGNED(p, bytes)
#endif

#ifdef WOBBLE_CUDA

// An array of `count` elements that the threads of a block share; and one of as many as the launch gives
// them memory for.
#ifdef WOBBLE_SIMT
#define SHARED(type, name, count) const simt::SharedArray<type> name(#name, count)
#define DYNAMIC_SHARED(type, name) \
    const simt::SharedArray<type> name(#name, simt::dynamic_bytes() / int64_t(sizeof(type)))
#else
#define SHARED(type, name, count) __shared__ type name[count]
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

#endif
