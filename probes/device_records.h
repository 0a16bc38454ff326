// What the probes of CUDA kernels leave in device memory until somebody asks: a place for the results of each
// launch, in the order of launches, and what is to be made of them on the host. One copy brings a block of
// them.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "kernels/device.h"
#include "probes/recorder.h"

namespace wobble {

class DeviceRecords : public PendingRecords {
  public:
    /// Zeroed memory for the results of the next launch. `read` is called with a copy of it when everything
    /// has run. It may be null: nobody wants them.
    char* results(size_t bytes, std::function<void(const char*)> read) {
        bytes = (bytes + 63) / 64 * 64;
        // Nobody waits here: where a block is full, the next one follows.
        while (block_ < blocks_.size() && used_[block_] + bytes > blocks_[block_].bytes) ++block_;
        if (block_ == blocks_.size()) {
            const size_t last = blocks_.empty() ? size_t(1) << 19 : blocks_.back().bytes;
            blocks_.emplace_back(std::max(bytes, 2 * last));
            used_.push_back(0);
        }
        const size_t offset = used_[block_];
        char* const place = blocks_[block_].p + offset;
        detail::cuda_clear(place, bytes);
        if (read) readers_.push_back({block_, offset, std::move(read)});
        used_[block_] += bytes;
        return place;
    }
    /// Memory for what a launch leaves for the next one.
    void* parts(size_t bytes) {
        if (parts_.empty() || bytes > parts_.back().bytes)
            parts_.emplace_back(parts_.empty() ? bytes : std::max(bytes, 2 * parts_.back().bytes));
        return parts_.back().p;
    }

    void collect() override {
        std::vector<std::vector<char>> copies(blocks_.size());
        for (size_t i = 0; i < blocks_.size() && !readers_.empty(); ++i) {
            copies[i].resize(used_[i]);
            if (used_[i] > 0) detail::cuda_copy_out(copies[i].data(), blocks_[i].p, used_[i]);
        }
        std::fill(used_.begin(), used_.end(), 0);
        block_ = 0;
        for (const Reader& reader : std::exchange(readers_, {}))
            reader.read(copies[reader.block].data() + reader.offset);
        while (parts_.size() > 1) parts_.pop_front();  // outgrown, and no longer in use
    }

  private:
    struct Block {
        char* p;
        size_t bytes;
        explicit Block(size_t size) : p(static_cast<char*>(detail::cuda_allocate(size))), bytes(size) {}
        Block(const Block&) = delete;
        Block& operator=(const Block&) = delete;
        ~Block() { detail::cuda_release(p); }
    };
    struct Reader {
        size_t block, offset;
        std::function<void(const char*)> read;
    };
    std::deque<Block> blocks_, parts_;
    std::vector<size_t> used_;  // of each block
    size_t block_ = 0;          // that is being filled
    std::vector<Reader> readers_;
};

}  // namespace wobble
