// The steps of attention on the CPU that forward and backward share, on the register tiles of panels.h:
// packing, scores, their mask, and products of probabilities with what keys or queries have.
#pragma once

#include "kernels/attention.h"
#include "kernels/panels.h"

namespace wobble {

/// The sizes and steps that forward and backward share. Probabilities, and the gradients of scores, become
/// operands of a product: they are rounded to what panels hold, over the scores that they are made of.
template <class T>
struct AttentionBlocks {
    using A = Accumulator<T>;
    using S = Panel<T>;
    using Shape = Tile<S>;
    using Sums = typename Shape::Sums;
    static constexpr int64_t MR = Shape::MR, NR = Shape::NR;
    static constexpr int64_t block =
        4 * MR;  // queries; their scores against 1,000 keys fit the second-level cache

    const AttentionShape& shape;
    int64_t D, row_stride, head_depth, key_panels, head_panels, score_stride, operand_stride;

    explicit AttentionBlocks(const AttentionShape& s)
        : shape(s),
          D(s.head_size),
          row_stride(s.qkv_channels()),
          head_depth(Shape::padded(s.head_size)),
          key_panels(ceil_div(s.sequence, NR)),
          head_panels(ceil_div(s.head_size, NR)),
          // One panel more than needed: twelve rows a power of two apart would share the sets of the cache.
          // Whole packs, which `mask` may fill up.
          score_stride(ceil_div((key_panels + 1) * NR, Lane::width) * Lane::width),
          operand_stride(score_stride * int64_t(sizeof(A) / sizeof(S))) {}

    int64_t by_key_size() const { return key_panels * NR * head_depth; }
    int64_t by_head_size(int64_t depth) const { return head_panels * NR * Shape::padded(depth); }
    int64_t rows_size() const { return MR * std::max(head_depth, block); }
    int64_t score_size() const { return block * operand_stride; }

