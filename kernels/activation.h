// Activations. GELU in its tanh form (Hendrycks & Gimpel 2016, the form of GPT-2):
//
//   gelu(x) = x/2 · (1 + tanh u),  u = sqrt(2/π) · (x + 0.044715 x³)
//
// computed as x · σ(2u), which is the same and loses nothing to cancellation where tanh u is near -1. Beyond
// |x| = 10, σ(2u) is 0 or 1 to within 1e-38, so the argument is held there: cubes never overflow, and x =
// ±inf has its limit value.
#pragma once

#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

struct Gelu {
    template <class P>
    struct Parts {
        P x, sigmoid, complement;  // x held within ±10, σ(2u), 1 - σ(2u)
    };

    template <class A, int N>
    static HD Parts<Pack<A, N>> parts(Pack<A, N> x) {
        const auto held = hold(x, A(-10), A(10));
        const auto u = fused(held * held * held, A(0.044715), held) * A(0.79788456080286536);  // sqrt(2/π)
        const auto e = exponential(u * A(-2));
        const auto sigmoid = A(1) / (e + A(1));
        return {held, sigmoid, e * sigmoid};
    }
    template <class A, int N>
    static HD Pack<A, N> value(Pack<A, N> x) {
        return where_less(x, splat<N>(A(-10)), splat<N>(A(0)), x * parts(x).sigmoid);
    }
    template <class A, int N>
    static HD Pack<A, N> gradient(Pack<A, N> x) {
        const auto p = parts(x);
        const auto du = fused(p.x * p.x, splat<N>(A(3 * 0.044715)), A(1)) * A(0.79788456080286536);
        return fused(p.x * p.sigmoid * p.complement, du * A(2), p.sigmoid);
    }
};

/// y = activation(x) over a flat array, `flat_row` elements per team.
template <class T, class Activation = Gelu>
struct ActivationForward {
    using Element = T;
    static constexpr const char* name = "activation_forward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* x;  // [n]
    T* y;        // [n]
    int64_t n;

    int64_t row_elements() const { return flat_row; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t first = row * flat_row;
        const int64_t length = flat_row_length(row, n);
        team.each(length, [&](auto at) {
            const auto value = Activation::value(load(x + first, at));
            store(y + first, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, y + first, length);
    }
};

/// dx = activation'(x) · dy; dx and dy may be the same memory.
template <class T, class Activation = Gelu>
struct ActivationBackward {
    using Element = T;
    static constexpr const char* name = "activation_backward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* x;   // [n], the input of forward
    const T* dy;  // [n]
    T* dx;        // [n]
    int64_t n;

    int64_t row_elements() const { return flat_row; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t first = row * flat_row;
        const int64_t length = flat_row_length(row, n);
        team.each(length, [&](auto at) {
            const auto slope = Activation::gradient(load(x + first, at));
            const auto value = slope * load(dy + first, at);
            store(dx + first, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, dx + first, length);
    }
};

}  // namespace wobble
