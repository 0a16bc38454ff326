// Probes that gather statistics, and the watch that hands them out.
//
// A kernel's work is cut into parts (chunks of rows, tasks of a product), a number that follows from its
// shape alone. Each part gets a probe of its own, and the parts' statistics are merged in order, so what is
// reported depends neither on the number of threads nor on who finished first.
#pragma once

#include <limits>
#include <vector>

#include "kernels/probe.h"
#include "probes/block_statistics.h"

namespace wobble {

enum class Tier { Off, Moments, Full };

/// The CPU's probe. Values are laid aside in a block, and looked at when it is full: the kernel's own loop
/// pays for one more store, and the statistics are made in a loop of their own, at full vector width.
template <class A, int channels>
class BlockProbe {
  public:
    explicit BlockProbe(Statistics* statistics) : statistics_(statistics) {}
    BlockProbe(const BlockProbe&) = delete;
    BlockProbe& operator=(const BlockProbe&) = delete;
    ~BlockProbe() {
        for (Block& block : blocks_) flush(block);
    }

    CALLS_HOST_CODE
    template <int N>
    HD void observe(int channel, int64_t row, At<N> at, Pack<A, N> value) {
        Block& block = blocks_[channel];
        if (block.count + N > size) flush(block);
        store(block.values, At<N>{block.count}, value);
        block.pieces[block.piece_count++] = {row, at.index, block.count};
        block.count += N;
    }

  private:
    static constexpr int size = 1024;

    struct Piece {
        int64_t row, column;
        int begin;
    };
    struct Block {
        alignas(64) A values[size];
        Piece pieces[size];
        int count = 0, piece_count = 0;
    };

    void flush(Block& block) {
        Statistics& to = statistics_[&block - blocks_];
        add_block(block.values, block.count, to.moments, [&](int i) {
            const Piece* piece = block.pieces + block.piece_count - 1;
            while (piece->begin > i) --piece;
            return std::pair{piece->row, piece->column + i - piece->begin};
        });
        if (to.histogram) add_block(block.values, block.count, *to.histogram);
        block.count = block.piece_count = 0;
    }

    Statistics* statistics_;  // [channels]
    Block blocks_[channels];
};

/// A lane's probe on CUDA: it keeps moments in registers.
template <int channels>
struct LaneProbe {
    Moments of[channels];

    template <class A, int N>
    HD void observe(int channel, int64_t row, At<N> at, Pack<A, N> value) {
        constexpr double smallest_normal = sizeof(A) == sizeof(float) ? 0x1p-126 : 0x1p-1022;
        for (int i = 0; i < N; ++i) of[channel].add(double(value[i]), row, at.index + i, smallest_normal);
    }
};

/// Hands out a probe for each part of a kernel's work.
template <class A, int channels>
class Watch {
  public:
    Watch(int64_t parts, Tier tier) : statistics_(size_t(larger<int64_t>(parts, 1) * channels)) {
        if (tier != Tier::Full) return;
        for (Statistics& s : statistics_) s.histogram = std::make_unique<Histogram>();
    }

    BlockProbe<A, channels> probe(int64_t part) {
        return BlockProbe<A, channels>(&statistics_[size_t(part * channels)]);
    }

    /// Everything that was seen of a channel.
    Statistics total(int channel) {
        Statistics all = std::move(statistics_[size_t(channel)]);
        for (size_t i = size_t(channel) + channels; i < statistics_.size(); i += channels)
            all.merge(statistics_[i]);
        return all;
    }

  private:
    std::vector<Statistics> statistics_;  // [parts, channels]
};

}  // namespace wobble
