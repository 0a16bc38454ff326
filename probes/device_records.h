// What the probes of CUDA kernels leave in device memory until somebody asks: a place for the results of each
// launch, in the order of launches, and what is to be made of them on the host. One copy brings all of them.
#pragma once

#include <functional>
#include <vector>

#include "kernels/device.h"
#include "probes/recorder.h"

namespace wobble {

class DeviceRecords : public PendingRecords {
  public:
    ~DeviceRecords() override {
        detail::cuda_release(results_.p);
        detail::cuda_release(parts_.p);
    }

    /// Zeroed memory for the results of the next launch. `read` is called with a copy of it when everything
    /// has run. It may be null: nobody wants them.
    char* results(size_t bytes, std::function<void(const char*)> read) {
        bytes = (bytes + 63) / 64 * 64;
        if (used_ + bytes > results_.bytes) {
            // Seldom: it is as large as a step needs from then on.
            collect();
            if (bytes > results_.bytes || most_used_ * 2 > results_.bytes)
                results_.grow(std::max({bytes, 2 * results_.bytes, size_t(1) << 20}));
        }
        char* const place = results_.p + used_;
        detail::cuda_clear(place, bytes);
        if (read) readers_.push_back({used_, std::move(read)});
        used_ += bytes, most_used_ = std::max(most_used_, used_);
        return place;
    }
    /// Memory for what a launch leaves for the next one.
    void* parts(size_t bytes) {
        if (bytes > parts_.bytes) parts_.grow(std::max(bytes, 2 * parts_.bytes));
        return parts_.p;
    }

    void collect() override {
        std::vector<char> copy(used_);
        if (!readers_.empty()) detail::cuda_copy_out(copy.data(), results_.p, used_);
        used_ = 0;
        for (const Reader& reader : std::exchange(readers_, {})) reader.read(copy.data() + reader.offset);
    }

  private:
    struct Block {
        char* p = nullptr;
        size_t bytes = 0;
        void grow(size_t to) {
            detail::cuda_release(p);  // waits for those who use it
            p = nullptr, bytes = 0;
            p = static_cast<char*>(detail::cuda_allocate(to)), bytes = to;
        }
    };
    struct Reader {
        size_t offset;
        std::function<void(const char*)> read;
    };
    Block results_, parts_;
    size_t used_ = 0, most_used_ = 0;
    std::vector<Reader> readers_;
};

}  // namespace wobble
