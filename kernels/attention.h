// Causal attention, per head h of D channels:
//
//   s_ij = q_i · k_j / sqrt(D)  for j ≤ i,   p_i = softmax(s_i),   out_i = Σ_j p_ij v_j
//
// Backward recomputes p from the row's log-sum-exp instead of keeping it:
//   δ_i = dout_i · out_i,  ds_ij = p_ij (dout_i · v_j - δ_i) / sqrt(D),
//   dv_j = Σ_i p_ij dout_i,  dq_i = Σ_j ds_ij k_j,  dk_j = Σ_i ds_ij q_i.
//
// Options: another scale; a cap on the logits, s' = c tanh(s / c) (Gemma 2, 2024), whose slope
// 1 - (s' / c)² is a factor of ds; a window, j > i - w; and a learned logit per head that takes part in the
// softmax without a value of its own (gpt-oss, 2025), so that Σ_j p_ij < 1 and δ_i stays what it is.
//
// Queries, keys and values lie side by side in a row of qkv: H query heads of D channels, then K key heads
// and K value heads. With K < H, H / K query heads share a key head (grouped-query attention, Ainslie et al.
// 2023). Each of the three kernels here is one row per team and right for every head size and team. Both
// devices have a second text that register tiles make many times faster: attention_blocks.h on the CPU,
// flash.h on CUDA.
#pragma once

#include "kernels/context.h"
#include "kernels/probe.h"
#include "kernels/rows.h"
#include "kernels/softcap.h"
#include "kernels/team.h"

namespace wobble {

/// Where the operands of attention lie.
struct AttentionShape {
    int64_t batch, sequence, heads, head_size;  // B, T, H, D
    /// The last `queries` positions of each sequence are queries: T in training, 1 when a token is added to a
    /// cache.
    int64_t queries;
    int64_t kv_heads = 0;  // K, which divides H; 0: as many as heads

    HD int64_t key_heads() const { return kv_heads ? kv_heads : heads; }
    HD int64_t group() const { return heads / key_heads(); }
    /// The head whose keys and values query head h attends to.
    HD int64_t key_head(int64_t h) const { return h / group(); }

    HD int64_t channels() const { return heads * head_size; }
    HD int64_t qkv_channels() const { return (heads + 2 * key_heads()) * head_size; }
    HD int64_t rows() const { return batch * queries * heads; }
    HD int64_t key_rows() const { return batch * sequence * key_heads(); }
    /// Multiply-adds of the scores, the unseen half counted too.
    HD int64_t products() const { return rows() * sequence * head_size; }

    struct Row {
        int64_t b, t, h;    // sequence, position, head
        int64_t out;        // offset of the head's row in out [B, queries, C]
        int64_t statistic;  // offset in lse and delta [B, H, queries]
    };
    HD Row row(int64_t index) const {
        const int64_t h = index % heads, i = index / heads % queries, b = index / heads / queries;
        return {b, sequence - queries + i, h, (b * queries + i) * channels() + h * head_size,
                (b * heads + h) * queries + i};
    }
    /// Of key heads: sequence, position and head of one of `key_rows()`.
    struct KeyRow {
        int64_t b, t, h;
    };
    HD KeyRow key_row(int64_t index) const {
        return {index / key_heads() / sequence, index / key_heads() % sequence, index % key_heads()};
    }
    /// Column in a row of qkv of head h of a part: 0 query, 1 key, 2 value, the latter two of key heads.
    HD int64_t column(int64_t h, int part) const {
        return ((part > 0 ? heads + (part - 1) * key_heads() : 0) + h) * head_size;
    }
    /// The row of qkv of a `Row` or a `KeyRow`.
    template <class R>
    HD int64_t qkv_row(const R& row) const {
        return row.b * sequence + row.t;
    }
    /// Offset in qkv of head h of a part at (b, t).
    HD int64_t qkv(int64_t b, int64_t t, int64_t h, int part) const {
        return (b * sequence + t) * qkv_channels() + column(h, part);
    }
};

/// What changes the logits. All of it is off by default.
struct AttentionOptions {
    double scale = 0;    // factor on q · k; 0: 1 / sqrt(D)
    double softcap = 0;  // c, 0: none
    int64_t window = 0;  // w: the keys that a query sees, itself counted; 0: all before it

