// Causal attention on the CPU: the formulas of attention.h over blocks of queries, on the register tiles of
// panels.h.
//
// A task takes one head of one sequence (and, forward, a part of its queries when there are few heads). Keys
// and values are packed into panels once; then each block of queries makes its scores against the keys up to
// its last query (later blocks of keys are skipped, causally), turns them into probabilities in a buffer of
// its own thread, and multiplies on. Where there is a window, panels of keys that no query of a block sees
// are skipped too. What is held at a time is [block, T] per thread, never T × T. Backward owns all of a key
// head's dk and dv, and the dq of its query heads, so nothing is shared and the order of every sum is fixed.
#pragma once

#include <omp.h>

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
            // Queries come in tiles of which either all or none have operands for these keys.
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

/// Tasks of forward: at least 32 where the shape allows, whatever the number of threads.
template <class T>
int64_t AttentionForward<T>::parts() const {
    const int64_t heads = shape.batch * shape.heads;
    return heads * std::min(ceil_div(32, heads), ceil_div(shape.queries, AttentionBlocks<T>::block));
}

template <class T>
template <class Watch>
void AttentionForward<T>::operator()(Context& context, Watch& watch) const {
    using S = Panel<T>;
    const AttentionBlocks<T> blocks(shape);
    constexpr int64_t block = blocks.block;
    const int64_t D = shape.head_size, sequence = shape.sequence;
    const int64_t tasks = parts(), splits = tasks / (shape.batch * shape.heads);
    const A scale = options.factor<A>(D), cap = A(options.softcap);

#pragma omp parallel for schedule(dynamic, 1) \
    num_threads(context.threads) if (context.worth_sharing(shape.products() / 8))
    for (int64_t task = 0; task < tasks; ++task) {
        const int64_t b = task / splits / shape.heads, h = task / splits % shape.heads, split = task % splits;
        const int64_t key_head = shape.key_head(h);
        auto probe = watch.probe(task);
        const T* q = qkv + shape.qkv(b, 0, h, 0);
        S* keys = context.thread_scratch[size_t(omp_get_thread_num())].template get<S>(
            blocks.by_key_size() + blocks.by_head_size(sequence) + blocks.score_size() + blocks.rows_size());
        S* values = keys + blocks.by_key_size();
        S* p = values + blocks.by_head_size(sequence);
        S* packed_q = p + blocks.score_size();
        A* scores = reinterpret_cast<A*>(p);
        blocks.pack_by_key(qkv + shape.qkv(b, 0, key_head, 1), keys);
        blocks.pack_by_head(qkv + shape.qkv(b, 0, key_head, 2), blocks.row_stride, sequence, values);

        // Splits take blocks in turn, since late queries have more keys than early ones.
        const int64_t first = sequence - shape.queries;
        for (int64_t i0 = first + split * block; i0 < sequence; i0 += splits * block) {
            const int64_t rows = std::min(block, sequence - i0);
            const int64_t from = options.first_key(i0) / blocks.NR * blocks.NR;
            blocks.template prefetch<1>(out + (b * shape.queries + i0 - first) * shape.channels() + h * D,
                                        shape.channels(), rows);
            blocks.scores(q + i0 * blocks.row_stride, blocks.row_stride, i0, rows, from, keys, scale,
                          packed_q, scores);

            A inverse_sum[block];
            for (int64_t r = 0; r < rows; ++r) {
                const int64_t first_key = options.first_key(i0 + r), visible = i0 + r + 1 - first_key;
                A* row_scores = scores + r * blocks.score_stride;
                const auto packs = blocks.mask(row_scores, first_key, first_key + visible, cap);
                const A* s = row_scores + packs.first;
                S* e_row = p + r * blocks.operand_stride;
                Largest<Lane, A> largest;
                Lane{}.each(packs.size, [&](auto at) INLINED { largest.take(load(s, at)); });
                const A maximum = largest.total();
                [[maybe_unused]] const A score_of_first = row_scores[0];
                Sum<Lane, A> sum, weighted, at_maximum;
                Largest<Lane, A> least;  // of -s
                if constexpr (std::decay_t<decltype(probe)>::looks) {
                    Lane{}.each(visible, [&](auto at) INLINED {
                        least.take(splat<decltype(at)::width>(A(0)) - load(row_scores + first_key, at));
                    });
                }
                Lane{}.each(packs.size, [&](auto at) INLINED {
                    const auto d = load(s, at) - maximum;
                    const auto e = exponential(d);
                    if constexpr (std::decay_t<decltype(probe)>::looks) {
                        constexpr int N = decltype(at)::width;
                        const auto none = splat<N>(A(0));
                        // Where e is 0, e · d is: d may be -inf there.
                        weighted.add_product(e, where_less(d, splat<N>(A(-1e4)), splat<N>(A(-1e4)), d));
                        at_maximum += where_less(d, none, none, splat<N>(A(1)));
                    }
                    // Never ahead of the scores that are still to be read.
                    store(e_row + packs.first, at, e);
                    sum += e;
                });
                if constexpr (std::decay_t<decltype(probe)>::looks) {
                    probe.query(h,
                                {.keys = visible,
                                 .max_logit = double(maximum),
                                 .abs_logit = double(larger(maximum, least.total())),
                                 .sum = double(sum.total()),
                                 .weighted = double(weighted.total()),
                                 .first = first_key == 0 ? double(exponential(score_of_first - maximum)) : 0,
                                 .at_maximum = int64_t(at_maximum.total())});
                }
                blocks.clear_unseen(e_row, from, first_key, first_key + visible,
                                    blocks.keys_of_tile(i0, rows, r));
                const auto total = this->with_sink(maximum, sum.total(), h);
                inverse_sum[r] = total.inverse;
                lse[(b * shape.heads + h) * shape.queries + i0 - first + r] = total.lse;
            }
            blocks.over_keys(
                p, i0, rows, from, values, [&](int64_t r, int64_t d, const A* value, int64_t count) {
                    const int64_t row = b * shape.queries + i0 - first + r;
                    T* o = out + row * shape.channels() + h * D + d;
                    Lane{}.each(count, [&](auto at) INLINED {
                        const auto result = load(value, at) * inverse_sum[r];
                        store(o, at, probe.writes(Output, row, at_column(h * D + d, at), result));
                    });
                });
            const int64_t row = b * shape.queries + i0 - first;
            probe.wrote(Output, row, h * D, out + row * shape.channels() + h * D, D, rows, shape.channels());
        }
    }
}

