// Token and position embedding:  y[b, t] = scale · wte[token[b, t]] + wpe[t].
//
// Backward adds each row of dy into the row of its token. To own every sum, a team takes one token of the
// vocabulary and walks the positions that hold it, in order; `TokenIndex` sorts the positions by token first
// (counting sort).
#pragma once

#include <vector>

#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// One position (b, t) per team.
template <class T>
struct EmbeddingForward {
    using Element = T;
    static constexpr const char* name = "embedding_forward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const int32_t* tokens;  // [B·T], each in [0, V)
    const T* wte;           // [V, C]
    const T* wpe;           // [T, C]; null: no position is added
    T* y;                   // [B·T, C]
    int64_t sequence;       // T
    int64_t C;
    Accumulator<T> scale = 1;

    int64_t row_elements() const { return C; }
    ObservedMatrix<T> observed() const { return {y, C}; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const T* token = wte + int64_t(tokens[row]) * C;
        const T* position = wpe ? wpe + row % sequence * C : nullptr;
        team.each(C, [&](auto at) {
            auto value = load(token, at) * scale;
            if (position) value = value + load(position, at);
            store(y + row * C, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, y + row * C, C);
    }
};

/// Positions sorted by token: those of token v are order[starts[v]] … order[starts[v + 1] - 1], ascending.
struct TokenIndex {
    std::vector<int32_t> order;   // [B·T]
    std::vector<int32_t> starts;  // [V + 1]

    void build(const int32_t* tokens, int64_t count, int64_t vocab) {
        starts.assign(size_t(vocab) + 1, 0);
        order.resize(size_t(count));
        for (int64_t i = 0; i < count; ++i) ++starts[size_t(tokens[i]) + 1];
        for (size_t v = 0; v < size_t(vocab); ++v) starts[v + 1] += starts[v];
        std::vector<int32_t> next(starts.begin(), starts.end() - 1);
        for (int64_t i = 0; i < count; ++i) order[size_t(next[size_t(tokens[i])]++)] = int32_t(i);
    }
};

/// One token of the vocabulary per team: dwte[v] += scale · Σ dy at the positions of v. Adds to what is
/// there, since the output head shares the matrix. Tokens that do not occur cost nothing.
template <class T>
struct TokenEmbeddingBackward {
    using Element = T;
    using A = Accumulator<T>;
    using Stored = A;
    static constexpr const char* name = "token_embedding_backward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const int32_t* order;   // [B·T]
    const int32_t* starts;  // [V + 1]
    const T* dy;            // [B·T, C]
    A* dwte;                // [V, C]
    int64_t C;
    A scale = 1;

    int64_t row_elements() const { return C; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t token, Probe& probe) const {
        const int32_t begin = starts[token], end = starts[token + 1];
        if (begin == end) return;
        team.each(C, [&](auto at) {
            auto sum = load(dwte + token * C, at);
            for (int32_t i = begin; i < end; ++i)
                sum = fused(load(dy + int64_t(order[i]) * C, at), scale, sum);
            store(dwte + token * C, at, probe.writes(Output, token, at, sum));
        });
        probe.wrote(Output, token, 0, dwte + token * C, C);
    }
};

/// One position t per team: dwpe[t] = Σ_b dy[b, t], added to what is there if `accumulate`.
template <class T>
struct PositionEmbeddingBackward {
    using Element = T;
    using A = Accumulator<T>;
    using Stored = A;
    static constexpr const char* name = "position_embedding_backward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* dy;                 // [B, T, C]
    A* dwpe;                     // [T, C]
    int64_t batch, sequence, C;  // B, T, C
    bool accumulate;

    int64_t row_elements() const { return batch * C; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t t, Probe& probe) const {
        team.each(C, [&](auto at) {
            auto sum = load(dy + t * C, at);
            for (int64_t b = 1; b < batch; ++b) sum = sum + load(dy + (b * sequence + t) * C, at);
            if (accumulate) sum = sum + load(dwpe + t * C, at);
            store(dwpe + t * C, at, probe.writes(Output, t, at, sum));
        });
        probe.wrote(Output, t, 0, dwpe + t * C, C);
    }
};

}  // namespace wobble
