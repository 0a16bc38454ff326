// Causal attention, per head h of D channels:
//
//   s_ij = q_i · k_j / sqrt(D)  for j ≤ i,   p_i = softmax(s_i),   out_i = Σ_j p_ij v_j
//
// Backward recomputes p from the row's log-sum-exp instead of keeping it:
//   δ_i = dout_i · out_i,  ds_ij = p_ij (dout_i · v_j - δ_i) / sqrt(D),
//   dv_j = Σ_i p_ij dout_i,  dq_i = Σ_j ds_ij k_j,  dk_j = Σ_i ds_ij q_i.
//
// Queries, keys and values lie side by side in qkv [B, T, 3C], each as [H, D]. Each of the three kernels here
// is one row per team and right for every head size and team. The CPU has a second text over blocks in
// attention_blocks.h, which the matrix product's register tiles make many times faster.
#pragma once

#include "kernels/context.h"
#include "kernels/probe.h"
#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// Where the operands of attention lie.
struct AttentionShape {
    int64_t batch, sequence, heads, head_size;  // B, T, H, D
    /// The last `queries` positions of each sequence are queries: T in training, 1 when a token is added to a
    /// cache.
    int64_t queries;

    HD int64_t channels() const { return heads * head_size; }
    HD int64_t rows() const { return batch * queries * heads; }
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
    /// Offset in qkv of head h at (b, t); part 0, 1, 2 is query, key, value.
    HD int64_t qkv(int64_t b, int64_t t, int64_t h, int part) const {
        return ((b * sequence + t) * 3 + part) * channels() + h * head_size;
    }
};

/// x · y over the n elements of a row.
template <class Team, class T>
HD Accumulator<T> dot(Team team, const T* x, const T* y, int64_t n) {
    Sum<Team, Accumulator<T>> sum;
    team.each(n, [&](auto at) { sum.add_product(load(x, at), load(y, at)); });
    return team.sum(sum);
}

