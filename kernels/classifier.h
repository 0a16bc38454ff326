// Fused softmax and cross-entropy:  loss = log Σ_v e^(z_v) - z_target,   dz = (softmax(z) - onehot(target)) ·
// scale.
//
// One row of V logits per team. The gradient may be written over the logits: each element is read before it
// is written, and the target's logit is taken first. Rows whose target is -1 (padding) have no loss and no
// gradient.
#pragma once

#include "kernels/team.h"

namespace wobble {

template <class T>
struct SoftmaxCrossEntropy {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "softmax_cross_entropy";
    enum Channel { Loss, LogSumExp, Gradient, MaxLogit, MeanLogit, TopProbability };
    static constexpr const char* channels[] = {"loss",      "log_z",      "gradient",
                                               "max_logit", "mean_logit", "top_probability"};
    enum Identity { SumOfGradient };
    static constexpr const char* identities[1] = {"sum dlogits"};  // over the vocabulary: 0

    const T* logits;         // [rows, V]
    const int32_t* targets;  // [rows], in [0, V) or -1
    A* losses;               // [rows], in nats
    T* dlogits;              // [rows, V], may be `logits`; null where only the loss is wanted
    int64_t V;
    A scale;  // of the gradient: 1 / number of targets for a mean

    int64_t row_elements() const { return V; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const T* z = logits + row * V;
        const int32_t target = targets[row];
        const A target_logit = target < 0 ? A(0) : A(z[target]);

        // `larger` passes over NaN, which then shows in the sum of exponentials.
        Largest<Team, A> largest;
        team.each(V, [&](auto at) INLINED { largest.take(load(z, at)); });
        const A maximum = team.maximum(largest);

        Sum<Team, A> exponentials, mean;
        team.each(V, [&](auto at) INLINED {
            exponentials += exponential(load(z, at) - maximum);
            if constexpr (Probe::looks) mean += load(z, at) * (A(1) / A(V));
        });
        const A sum = team.sum(exponentials);
        const A log_z = maximum + std::log(sum);

        if (dlogits) {
            const A factor = (target < 0 ? A(0) : scale) / sum;
            Sum<Team, A> residual, size;
            team.sync();  // every lane has read the target's logit before any lane overwrites it
            team.each(V, [&](auto at) INLINED {
                auto value = exponential(load(z, at) - maximum) * factor;
                const bool holds_target = at.index <= target && target < at.index + at.width;
                if (holds_target) {
                    const int i = int(target - at.index);
                    value.set(i, value[i] - scale);
                }
                store(dlogits + row * V, at, probe.writes(Gradient, row, at, value));
                if constexpr (Probe::looks) {
                    residual += value;
                    // What cancels is p · scale and scale, not their difference.
                    if (holds_target)
                        value.set(int(target - at.index), value[int(target - at.index)] + 2 * scale);
                    size += value;
                }
            });
            probe.wrote(Gradient, row, 0, dlogits + row * V, V);
            if constexpr (Probe::looks) {
                const A sum_of_gradient = team.sum(residual), its_size = team.sum(size);
                if (probe.full() && team.leads())
                    probe.residual(SumOfGradient, row, double(sum_of_gradient), double(its_size));
            }
        }
        if constexpr (Probe::looks) {
            const A mean_logit = team.sum(mean);
            if (team.leads()) {
                const auto see = [&](Channel channel, A value) {
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
        }
    }
};

}  // namespace wobble
