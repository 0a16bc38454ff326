// Causal attention on the CPU: the formulas of attention.h over blocks of queries, in the steps of
// attention_tiles.h.
//
// A task takes one head of one sequence (and, forward, a part of its queries when there are few heads). Keys
// and values are packed into panels once; then each block of queries makes its scores, turns them into
// probabilities in a buffer of its own thread, and multiplies on. Keys that no query of a register tile sees
// yet are skipped, causally; where there is a window, so are panels that no query of a block sees any more.
// What is held at a time is [block, T] per thread, never T × T. Backward owns all of a key head's dk and dv,
// and the dq of its query heads, so nothing is shared and the order of every sum is fixed.
#pragma once

#include <omp.h>

#include "kernels/attention_tiles.h"

namespace wobble {

/// Tasks of forward: at least 32 where the shape allows, whatever the number of threads.
template <class T>
int64_t AttentionForward<T>::parts() const {
    const int64_t heads = shape.batch * shape.heads;
    return heads * std::min(ceil_div(32, heads), ceil_div(shape.queries, AttentionBlocks<T>::block));
}

/// The softmax of one query before its division: e^(s - maximum) in place of the scores of the `visible` keys
/// from `first_key` on, and what divides them.
template <class T, class Probe, class A = Accumulator<T>>
HOST std::pair<A, A> softmax_terms(A* scores, Panel<T>* terms, int64_t h, int64_t first_key, int64_t visible,
                                   A cap, Probe& probe) {
    const auto packs = AttentionBlocks<T>::mask(scores, first_key, first_key + visible, cap);
    Largest<Lane, A> largest;
    Lane{}.each(packs.size, [&](auto at) INLINED { largest.take(load(scores + packs.first, at)); });
    const A maximum = largest.total();
    Sum<Lane, A> sum, weighted, at_maximum;
    Largest<Lane, A> least;  // of -s
    [[maybe_unused]] A first = 0;
    if constexpr (Probe::looks) {
        if (first_key == 0) first = exponential(scores[0] - maximum);
        Lane{}.each(visible, [&](auto at) INLINED {
            least.take(splat<decltype(at)::width>(A(0)) - load(scores + first_key, at));
        });
    }
    Lane{}.each(packs.size, [&](auto at) INLINED {
        const auto d = load(scores + packs.first, at) - maximum;
        const auto e = exponential(d);
        if constexpr (Probe::looks) {
            constexpr int N = decltype(at)::width;
            const auto none = splat<N>(A(0));
            // Where e is 0, e · d is: d may be -inf there.
            weighted.add_product(e, where_less(d, splat<N>(A(-1e4)), splat<N>(A(-1e4)), d));
            at_maximum += where_less(d, none, none, splat<N>(A(1)));
        }
        // Never ahead of the scores that are still to be read.
        store(terms + packs.first, at, e);
        sum += e;
    });
    if constexpr (Probe::looks) {
        probe.query(h, {.keys = visible,
                        .max_logit = double(maximum),
                        .abs_logit = double(larger(maximum, least.total())),
                        .sum = double(sum.total()),
                        .weighted = double(weighted.total()),
                        .first = double(first),
                        .at_maximum = int64_t(at_maximum.total())});
    }
    return {maximum, sum.total()};
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
                S* e_row = p + r * blocks.operand_stride;
                const auto [maximum, sum] = softmax_terms<T>(scores + r * blocks.score_stride, e_row, h,
                                                             first_key, visible, cap, probe);
                blocks.clear_unseen(e_row, from, first_key, first_key + visible,
                                    blocks.keys_of_tile(i0, rows, r));
                const auto total = this->with_sink(maximum, sum, h);
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

    const T* qkv;        // [B, T, (H + 2K) D]
    const T* out;        // [B, T, C]
    const T* dout;       // [B, T, C]
    const A* lse;        // [B, H, T]
    T* dqkv;             // [B, T, (H + 2K) D]
    A* delta = nullptr;  // [B, H, T], written and read on CUDA alone
    AttentionShape shape;
    AttentionOptions options = {};
    const T* sinks = nullptr;  // [H], or null
    T* dsinks = nullptr;       // [B, T, H], where there are sinks: each query's share, for `ColumnSum`

    /// On CUDA, the queries' gradients and then the keys', in attention_cuda.h.
    template <class Run>
    void on_cuda(const Context& context, bool watched, Run&& run) const;

    int64_t parts() const { return shape.batch * shape.key_heads(); }
    ObservedMatrix<T> observed() const { return {dqkv, shape.qkv_channels(), shape.batch * shape.sequence}; }

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

    static Work lay_out(Scratch& scratch, const AttentionBlocks<T>& blocks) {
        const int64_t gradients = 2 * blocks.shape.sequence * blocks.D, by_key = blocks.by_key_size(),
                      by_head = blocks.by_head_size(blocks.shape.sequence),
                      block_heads = blocks.by_head_size(blocks.block);
        const int64_t operands =
            2 * by_key + by_head + 2 * block_heads + 2 * blocks.score_size() + blocks.rows_size();
        char* memory = scratch.get<char>(gradients * int64_t(sizeof(A)) + operands * int64_t(sizeof(S)));
        Work w;
        w.dk = reinterpret_cast<A*>(memory);
        w.dv = w.dk + gradients / 2;
        w.keys = reinterpret_cast<S*>(w.dk + gradients);
        w.values = w.keys + by_key;
        w.key_rows = w.values + by_key;
        w.query_rows = w.key_rows + by_head;
        w.grad_rows = w.query_rows + block_heads;
        w.p = w.grad_rows + block_heads;
        w.ds = w.p + blocks.score_size();
        w.packed = w.ds + blocks.score_size();
        return w;
    }

    template <class Probe>
    void group(Scratch& scratch, int64_t b, int64_t key_head, Probe& probe) const {
        const AttentionBlocks<T> blocks(shape);
        const int64_t D = shape.head_size, sequence = shape.sequence, stride = blocks.row_stride;
        const Work w = lay_out(scratch, blocks);
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
                const A shift = dot(Lane{}, grad + r * C, o + r * C, D);  // δ
                const A sink = sinks ? exponential(A(sinks[h]) - log_sum) * -shift : A(0);
                if (sinks) dsinks[(b * sequence + i0 + r) * shape.heads + h] = T(sink);
                const auto packs = blocks.mask(pr, first_key, first_key + visible, cap);
                if constexpr (Probe::looks) {
                    if (probe.full()) {
                        const auto [sum, size] =
                            sum_of_ds(pr + first_key, dr + first_key, visible, log_sum, shift, scale);
                        const double own = double(sink * scale);
                        probe.residual(SumOfDs, (b * shape.heads + h) * sequence + i0 + r, sum + own,
                                       size + std::fabs(own));
                    }
                }
                Lane{}.each(packs.size, [&](auto at) INLINED {
                    const auto s = load(pr + packs.first, at);
                    const auto probability = exponential(s - log_sum);
                    const auto gradient = probability * (load(dr + packs.first, at) - shift) * scale;
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

    /// Σ_j ds_ij from the scores and dp of a row (`shift`: its δ), and Σ_j of the magnitudes that cancel in
    /// it.
    static std::pair<double, double> sum_of_ds(const A* scores, const A* dps, int64_t keys, A log_sum,
                                               A shift, A scale) {
        Sum<Lane, A> sum, size;
        Lane{}.each(keys, [&](auto at) INLINED {
            const auto probability = exponential(load(scores, at) - log_sum), dp = load(dps, at);
            sum += probability * (dp - shift) * scale;
            size += probability * (magnitude(dp) + std::fabs(shift)) * scale;
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
