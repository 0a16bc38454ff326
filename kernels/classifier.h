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
    enum Channel { Loss, LogSumExp, Gradient };
    static constexpr const char* channels[] = {"loss", "log_z", "gradient"};

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
        team.each(V, [&](auto at) { largest.take(load(z, at)); });
        const A maximum = team.maximum(largest);

        Sum<Team, A> exponentials;
        team.each(V, [&](auto at) { exponentials += exponential(load(z, at) - maximum); });
        const A sum = team.sum(exponentials);
        const A log_z = maximum + std::log(sum);

        if (dlogits) {
            const A factor = (target < 0 ? A(0) : scale) / sum;
            team.sync();  // every lane has read the target's logit before any lane overwrites it
            team.each(V, [&](auto at) {
                auto value = exponential(load(z, at) - maximum) * factor;
                if (at.index <= target && target < at.index + at.width) {
                    const int i = int(target - at.index);
                    value.set(i, value[i] - scale);
                }
                store(dlogits + row * V, at, value);
                probe.observe(Gradient, row, at, value);
            });
        }
        if (team.leads()) {
            const A loss = target < 0 ? A(0) : log_z - target_logit;
            losses[row] = loss;
            if (target >= 0) probe.observe(Loss, row, At<1>{0}, splat<1>(loss));
            probe.observe(LogSumExp, row, At<1>{0}, splat<1>(log_z));
        }
    }
};

}  // namespace wobble
