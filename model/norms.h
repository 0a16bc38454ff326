// The norms that a model can have, by the words of --norm: one line each in `for_each_norm`. A norm that is a
// rule of two functions (kernels/norm_rule.h) needs nothing but its line.
#pragma once

#include "kernels/dyt.h"
#include "kernels/layernorm.h"
#include "kernels/rmsnorm.h"
#include "model/config.h"

namespace wobble {

/// A norm's input, parameters and what forward leaves for backward. Each kind uses what it needs.
template <class T>
struct NormOperands {
    using A = Accumulator<T>;
    const T* x;                      // [rows, C]
    const T *weight, *bias, *alpha;  // [C], [C], [1], or null
    T* y;                            // [rows, C]
    A *mean, *rstd;                  // [rows]
    int64_t C;
    A epsilon;
    bool zero_centred;
};

/// What its backward is given and leaves. dx = dresidual + the norm's gradient.
template <class T>
struct NormGradients {
    using A = Accumulator<T>;
    const T *dy, *dresidual;                           // [rows, C], the second may be null
    T* dx;                                             // [rows, C]
    A *dweight_chunks, *dbias_chunks, *dalpha_chunks;  // [chunks, C], [chunks, C], [chunks], or null
    int64_t rows;
};

/// The sequences' own gradients.
template <class T>
struct NormSequences {
    const T* dy;                // [B, T, C]
    Accumulator<T>* workspace;  // [B, 2, C]
    double* squares;            // [B]
    int64_t sequence;           // T
};

struct LayerNorm {
    static constexpr const char* word = "layernorm";
    static constexpr const char* what = "(x - mean) / sqrt(variance + epsilon)";
    static constexpr const char* source = "Ba et al. 2016";
    static constexpr bool has_bias = true;
    static constexpr double alpha = 0;

    template <class T>
    static LayerNormForward<T> forward(const NormOperands<T>& o) {
        return {.x = o.x,
                .weight = o.weight,
                .bias = o.bias,
                .y = o.y,
                .mean = o.mean,
                .rstd = o.rstd,
                .C = o.C,
                .epsilon = o.epsilon,
                .zero_centred = o.zero_centred};
    }
    template <class T>
    static LayerNormBackward<T> backward(const NormOperands<T>& o, const NormGradients<T>& g) {
        return {.x = o.x,
                .weight = o.weight,
                .mean = o.mean,
                .rstd = o.rstd,
                .dy = g.dy,
                .dresidual = g.dresidual,
                .dx = g.dx,
                .dweight_chunks = g.dweight_chunks,
                .dbias_chunks = g.dbias_chunks,
                .rows = g.rows,
                .C = o.C,
                .epsilon = o.epsilon,
                .zero_centred = o.zero_centred};
    }
    template <class T>
    static LayerNormExamples<T> examples(const NormOperands<T>& o, const NormSequences<T>& s) {
        return {.x = o.x,
                .mean = o.mean,
                .rstd = o.rstd,
                .dy = s.dy,
                .workspace = s.workspace,
                .squares = s.squares,
                .sequence = s.sequence,
                .C = o.C,
                .has_weight = o.weight != nullptr,
                .has_bias = o.bias != nullptr};
    }
};

struct RMSNorm {
    static constexpr const char* word = "rmsnorm";
    static constexpr const char* what = "x / sqrt(mean of x^2 + epsilon), without a bias";
    static constexpr const char* source = "Zhang & Sennrich 2019";
    static constexpr bool has_bias = false;
    static constexpr double alpha = 0;

    template <class T>
    static RMSNormForward<T> forward(const NormOperands<T>& o) {
        return {.x = o.x,
                .weight = o.weight,
                .y = o.y,
                .rstd = o.rstd,
                .C = o.C,
                .epsilon = o.epsilon,
                .zero_centred = o.zero_centred};
    }
    template <class T>
    static RMSNormBackward<T> backward(const NormOperands<T>& o, const NormGradients<T>& g) {
        return {.x = o.x,
                .weight = o.weight,
                .rstd = o.rstd,
                .dy = g.dy,
                .dresidual = g.dresidual,
                .dx = g.dx,
                .dweight_chunks = g.dweight_chunks,
                .rows = g.rows,
                .C = o.C,
                .epsilon = o.epsilon,
                .zero_centred = o.zero_centred};
    }
    template <class T>
    static RMSNormExamples<T> examples(const NormOperands<T>& o, const NormSequences<T>& s) {
        return {.x = o.x,
                .rstd = o.rstd,
                .dy = s.dy,
                .workspace = s.workspace,
                .squares = s.squares,
                .sequence = s.sequence,
                .C = o.C};
    }
};

template <class Rule>
struct ByRule : Rule {
    template <class T>
    static RuleOperands<T> operands(const NormOperands<T>& o) {
        return {.x = o.x,
                .alpha = o.alpha,
                .weight = o.weight,
                .bias = o.bias,
                .C = o.C,
                .epsilon = o.epsilon,
                .zero_centred = o.zero_centred};
    }
    template <class T>
    static NormForward<T, Rule> forward(const NormOperands<T>& o) {
        return {.in = operands(o), .y = o.y};
    }
    template <class T>
    static NormBackward<T, Rule> backward(const NormOperands<T>& o, const NormGradients<T>& g) {
        return {.in = operands(o),
                .dy = g.dy,
                .dresidual = g.dresidual,
                .dx = g.dx,
                .dweight_chunks = g.dweight_chunks,
                .dbias_chunks = g.dbias_chunks,
                .dalpha_chunks = g.dalpha_chunks,
                .rows = g.rows};
    }
    template <class T>
    static NormExamples<T, Rule> examples(const NormOperands<T>& o, const NormSequences<T>& s) {
        return {.in = operands(o),
                .dy = s.dy,
                .workspace = s.workspace,
                .squares = s.squares,
                .sequence = s.sequence};
    }
};

/// The table.
template <class Visit>
void for_each_norm(Visit&& visit) {
    visit(LayerNorm());
    visit(RMSNorm());
    visit(ByRule<DynamicTanh>());
}

/// f(norm) of the kind's line; nothing for NormKind::None.
template <class F>
void with_norm(NormKind kind, F&& f) {
    int line = int(NormKind::None);
    for_each_norm([&](auto norm) {
        if (++line == int(kind)) f(norm);
    });
}

}  // namespace wobble
