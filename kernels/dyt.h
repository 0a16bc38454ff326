// Dynamic tanh (Zhu et al. 2025, "Transformers without normalization"), which stands where a norm would:
//
//   x̂ = tanh(alpha · x),
//
// alpha being one learned number. With the slope s = 1 - x̂²:  dx = alpha · g · s,  dalpha = Σ g · s · x.
#pragma once

#include "kernels/norm_rule.h"
#include "kernels/tanh.h"

namespace wobble {

struct DynamicTanh {
    static constexpr const char* word = "dyt";
    static constexpr const char* what = "tanh(alpha * x), alpha being learned";
    static constexpr const char* source = "Zhu et al. 2025";
    static constexpr bool has_bias = true;
    static constexpr double alpha = 0.5;  // Zhu et al. 2025, section 4

    template <class Team, class T, class Out>
    HD static void forward(Team team, const T* x, const NormRow<Accumulator<T>>& row, Out&& out) {
        team.each(row.C, [&](auto at) INLINED { out(at, hyperbolic_tangent(load(x, at) * row.alpha)); });
    }
    template <class Team, class T, class Gradient, class Out>
    HD static void backward(Team team, const T* x, const NormRow<Accumulator<T>>& row, Gradient&& g,
                            Out&& out, Sum<Team, Accumulator<T>>& dalpha) {
        using A = Accumulator<T>;
        team.each(row.C, [&](auto at) INLINED {
            const auto value = load(x, at);
            const auto t = hyperbolic_tangent(value * row.alpha);
            const auto within = g(at) * ((A(1) - t) * (t + A(1)));
            dalpha.add_product(within, value);
            out(at, within * row.alpha);
        });
    }
};

}  // namespace wobble
