// Activations, and the kernels that apply them: to a flat array, or as a gate.
//
// Each is a struct with value(x) and gradient(x) of packs. At ±inf and beyond where the factor of x has
// reached 0 or 1 they have their limits; NaN stays NaN.
#pragma once

#include "kernels/activation_kind.h"
#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// GELU in its tanh form (Hendrycks & Gimpel 2016, the form of GPT-2):
///
///   gelu(x) = x/2 · (1 + tanh u),  u = sqrt(2/π) · (x + 0.044715 x³)
///
/// computed as x · σ(2u), which is the same and loses nothing to cancellation where tanh u is near -1. Beyond
/// |x| = 10, σ(2u) is 0 or 1 to within 1e-38, so the argument is held there: cubes never overflow.
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

/// GELU as it is defined (Hendrycks & Gimpel 2016): x · Φ(x), Φ(x) = (1 + erf(x/√2)) / 2.
///
/// In float32 from Φ(-u) = e^(-u²/2) · R(u) / 2 for u = |x|, where R(u) = e^(u²/2) erfc(u/√2) falls slowly
/// and smoothly from 1, so that the far tail keeps its digits and nothing cancels. (1 + u) · R(u) is a
/// polynomial of s = (u - 3.5) / (u + 3.5), whose coefficients Remez' exchange gave for 0 ≤ u ≤ 15: relative
/// error 1.5e-8, a quarter of an ulp. What u² loses to rounding would be multiplied up in the exponential and
/// is put back to first order. In float64 from the library's erfc.
///
/// Beyond |x| = 15 (float64: 39) the tail is below the smallest number.
struct GeluExact {
    template <class P>
    struct Parts {
        P normal, density;  // Φ(x), and e^(-x²/2)
    };

    template <class A>
    static constexpr A limit = A(std::is_same_v<A, double> ? 39 : 15);

    template <int N>
    static HD Parts<Pack<float, N>> parts(Pack<float, N> x) {
        const auto held = hold(x, -limit<float>, limit<float>), u = magnitude(held);
        const auto square = u * u, lost = fused(u, u, splat<N>(0.0f) - square);
        auto density = exponential(square * -0.5f);
        density = fused(density * lost, -0.5f, density);
        const auto s = (u - 3.5f) / (u + 3.5f);
        auto p = splat<N>(2.94751860e-4f);
        p = fused(p, s, splat<N>(1.90515210e-4f));
        p = fused(p, s, splat<N>(-2.77566946e-3f));
        p = fused(p, s, splat<N>(5.88776085e-4f));
        p = fused(p, s, splat<N>(2.07431451e-2f));
        p = fused(p, s, splat<N>(-6.05264160e-2f));
        p = fused(p, s, splat<N>(7.60970002e-2f));
        p = fused(p, s, splat<N>(1.57477006e-3f));
        p = fused(p, s, splat<N>(-0.195425198f));
        p = fused(p, s, splat<N>(0.957106369f));
        const auto tail = density * p * 0.5f / (u + 1.0f);
        return {where_less(held, splat<N>(0.0f), tail, 1.0f - tail), density};
    }
    template <int N>
    static HD Parts<Pack<double, N>> parts(Pack<double, N> x) {
        const auto held = hold(x, -limit<double>, limit<double>);
        return {generate<double, N>([&](int i) { return 0.5 * std::erfc(held.v[i] * -0.70710678118654752); }),
                exponential(held * held * -0.5)};
    }
    template <class A, int N>
    static HD Pack<A, N> value(Pack<A, N> x) {
        return where_less(x, splat<N>(-limit<A>), splat<N>(A(0)), x * parts(x).normal);
    }
    /// Φ(x) + x φ(x), φ(x) = e^(-x²/2) / √(2π)
    template <class A, int N>
    static HD Pack<A, N> gradient(Pack<A, N> x) {
        const auto p = parts(x);
        return fused(hold(x, -limit<A>, limit<A>) * A(0.39894228040143268), p.density, p.normal);
    }
};

/// max(x, 0); its gradient at 0 is 0.
struct Relu {
    template <class A, int N>
    static HD Pack<A, N> value(Pack<A, N> x) {
        return where_less(x, splat<N>(A(0)), splat<N>(A(0)), x);
    }
    template <class A, int N>
    static HD Pack<A, N> gradient(Pack<A, N> x) {
        const auto zero = splat<N>(A(0));
        return where_less(zero, x, splat<N>(A(1)), value(x) * A(0));
    }
};

