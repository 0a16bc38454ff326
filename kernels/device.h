// Memory of the device that a context's kernels run on, and copies between it and the host's. On the CPU the
// two are the same. Copies take their place among the kernels in the one stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/context.h"

namespace wobble {

/// Whether this build has kernels for CUDA.
bool built_with_cuda();
/// What hinders CUDA on this machine, as a phrase; empty where nothing does.
std::string cuda_obstacle();

namespace detail {

void* cuda_allocate(size_t bytes);  // zeroed
void cuda_release(void* p);
void cuda_copy_in(void* to, const void* from, size_t bytes);   // `from` may be used again at once
void cuda_copy_out(void* to, const void* from, size_t bytes);  // waits
void cuda_copy_within(void* to, const void* from, size_t bytes);
void cuda_zero(void* p, size_t bytes);

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
/// n elements with all bits 0.
template <class T>
void zero(Device device, T* p, int64_t n) {
    if (device == Device::Cuda) detail::cuda_zero(p, size_t(n) * sizeof(T));
    else std::fill(p, p + n, T(0));
}

/// n elements of the device's memory for the host to look at: the elements themselves on the CPU, otherwise a
/// copy of what they are now.
template <class T>
class HostCopy {
  public:
    HostCopy(Device device, T* p, int64_t n) : device_(device), p_(p), n_(n) {
        if (device == Device::Cpu) return;
        copy_.resize(size_t(n));
        copy_out<std::remove_const_t<T>>(device, copy_.data(), p, n);
    }
    T* data() { return device_ == Device::Cpu ? p_ : copy_.data(); }
    T& operator[](int64_t i) { return data()[i]; }
    T* begin() { return data(); }
    T* end() { return data() + n_; }
    int64_t size() const { return n_; }
    /// Makes the elements what the host has made of the copy.
    void put() {
        if (device_ == Device::Cuda) copy_in<std::remove_const_t<T>>(device_, p_, copy_.data(), n_);
    }

  private:
    Device device_;
    T* p_;
    int64_t n_;
    std::vector<std::remove_const_t<T>> copy_;
};

}  // namespace wobble
