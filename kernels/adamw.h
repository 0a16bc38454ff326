// AdamW (Loshchilov & Hutter 2019), decay decoupled from the gradient, as PyTorch computes it:
//
//   g ← clip · g            m ← β1 m + (1 - β1) g          v ← β2 v + (1 - β2) g²
//   w ← w - lr · ( m̂ / (sqrt(v̂) + ε) + decay · w ),        m̂ = m / (1 - β1^t),  v̂ = v / (1 - β2^t)
#pragma once

#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// One tensor, `flat_row` elements per team. The sums of squares of update and weight come with it, for the
/// step's record.
template <class T>
struct AdamW {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "adamw";
    enum Channel { Gradient, Update };
    static constexpr const char* channels[] = {"gradient", "update"};

    T* weight;               // [n]
    const A* gradient;       // [n], before clipping
    A* m;                    // [n]
    A* v;                    // [n]
    double* update_squares;  // [flat_rows(n)]
    double* weight_squares;  // [flat_rows(n)], after the update
    int64_t n;
    A clip;  // factor on the gradient, 1 when it is not clipped
    A lr, decay, beta1, beta2, epsilon;
    A one_minus_beta1,
        one_minus_beta2;  // rounded from the exact difference, which β near 1 would lose in float32
    A bias1, bias2;       // 1 / (1 - β1^t), 1 / (1 - β2^t)

    int64_t row_elements() const { return flat_row; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t first = row * flat_row;
        Sum<Team, double> updates, weights;
        team.each(flat_row_length(row, n), [&](auto at) {
            const auto g = load(gradient + first, at) * clip;
            const auto new_m = fused(g, one_minus_beta1, load(m + first, at) * beta1);
            const auto new_v = fused(g * g, one_minus_beta2, load(v + first, at) * beta2);
            const auto w = load(weight + first, at);
            const auto root = square_root(new_v * bias2);
            const auto update = fused(w, decay, new_m * bias1 / (root + epsilon)) * lr;
            const auto new_w = w - update;
            store(m + first, at, new_m);
            store(v + first, at, new_v);
            store(weight + first, at, new_w);
            updates += widen(update) * widen(update);
            weights += widen(new_w) * widen(new_w);
            probe.observe(Gradient, row, at, g);
            probe.observe(Update, row, at, update);
        });
        const double update_sum = team.sum(updates), weight_sum = team.sum(weights);
        if (team.leads()) {
            update_squares[row] = update_sum;
            weight_squares[row] = weight_sum;
        }
    }
};

}  // namespace wobble
