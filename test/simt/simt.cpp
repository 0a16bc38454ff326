#include "test/simt/simt.h"

#include <cxxabi.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>

#include "test/simt/coverage.h"

namespace simt {

Builtins current;
bool in_kernel = false;

namespace {

uint64_t seed = [] {
    const char* text = std::getenv("WOBBLE_SIMT_SEED");
    return text ? std::strtoull(text, nullptr, 10) : 1;
}();
int64_t launch_count = 0;
std::set<std::string> kernels;

/// SplitMix64 (Steele, Lea & Flood 2014).
uint64_t next(uint64_t& state) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void shuffle(std::vector<int>& order, uint64_t& state) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[next(state) % i]);
}

std::string at(const Place& place) {
    const std::string file = place.file_name();
    return file + ":" + std::to_string(place.line());
}

/// Stacks of fibers, used again.
class Stacks {
  public:
    using traits_type = boost::context::stack_traits;
    boost::context::stack_context allocate() {
        if (free_.empty()) {
            void* memory = mmap(nullptr, size + guard, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (memory == MAP_FAILED) throw std::bad_alloc();
            mprotect(memory, guard, PROT_NONE);  // stacks grow down
            boost::context::stack_context context;
            context.size = size + guard;
            context.sp = static_cast<char*>(memory) + size + guard;
            return context;
        }
        const auto context = free_.back();
        free_.pop_back();
        return context;
    }
    void deallocate(boost::context::stack_context& context) { free_.push_back(context); }

  private:
    static constexpr size_t size = 256 << 10, guard = 4096;
    std::vector<boost::context::stack_context> free_;
};
Stacks stacks;
struct StackAllocator {
    boost::context::stack_context allocate() { return stacks.allocate(); }
    void deallocate(boost::context::stack_context& context) { stacks.deallocate(context); }
};

// -------------------------------------------------------------------------------------------------- one
// block
class Block;
Block* running = nullptr;

/// A copy to shared memory that goes on in the background.
struct Copy {
    SharedMemory* memory;
    const char* name;
    int64_t index;
    const void* from;
    Place place;
    char* to() const { return memory->bytes.data() + size_t(index) * memory->element; }
};

class Block {
  public:
    Block(const Launch& launch, Index3 index, uint64_t order)
        : launch_(launch),
          index_(index),
          state_(order),
          threads_(launch.block.x),
          lanes_(threads_),
          arrived_((threads_ + 31) / 32) {}

    void run() {
        running = this, in_kernel = true;
        current.block = index_, current.block_size = launch_.block, current.grid_size = launch_.grid;
        for (int t = 0; t < int(threads_); ++t) start(t);
        std::vector<int> order(threads_);
        std::iota(order.begin(), order.end(), 0);
        for (size_t done = 0; done < threads_ && !failure_;) {
            shuffle(order, state_);
            bool moved = false;
            for (const int t : order) {
                Lane& lane = lanes_[size_t(t)];
                if (lane.state != State::Ready || failure_) continue;
                moved = true;
                now_ = t;
                current.thread = {unsigned(t), 0, 0};
                lane.fiber = std::move(lane.fiber).resume();
                if (lane.state == State::Done) ++done;
            }
            if (!moved && !failure_) stuck();
        }
        lanes_.clear();  // unwinds those that still wait
        running = nullptr, in_kernel = false;
        if (failure_) std::rethrow_exception(failure_);
    }

    [[noreturn]] void fail(const std::string& what, const Place& place) const {
        throw Fault(launch_.kernel + ", block " + std::to_string(index_.x) + ", thread " +
                    std::to_string(now_) + ", " + at(place) + ": " + what);
    }

    void block_barrier(const Place& place) {
        Lane& lane = lanes_[size_t(now_)];
        lane.place = place;
        ++at_barrier_;
        if (at_barrier_ == threads_) {
            at_barrier_ = 0, ++block_epoch_;
            for (Lane& l : lanes_)
                if (l.state == State::AtBlockBarrier) l.state = State::Ready;
            return;
        }
        for (size_t t = 0; t < threads_; ++t)
            if (lanes_[t].state == State::Done)
                fail("__syncthreads waits for thread " + std::to_string(t) + ", which has returned", place);
        lane.state = State::AtBlockBarrier;
        wait();
    }