/// out = out + factor · x over the n elements of a row, or just factor · x at first.
template <class Team, class T>
HD void add_scaled(Team team, T* out, const T* x, Accumulator<T> factor, int64_t n, bool first) {
    team.each(n, [&](auto at) {
        const auto term = load(x, at) * factor;
        store(out, at, first ? term : load(out, at) + term);
    });
}

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
    HD QueryStatistics statistics(A maximum, A sum) const {
        return {.keys = keys,
                .max_logit = double(maximum),
                .abs_logit = double(larger(maximum, -least)),
                .sum = double(sum),
                .weighted = double(weighted),
                .first = double(first),
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
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* qkv;  // [B, T, 3C]
    T* out;        // [B, queries, C]
    A* lse;        // [B, H, queries]: log Σ_j e^(s_ij), kept for backward
    AttentionShape shape;

    int64_t row_elements() const { return shape.sequence * shape.head_size; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t index, Probe& probe) const {
        const auto row = shape.row(index);
        const int64_t D = shape.head_size;
        const A scale = A(1) / std::sqrt(A(D));
        const T* q = qkv + shape.qkv(row.b, row.t, row.h, 0);
        T* o = out + row.out;

        // Online softmax (Milakov & Gimelshein 2018): what was summed under an older maximum is scaled down.
        A maximum = -INFINITY, sum = 0;
        OnlineQuery<A> query;
        for (int64_t j = 0; j <= row.t; ++j) {
            const A s = dot(team, q, qkv + shape.qkv(row.b, j, row.h, 1), D) * scale;
            if constexpr (Probe::looks) query.take(s, maximum, sum);
            const A new_maximum = larger(maximum, s);
            const A shrink = exponential(maximum - new_maximum), p = exponential(s - new_maximum);
            maximum = new_maximum;
            sum = j == 0 ? p : sum * shrink + p;
            const T* v = qkv + shape.qkv(row.b, j, row.h, 2);
            team.each(D, [&](auto at) {
                const auto term = load(v, at) * p;
                store(o, at, j == 0 ? term : load(o, at) * shrink + term);
            });
        }
        const int64_t out_row = row.out / shape.channels(), column = row.h * D;
        team.each(D, [&](auto at) {
            const auto value = load(o, at) * (A(1) / sum);
            store(o, at, probe.writes(Output, out_row, at_column(column, at), value));
        });
        probe.wrote(Output, out_row, column, o, D);
        if (team.leads()) {
            lse[row.statistic] = maximum + std::log(sum);
            if constexpr (Probe::looks) probe.query(row.h, query.statistics(maximum, sum));
        }
    }

    int64_t observed_rows() const { return shape.batch * shape.queries; }
    int64_t observed_columns() const { return shape.channels(); }

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
    static constexpr const char* name = "attention_backward_query";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    enum Identity { SumOfDs };
    static constexpr const char* identities[1] = {"sum dS"};  // Σ_j ds_ij = 0; rows are [B, H, T]

    const T* qkv;   // [B, T, 3C]
    const T* out;   // [B, T, C]
    const T* dout;  // [B, T, C]
    const A* lse;   // [B, H, T]
    A* delta;       // [B, H, T]
    T* dqkv;        // [B, T, 3C]; the queries' third is written
    AttentionShape shape;

    int64_t row_elements() const { return shape.sequence * shape.head_size; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t index, Probe& probe) const {
        const auto row = shape.row(index);
        const int64_t D = shape.head_size;
        const A scale = A(1) / std::sqrt(A(D));
        const T* q = qkv + shape.qkv(row.b, row.t, row.h, 0);
        T* dq = dqkv + shape.qkv(row.b, row.t, row.h, 0);
        const A d = dot(team, dout + row.out, out + row.out, D);
        [[maybe_unused]] double residual = 0, size = 0;
        for (int64_t j = 0; j <= row.t; ++j) {
            const T* k = qkv + shape.qkv(row.b, j, row.h, 1);
            const A p = exponential(dot(team, q, k, D) * scale - lse[row.statistic]);
            const A dp = dot(team, dout + row.out, qkv + shape.qkv(row.b, j, row.h, 2), D);
            add_scaled(team, dq, k, p * (dp - d) * scale, D, j == 0);
            if constexpr (Probe::looks) {
                residual += double(p * (dp - d) * scale);
                size += double(p * (std::fabs(dp) + std::fabs(d)) * scale);
            }
        }
        if constexpr (Probe::looks) {
            team.each(D, [&](auto at) { store(dq, at, probe.writes(Output, index, at, load(dq, at))); });
            probe.wrote(Output, index, 0, dq, D);
            if (probe.full() && team.leads()) probe.residual(SumOfDs, row.statistic, residual, size);
        }
        if (team.leads()) delta[row.statistic] = d;
    }
};

/// One key of one head per team: dk and dv, from every query at or after it.
template <class T>
struct AttentionBackwardKey {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "attention_backward_key";
    enum Channel { Key, Value };
    static constexpr const char* channels[] = {"key", "value"};

    const T* qkv;    // [B, T, 3C]
    const T* dout;   // [B, T, C]
    const A* lse;    // [B, H, T]
    const A* delta;  // [B, H, T]
    T* dqkv;         // [B, T, 3C]; the thirds of keys and values are written
    AttentionShape shape;

    int64_t row_elements() const { return shape.sequence * shape.head_size; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t index, Probe& probe) const {
        const auto row = shape.row(index);
        const int64_t D = shape.head_size;
        const A scale = A(1) / std::sqrt(A(D));
        const T* k = qkv + shape.qkv(row.b, row.t, row.h, 1);
        const T* v = qkv + shape.qkv(row.b, row.t, row.h, 2);
        T* dk = dqkv + shape.qkv(row.b, row.t, row.h, 1);
        T* dv = dqkv + shape.qkv(row.b, row.t, row.h, 2);
        for (int64_t i = row.t; i < shape.sequence; ++i) {
            const T* q = qkv + shape.qkv(row.b, i, row.h, 0);
            const T* grad = dout + (row.b * shape.sequence + i) * shape.channels() + row.h * D;
            const int64_t statistic = (row.b * shape.heads + row.h) * shape.sequence + i;
            const A p = exponential(dot(team, q, k, D) * scale - lse[statistic]);
            const A ds = p * (dot(team, grad, v, D) - delta[statistic]) * scale;
            add_scaled(team, dk, q, ds, D, i == row.t);
            add_scaled(team, dv, grad, p, D, i == row.t);
        }
        if constexpr (Probe::looks) {
            team.each(D, [&](auto at) {
                store(dk, at, probe.writes(Key, index, at, load(dk, at)));
                store(dv, at, probe.writes(Value, index, at, load(dv, at)));
            });
            probe.wrote(Key, index, 0, dk, D);
            probe.wrote(Value, index, 0, dv, D);
        }
    }
};

}  // namespace wobble
