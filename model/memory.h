// One block of memory for everything of a kind, cut into aligned pieces by a layout that is run twice: once
// to measure, once to hand out pointers. So what a model needs is known, and allocated, before the first
// step.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace wobble {

class Memory {
  public:
    Memory() = default;
    Memory(Memory&& other) noexcept { *this = std::move(other); }
    Memory& operator=(Memory&& other) noexcept {
        std::swap(base_, other.base_), std::swap(used_, other.used_), std::swap(size_, other.size_);
        std::swap(device_, other.device_);
        return *this;
    }
    ~Memory() { release(); }

    /// Runs `layout(*this)`, in which every buffer is taken, first to measure and then, on zeroed memory, to
    /// keep. UserError where a GPU has no room for it.
    template <class Layout>
    void plan(Device device, Layout layout) {
        release();
        device_ = device;
        layout(*this);
        size_ = (used_ + huge_page - 1) / huge_page * huge_page;
        if (size_ > 0) allocate();
        used_ = 0;
        layout(*this);
    }
    /// What a layout takes, by section, without taking it.
    struct Section {
        const char* name;
        size_t bytes;
    };
    template <class Layout>
    std::vector<Section> measure(Device device, Layout layout) {
        release();
        device_ = device;
        layout(*this);
        begin("");
        std::vector<Section> sections;
        for (size_t i = 0; i + 1 < begins_.size(); ++i)
            sections.push_back({begins_[i].name, begins_[i + 1].bytes - begins_[i].bytes});
        release();
        return sections;
    }
    /// In a layout: what is taken from here on is of this section.
    void begin(const char* section) {
        if (!base_) begins_.push_back({section, used_});
    }
    /// Where it lies, also while measuring.
    Device device() const { return device_; }

    /// `count` elements, aligned to 64 bytes. Null while measuring.
    template <class T>
    T* take(int64_t count) {
        char* piece = base_ ? base_ + used_ : nullptr;
        used_ += (size_t(count) * sizeof(T) + 63) / 64 * 64;
        return reinterpret_cast<T*>(piece);
    }

    size_t bytes() const { return used_; }

    /// Hands out again what was taken since `used` was bytes(): two layouts that are never in use at once.
    void reuse_from(size_t used) { used_ = used; }

  private:
    static constexpr size_t huge_page = size_t(2) << 20;

    void allocate() {
        if (device_ == Device::Cuda) {
            base_ = static_cast<char*>(detail::cuda_allocate(size_));
            return;
        }
        void* block = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) {
            size_ = 0;
            throw std::bad_alloc();
        }
        // Fewer TLB misses where the kernel grants it. Nothing is touched here: a page belongs to the
        // processor whose thread first writes to it, which is one of those that will work on it.
        madvise(block, size_, MADV_HUGEPAGE);
        base_ = static_cast<char*>(block);
    }
    void release() {
        if (base_ && device_ == Device::Cuda) detail::cuda_release(base_);
        else if (base_) munmap(base_, size_);
        base_ = nullptr, used_ = size_ = 0;
        begins_.clear();
    }

    char* base_ = nullptr;
    size_t used_ = 0, size_ = 0;
    std::vector<Section> begins_;  // bytes: where it begins
    Device device_ = Device::Cpu;
};

}  // namespace wobble