    void meet(unsigned mask, Collective kind, void* mine, const std::function<void(void* (&)[32])>& act,
              const Place& place) {
        const int own = now_, first = own / 32 * 32;
        Lane& lane = lanes_[size_t(own)];
        if (!(mask >> (own & 31) & 1u)) fail("this lane is not in the mask that it gives", place);
        lane.place = place, lane.mask = mask, lane.kind = kind, lane.mine = mine;
        lane.state = State::AtWarp;
        // Most of the time others are still to come.
        int& arrived = arrived_[size_t(own / 32)];
        if (mask == ~0u && ++arrived < 32) {
            wait();
            return;
        }
        arrived = 0;
        if (!all_there(own)) {
            wait();
            return;
        }
        void* lanes[32] = {};
        for (int l = 0; l < 32; ++l)
            if (mask >> l & 1u) lanes[l] = lanes_[size_t(first + l)].mine;
        act(lanes);
        for (int l = 0; l < 32; ++l) {
            if (!(mask >> l & 1u)) continue;
            lanes_[size_t(first + l)].state = State::Ready;
            ++lanes_[size_t(first + l)].warp_epoch;
        }
    }

    SharedMemory& shared(const Place& place, const std::type_info& type, size_t element, int64_t count) {
        const Key key{place.file_name(), place.line(), place.column(), type.hash_code()};
        SharedMemory& memory = shared_[key];
        if (memory.touches.empty()) {
            memory.element = element;
            memory.bytes.assign(element * size_t(count), char(0xff));  // NaN, whatever is read
            memory.touches.resize(size_t(count));
        }
        return memory;
    }

    // Two accesses by different threads, one of them a write, need a barrier of both in between: one of the
    // block, or of the warp where both are in it.
    bool ordered(int other, int other_warp, int64_t block, int64_t warp) const {
        if (other == now_ || other == Touch::nobody || block < block_epoch_) return true;
        return other_warp == now_ / 32 && warp < lanes_[size_t(now_)].warp_epoch;
    }
    void read(Touch& touch, const char* name, int64_t index, const Place& place) {
        if (touch.writer == Touch::nobody)
            fail(element(name, index) + " is read before anything was written there", place);
        if (!ordered(touch.writer, touch.writer / 32, touch.write_block, touch.write_warp))
            fail(element(name, index) + " is read and thread " + std::to_string(touch.writer) +
                     " writes it: no barrier stands between the two",
                 place);
        const bool alone = touch.reader == Touch::nobody || touch.read_block < block_epoch_;
        touch.reader = alone || touch.reader == now_ ? now_ : Touch::several;
        touch.reader_warp = alone || touch.reader_warp == now_ / 32 ? now_ / 32 : Touch::several;
        touch.read_block = block_epoch_, touch.read_warp = lanes_[size_t(now_)].warp_epoch;
    }
    void write(Touch& touch, const char* name, int64_t index, const Place& place) {
        if (!ordered(touch.reader, touch.reader_warp, touch.read_block, touch.read_warp))
            fail(element(name, index) + " is written and others read it: no barrier stands between", place);
        if (!ordered(touch.writer, touch.writer / 32, touch.write_block, touch.write_warp))
            fail(element(name, index) + " is written by two threads: no barrier stands between", place);
        touch.writer = now_, touch.reader = touch.reader_warp = Touch::nobody;
        touch.write_block = block_epoch_, touch.write_warp = lanes_[size_t(now_)].warp_epoch;
    }