/// dk and dv of one key head of one sequence per task, and dq of the query heads that attend to it.
template <class T>
struct AttentionBackward {
    using Element = T;
    using A = Accumulator<T>;
    using S = Panel<T>;
    static constexpr const char* name = "attention_backward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    enum Identity { SumOfDs };
    /// Σ_j ds_ij = 0, a sink's own share counted and the slopes of a cap not; rows are [B, H, T].
    static constexpr const char* identities[1] = {"sum dS"};

    const T* qkv;   // [B, T, (H + 2K) D]
    const T* out;   // [B, T, C]
    const T* dout;  // [B, T, C]
    const A* lse;   // [B, H, T]
    T* dqkv;        // [B, T, (H + 2K) D]
    AttentionShape shape;
    AttentionOptions options = {};
    const T* sinks = nullptr;  // [H], or null
    T* dsinks = nullptr;       // [B, T, H], where there are sinks: each query's share, for `ColumnSum`

    int64_t parts() const { return shape.batch * shape.key_heads(); }
    int64_t observed_rows() const { return shape.batch * shape.sequence; }
    int64_t observed_columns() const { return shape.qkv_channels(); }

    template <class Watch>
    void operator()(Context& context, Watch& watch) const {
        const int64_t tasks = parts();
#pragma omp parallel for schedule(dynamic, 1) \
    num_threads(context.threads) if (context.worth_sharing(shape.products() / 8))
        for (int64_t task = 0; task < tasks; ++task) {
            auto probe = watch.probe(task);
            group(context.thread_scratch[size_t(omp_get_thread_num())], task / shape.key_heads(),
                  task % shape.key_heads(), probe);
        }
    }

