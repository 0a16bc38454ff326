// Attention on CUDA in tiles (FlashAttention: Dao et al. 2022; Dao 2023): the formulas of attention.h, scores
// never leaving registers.
//
// A block of threads owns the result of some rows, sixteen to a warp, and goes over the tiles of keys (or of
// queries) that they need, fetching the next while it works on this one. Forward and the queries' gradients
// belong to tiles of queries, the keys' and values' to tiles of keys, so nothing is added up by two and the
// order of every sum is fixed. Tiles that nobody sees, by causality or a window, are not visited.
//
// Each kernel is made for heads of 32, 64 or 128 channels; heads in between, of whole chunks, are filled up
// with zeros.
#pragma once

#include "kernels/attention.h"
#include "kernels/warp_tiles.h"

#ifdef WOBBLE_CUDA

namespace wobble {

/// The sizes of the tiles for heads of D channels.
template <class T, int D>
struct FlashSizes {
    static constexpr bool narrow = sizeof(T) == 2;
    static constexpr int warps = narrow || D <= 64 ? 4 : 2, threads = 32 * warps;
    static constexpr int rows = 16 * warps;                                            // that a block owns
    static constexpr int others = narrow ? (D <= 64 ? 64 : 32) : (D <= 64 ? 32 : 16);  // in a tile it visits
    using Tile = SharedTile<T, D>;
    /// What a block owns in shared memory: `owned` tiles of its rows, and two times `visited` of the others.
    HD static constexpr int chunks(int owned, int visited) {
        return owned * Tile::chunks(rows) + 2 * visited * Tile::chunks(others);
    }
};

/// Two tiles that a block visits together, keys and values or queries and their gradients, in one of two
/// places: one pair is fetched while the block works on the other.
template <class T, int D>
struct VisitedTiles {
    using Tile = SharedTile<T, D>;
    static constexpr int others = FlashSizes<T, D>::others;
    Tile first, second;

    /// The n-th pair, behind `owned` tiles of the block's own rows.
    __device__ VisitedTiles(Shared<Chunk> memory, int owned, int n)
        : first{memory, FlashSizes<T, D>::chunks(owned, 0) + n % 2 * 2 * Tile::chunks(others)},
          second{memory, first.first + Tile::chunks(others)} {}
    /// Rows from `present` on become zeros, and so do columns beyond the head's.
    __device__ void fetch(const T* x, int64_t x_stride, const T* y, int64_t y_stride, int present,
                          int64_t head_size) const {
        first.fetch(x, x_stride, others, present, head_size);
        second.fetch(y, y_stride, others, present, head_size);
    }
};

/// work(n) for each of [begin, end), when it is there for all threads of the block and the next is on its
/// way. The first was fetched, and waited for, before.
template <class Fetch, class Work>
__device__ __forceinline__ void each_fetched(int begin, int end, Fetch&& fetch, Work&& work) {
    for (int n = begin; n < end; ++n) {
        if (n > begin) {
            wait_for_copies();
            __syncthreads();
        }
        if (n + 1 < end) fetch(n + 1);
        work(n);
    }
}

/// A head's part of a row: of `tile`, what the lane has of one of its two rows. Passes it to the probe's
/// channel 0.
template <int D, class T, class Probe>
__device__ __forceinline__ void write_row(const LaneTile<D>& tile, int half, T* to, int64_t row,
                                          int64_t column, int64_t head_size, Probe& probe) {
    UNROLL for (int j = 0; j < D / 8; ++j) {
        const At<2> at{8 * j + int(threadIdx.x) % 4 * 2};
        if (at.index >= head_size) continue;
        const auto value = generate<float, 2>([&](int i) INLINED { return tile.of[j][2 * half + i]; });
        store(to, at, probe.writes(0, row, at_column(column, at), value));
    }
}

/// Who sees whom, in one sequence: queries have their positions in it. All of these are far below 2^31, and a
/// register holds each.
struct Visibility {
    int sequence, window;  // the whole sequence where there is no window

    __device__ Visibility(int64_t T, const AttentionOptions& options)
        : sequence(int(T)), window(int(options.window > 0 && options.window < T ? options.window : T)) {}

    __device__ bool sees(int query, int key) const {
        return key <= query && query < sequence && query - key < window;
    }
    /// Whether every query of [query, query + queries) sees every key of [key, key + keys).
    __device__ bool all(int query, int queries, int key, int keys) const {
        const int last = query + queries - 1;
        return last < sequence && key + keys - 1 <= query && last - key < window;
    }
    __device__ int first_key(int query) const { return query < window ? 0 : query - window + 1; }
    /// One past the last query that sees the key.
    __device__ int end_of_queries(int key) const { return sequence - key > window ? key + window : sequence; }
};

/// The row of a warp's sixteen that a lane's numbers of a half belong to.
__device__ inline int row_of_lane(int half) {
    return int(threadIdx.x) / 32 * 16 + int(threadIdx.x) % 32 / 4 + 8 * half;
}

/// In place of scores: scaled and capped, and -inf where `masked` and nobody sees.
template <int N, class Sees>
__device__ __forceinline__ void make_logits(LaneTile<N>& scores, float scale, float cap, bool masked,
                                            Sees&& sees) {
    each_number(scores, [&](float& s, int, int) INLINED { s *= scale; });
    if (cap > 0) each_number(scores, [&](float& s, int, int) INLINED { s = capped(s, cap); });
    if (masked) {
        each_number(scores, [&](float& s, int half, int column) INLINED {
            if (!sees(half, column)) s = -INFINITY;
        });
    }
}

/// Whether a head of D channels has a tile kernel, and `run(std::integral_constant<int, size>())` with the
/// size that it fits.
template <class T, class Run>
bool with_flash_size(int64_t D, Run&& run) {
    constexpr int64_t chunk = 16 / int64_t(sizeof(T));
    if (D < 32 || D > 128 || D % chunk != 0) return false;
    if (D <= 32) run(std::integral_constant<int, 32>());
    else if (D <= 64) run(std::integral_constant<int, 64>());
    else run(std::integral_constant<int, 128>());
    return true;
}

}  // namespace wobble

#endif
