// A CUDA machine in software, so that CUDA kernels run where there is no GPU: one fiber per CUDA thread,
// warps of 32, blocks one after the other.
//
// It is slow and strict. Threads run in an order drawn from a seed, so that what depends on luck shows;
// barriers and shuffles check who takes part; shared memory is poisoned, checked for bounds, and remembers
// who touched what since which barrier; device memory is out of the host's reach between launches, and work
// waits in its stream until somebody synchronises. What is wrong stops the launch with a `Fault` that names
// kernel, block, thread and line. What it cannot show: faults of the memory model, occupancy, speed.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <typeinfo>
#include <vector>

namespace simt {

using Place = std::source_location;

/// What a kernel did that it must not do.
struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Index3 {
    unsigned x = 1, y = 1, z = 1;
};

/// Where the running thread stands, as CUDA's built-in variables of these names.
struct Builtins {
    Index3 thread{0, 0, 0}, block{0, 0, 0}, block_size, grid_size;
};
extern Builtins current;
/// Whether a kernel is running.
extern bool in_kernel;

/// Stops a launch whose thread accesses `p` with another alignment than the access needs.
void check_aligned(const void* p, size_t alignment, Place place = Place::current());
/// Stops the launch: `what` happened at `place`, in the running thread.
[[noreturn]] void fault(const std::string& what, Place place);

/// The order of threads and blocks follows from it. It starts as WOBBLE_SIMT_SEED, or 1.
void set_seed(uint64_t seed);

// -------------------------------------------------------------------------------------------------- barriers
void block_barrier(Place place);
void warp_barrier(unsigned mask, Place place);

enum class Collective { Barrier, Exchange, LoadMatrices, MultiplyAdd, Sum };
/// Waits until all lanes of `mask` have come to the same kind of operation. The last one calls `act` for all,
/// with what each lane brought, by lane; null where a lane takes no part.
void meet(unsigned mask, Collective kind, void* mine, const std::function<void(void* (&)[32])>& act,
          Place place);

/// Σ of what the lanes brought.
unsigned sum_of_warp(unsigned mask, unsigned value, Place place);
/// What lane `source` of the warp brought.
template <class T>
T exchange(unsigned mask, T value, int source, Place place) {
    struct Mine {
        T value;
        int source;
        T result;
    } mine{value, source, value};
    bool stranger = false;
    meet(
        mask, Collective::Exchange, &mine,
        [&](void*(&lanes)[32]) {
            for (void* lane : lanes) {
                if (!lane) continue;
                Mine& own = *static_cast<Mine*>(lane);
                void* from = lanes[own.source & 31];
                if (from) own.result = static_cast<Mine*>(from)->value;
                else stranger = true;
            }
        },
        place);
    if (stranger) fault("a shuffle reads from a lane that takes no part in it", place);
    return mine.result;
}

// --------------------------------------------------------------------------------------------- shared memory
/// What is known of one element of shared memory: who wrote it, and who has read it since; and how many
/// barriers of the block and of the warp had been passed by then.
struct Touch {
    static constexpr int nobody = -1, several = -2;
    int writer = nobody;  // thread of the block
    int reader = nobody, reader_warp = nobody;
    int64_t write_block = 0, write_warp = 0, read_block = 0, read_warp = 0;
};
void on_read(Touch& touch, const char* name, int64_t index, Place place);
void on_write(Touch& touch, const char* name, int64_t index, Place place);
[[noreturn]] void out_of_bounds(const char* name, int64_t index, int64_t size, Place place);

/// One array of a block's shared memory.
struct SharedMemory {
    size_t element = 0;
    std::vector<char> bytes;
    std::vector<Touch> touches;
};
SharedMemory& shared_memory(const Place& place, const std::type_info& type, size_t element, int64_t count);
/// What the launch gives each block besides the arrays that its kernel declares.
int64_t dynamic_bytes();
/// The running thread begins to copy to an element, or zeros where `from` is null; until it has waited for
/// that, nobody may read there.
void begin_copy(SharedMemory& memory, const char* name, int64_t index, const void* from, size_t bytes,
                Place place);
void wait_for_copies();

template <class T>
class SharedArray {
  public:
    SharedArray(const char* name, int64_t count, Place place = Place::current())
        : name_(name),
          memory_(&shared_memory(place, typeid(T), sizeof(T), count)),
          count_(count),
          place_(place) {}

    class Element {
      public:
        Element(const SharedArray& array, int64_t index) : array_(array), index_(index) {}
        operator T() const {
            on_read(array_.memory_->touches[size_t(index_)], array_.name_, index_, array_.place_);
            T value;
            std::memcpy(&value, array_.memory_->bytes.data() + size_t(index_) * sizeof(T), sizeof(T));
            return value;
        }
        const Element& operator=(T value) const {
            on_write(array_.memory_->touches[size_t(index_)], array_.name_, index_, array_.place_);
            std::memcpy(array_.memory_->bytes.data() + size_t(index_) * sizeof(T), &value, sizeof(T));
            return *this;
        }
        const Element& operator=(const Element& other) const { return *this = T(other); }

      private:
        SharedArray array_;
        int64_t index_;
    };
    Element operator[](int64_t index) const {
        check(index);
        return Element(*this, index);
    }
    void copy_later(int64_t index, const void* from) const {
        check(index);
        begin_copy(*memory_, name_, index, from, sizeof(T), place_);
    }

  private:
    void check(int64_t index) const {
        if (index < 0 || index >= count_) out_of_bounds(name_, index, count_, place_);
    }
    const char* name_;
    SharedMemory* memory_;
    int64_t count_;
    Place place_;
};

// ---------------------------------------------------------------------------------------- memory, stream
void* allocate(size_t bytes);
/// False where `p` was not allocated.
bool release(void* p);
/// Whether `p` is an address of the device's.
bool is_device(const void* p);

/// Appends work to the stream; what it throws comes out of `synchronize`.
void enqueue(std::function<void()> work);
void synchronize();
/// What is enqueued in between is kept instead; nobody may synchronise.
void begin_capture();
std::vector<std::function<void()>> end_capture();
/// Opens device memory to whoever holds one.
class OpenMemory {
  public:
    OpenMemory();
    ~OpenMemory();
    OpenMemory(const OpenMemory&) = delete;
    OpenMemory& operator=(const OpenMemory&) = delete;
};

struct Launch {
    std::string kernel;  // its type
    Index3 grid, block;
    size_t shared;               // dynamic_bytes
    std::function<void()> body;  // what every thread does
};
void run(const Launch& launch);
void check_bytes(const std::string& kernel, const void* argument, size_t bytes);
/// Stops with a fault where an argument of a kernel holds the address of host memory.
template <class T>
void check_argument(const std::string& kernel, T argument) {
    __builtin_clear_padding(&argument);  // anything may lie there
    check_bytes(kernel, &argument, sizeof argument);
}
std::string readable(const std::type_info& type);

}  // namespace simt
