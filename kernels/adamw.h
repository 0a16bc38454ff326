// AdamW (Loshchilov & Hutter 2019), decay decoupled from the gradient, as PyTorch computes it:
//
//   g ← clip · g            m ← β1 m + (1 - β1) g          v ← β2 v + (1 - β2) g²
//   w ← w - lr · ( m̂ / (sqrt(v̂) + ε) + decay · w ),        m̂ = m / (1 - β1^t),  v̂ = v / (1 - β2^t)
#pragma once

#include <limits>

#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// x rounded to bfloat16's 8 significant bits, to even: adding and taking away a large multiple of x pushes
/// the others out (Veltkamp 1968). Right while that multiple is finite; bfloat16 shares float32's exponents.
template <class A, int N>
HD Pack<A, N> rounded_to_bf16(Pack<A, N> x) {
    constexpr A factor = A(int64_t(1) << (std::numeric_limits<A>::digits - 8)) + A(1);
    const auto large = x * factor;
    return large - (large - x);
}

template <class A>
constexpr A smallest_normal = std::numeric_limits<A>::min();

/// One tensor, `length` elements per team. The sums of squares of update and weight come with it, for the
/// step's record; a probe gets those of the optimizer's own quantities.
template <class T>
struct AdamW {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "adamw";
    enum Channel { Update };
    static constexpr const char* channels[] = {"update"};
    /// Over all elements, w the weight before the update and g the clipped gradient, the latter and m in
    /// units of 1 / per_unit: Σ g², Σ g m, Σ m², Σ w g, Σ w²; Σ g² / max(v̂, ε²); how many have sqrt(v̂) < ε,
    /// an update that is not 0, one of those that left the weight as it was, or would have in bfloat16; Σ (w
    /// - initial)² after the update.
    enum Quantity { Gg, Gm, Mm, Wg, Ww, Ratio, BelowEpsilon, Updated, Lost, LostInBf16, Distance };
    static constexpr const char* sums[11] = {"g g",  "g m",          "m m",           "w g",
                                             "w w",  "g g / v",      "below epsilon", "updated",
                                             "lost", "lost in bf16", "distance"};

    T* weight;               // [n]
    const A* gradient;       // [n], before clipping
    A* m;                    // [n]
    A* v;                    // [n]
    double* update_squares;  // [ceil_div(n, length)]
    double* weight_squares;  // [ceil_div(n, length)], after the update
    int64_t n;
    A clip;  // factor on the gradient, 1 when it is not clipped
    A lr, decay, beta1, beta2, epsilon;
    A one_minus_beta1,
        one_minus_beta2;  // rounded from the exact difference, which β near 1 would lose in float32
    A bias1, bias2;       // 1 / (1 - β1^t), 1 / (1 - β2^t)
    int64_t length = flat_row;

    // For the probe.
    A per_unit = 1;  // a power of two that makes gradients about 1, so that their squares stay in range
    const T* initial = nullptr;  // [n]; null: the distance is not wanted

    int64_t row_elements() const { return length; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t first = row * length;
        Sum<Team, double> updates, weights;
        Tally<Team> tally;
        team.each(flat_row_length(row, n, length), [&](auto at) INLINED {
            const auto g = load(gradient + first, at) * clip;
            const auto new_m = fused(g, one_minus_beta1, load(m + first, at) * beta1);
            const auto new_v = fused(g * g, one_minus_beta2, load(v + first, at) * beta2);
            const auto w = load(weight + first, at);
            const auto root = square_root(new_v * bias2);
            const auto update =
                probe.observe(Update, row, at, fused(w, decay, new_m * bias1 / (root + epsilon)) * lr);
            const auto new_w = w - update;
            store(m + first, at, new_m);
            store(v + first, at, new_v);
            store(weight + first, at, new_w);
            updates += convert<double>(update) * convert<double>(update);
            weights += convert<double>(new_w) * convert<double>(new_w);
            if constexpr (Probe::looks) {
                tally.take(g, new_m, w, new_w, update, root, epsilon, per_unit);
                if (initial) tally.take_distance(new_w - load(initial + first, at));
            }
        });
        const double update_sum = team.sum(updates), weight_sum = team.sum(weights);
        if (team.leads()) {
            update_squares[row] = update_sum;
            weight_squares[row] = weight_sum;
        }
        if constexpr (Probe::looks) tally.report(team, probe);
    }

  private:
    /// The probe's sums over a row.
    template <class Team>
    struct Tally {
        Sum<Team, A> gg, gm, mm, wg, ww, ratio, below, updated, lost, lost_in_bf16, distance;