    int64_t dynamic_bytes() const { return int64_t(launch_.shared); }
    void begin_copy(const Copy& copy) {
        Touch& touch = copy.memory->touches[size_t(copy.index)];
        write(touch, copy.name, copy.index, copy.place);
        touch.writer = Touch::nobody;  // nothing is there until it is waited for
        std::memset(copy.to(), 0xff, copy.memory->element);
        lanes_[size_t(now_)].copies.push_back(copy);
    }
    void wait_for_copies() {
        for (const Copy& copy : std::exchange(lanes_[size_t(now_)].copies, {})) {
            write(copy.memory->touches[size_t(copy.index)], copy.name, copy.index, copy.place);
            if (copy.from) std::memcpy(copy.to(), copy.from, copy.memory->element);
            else std::memset(copy.to(), 0, copy.memory->element);
        }
    }

  private:
    enum class State { Ready, AtBlockBarrier, AtWarp, Done };
    struct Lane {
        boost::context::fiber fiber, caller;
        State state = State::Ready;
        Place place;
        unsigned mask = 0;
        Collective kind{};
        void* mine = nullptr;
        int64_t warp_epoch = 0;
        std::vector<Copy> copies;  // that it has not waited for
    };
    struct Key {
        std::string file;
        unsigned line, column;
        size_t type;
        auto operator<=>(const Key&) const = default;
    };

    /// Whether all whom thread `own` waits for have come; fails where one never will.
    bool all_there(int own) const {
        const Lane& lane = lanes_[size_t(own)];
        const int first = own / 32 * 32;
        bool all = true;
        for (int l = 0; l < 32; ++l) {
            if (!(lane.mask >> l & 1u)) continue;
            if (size_t(first + l) >= threads_) fail("the mask names lanes that the block lacks", lane.place);
            const Lane& other = lanes_[size_t(first + l)];
            if (other.state == State::Ready) all = false;
            else if (other.state != State::AtWarp || other.mask != lane.mask || other.kind != lane.kind)
                apart(l, other, lane.place);
        }
        return all;
    }
    /// Lane l will not come to the operation that the running lane is at.
    [[noreturn]] void apart(int l, const Lane& other, const Place& place) const {
        const std::string who = "lane " + std::to_string(l);
        if (other.state == State::Done) fail("waits for " + who + ", which has returned", place);
        if (other.state == State::AtBlockBarrier)
            fail("waits for " + who + ", which is at __syncthreads, " + at(other.place), place);
        fail(who + " is at another operation, or with another mask, " + at(other.place), place);
    }
    static std::string element(const char* name, int64_t index) {
        return std::string(name) + "[" + std::to_string(index) + "] in shared memory";
    }
    void start(int t) {
        lanes_[size_t(t)].fiber = boost::context::fiber(
            std::allocator_arg, StackAllocator(), [this, t](boost::context::fiber&& caller) {
                Lane& lane = lanes_[size_t(t)];
                lane.caller = std::move(caller);
                try {
                    launch_.body();
                } catch (const boost::context::detail::forced_unwind&) {
                    throw;
                } catch (...) {
                    failure_ = std::current_exception();
                }
                lane.state = State::Done;
                return std::move(lane.caller);
            });
    }
    void wait() {
        const int own = now_;
        Lane& lane = lanes_[size_t(own)];
        lane.caller = std::move(lane.caller).resume();
    }
    void stuck() {
        for (size_t t = 0; t < threads_; ++t) {
            const Lane& lane = lanes_[t];
            if (lane.state == State::Done) continue;
            now_ = int(t);
            try {
                if (lane.state == State::AtWarp) all_there(now_);
                fail("waits for ever: others of its block are elsewhere", lane.place);
            } catch (...) {
                failure_ = std::current_exception();
            }
            return;
        }
    }

    const Launch& launch_;
    Index3 index_;
    uint64_t state_;
    size_t threads_;
    std::vector<Lane> lanes_;
    std::map<Key, SharedMemory> shared_;
    std::exception_ptr failure_;
    int now_ = 0;
    size_t at_barrier_ = 0;
    std::vector<int> arrived_;  // by warp: lanes that wait for all of it
    int64_t block_epoch_ = 0;
};

}  // namespace

