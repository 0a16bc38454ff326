// Memory of the device that a context's kernels run on, and copies between it and the host's. On the CPU the
// two are the same. Copies take their place among the kernels in the one stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/context.h"

namespace wobble {

namespace detail {

void* cuda_allocate(size_t bytes);  // zeroed
void cuda_release(void* p);
void cuda_copy_in(void* to, const void* from, size_t bytes);   // `from` may be used again at once
void cuda_copy_out(void* to, const void* from, size_t bytes);  // waits
void cuda_copy_within(void* to, const void* from, size_t bytes);

}  // namespace detail

/// n elements from the host's memory to the device's.
template <class T>
void copy_in(Device device, T* to, const T* from, int64_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (device == Device::Cuda) detail::cuda_copy_in(to, from, size_t(n) * sizeof(T));
    else if (to != from) std::copy(from, from + n, to);
}
/// n elements from the device's memory to the host's, when everything before it is done.
template <class T>
void copy_out(Device device, T* to, const T* from, int64_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (device == Device::Cuda) detail::cuda_copy_out(to, from, size_t(n) * sizeof(T));
    else if (to != from) std::copy(from, from + n, to);
}
/// n elements from one place of the device's memory to another.
template <class T>
void copy_within(Device device, T* to, const T* from, int64_t n) {
    if (device == Device::Cuda) detail::cuda_copy_within(to, from, size_t(n) * sizeof(T));
    else std::copy(from, from + n, to);
}

}  // namespace wobble
