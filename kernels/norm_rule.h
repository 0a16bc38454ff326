// Norms by a rule. What becomes of a row of C channels is said by two functions,
//
//   forward:   x̂ from x,
//   backward:  dx from x and g = dL/dx̂,
//
// and the rest is here:  y = x̂ · gain + bias,  g = dy · gain,  dweight = Σ_rows dy · x̂,  dbias = Σ_rows dy,
// the residual stream's gradient, and each sequence's gradient norm. The gain is weight, 1 + weight or 1
// (gain.h).
//
// A rule is a struct like `DynamicTanh` in dyt.h:
//
//   static constexpr const char *word, *what, *source;  // for the command line
//   static constexpr bool has_bias;
//   static constexpr double alpha;                      // where its learned number starts; 0: it has none
//   static void forward(team, x, row, out);             // calls out(at, x̂) for all channels
//   static void backward(team, x, row, g, out, dalpha); // calls out(at, dx); g(at) gives g
//
// Layer norm and RMS norm keep what they know of a row for backward, and have files of their own.
#pragma once

#include "kernels/gain.h"
#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// What a rule knows besides the row itself.
template <class A>
struct NormRow {
    int64_t C;
    A epsilon;
    A alpha;  // the learned number
};

/// What `NormForward`, `NormBackward` and `NormExamples` are given alike.
template <class T>
struct RuleOperands {
    const T* x;       // [rows, C], the input of forward
    const T* alpha;   // [1], or null where the rule has none
    const T* weight;  // [C], or null: a gain of 1
    const T* bias;    // [C], or null
    int64_t C;
    Accumulator<T> epsilon;
    bool zero_centred = false;  // the gain is 1 + weight

    HD NormRow<Accumulator<T>> row() const {
        return {C, epsilon, alpha ? Accumulator<T>(alpha[0]) : Accumulator<T>(0)};
    }
};

/// A row's share of dweight and dbias, each null where it is not wanted, added to those of the rows before
/// it.
template <class Rule, class Team, class T, class A = Accumulator<T>>
HD void add_parameter_gradients(Team team, const RuleOperands<T>& o, const T* x, const T* grad, A* dw, A* db,
                                bool first) {
    if (dw) {
        Rule::forward(team, x, o.row(), [&](auto at, auto normalised) INLINED {
            const auto d = load(grad, at);
            store(dw, at, first ? d * normalised : fused(d, normalised, load(dw, at)));
        });
    }
    if (db) {
        team.each(o.C, [&](auto at) INLINED {
            const auto d = load(grad, at);
            store(db, at, first ? d : load(db, at) + d);
        });
    }
}

/// One row of C channels per team.
template <class T, class Rule>
struct NormForward {
    using Element = T;
    static constexpr const char* name = "norm_forward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    RuleOperands<T> in;
    T* y;  // [rows, C]

    int64_t row_elements() const { return in.C; }
    ObservedMatrix<T> observed() const { return {y, in.C}; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const RuleOperands<T> o = in;
        T* out = y + row * o.C;
        Rule::forward(team, o.x + row * o.C, o.row(), [&](auto at, auto normalised) INLINED {
            auto value = normalised * gain_at<false>(o.weight, o.zero_centred, at);
            if (o.bias) value = value + load(o.bias, at);
            store(out, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, out, o.C);
    }
};

/// One chunk of rows per team: dx for each of its rows, and the chunk's share of the parameters' gradients,
/// which `SumChunks` adds up in order. dx = dresidual + the norm's own gradient; the two may be the same
/// memory.
template <class T, class Rule>
struct NormBackward {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "norm_backward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    RuleOperands<T> in;
    const T* dy;         // [rows, C]
    const T* dresidual;  // [rows, C], or null
    T* dx;               // [rows, C]
    A* dweight_chunks;   // [chunks, C], or null where there is no such parameter
    A* dbias_chunks;     // [chunks, C], or null
    A* dalpha_chunks;    // [chunks], or null
    int64_t rows;

    int64_t row_elements() const { return ceil_div(rows, chunk_count(rows)) * in.C; }
    ObservedMatrix<T> observed() const { return {dx, in.C, rows}; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t chunk, Probe& probe) const {
        const RuleOperands<T> o = in;
        const int64_t C = o.C;
        const Range range = chunk_rows(chunk, rows);
        A* const dw = dweight_chunks ? dweight_chunks + chunk * C : nullptr;
        A* const db = dbias_chunks ? dbias_chunks + chunk * C : nullptr;
        Sum<Team, A> dalpha;
        for (int64_t row = range.begin; row < range.end; ++row) {
            const T* x = o.x + row * C;
            const T* grad = dy + row * C;
            const bool first = row == range.begin;
            add_parameter_gradients<Rule>(team, o, x, grad, dw, db, first);
            Rule::backward(
                team, x, o.row(),
                [&](auto at)
                    INLINED { return load(grad, at) * gain_at<false>(o.weight, o.zero_centred, at); },
                [&](auto at, auto value) INLINED {
                    if (dresidual) value = value + load(dresidual + row * C, at);
                    store(dx + row * C, at, probe.writes(Output, row, at, value));
                },
                dalpha);
            probe.wrote(Output, row, 0, dx + row * C, C);
        }
        if (dalpha_chunks) {
            const A total = team.sum(dalpha);
            if (team.leads()) dalpha_chunks[chunk] = total;
        }
    }
};

/// One sequence per team: the squared norm of its own share of the parameters' gradients together, added to
/// what is there; see `LayerNormExamples`.
template <class T, class Rule>
struct NormExamples {
    using Element = T;
    using A = Accumulator<T>;
    using Observed = double;
    static constexpr const char* name = "norm_examples";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    RuleOperands<T> in;  // of [B, T, C]; a null weight or bias has no share
    const T* dy;         // [B, T, C]
    A* workspace;        // [B, 2, C]
    double* squares;     // [B]
    int64_t sequence;

    int64_t row_elements() const { return sequence * in.C; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t b, Probe& probe) const {
        const RuleOperands<T> o = in;
        const int64_t C = o.C;
        A* const dw = workspace + 2 * b * C;
        A* const db = dw + C;
        Sum<Team, A> dalpha;
        for (int64_t row = b * sequence; row < (b + 1) * sequence; ++row) {
            const T* x = o.x + row * C;
            const T* grad = dy + row * C;
            const bool first = row == b * sequence;
            add_parameter_gradients<Rule>(team, o, x, grad, o.weight ? dw : nullptr, o.bias ? db : nullptr,
                                          first);
            if (o.alpha) {
                Rule::backward(
                    team, x, o.row(),
                    [&](auto at)
                        INLINED { return load(grad, at) * gain_at<false>(o.weight, o.zero_centred, at); },
                    [](auto, auto) {}, dalpha);
            }
        }
        Sum<Team, double> sum;
        const auto add = [&](auto value) INLINED { sum.add_product(value, value); };
        team.each(C, [&](auto at) INLINED {
            if (o.weight) add(convert<double>(load(dw, at)));
            if (o.bias) add(convert<double>(load(db, at)));
        });
        const double own_alpha = double(team.sum(dalpha));
        const double total = team.sum(sum) + own_alpha * own_alpha;
        if (team.leads()) squares[b] += probe.observe(Output, b, At<1>{0}, splat<1>(total))[0];
    }
};

}  // namespace wobble