// ------------------------------------------------------------------------------------------- memory, streams
namespace {

/// Device memory: a range of addresses of its own. Each piece ends where a page that nobody may touch begins.
class DeviceMemory {
  public:
    DeviceMemory() {
        base_ = static_cast<char*>(mmap(reinterpret_cast<void*>(0x2000'0000'0000), range, PROT_NONE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (base_ == MAP_FAILED) std::abort();
    }
    void* allocate(size_t bytes) {
        const size_t pages = (bytes + page - 1) / page * page + page;
        size_t at = used_;
        for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
            if (hole->second != pages) continue;
            at = hole->first;
            holes_.erase(hole);
            break;
        }
        if (at == used_) used_ += pages;
        if (used_ > range) throw std::bad_alloc();
        char* begin = base_ + at;
        // What was there before is gone; nobody may count on zeros.
        mmap(begin, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0);
        mprotect(begin + pages - page, page, PROT_NONE);
        if (bytes <= poisoned_up_to) std::memset(begin, 0xff, pages - page);
        char* p = begin + (pages - page) - (bytes + 255) / 256 * 256;
        pieces_[p] = {begin, pages};
        if (open_ == 0) protect(pieces_[p], false);
        return p;
    }
    bool release(void* p) {
        const auto piece = pieces_.find(static_cast<char*>(p));
        if (piece == pieces_.end()) return false;
        madvise(piece->second.begin, piece->second.bytes, MADV_DONTNEED);
        mprotect(piece->second.begin, piece->second.bytes, PROT_NONE);
        holes_.push_back({size_t(piece->second.begin - base_), piece->second.bytes});
        pieces_.erase(piece);
        return true;
    }
    bool holds(const void* p) const { return p >= base_ && p < base_ + range; }
    void open() {
        if (open_++ == 0)
            for (const auto& [p, piece] : pieces_) protect(piece, true);
    }
    void close() {
        if (--open_ == 0)
            for (const auto& [p, piece] : pieces_) protect(piece, false);
    }

  private:
    static constexpr size_t range = size_t(1) << 38, page = 4096, poisoned_up_to = size_t(64) << 20;
    struct Piece {
        char* begin;
        size_t bytes;
    };
    static void protect(const Piece& piece, bool open) {
        mprotect(piece.begin, piece.bytes - page, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    }
    char* base_;
    size_t used_ = 0;
    std::map<char*, Piece> pieces_;
    std::vector<std::pair<size_t, size_t>> holes_;
    int open_ = 0;
};

DeviceMemory& device_memory() {
    static DeviceMemory memory;
    return memory;
}

std::vector<std::function<void()>> queue, captured;
bool capturing = false;

/// An access that the machine forbids becomes a fault of the launch, or of the host.
void on_segv(int, siginfo_t* info, void*) {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGSEGV);
    sigprocmask(SIG_UNBLOCK, &set, nullptr);
    char address[32];
    std::snprintf(address, sizeof address, "%p", info->si_addr);
    const bool device = device_memory().holds(info->si_addr);
    if (running) {
        running->fail(
            std::string("touches ") + address +
                (device ? ", outside of all that is allocated on the device" : ", which is no device memory"),
            Place());
    }
    throw Fault(std::string("the host touches ") + address +
                (device ? ", which is device memory: copy it" : ", where nothing is"));
}

[[maybe_unused]] const bool handles_segv = [] {
    struct sigaction action {};
    action.sa_sigaction = on_segv;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    return true;
}();

}  // namespace

void fault(const std::string& what, Place place) {
    running->fail(what, place);
}
void check_aligned(const void* p, size_t alignment, Place place) {
    if (running && reinterpret_cast<uintptr_t>(p) % alignment != 0)
        running->fail("an access of " + std::to_string(alignment) + " bytes is not aligned to them", place);
}
void set_seed(uint64_t to) {
    seed = to;
}
void block_barrier(Place place) {
    running->block_barrier(place);
}
void warp_barrier(unsigned mask, Place place) {
    running->meet(
        mask, Collective::Barrier, nullptr, [](void*(&)[32]) {}, place);
}
void meet(unsigned mask, Collective kind, void* mine, const std::function<void(void* (&)[32])>& act,
          Place place) {
    running->meet(mask, kind, mine, act, place);
}
void on_read(Touch& touch, const char* name, int64_t index, Place place) {
    running->read(touch, name, index, place);
}
void on_write(Touch& touch, const char* name, int64_t index, Place place) {
    running->write(touch, name, index, place);
}
void out_of_bounds(const char* name, int64_t index, int64_t size, Place place) {
    fault(std::string(name) + "[" + std::to_string(index) + "] is outside of the " + std::to_string(size) +
              " elements of that array in shared memory",
          place);
}
int64_t dynamic_bytes() {
    return running->dynamic_bytes();
}
void begin_copy(SharedMemory& memory, const char* name, int64_t index, const void* from, size_t bytes,
                Place place) {
    if (from) check_aligned(from, bytes, place);
    running->begin_copy({&memory, name, index, from, place});
}
void wait_for_copies() {
    running->wait_for_copies();
}
unsigned sum_of_warp(unsigned mask, unsigned value, Place place) {
    meet(
        mask, Collective::Sum, &value,
        [](void*(&lanes)[32]) {
            unsigned sum = 0;
            for (const void* lane : lanes)
                if (lane) sum += *static_cast<const unsigned*>(lane);
            for (void* lane : lanes)
                if (lane) *static_cast<unsigned*>(lane) = sum;
        },
        place);
    return value;
}
SharedMemory& shared_memory(const Place& place, const std::type_info& type, size_t element, int64_t count) {
    return running->shared(place, type, element, count);
}

void* allocate(size_t bytes) {
    return device_memory().allocate(bytes);
}
bool release(void* p) {
    return device_memory().release(p);
}
bool is_device(const void* p) {
    return device_memory().holds(p);
}
OpenMemory::OpenMemory() {
    device_memory().open();
}
OpenMemory::~OpenMemory() {
    device_memory().close();
}

void enqueue(std::function<void()> work) {
    (capturing ? captured : queue).push_back(std::move(work));
}
void begin_capture() {
    capturing = true;
}
std::vector<std::function<void()>> end_capture() {
    capturing = false;
    return std::exchange(captured, {});
}
void synchronize() {
    if (capturing) throw Fault("somebody waits for a stream that is being captured");
    const std::vector<std::function<void()>> work = std::exchange(queue, {});
    if (work.empty()) return;
    const OpenMemory open;
    for (const auto& item : work) item();
}
std::string readable(const std::type_info& type) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> name(
        abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), &std::free);
    return status == 0 ? name.get() : type.name();
}

