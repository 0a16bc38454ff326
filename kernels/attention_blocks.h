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

/// The sizes and steps that forward and backward share. Narrower operands are widened on the way into panels.
template <class T>
struct AttentionBlocks {
    using A = Accumulator<T>;
    using Shape = Tile<A>;
    using Sums = typename Shape::Vector[Shape::MR][2];
    static constexpr int64_t MR = Shape::MR, NR = Shape::NR;
    static constexpr int64_t block =
        4 * MR;  // queries; their scores against 1,000 keys fit the second-level cache

    const AttentionShape& shape;
    int64_t D, row_stride, key_panels, head_panels, score_stride;

    explicit AttentionBlocks(const AttentionShape& s)
        : shape(s),
          D(s.head_size),
          row_stride(s.qkv_channels()),
          key_panels(ceil_div(s.sequence, NR)),
          head_panels(ceil_div(s.head_size, NR)),
          // One panel more than needed: twelve rows a power of two apart would share the sets of the cache.
          score_stride((key_panels + 1) * NR) {}

    int64_t by_key_size() const { return key_panels * NR * D; }
    int64_t by_head_size(int64_t depth) const { return head_panels * NR * depth; }

    /// Rows j of x [T, D] as columns: panels of op(B) in X·Kᵀ. Panel p is [D, NR].
    void pack_by_key(const T* x, A* panels) const {
        pack_panels<int(NR)>(MatrixView<T>{x, row_stride, 1}, 0, shape.sequence, 0, D, panels);
    }
    /// x [depth, D] as it lies: panels of op(B) in P·V. Panel p is [depth, NR].
    void pack_by_head(const T* x, int64_t stride, int64_t depth, A* panels) const {
        pack_panels<int(NR)>(MatrixView<T>{x, 1, stride}, 0, D, 0, depth, panels);
    }
    /// scores [rows, from..keys] = scale · x [rows, D] · keysᵀ, for as many whole panels as `keys` needs;
    /// `from` begins one.
    void scores(const T* x, int64_t stride, int64_t rows, int64_t from, int64_t keys, const A* by_key,
                A scale, A* packed_x, A* out) const {
        for (int64_t r = 0; r < rows; r += MR) {
            pack_panels<int(MR)>(MatrixView<T>{x, stride, 1}, r, std::min(MR, rows - r), 0, D, packed_x);
            for (int64_t p = from / NR; p < ceil_div(keys, NR); ++p) {
                Sums sums;
                multiply_panels<A>(D, {packed_x, 1, MR}, by_key + p * NR * D, sums);
                for (int64_t i = 0; i < MR; ++i) {
                    for (int h = 0; h < 2; ++h) {
                        store(out + (r + i) * score_stride + p * NR + h * Shape::width, At<Shape::width>{0},
                              sums[i][h] * scale);
                    }
                }
            }
        }
    }
    /// c · tanh(s / c) in place.
    static void cap_scores(A* s, int64_t n, A cap) {
        Lane{}.each(n, [&](auto at) INLINED { store(s, at, capped(load(s, at), cap)); });
    }
    /// use(row, column, values, count) for each piece of  left [rows, depth] · panels [depth, D].
    template <class F>
    void times_heads(MatrixView<A> left, int64_t rows, int64_t depth, const A* panels, int64_t panel_depth,
                     F&& use) const {
        for (int64_t p = 0; p < head_panels; ++p) {
            for (int64_t r = 0; r < rows; r += MR) {
                Sums sums;
                multiply_panels<A>(depth,
                                   {left.data + r * left.row_stride, left.row_stride, left.column_stride},
                                   panels + p * NR * panel_depth, sums);
                const int64_t columns = std::min(NR, D - p * NR);
                for (int64_t i = 0; i < std::min(MR, rows - r); ++i) {
                    use(r + i, p * NR, reinterpret_cast<const A*>(&sums[i]), columns);
                }
            }
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
        A* keys = context.thread_scratch[size_t(omp_get_thread_num())].template get<A>(
            blocks.by_key_size() + blocks.by_head_size(sequence) + block * D + block * blocks.score_stride);
        A* values = keys + blocks.by_key_size();
        A* packed_q = values + blocks.by_head_size(sequence);
        A* p = packed_q + block * D;
        blocks.pack_by_key(qkv + shape.qkv(b, 0, key_head, 1), keys);
        blocks.pack_by_head(qkv + shape.qkv(b, 0, key_head, 2), blocks.row_stride, sequence, values);

        // Splits take blocks in turn, since late queries have more keys than early ones.
        const int64_t first = sequence - shape.queries;
        for (int64_t i0 = first + split * block; i0 < sequence; i0 += splits * block) {
            const int64_t rows = std::min(block, sequence - i0), keys_seen = i0 + rows;
            const int64_t from = options.first_key(i0) / blocks.NR * blocks.NR;
            blocks.scores(q + i0 * blocks.row_stride, blocks.row_stride, rows, from, keys_seen, keys, scale,
                          packed_q, p);

            A inverse_sum[block];
            for (int64_t r = 0; r < rows; ++r) {
                const int64_t first_key = options.first_key(i0 + r), visible = i0 + r + 1 - first_key;
                A* s = p + r * blocks.score_stride + first_key;
                if (cap > 0) blocks.cap_scores(s, visible, cap);
                Largest<Lane, A> largest;
                Lane{}.each(visible, [&](auto at) INLINED { largest.take(load(s, at)); });
                const A maximum = largest.total();
                Sum<Lane, A> sum, weighted, at_maximum;
                Largest<Lane, A> least;  // of -s
                Lane{}.each(visible, [&](auto at) INLINED {
                    const auto d = load(s, at) - maximum;
                    const auto e = exponential(d);
                    if constexpr (std::decay_t<decltype(probe)>::looks) {
                        constexpr int N = decltype(at)::width;
                        const auto none = splat<N>(A(0));
                        // Where e is 0, e · d is: d may be -inf there.
                        weighted.add_product(e, where_less(d, splat<N>(A(-1e4)), splat<N>(A(-1e4)), d));
                        at_maximum += where_less(d, none, none, splat<N>(A(1)));
                        least.take(none - load(s, at));
                    }
                    store(s, at, e);
                    sum += e;
                });
                if constexpr (std::decay_t<decltype(probe)>::looks) {
                    probe.query(h, {.keys = visible,
                                    .max_logit = double(maximum),
                                    .abs_logit = double(larger(maximum, least.total())),
                                    .sum = double(sum.total()),
                                    .weighted = double(weighted.total()),
                                    .first = first_key == 0 ? double(s[0]) : 0,
                                    .at_maximum = int64_t(at_maximum.total())});
                }
                std::fill(s - first_key + from, s, A(0));
                std::fill(s + visible, s - first_key + keys_seen, A(0));
                const auto total = this->with_sink(maximum, sum.total(), h);
                inverse_sum[r] = total.inverse;
                lse[(b * shape.heads + h) * shape.queries + i0 - first + r] = total.lse;
            }
            blocks.times_heads(
                {p + from, blocks.score_stride, 1}, rows, keys_seen - from, values + from * blocks.NR,
                sequence, [&](int64_t r, int64_t d, const A* value, int64_t count) {
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
        A *keys, *values;           // by key: k for scores, v for dp
        A* key_rows;                // by head: k, for dq
        A *query_rows, *grad_rows;  // by head: the block's q, for dk, and dout, for dv
        A* packed;                  // [block, D]
        A *p, *ds;                  // [block, keys]
        A *dk, *dv;                 // [T, D]
    };

    template <class Probe>
    void group(Scratch& scratch, int64_t b, int64_t key_head, Probe& probe) const {
        const AttentionBlocks<T> blocks(shape);
        constexpr int64_t block = blocks.block;
        const int64_t D = shape.head_size, sequence = shape.sequence;
        const int64_t stride = blocks.row_stride, score_stride = blocks.score_stride;

        const int64_t by_key = blocks.by_key_size(), by_head = blocks.by_head_size(sequence);
        const int64_t block_heads = blocks.by_head_size(block);
        Work w;
        w.keys = scratch.get<A>(2 * by_key + by_head + 2 * block_heads + block * D +
                                2 * block * score_stride + 2 * sequence * D);
        w.values = w.keys + by_key;
        w.key_rows = w.values + by_key;
        w.query_rows = w.key_rows + by_head;
        w.grad_rows = w.query_rows + block_heads;
        w.packed = w.grad_rows + block_heads;
        w.p = w.packed + block * D;
        w.ds = w.p + block * score_stride;
        w.dk = w.ds + block * score_stride;
        w.dv = w.dk + sequence * D;
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
        const int64_t stride = blocks.row_stride, score_stride = blocks.score_stride;
        const A scale = options.factor<A>(D), cap = A(options.softcap);

        for (int64_t i0 = 0; i0 < sequence; i0 += block) {
            const int64_t rows = std::min(block, sequence - i0), seen = i0 + rows;
            const int64_t from = options.first_key(i0) / NR * NR;
            const T* q = qkv + shape.qkv(b, i0, h, 0);
            const T* grad = dout + (b * sequence + i0) * C + h * D;
            const T* o = out + (b * sequence + i0) * C + h * D;
            blocks.scores(q, stride, rows, from, seen, w.keys, scale, w.packed, w.p);
            blocks.scores(grad, C, rows, from, seen, w.values, A(1), w.packed, w.ds);

            for (int64_t r = 0; r < rows; ++r) {
                const int64_t first_key = options.first_key(i0 + r), visible = i0 + r + 1 - first_key;
                A* pr = w.p + r * score_stride + first_key;
                A* dr = w.ds + r * score_stride + first_key;
                const A log_sum = lse[(b * shape.heads + h) * sequence + i0 + r];
                const A delta = dot(Lane{}, grad + r * C, o + r * C, D);
                const A sink = sinks ? exponential(A(sinks[h]) - log_sum) * -delta : A(0);
                if (sinks) dsinks[(b * sequence + i0 + r) * shape.heads + h] = T(sink);
                if (cap > 0) blocks.cap_scores(pr, visible, cap);
                if constexpr (Probe::looks) {
                    if (probe.full()) {
                        const auto [sum, size] = sum_of_ds(pr, dr, visible, log_sum, delta, scale);
                        const double own = double(sink * scale);
                        probe.residual(SumOfDs, (b * shape.heads + h) * sequence + i0 + r, sum + own,
                                       size + std::fabs(own));
                    }
                }
                Lane{}.each(visible, [&](auto at) INLINED {
                    const auto s = load(pr, at);
                    const auto probability = exponential(s - log_sum);
                    store(pr, at, probability);
                    const auto gradient = probability * (load(dr, at) - delta) * scale;
                    store(dr, at, cap > 0 ? gradient * slope_of_capped(s, cap) : gradient);
                });
                for (A* row : {pr, dr}) {
                    std::fill(row - first_key + from, row, A(0));
                    std::fill(row + visible, row - first_key + seen, A(0));
                }
            }

            blocks.times_heads({w.ds + from, score_stride, 1}, rows, seen - from, w.key_rows + from * NR,
                               sequence, [&](int64_t r, int64_t d, const A* value, int64_t count) {
                                   write(dqkv + shape.qkv(b, i0 + r, h, 0) + d, value, count,
                                         b * sequence + i0 + r, h * D + d, probe);
                               });
            probe.wrote(Output, b * sequence + i0, h * D, dqkv + shape.qkv(b, i0, h, 0), D, rows, stride);
            blocks.pack_by_head(q, stride, rows, w.query_rows);
            blocks.pack_by_head(grad, C, rows, w.grad_rows);
            blocks.times_heads({w.p + from, 1, score_stride}, seen - from, rows, w.grad_rows, rows,
                               [&](int64_t j, int64_t d, const A* value, int64_t count) {
                                   add_scaled(Lane{}, w.dv + (from + j) * D + d, value, A(1), count, false);
                               });
            blocks.times_heads({w.ds + from, 1, score_stride}, seen - from, rows, w.query_rows, rows,
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
