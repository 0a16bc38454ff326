// Fused softmax and cross-entropy:  loss = log Σ_v e^(z_v) - z_target,   dz = (softmax(z) - onehot(target)) ·
// scale.
//
// What is minimised, and so what dz is the gradient of, may be more than the loss: with label smoothing ε
// (Szegedy et al. 2016) and z-loss c (PaLM, Chowdhery et al. 2022), log Z being the log of the sum,
//   objective = (1 - ε) · loss + ε · mean_v(log Z - z_v) + c · log²Z,
//   dz = (softmax(z) · (1 + 2 c log Z) - (1 - ε) · onehot(target) - ε / V) · scale.
// Where a soft cap made the logits, what is written is the gradient of what went into it.
//
// One row of V logits per team. The gradient may be written over the logits: each element is read before it
// is written, and the target's logit is taken first. Rows whose target is -1 (padding) have no loss and no
// gradient.
#pragma once

#include "kernels/softcap.h"
#include "kernels/team.h"

namespace wobble {

template <class T>
struct SoftmaxCrossEntropy {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "softmax_cross_entropy";
    enum Channel { Loss, LogSumExp, Gradient, MaxLogit, MeanLogit, TopProbability, Objective };
    static constexpr const char* channels[] = {"loss",       "log_z",           "gradient", "max_logit",
                                               "mean_logit", "top_probability", "objective"};
    enum Identity { SumOfGradient };
    /// Σ_v dz_v = 2 c log Z · scale, which is 0 without z-loss; the slopes of a cap not counted.
    static constexpr const char* identities[1] = {"sum dlogits"};

    const T* logits;         // [rows, V]
    const int32_t* targets;  // [rows], in [0, V) or -1
    A* losses;               // [rows], in nats
    T* dlogits;              // [rows, V], may be `logits`; null where only the loss is wanted
    int64_t V;
    A scale;  // of the gradient: 1 / number of targets for a mean
    A z_loss = 0, label_smoothing = 0;
    A softcap = 0;            // that made the logits; 0: none
    A* objectives = nullptr;  // [rows]; null where they are the losses

    int64_t row_elements() const { return V; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const T* z = logits + row * V;
        const int32_t target = targets[row];
        const A target_logit = target < 0 ? A(0) : A(z[target]);

        [[maybe_unused]] Sum<Team, A> mean;
        const auto [maximum, sum] = exponentials(team, z, [&](auto x) INLINED {
            if constexpr (Probe::looks) mean += x * (A(1) / A(V));
        });
        const A log_z = maximum + std::log(sum);
        const A objective = objectives && target >= 0 ? objective_of(team, z, log_z, target_logit) : A(0);

        if (dlogits) {
            const A weight = target < 0 ? A(0) : scale, cap = softcap;
            const A from_z_loss = z_loss == A(0) ? A(0) : weight * 2 * z_loss * log_z;
            const A factor = (weight + from_z_loss) / sum;
            const A wanted = weight * (A(1) - label_smoothing), shared = weight * label_smoothing / A(V);
            Sum<Team, A> residual;
            team.sync();  // every lane has read the target's logit before any lane overwrites it
            team.each(V, [&](auto at) INLINED {
                auto value = exponential(load(z, at) - maximum) * factor - shared;
                if (at.index <= target && target < at.index + at.width) {
                    for (int i = 0; i < at.width; ++i)
                        if (at.index + i == target) value.set(i, value[i] - wanted);
                }
                const auto before_cap = cap > A(0) ? value * slope_of_capped(load(z, at), cap) : value;
                store(dlogits + row * V, at, probe.writes(Gradient, row, at, before_cap));
                if constexpr (Probe::looks) residual += value;
            });
            probe.wrote(Gradient, row, 0, dlogits + row * V, V);
            if constexpr (Probe::looks) {
                const A sum_of_gradient = team.sum(residual);
                if (probe.full() && team.leads()) {
                    // What cancels is what probabilities and targets count, not their differences.
                    const double expected = double(from_z_loss);
                    probe.residual(
                        SumOfGradient, row, double(sum_of_gradient) - expected,
                        std::fabs(double(weight) + expected) + double(weight) + std::fabs(expected));
                }
            }
        }
        if constexpr (Probe::looks) {
            const A mean_logit = team.sum(mean);
            if (team.leads()) {
                const auto see = [&](Channel channel, A value) INLINED {
                    return probe.observe(channel, row, At<1>{0}, splat<1>(value))[0];
                };
                see(LogSumExp, log_z);
                see(MaxLogit, maximum);
                see(MeanLogit, mean_logit);
                see(TopProbability, A(1) / sum);
            }
        }
        if (team.leads()) {
            A loss = target < 0 ? A(0) : log_z - target_logit;
            if (target >= 0) loss = probe.observe(Loss, row, At<1>{0}, splat<1>(loss))[0];
            losses[row] = loss;
            if (objectives) {
                A value = objective;
                if (target >= 0) value = probe.observe(Objective, row, At<1>{0}, splat<1>(value))[0];
                objectives[row] = value;
            }
        }
    }

  private:
    struct Exponentials {
        A maximum, sum;  // of z, and of e^(z - maximum)
    };
    /// Of a row; see(logits) is called with each pack. The CPU goes over the row twice, for it stays in the
    /// cache. On CUDA it is read once: a lane scales what it has summed down when its own maximum rises
    /// (Milakov & Gimelshein 2018), and so do the lanes in the end.
    template <class Team, class See>
    HD Exponentials exponentials(Team team, const T* z, See&& see) const {
        // `larger` passes over NaN, which then shows in the sum.
        Largest<Team, A> largest;
        Sum<Team, A> sum;
        if constexpr (std::is_same_v<Team, Lane>) {
            team.each(V, [&](auto at) INLINED { largest.take(load(z, at)); });
            const A maximum = team.maximum(largest);
            team.each(V, [&](auto at) INLINED {
                sum += exponential(load(z, at) - maximum);
                see(load(z, at));
            });
            return {maximum, team.sum(sum)};
        } else {
            A top = -INFINITY, below = 0;
            team.each(V, [&](auto at) INLINED {
                const auto x = load(z, at);
                see(x);
                const A highest = detail::fold(x, [](auto a, auto b) { return larger(a, b); });
                if (highest > top) below *= exponential(top - highest), top = highest;
                const A from = top == -INFINITY ? A(0) : top;  // -infinity less itself is NaN
                below += detail::fold(exponential(x - from), [](auto a, auto b) { return a + b; });
            });
            largest.take(splat<1>(top));
            const A maximum = team.maximum(largest);
            sum += splat<1>(below * exponential(top - maximum));
            return {maximum, team.sum(sum)};
        }
    }
    template <class Team>
    HD A objective_of(Team team, const T* z, A log_z, A target_logit) const {
        const A loss = log_z - target_logit;
        A objective = loss;
        if (label_smoothing != A(0)) {
            Sum<Team, A> below;  // log Z - z, of one sign
            team.each(V, [&](auto at) INLINED { below += (log_z - load(z, at)) * (A(1) / A(V)); });
            objective += label_smoothing * (team.sum(below) - loss);
        }
        return objective + z_loss * log_z * log_z;
    }
};

}  // namespace wobble