void check_bytes(const std::string& kernel, const void* argument, size_t bytes) {
    // Addresses of the host's heap, stack and program start with these; sizes and numbers do not.
    constexpr uint64_t lowest = 0x5000'0000'0000, highest = 0x8000'0000'0000;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        std::memcpy(&word, static_cast<const char*>(argument) + i, 8);
        // Two small numbers side by side may look like one.
        unsigned char resident;
        if (word >= lowest && word < highest &&
            mincore(reinterpret_cast<void*>(word & ~uint64_t(4095)), 1, &resident) == 0)
            throw Fault(kernel + ": byte " + std::to_string(i) +
                        " of an argument begins the address of host memory; expected device memory");
    }
}

const std::set<std::string>& launched() {
    return kernels;
}

void run(const Launch& launch) {
    ++launch_count;
    kernels.insert(launch.kernel);
    if (launch.grid.x == 0 || launch.block.x == 0 || launch.block.x > 1024)
        throw Fault(launch.kernel + ": a grid of " + std::to_string(launch.grid.x) + " blocks of " +
                    std::to_string(launch.block.x) + " threads cannot be launched");
    const OpenMemory open;
    uint64_t state = seed * 0x9e3779b97f4a7c15u + uint64_t(launch_count);
    std::vector<int> order(launch.grid.x);
    std::iota(order.begin(), order.end(), 0);
    shuffle(order, state);
    for (const int index : order) {
        Block block(launch, {unsigned(index), 0, 0}, next(state));
        try {
            block.run();
        } catch (...) {
            running = nullptr, in_kernel = false;
            throw;
        }
    }
}

}  // namespace simt