    /// Calls for rows of a head that will be needed soon; they lie so far apart that the processor would not
    /// foresee it.
    template <int for_writing>
    void prefetch(const T* x, int64_t stride, int64_t rows) const {
        constexpr int64_t line = 64 / int64_t(sizeof(T));
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t d = 0; d < D; d += line) __builtin_prefetch(x + r * stride + d, for_writing);
        }
    }

    /// Rows j of x [T, D] as columns: panels of op(B) in X·Kᵀ. Panel p is [D, NR].
    void pack_by_key(const T* x, S* panels) const {
        pack_panels<int(NR)>(MatrixView<T>{x, row_stride, 1}, 0, shape.sequence, 0, D, panels);
    }
    /// x [depth, D] as it lies: panels of op(B) in P·V. Panel p is [depth, NR].
    void pack_by_head(const T* x, int64_t stride, int64_t depth, S* panels) const {
        pack_panels<int(NR)>(MatrixView<T>{x, 1, stride}, 0, D, 0, depth, panels);
    }
    /// One past the last key of which row r of a block that begins at query i0 needs a score: what the
    /// rows of a register tile see.
    static int64_t keys_of_tile(int64_t i0, int64_t rows, int64_t r) {
        return i0 + std::min(rows, (r / MR + 1) * MR);
    }
    /// scores [rows, from..] = scale · x [rows, D] · keysᵀ, for as many whole panels as the rows of a tile
    /// see of the queries i0 and on; `from` begins a panel.
    void scores(const T* x, int64_t stride, int64_t i0, int64_t rows, int64_t from, const S* by_key, A scale,
                S* packed_x, A* out) const {
        for (int64_t r = 0; r < rows; r += MR) {
            pack_panels<int(MR)>(MatrixView<T>{x, stride, 1}, r, std::min(MR, rows - r), 0, D, packed_x);
            for (int64_t p = from / NR; p < ceil_div(keys_of_tile(i0, rows, r), NR); ++p) {
                Sums sums;
                multiply_panels(head_depth, packed_rows(packed_x), by_key + p * NR * head_depth, sums);
                for (int64_t i = 0; i < MR; ++i) {
                    UNROLL for (int h = 0; h < 2; ++h) {
                        store(out + (r + i) * score_stride + p * NR + h * Shape::width, At<Shape::width>{0},
                              sums[i][h] * scale);
                    }
                }
            }
        }
    }
    /// The keys [first, end) that a query sees, widened to whole packs: a tail, one by one, would take longer
    /// than the packs of a short row.
    struct Packs {
        int64_t first, size;
    };
    /// Logits in place of the scores of a query that sees the keys [first, end): capped, where there is a
    /// cap, and -inf where packs reach beyond.
    static Packs mask(A* scores, int64_t first, int64_t end, A cap) {
        const int64_t begin = first / Lane::width * Lane::width,
                      size = ceil_div(end - begin, Lane::width) * Lane::width;
        std::fill(scores + begin, scores + first, A(-INFINITY));
        std::fill(scores + end, scores + begin + size, A(-INFINITY));
        if (cap > 0) {
            Lane{}.each(end - first, [&](auto at) INLINED {
                store(scores + first, at, capped(load(scores + first, at), cap));
            });
        }
        return {begin, size};
    }
    /// Zero for a row's operands beside the keys [first, end) that it sees, from `from` to the end of what is
    /// read with it: `over_queries` reads a tile of keys that may begin anywhere before `tile_end`.
    void clear_unseen(S* operands, int64_t from, int64_t first, int64_t end, int64_t tile_end) const {
        std::fill(operands + from, operands + first, S(0));
        std::fill(operands + end, operands + tile_end + MR, S(0));
    }
    /// use(row, column, values, count) for each piece of  left · panels: queries' operands from key `from`
    /// on, by rows, times what keys have.
    template <class F>
    void over_keys(const S* left, int64_t i0, int64_t rows, int64_t from, const S* panels, F&& use) const {
        for (int64_t r = 0; r < rows; r += MR) {
            const int64_t depth = Shape::padded(keys_of_tile(i0, rows, r) - from);
            const MatrixView<S> tile{left + r * operand_stride + from, operand_stride, 1};
            times_heads(tile, r, rows, depth, panels + from * NR, Shape::padded(shape.sequence), use);
        }
    }
    /// The same of  leftᵀ · panels: for keys [from, seen), over the queries of the block that see them.
    template <class F>
    void over_queries(const S* left, int64_t i0, int64_t rows, int64_t from, int64_t seen, const S* panels,
                      S* packed, F&& use) const {
        const int64_t panel_depth = Shape::padded(rows);
        for (int64_t j = from; j < seen; j += MR) {
            // A tile of queries has operands, or zeros, for all of these keys or for none.
            const int64_t first = std::max<int64_t>(0, j - i0) / MR * MR;
            MatrixView<S> tile{left + first * operand_stride + j, 1, operand_stride};
            if constexpr (Shape::together > 1) {
                pack_panels<int(MR)>(tile, 0, MR, 0, rows - first, packed);
                tile = packed_rows(packed);
            }
            times_heads(tile, j - from, seen - from, panel_depth - first, panels + first * NR, panel_depth,
                        use);
        }
    }
    /// use(row, column, values, count) for a tile of rows from `row` on, times panels.
    template <class F>
    void times_heads(MatrixView<S> tile, int64_t row, int64_t rows, int64_t depth, const S* panels,
                     int64_t panel_depth, F& use) const {
        for (int64_t p = 0; p < head_panels; ++p) {
            Sums sums;
            multiply_panels(depth, tile, panels + p * NR * panel_depth, sums);
            const int64_t columns = std::min(NR, D - p * NR);
            for (int64_t i = 0; i < std::min(MR, rows - row); ++i)
                use(row + i, p * NR, reinterpret_cast<const A*>(&sums[i]), columns);
        }
    }
};

}  // namespace wobble
