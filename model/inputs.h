// What a forward is given, where the device can read it: tokens, targets, and, for the embedding's backward,
// the positions sorted by token.
//
// On the CPU that is the caller's memory. A GPU gets a copy, through pinned memory and in its turn among the
// kernels; each micro-batch of a step has a place of its own there, so that nobody waits.
#pragma once

#include <memory>
#include <vector>

#include "kernels/embedding.h"
#include "model/memory.h"

namespace wobble {

class Inputs {
  public:
    void lay_out(Memory& memory, int64_t rows, int64_t vocab) {
        device_ = memory.device();
        if (device_ == Device::Cuda) block_ = memory.take<int32_t>(3 * rows + vocab + 1);
    }

    /// tokens, targets: [rows], in the host's memory; the latter may be null. On the CPU they stay in use
    /// until the next call. `anew`: what was given before has been worked through.
    void give(const int32_t* tokens, const int32_t* targets, int64_t rows, int64_t vocab, bool anew) {
        tokens_ = tokens, targets_ = targets, rows_ = rows, vocab_ = vocab;
        if (device_ == Device::Cpu) return;
        if (anew) used_ = 0;
        const int64_t count = 3 * rows + vocab + 1;
        const size_t bytes = size_t(count) * sizeof(int32_t);
        if (used_ == staged_.size()) staged_.emplace_back();
        std::unique_ptr<Pinned>& place = staged_[used_++];
        if (!place || place->bytes() < bytes) place = std::make_unique<Pinned>(device_, bytes);
        int32_t* const all = reinterpret_cast<int32_t*>(place->data());
        index_.build(tokens, rows, vocab);
        std::copy_n(tokens, rows, all);
        if (targets) std::copy_n(targets, rows, all + rows);
        else std::fill_n(all + rows, rows, -1);
        std::copy(index_.order.begin(), index_.order.end(), all + 2 * rows);
        std::copy(index_.starts.begin(), index_.starts.end(), all + 3 * rows);
        copy_in_later(device_, block_, all, count);
        tokens_ = block_, targets_ = block_ + rows;
    }
    const int32_t* tokens() const { return tokens_; }
    const int32_t* targets() const { return targets_; }

    /// Of the tokens.
    struct Sorted {
        const int32_t *order, *starts;
    };
    Sorted sorted() {
        if (device_ == Device::Cuda) return {block_ + 2 * rows_, block_ + 3 * rows_};
        index_.build(tokens_, rows_, vocab_);
        return {index_.order.data(), index_.starts.data()};
    }

  private:
    Device device_ = Device::Cpu;
    int32_t* block_ = nullptr;  // tokens [rows], targets [rows], order [rows], starts [V + 1]
    const int32_t *tokens_ = nullptr, *targets_ = nullptr;
    int64_t rows_ = 0, vocab_ = 0;
    std::vector<std::unique_ptr<Pinned>> staged_;  // by micro-batch
    size_t used_ = 0;
    TokenIndex index_;
};

}  // namespace wobble
