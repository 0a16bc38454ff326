// Where kernels run and with what help: passed to everything that launches one.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace wobble {

class Recorder;  // probes/recorder.h; kernels only pass it on

enum class Device { Cpu, Cuda };

/// What works on a row of a kernel on CUDA: a warp on short ones and a block on long ones, or always the
/// same.
enum class CudaTeam { ByLength, Warp, Block };

/// What the factors of products of float32 matrices are rounded to on CUDA; sums are float32.
enum class MatmulPrecision { Float32, Tf32, Bfloat16 };

/// Uninitialised memory, aligned to 64 bytes (a cache line, and the widest SIMD register), that grows on
/// demand and never shrinks.
class Scratch {
  public:
    template <class T>
    T* get(int64_t count) {
        const size_t wanted = size_t(count) * sizeof(T), unit = wanted < huge_page ? 64 : huge_page;
        const size_t bytes = (wanted + unit - 1) / unit * unit;
        if (bytes > size_) {
            memory_.reset();
            memory_.reset(static_cast<char*>(std::aligned_alloc(unit, bytes)));
            if (!memory_) throw std::bad_alloc();
            if (unit == huge_page) madvise(memory_.get(), bytes, MADV_HUGEPAGE);  // fewer TLB misses
            size_ = bytes;
        }
        return reinterpret_cast<T*>(memory_.get());
    }

  private:
    static constexpr size_t huge_page = size_t(2) << 20;
    struct Free {
        void operator()(char* p) const { std::free(p); }
    };
    std::unique_ptr<char, Free> memory_;
    size_t size_ = 0;
};

struct Context {
    explicit Context(int thread_count) : threads(thread_count), thread_scratch(size_t(thread_count)) {}

    bool worth_sharing(int64_t elements) const { return threads > 1 && elements >= least_parallel; }

    Device device = Device::Cpu;
    CudaTeam cuda_team = CudaTeam::ByLength;
    MatmulPrecision matmul_precision = MatmulPrecision::Float32;
    int threads;
    /// Work that takes less than waking a thread does is left to one: some microseconds' worth of elements,
    /// or, in products, eight times as many multiply-adds. 0 shares out everything.
    int64_t least_parallel = 1 << 15;
    Recorder* recorder = nullptr;         // null: every kernel runs bare
    Scratch scratch;                      // shared by the threads of one launch
    std::vector<Scratch> thread_scratch;  // one per thread
};

}  // namespace wobble