        template <int N>
        HD void take(Pack<A, N> gradient, Pack<A, N> momentum, Pack<A, N> w, Pack<A, N> new_w,
                     Pack<A, N> update, Pack<A, N> root, A epsilon, A per_unit) {
            const auto none = splat<N>(A(0)), one = splat<N>(A(1)), edge = splat<N>(epsilon);
            const auto g = gradient * per_unit, m = momentum * per_unit;
            gg.add_product(g, g);
            gm.add_product(g, m);
            mm.add_product(m, m);
            wg.add_product(w, g);
            ww.add_product(w, w);
            // g / max(root, ε), squared: neither g² nor ε² may vanish. 0 / 0 is 0 here.
            const auto share = gradient / larger(root, splat<N>(larger(epsilon, smallest_normal<A>)));
            ratio.add_product(share, share);
            below += where_less(root, edge, one, none);
            const auto moves = where_equal(update, none, none, one);
            updated += moves;
            lost += where_equal(new_w, w, moves, none);
            lost_in_bf16 += where_equal(rounded_to_bf16(new_w), rounded_to_bf16(w), moves, none);
        }
        template <int N>
        HD void take_distance(Pack<A, N> moved) {
            distance.add_product(moved, moved);
        }
        template <class Probe>
        HD void report(Team team, Probe& probe) const {
            const A totals[] = {team.sum(gg),   team.sum(gm),           team.sum(mm),      team.sum(wg),
                                team.sum(ww),   team.sum(ratio),        team.sum(below),   team.sum(updated),
                                team.sum(lost), team.sum(lost_in_bf16), team.sum(distance)};
            if (!team.leads()) return;
            for (int i = 0; i <= Distance; ++i) probe.sum(i, double(totals[i]));
        }
    };
};

/// What a step's updates have in common, worked out where the gradient's norm is known: on the device.
template <class A>
struct UpdateScalars {
    double lr;            // before a tensor's own factor
    double bias1, bias2;  // 1 / (1 - β1^t), 1 / (1 - β2^t)
    double grad_norm;     // before clipping
    double clip;          // factor on the gradient
    double per_unit;      // of AdamW
    int32_t nonfinite;    // the first tensor whose gradient is not finite; -1: all are
    int32_t applies;      // whether weights are changed
};

/// The update of one tensor, with the step's scalars read from memory.
template <class T>
struct AdamWAtStep : AdamW<T> {
    using A = Accumulator<T>;
    const UpdateScalars<A>* now;
    double lr_factor;

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        if (!now->applies) return;
        AdamW<T> update = *this;
        update.clip = A(now->clip), update.lr = A(now->lr * lr_factor);
        update.bias1 = A(now->bias1), update.bias2 = A(now->bias2), update.per_unit = A(now->per_unit);
        update(team, row, probe);
    }
};

/// The power of two that brings x near 1, held where it and its square are ordinary float32 numbers.
HD double unit_for(double x) {
    if (!(x > 0) || !(x - x == 0)) return 1;
    const int exponent = std::ilogb(x);
    return std::ldexp(1.0, exponent < -120 ? 120 : exponent > 120 ? -120 : -exponent);
}

/// From the squared norms of the tensors' gradients to the step's scalars. One team.
template <class A>
struct PrepareUpdate {
    using Element = A;
    static constexpr const char* name = "prepare_update";

    const double* squares;  // [tensors]
    const double* loss;     // where it is not finite nothing is applied either; may be null
    UpdateScalars<A>* now;  // lr, bias1 and bias2 are there already
    int64_t tensors, parameters;
    double most;  // largest gradient norm, 0 for any
    bool always;  // also what is not finite is applied

    int64_t row_elements() const { return tensors; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t, Probe&) const {
        if (!team.leads()) return;
        double sum = 0;
        int32_t nonfinite = -1;
        for (int64_t t = 0; t < tensors; ++t) {
            if (nonfinite < 0 && !(squares[t] - squares[t] == 0)) nonfinite = int32_t(t);
            sum += squares[t];
        }
        const double norm = std::sqrt(sum);
        now->grad_norm = norm, now->nonfinite = nonfinite;
        now->clip = most > 0 && norm > most ? most / norm : 1;
        now->per_unit = unit_for(norm * now->clip / std::sqrt(double(parameters)));
        now->applies = always || (nonfinite < 0 && (!loss || *loss - *loss == 0));
    }
};

}  // namespace wobble