    template <class A>
    HD A factor(int64_t head_size) const {
        return scale != 0 ? A(scale) : A(1) / std::sqrt(A(head_size));
    }
    /// The first key that the query at position t sees.
    HD int64_t first_key(int64_t t) const { return window > 0 && t >= window ? t - window + 1 : 0; }
    /// One past the last query of a sequence that sees the key at position t.
    HD int64_t end_of_queries(int64_t t, int64_t sequence) const {
        return window > 0 && sequence - t > window ? t + window : sequence;
    }
};

/// What a probe wants to know of a query, key after key, as the maximum grows.
template <class A>
struct OnlineQuery {
    A weighted = 0, first = 0, least = INFINITY;
    int64_t keys = 0, at_maximum = 0;

    /// The next logit, beside the maximum and the sum of exponentials before it.
    HD void take(A s, A maximum, A sum) {
        const A rise = s - maximum;
        if (keys == 0 || rise > 0) {
            // Σ e^(s - m) (s - m) under a maximum that is `rise` higher.
            const A shrink = keys == 0 ? A(0) : exponential(-rise);
            weighted = keys == 0 ? A(0) : shrink * (weighted - rise * sum);
            first = keys == 0 ? A(1) : first * shrink;
            at_maximum = 1;
        } else {
            const A e = exponential(rise);
            weighted += e > 0 ? e * rise : e;
            at_maximum += rise == 0;
        }
        if (s < least) least = s;
        ++keys;
    }
    /// `sees_first`: whether the sequence's first key is among them.
    HD QueryStatistics statistics(A maximum, A sum, bool sees_first) const {
        return {.keys = keys,
                .max_logit = double(maximum),
                .abs_logit = double(larger(maximum, -least)),
                .sum = double(sum),
                .weighted = double(weighted),
                .first = sees_first ? double(first) : 0,
                .at_maximum = at_maximum};
    }
};

/// One query of one head per team.
template <class T>
struct AttentionForward {
    using ObservesHeads = void;  // each query's logits, head by head
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "attention_forward";
    static constexpr bool suits_warps = true;  // the D channels of a head
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* qkv;  // [B, T, (H + 2K) D]
    T* out;        // [B, queries, C]
    A* lse;        // [B, H, queries]: log Σ_j e^(s_ij), kept for backward
    AttentionShape shape;
    AttentionOptions options = {};
    const T* sinks = nullptr;  // [H], or null

    int64_t row_elements() const { return shape.sequence * shape.head_size; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t index, Probe& probe) const {
        const auto row = shape.row(index);
        const int64_t D = shape.head_size;
        const A scale = options.factor<A>(D), cap = A(options.softcap);
        const int64_t key_head = shape.key_head(row.h), first = options.first_key(row.t);
        const T* q = qkv + shape.qkv(row.b, row.t, row.h, 0);

        // Online softmax (Milakov & Gimelshein 2018): what was summed under an older maximum is scaled down.
        // Heads that are longer than a strip go over the keys once for each.
        A maximum = -INFINITY, sum = 0;
        OnlineQuery<A> query;
        const int64_t out_row = row.out / shape.channels(), column = row.h * D;
        using Strip = Held<Team, A>;
        Strip held;
        for (int64_t from = 0; from < D; from += Strip::size) {
            const int64_t length = Strip::size < D - from ? Strip::size : D - from;
            maximum = -INFINITY, sum = 0;
            for (int64_t j = first; j <= row.t; ++j) {
                const A s = capped(dot(team, q, qkv + shape.qkv(row.b, j, key_head, 1), D) * scale, cap);
                if constexpr (Probe::looks) {
                    if (from == 0) query.take(s, maximum, sum);
                }
                const A new_maximum = larger(maximum, s);
                const A shrink = exponential(maximum - new_maximum), p = exponential(s - new_maximum);
                maximum = new_maximum;
                sum = j == first ? p : sum * shrink + p;
                const T* v = qkv + shape.qkv(row.b, j, key_head, 2) + from;
                held.each(team, length, D, [&](auto at, auto& o) INLINED {
                    const auto term = load(v, at) * p;
                    o = j == first ? term : o * shrink + term;
                });
            }
            const A inverse = with_sink(maximum, sum, row.h).inverse;
            held.each(team, length, D, [&](auto at, auto& o) INLINED {
                const auto value = o * inverse;
                store(out + row.out + from, at,
                      probe.writes(Output, out_row, at_column(column + from, at), value));
            });
        }
        probe.wrote(Output, out_row, column, out + row.out, D);
        const auto total = with_sink(maximum, sum, row.h);
        if (team.leads()) {
            lse[row.statistic] = total.lse;
            if constexpr (Probe::looks) probe.query(row.h, query.statistics(maximum, sum, first == 0));
        }
    }