  private:
    /// What the query heads of a key head share, and where each puts what it works out.
    struct Work {
        S *keys, *values;           // by key: k for scores, v for dp
        S* key_rows;                // by head: k, for dq
        S *query_rows, *grad_rows;  // by head: the block's q, for dk, and dout, for dv
        S* packed;                  // a tile's rows
        S *p, *ds;                  // [block, keys]: probabilities and gradients of scores
        A *dk, *dv;                 // [T, D]
    };

    template <class Probe>
    void group(Scratch& scratch, int64_t b, int64_t key_head, Probe& probe) const {
        const AttentionBlocks<T> blocks(shape);
        constexpr int64_t block = blocks.block;
        const int64_t D = shape.head_size, sequence = shape.sequence;
        const int64_t stride = blocks.row_stride;

        const int64_t by_key = blocks.by_key_size(), by_head = blocks.by_head_size(sequence);
        const int64_t block_heads = blocks.by_head_size(block);
        Work w;
        w.dk = scratch.get<A>(2 * sequence * D + ceil_div((2 * by_key + by_head + 2 * block_heads +
                                                           2 * blocks.score_size() + blocks.rows_size()) *
                                                              int64_t(sizeof(S)),
                                                          int64_t(sizeof(A))));
        w.dv = w.dk + sequence * D;
        w.keys = reinterpret_cast<S*>(w.dv + sequence * D);
        w.values = w.keys + by_key;
        w.key_rows = w.values + by_key;
        w.query_rows = w.key_rows + by_head;
        w.grad_rows = w.query_rows + block_heads;
        w.p = w.grad_rows + block_heads;
        w.ds = w.p + blocks.score_size();
        w.packed = w.ds + blocks.score_size();
        const T* k = qkv + shape.qkv(b, 0, key_head, 1);
        blocks.pack_by_key(k, w.keys);
        blocks.pack_by_key(qkv + shape.qkv(b, 0, key_head, 2), w.values);
        blocks.pack_by_head(k, stride, sequence, w.key_rows);
        std::fill(w.dk, w.dk + 2 * sequence * D, A(0));

        const int64_t first_head = key_head * shape.group();
        for (int64_t h = first_head; h < first_head + shape.group(); ++h) head(blocks, b, h, w, probe);

        const int64_t key_column = shape.column(key_head, 1), value_column = shape.column(key_head, 2);
        for (int64_t j = 0; j < sequence; ++j) {
            T* row = dqkv + (b * sequence + j) * stride;
            write(row + key_column, w.dk + j * D, D, b * sequence + j, key_column, probe);
            write(row + value_column, w.dv + j * D, D, b * sequence + j, value_column, probe);
        }
        for (int64_t column : {key_column, value_column}) {
            probe.wrote(Output, b * sequence, column, dqkv + b * sequence * stride + column, D, sequence,
                        stride);
        }
    }