/// max(x, 0)² (So et al. 2021, "Primer")
struct ReluSquared {
    template <class A, int N>
    static HD Pack<A, N> value(Pack<A, N> x) {
        const auto positive = Relu::value(x);
        return positive * positive;
    }
    template <class A, int N>
    static HD Pack<A, N> gradient(Pack<A, N> x) {
        return Relu::value(x) * A(2);
    }
};

/// x · σ(x) (Elfwing et al. 2017; Swish with β = 1, Ramachandran et al. 2017). σ is made of e^(-|x|), which
/// does not overflow; beyond |x| = 110 (float64: 760) the tail is below the smallest number.
struct Silu {
    template <class P>
    struct Parts {
        P x, sigmoid, complement;  // x held within the limit, σ(x), 1 - σ(x)
    };

    template <class A>
    static constexpr A limit = A(std::is_same_v<A, double> ? 760 : 110);

    template <class A, int N>
    static HD Parts<Pack<A, N>> parts(Pack<A, N> x) {
        const auto held = hold(x, -limit<A>, limit<A>), zero = splat<N>(A(0));
        const auto e = exponential(zero - magnitude(held));
        const auto large = A(1) / (e + A(1)), small = e * large;
        return {held, where_less(held, zero, small, large), where_less(held, zero, large, small)};
    }
    template <class A, int N>
    static HD Pack<A, N> value(Pack<A, N> x) {
        return where_less(x, splat<N>(-limit<A>), splat<N>(A(0)), x * parts(x).sigmoid);
    }
    template <class A, int N>
    static HD Pack<A, N> gradient(Pack<A, N> x) {
        const auto p = parts(x);
        return fused(p.x * p.sigmoid, p.complement, p.sigmoid);
    }
};

/// f(an object of the chosen struct): the one place where values become types.
template <class F>
auto with_activation(Activation activation, F&& f) {
    switch (activation) {
        case Activation::GeluExact:
            return f(GeluExact{});
        case Activation::Relu:
            return f(Relu{});
        case Activation::ReluSquared:
            return f(ReluSquared{});
        case Activation::Silu:
            return f(Silu{});
        case Activation::Gelu:
            break;
    }
    return f(Gelu{});
}

/// y = activation(x) over a flat array, `flat_row` elements per team.
template <class T, class Act = Gelu>
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
            const auto value = Act::value(load(x + first, at));
            store(y + first, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, y + first, length);
    }
};

/// dx = activation'(x) · dy; dx and dy may be the same memory.
template <class T, class Act = Gelu>
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
            const auto slope = Act::gradient(load(x + first, at));
            const auto value = slope * load(dy + first, at);
            store(dx + first, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, dx + first, length);
    }
};

/// y = Act(gate) · up, the gated linear units of Shazeer (2020): SwiGLU with Silu, GEGLU with Gelu, ReGLU
/// with Relu. One row per team: F gates, then the F values that they let through.
template <class T, class Act = Silu>
struct GatedForward {
    using Element = T;
    static constexpr const char* name = "gated_forward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* x;  // [rows, 2F]
    T* y;        // [rows, F]
    int64_t F;

    int64_t row_elements() const { return 2 * F; }
    ObservedMatrix<T> observed() const { return {y, F}; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const T* gate = x + row * 2 * F;
        const T* up = gate + F;
        T* out = y + row * F;
        team.each(F, [&](auto at) INLINED {
            const auto value = Act::value(load(gate, at)) * load(up, at);
            store(out, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, out, F);
    }
};

/// dgate = Act'(gate) · up · dy, dup = Act(gate) · dy. dx may be the memory of x.
template <class T, class Act = Silu>
struct GatedBackward {
    using Element = T;
    static constexpr const char* name = "gated_backward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* x;   // [rows, 2F], the input of forward
    const T* dy;  // [rows, F]
    T* dx;        // [rows, 2F]
    int64_t F;

    int64_t row_elements() const { return 4 * F; }
    ObservedMatrix<T> observed() const { return {dx, 2 * F}; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const T* in = x + row * 2 * F;
        T* out = dx + row * 2 * F;
        team.each(F, [&](auto at) INLINED {
            const auto gate = load(in, at), up = load(in + F, at), grad = load(dy + row * F, at);
            const auto dgate = Act::gradient(gate) * up * grad, dup = Act::value(gate) * grad;
            store(out, at, probe.writes(Output, row, at, dgate));
            store(out + F, at, probe.writes(Output, row, at_column(F, at), dup));
        });
        probe.wrote(Output, row, 0, out, 2 * F);
    }
};

}  // namespace wobble
