// Memory of the device that a context's kernels run on, and copies between it and the host's. On the CPU the
// two are the same. Copies take their place among the kernels in the one stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/context.h"

namespace wobble {

/// Why no kernel can run on CUDA here, as a phrase; empty where one can.
const std::string& cuda_absence();
/// Its multiprocessors. Expects one.
int cuda_processors();
/// What the GPU calls itself, and its memory. Expects one.
std::string cuda_name();

namespace detail {

void* cuda_allocate(size_t bytes);  // zeroed
void cuda_release(void* p);
void cuda_copy_in(void* to, const void* from, size_t bytes);        // `from` may be used again at once
void cuda_copy_in_later(void* to, const void* from, size_t bytes);  // from pinned memory
void cuda_copy_out(void* to, const void* from, size_t bytes);       // waits
void cuda_copy_within(void* to, const void* from, size_t bytes);
void cuda_clear(void* p, size_t bytes);
void cuda_wait();
void* cuda_allocate_pinned(size_t bytes);
void cuda_release_pinned(void* p);

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
/// The same as copy_in without waiting: `from`, which a `Pinned` holds, must stay until the device has come
/// to it.
template <class T>
void copy_in_later(Device device, T* to, const T* from, int64_t n) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (device == Device::Cuda) detail::cuda_copy_in_later(to, from, size_t(n) * sizeof(T));
    else if (to != from) std::copy(from, from + n, to);
}
/// Zeros in the device's memory.
template <class T>
void clear(Device device, T* p, int64_t n) {
    if (device == Device::Cuda) detail::cuda_clear(p, size_t(n) * sizeof(T));
    else std::fill(p, p + n, T());
}
/// Until the device has done everything it was given.
inline void wait_for(Device device) {
    if (device == Device::Cuda) detail::cuda_wait();
}

/// What lies in the device's memory, as the host can read it: a copy of it, or, on the CPU, that itself.
template <class T>
class HostCopy {
  public:
    HostCopy(Device device, const T* p, int64_t n) : p_(p) {
        if (device == Device::Cpu) return;
        copy_.resize(size_t(n));
        copy_out(device, copy_.data(), p, n);
        p_ = copy_.data();
    }
    HostCopy(HostCopy&&) = default;
    const T* data() const { return p_; }
    const T& operator[](int64_t i) const { return p_[i]; }

  private:
    std::vector<T> copy_;
    const T* p_;
};

/// Memory of the host that the device can copy from and to while the host goes on.
class Pinned {
  public:
    Pinned(Device device, size_t bytes) : device_(device), bytes_(bytes) {
        p_ = static_cast<char*>(device == Device::Cuda ? detail::cuda_allocate_pinned(bytes)
                                                       : ::operator new(bytes));
    }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    ~Pinned() {
        if (device_ == Device::Cuda) detail::cuda_release_pinned(p_);
        else ::operator delete(p_);
    }
    char* data() { return p_; }
    size_t bytes() const { return bytes_; }

  private:
    Device device_;
    size_t bytes_;
    char* p_;
};

/// n elements from one place of the device's memory to another.
template <class T>
void copy_within(Device device, T* to, const T* from, int64_t n) {
    if (device == Device::Cuda) detail::cuda_copy_within(to, from, size_t(n) * sizeof(T));
    else std::copy(from, from + n, to);
}

}  // namespace wobble