    template <class Probe>
    void head(const AttentionBlocks<T>& blocks, int64_t b, int64_t h, const Work& w, Probe& probe) const {
        constexpr int64_t block = AttentionBlocks<T>::block, NR = AttentionBlocks<T>::NR;
        const int64_t D = shape.head_size, C = shape.channels(), sequence = shape.sequence;
        const int64_t stride = blocks.row_stride;
        const A scale = options.factor<A>(D), cap = A(options.softcap);
        A *scores = reinterpret_cast<A*>(w.p), *dps = reinterpret_cast<A*>(w.ds);

        for (int64_t i0 = 0; i0 < sequence; i0 += block) {
            const int64_t rows = std::min(block, sequence - i0), seen = i0 + rows;
            const int64_t from = options.first_key(i0) / NR * NR;
            const T* q = qkv + shape.qkv(b, i0, h, 0);
            const T* grad = dout + (b * sequence + i0) * C + h * D;
            const T* o = out + (b * sequence + i0) * C + h * D;
            blocks.template prefetch<0>(o, C, rows);
            blocks.template prefetch<1>(dqkv + shape.qkv(b, i0, h, 0), stride, rows);
            if (const int64_t next = std::min(block, sequence - seen); next > 0) {
                blocks.template prefetch<0>(q + rows * stride, stride, next);
                blocks.template prefetch<0>(grad + rows * C, C, next);
            }
            blocks.scores(q, stride, i0, rows, from, w.keys, scale, w.packed, scores);
            blocks.scores(grad, C, i0, rows, from, w.values, A(1), w.packed, dps);

            for (int64_t r = 0; r < rows; ++r) {
                const int64_t first_key = options.first_key(i0 + r), visible = i0 + r + 1 - first_key;
                A *pr = scores + r * blocks.score_stride, *dr = dps + r * blocks.score_stride;
                S *p_row = w.p + r * blocks.operand_stride, *ds_row = w.ds + r * blocks.operand_stride;
                const A log_sum = lse[(b * shape.heads + h) * sequence + i0 + r];
                const A delta = dot(Lane{}, grad + r * C, o + r * C, D);
                const A sink = sinks ? exponential(A(sinks[h]) - log_sum) * -delta : A(0);
                if (sinks) dsinks[(b * sequence + i0 + r) * shape.heads + h] = T(sink);
                const auto packs = blocks.mask(pr, first_key, first_key + visible, cap);
                if constexpr (Probe::looks) {
                    if (probe.full()) {
                        const auto [sum, size] =
                            sum_of_ds(pr + first_key, dr + first_key, visible, log_sum, delta, scale);
                        const double own = double(sink * scale);
                        probe.residual(SumOfDs, (b * shape.heads + h) * sequence + i0 + r, sum + own,
                                       size + std::fabs(own));
                    }
                }
                Lane{}.each(packs.size, [&](auto at) INLINED {
                    const auto s = load(pr + packs.first, at);
                    const auto probability = exponential(s - log_sum);
                    const auto gradient = probability * (load(dr + packs.first, at) - delta) * scale;
                    // Never ahead of what is still to be read.
                    store(p_row + packs.first, at, probability);
                    store(ds_row + packs.first, at, cap > 0 ? gradient * slope_of_capped(s, cap) : gradient);
                });
                for (S* row : {p_row, ds_row})
                    blocks.clear_unseen(row, from, first_key, first_key + visible,
                                        blocks.keys_of_tile(i0, rows, r));
            }

            blocks.over_keys(w.ds, i0, rows, from, w.key_rows,
                             [&](int64_t r, int64_t d, const A* value, int64_t count) {
                                 write(dqkv + shape.qkv(b, i0 + r, h, 0) + d, value, count,
                                       b * sequence + i0 + r, h * D + d, probe);
                             });
            probe.wrote(Output, b * sequence + i0, h * D, dqkv + shape.qkv(b, i0, h, 0), D, rows, stride);
            blocks.pack_by_head(q, stride, rows, w.query_rows);
            blocks.pack_by_head(grad, C, rows, w.grad_rows);
            blocks.over_queries(w.p, i0, rows, from, seen, w.grad_rows, w.packed,
                                [&](int64_t j, int64_t d, const A* value, int64_t count) {
                                    add_scaled(Lane{}, w.dv + (from + j) * D + d, value, A(1), count, false);
                                });
            blocks.over_queries(w.ds, i0, rows, from, seen, w.query_rows, w.packed,
                                [&](int64_t j, int64_t d, const A* value, int64_t count) {
                                    add_scaled(Lane{}, w.dk + (from + j) * D + d, value, A(1), count, false);
                                });
        }
    }

    /// Σ_j ds_ij from the scores and dp of a row, and Σ_j of the magnitudes that cancel in it.
    static std::pair<double, double> sum_of_ds(const A* scores, const A* dps, int64_t keys, A log_sum,
                                               A delta, A scale) {
        Sum<Lane, A> sum, size;
        Lane{}.each(keys, [&](auto at) INLINED {
            const auto probability = exponential(load(scores, at) - log_sum), dp = load(dps, at);
            sum += probability * (dp - delta) * scale;
            size += probability * (magnitude(dp) + std::fabs(delta)) * scale;
        });
        return {double(sum.total()), double(size.total())};
    }

    template <class Probe>
    static void write(T* to, const A* value, int64_t count, int64_t row, int64_t column, Probe& probe) {
        Lane{}.each(count, [&](auto at) INLINED {
            store(to, at, probe.writes(Output, row, at_column(column, at), load(value, at)));
        });
    }
};

}  // namespace wobble