    /// What turns Σ_j e^(s_j - maximum) v_j into the output, and the logarithm of the sum.
    struct Total {
        A inverse, lse;
    };
    HD Total with_sink(A maximum, A sum, int64_t h) const {
        if (!sinks) return {A(1) / sum, maximum + std::log(sum)};
        const A sink = A(sinks[h]), top = larger(maximum, sink), shrink = exponential(maximum - top);
        const A total = sum * shrink + exponential(sink - top);
        return {shrink / total, top + std::log(total)};
    }

    ObservedMatrix<T> observed() const { return {out, shape.channels(), shape.batch * shape.queries}; }
    int64_t observed_heads() const { return shape.heads; }

    // CUDA's choice of a text, in attention_cuda.h.
    template <class Run>
    void on_cuda(const Context& context, bool watched, Run&& run) const;
    // The CPU's own text, in attention_blocks.h.
    int64_t parts() const;
    template <class Watch>
    void operator()(Context& context, Watch& watch) const;
};

/// One query of one head per team: dq, and δ for the keys' kernel.
template <class T>
struct AttentionBackwardQuery {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "attention_backward";
    static constexpr bool suits_warps = true;  // the D channels of a head
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    enum Identity { SumOfDs };
    /// Σ_j ds_ij = 0, a sink's own share counted and the slopes of a cap not; rows are [B, H, T].
    static constexpr const char* identities[1] = {"sum dS"};

    const T* qkv;   // [B, T, (H + 2K) D]
    const T* out;   // [B, T, C]
    const T* dout;  // [B, T, C]
    const A* lse;   // [B, H, T]
    A* delta;       // [B, H, T]
    T* dqkv;        // [B, T, (H + 2K) D]; the queries' part is written
    AttentionShape shape;
    AttentionOptions options = {};
    const T* sinks = nullptr;  // [H], or null
    T* dsinks = nullptr;       // [B, T, H], where there are sinks: each query's share, for `ColumnSum`

    int64_t row_elements() const { return shape.sequence * shape.head_size; }
    ObservedMatrix<T> observed() const {
        return {dqkv, shape.qkv_channels(), shape.batch * shape.sequence, 0, shape.channels()};
    }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t index, Probe& probe) const {
        const auto row = shape.row(index);
        const int64_t D = shape.head_size;
        const A scale = options.factor<A>(D), cap = A(options.softcap);
        const int64_t key_head = shape.key_head(row.h), first = options.first_key(row.t);
        const T* q = qkv + shape.qkv(row.b, row.t, row.h, 0);
        T* dq = dqkv + shape.qkv(row.b, row.t, row.h, 0);
        const A d = dot(team, dout + row.out, out + row.out, D);
        [[maybe_unused]] double residual = 0, size = 0;
        using Strip = Held<Team, A>;
        Strip held;
        for (int64_t from = 0; from < D; from += Strip::size) {
            const int64_t length = Strip::size < D - from ? Strip::size : D - from;
            for (int64_t j = first; j <= row.t; ++j) {
                const T* k = qkv + shape.qkv(row.b, j, key_head, 1);
                const A s = capped(dot(team, q, k, D) * scale, cap);
                const A p = exponential(s - lse[row.statistic]);
                const A dp = dot(team, dout + row.out, qkv + shape.qkv(row.b, j, key_head, 2), D);
                A ds = p * (dp - d) * scale;
                if (cap > 0) ds *= slope_of_capped(s, cap);
                held.each(team, length, D, [&](auto at, auto& sum) INLINED {
                    const auto term = load(k + from, at) * ds;
                    sum = j == first ? term : sum + term;
                });
                if constexpr (Probe::looks) {
                    if (from > 0) continue;
                    residual += double(p * (dp - d) * scale);
                    size += double(p * (std::fabs(dp) + std::fabs(d)) * scale);
                }
            }
            held.each(team, length, D, [&](auto at, auto& sum) INLINED {
                store(dq + from, at,
                      probe.writes(Output, shape.qkv_row(row), at_column(shape.column(row.h, 0) + from, at),
                                   sum));
            });
        }
        probe.wrote(Output, shape.qkv_row(row), shape.column(row.h, 0), dq, D);
        if (sinks) {
            const A ds = exponential(A(sinks[row.h]) - lse[row.statistic]) * -d;
            if (team.leads()) dsinks[row.out / D] = T(ds);
            if constexpr (Probe::looks) {
                residual += double(ds * scale);
                size += std::fabs(double(ds * scale));
            }
        }
        if constexpr (Probe::looks) {
            if (probe.full() && team.leads()) probe.residual(SumOfDs, row.statistic, residual, size);
        }
        if (team.leads()) delta[row.statistic] = d;
    }
};

