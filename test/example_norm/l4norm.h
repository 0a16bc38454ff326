// A norm by the fourth power, which large channels rule more than in RMS norm:
//
//   x̂ = x · r,  r = (mean(x⁴) + epsilon)^(-1/4);   dx = r · g - x³ · r⁵ · Σ g · x / C.
#pragma once

#include "kernels/norm_rule.h"

namespace wobble {

struct L4Norm {
    static constexpr const char* word = "l4norm";
    static constexpr const char* what = "x / (mean of x^4 + epsilon)^(1/4)";
    static constexpr const char* source = "";
    static constexpr bool has_bias = false;
    static constexpr double alpha = 0;

    template <class Team, class T, class Out>
    HD static void forward(Team team, const T* x, const NormRow<Accumulator<T>>& row, Out&& out) {
        const Accumulator<T> r = factor(team, x, row);
        team.each(row.C, [&](auto at) INLINED { out(at, load(x, at) * r); });
    }
    template <class Team, class T, class Gradient, class Out>
    HD static void backward(Team team, const T* x, const NormRow<Accumulator<T>>& row, Gradient&& g,
                            Out&& out, Sum<Team, Accumulator<T>>&) {
        using A = Accumulator<T>;
        const A r = factor(team, x, row);
        Sum<Team, A> products;
        team.each(row.C, [&](auto at) INLINED { products.add_product(g(at), load(x, at) * r); });
        const A along = team.sum(products) / A(row.C);
        team.each(row.C, [&](auto at) INLINED {
            const auto normalised = load(x, at) * r;
            out(at, (g(at) - normalised * normalised * normalised * along) * r);
        });
    }

  private:
    template <class Team, class T>
    HD static Accumulator<T> factor(Team team, const T* x, const NormRow<Accumulator<T>>& row) {
        using A = Accumulator<T>;
        Sum<Team, A> fourths;
        team.each(row.C, [&](auto at) INLINED {
            const auto value = load(x, at);
            fourths.add_product(value * value, value * value);
        });
        return A(1) / std::sqrt(std::sqrt(team.sum(fourths) / A(row.C) + row.epsilon));
    }
};

}  // namespace wobble