/// One key of one key head per team, `key_rows()` in all: dk and dv, from every query that sees it, head
/// after head.
template <class T>
struct AttentionBackwardKey {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "attention_backward";
    static constexpr bool suits_warps = true;  // the D channels of a head
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* qkv;    // [B, T, (H + 2K) D]
    const T* dout;   // [B, T, C]
    const A* lse;    // [B, H, T]
    const A* delta;  // [B, H, T]
    T* dqkv;         // [B, T, (H + 2K) D]; the parts of keys and values are written
    AttentionShape shape;
    AttentionOptions options = {};

    int64_t row_elements() const { return shape.group() * shape.sequence * shape.head_size; }
    ObservedMatrix<T> observed() const {
        return {dqkv, shape.qkv_channels(), shape.batch * shape.sequence, shape.channels(),
                shape.qkv_channels() - shape.channels()};
    }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t index, Probe& probe) const {
        const auto row = shape.key_row(index);
        const int64_t D = shape.head_size, group = shape.group(), first_head = row.h * group;
        const int64_t end = options.end_of_queries(row.t, shape.sequence);
        const A scale = options.factor<A>(D), cap = A(options.softcap);
        const T* k = qkv + shape.qkv(row.b, row.t, row.h, 1);
        const T* v = qkv + shape.qkv(row.b, row.t, row.h, 2);
        T* dk = dqkv + shape.qkv(row.b, row.t, row.h, 1);
        T* dv = dqkv + shape.qkv(row.b, row.t, row.h, 2);
        using Strip = Held<Team, A>;
        Strip held_k, held_v;
        for (int64_t from = 0; from < D; from += Strip::size) {
            const int64_t length = Strip::size < D - from ? Strip::size : D - from;
            for (int64_t h = first_head; h < first_head + group; ++h) {
                for (int64_t i = row.t; i < end; ++i) {
                    const T* q = qkv + shape.qkv(row.b, i, h, 0);
                    const T* grad = dout + (row.b * shape.sequence + i) * shape.channels() + h * D;
                    const int64_t statistic = (row.b * shape.heads + h) * shape.sequence + i;
                    const bool first = h == first_head && i == row.t;
                    const A s = capped(dot(team, q, k, D) * scale, cap);
                    const A p = exponential(s - lse[statistic]);
                    A ds = p * (dot(team, grad, v, D) - delta[statistic]) * scale;
                    if (cap > 0) ds *= slope_of_capped(s, cap);
                    const auto add = [&](Strip& held, const T* x, A factor) INLINED {
                        held.each(team, length, D, [&](auto at, auto& sum) INLINED {
                            const auto term = load(x + from, at) * factor;
                            sum = first ? term : sum + term;
                        });
                    };
                    add(held_k, q, ds);
                    add(held_v, grad, p);
                }
            }
            held_k.each(team, length, D, [&](auto at, auto& sum) INLINED {
                store(dk + from, at,
                      probe.writes(Output, shape.qkv_row(row), at_column(shape.column(row.h, 1) + from, at),
                                   sum));
            });
            held_v.each(team, length, D, [&](auto at, auto& sum) INLINED {
                store(dv + from, at,
                      probe.writes(Output, shape.qkv_row(row), at_column(shape.column(row.h, 2) + from, at),
                                   sum));
            });
        }
        probe.wrote(Output, shape.qkv_row(row), shape.column(row.h, 1), dk, D);
        probe.wrote(Output, shape.qkv_row(row), shape.column(row.h, 2), dv, D);
    }
};

}  // namespace wobble
