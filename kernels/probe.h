// What a kernel knows of a probe.
//
// Values pass through a probe on their way to memory, and the probe is told when they have arrived:
//
//   team.each(C, [&](auto at) { store(y, at, probe.writes(Output, row, at, value)); });
//   probe.wrote(Output, row, 0, y, C);
//
// A probe that keeps its statistics in registers (CUDA) looks at what passes; one that would rather go over a
// whole row in the cache (CPU) looks at what was written. Values that are not kept in memory pass through
// `observe`. All give them back as they are, unless the probe was told to inject a fault there. What only an
// observer needs is computed under `if constexpr (Probe::looks)`, and what only the dear tier needs also
// under `if (probe.full())`, so a bare kernel is the same machine code as one without probes.
#pragma once

#include "kernels/pack.h"

namespace wobble {

/// The probe of a bare kernel: it compiles to nothing. One that looks has besides
///   bool full()                                  whether residuals of identities are wanted
///   void pair(branch, stride, beside, stride, columns, rows, factor)   what a branch adds to the residual
///                                                stream (factor · branch; some thousand values at most), and
///                                                the stream; all lanes of a team call it alike
///   void sum(which, value)                       adds to one of the kernel's `sums`
///   void residual(identity, row, value, scale)   one of the kernel's `identities`: what is left of what
///   should
///                                                cancel
///   void query(head, QueryStatistics)            what one query of attention saw of its logits
/// each of which a kernel calls only if it declares what it is about.
struct NoProbe {
    static constexpr bool looks = false;

    /// The kernel computed `value` of a channel at columns `at` of `row`.
    template <class A, int N>
    HD Pack<A, N> observe(int, int64_t, At<N>, Pack<A, N> value) {
        return value;
    }
    /// The same, but a call of `wrote` will follow.
    template <class A, int N>
    HD Pack<A, N> writes(int, int64_t, At<N>, Pack<A, N> value) {
        return value;
    }
    /// `columns` values of `row` from `column` on lie at p; or those of `rows` rows, `stride` apart. They
    /// stay there until this part of the work is done.
    template <class T>
    HD void wrote(int, int64_t, int64_t, const T*, int64_t, int64_t = 1, int64_t = 0) {}
    /// On CUDA, when a row is done.
    HD void finish() {}
};

/// Hands out a probe for each part of a kernel's work: none, for a bare kernel. What probes saw is merged in
/// the order of the parts.
struct NoWatch {
    HD NoProbe probe(int64_t, int = 0, int = 1) const { return {}; }
    /// On CUDA: how many teams share the rows of a launch.
    HD int64_t teams(int64_t rows) const { return rows; }
};

/// One query's view of the keys it attends to. Logits are the scaled products that enter the softmax.
struct QueryStatistics {
    int64_t keys;
    double max_logit, abs_logit;  // the largest, and the largest magnitude
    double sum;                   // l = Σ_j e^(s_j - max)
    double weighted;              // w = Σ_j e^(s_j - max) (s_j - max)
    double first;                 // e^(s_0 - max), 0 where a window hides key 0
    int64_t at_maximum;           // keys whose logit is the largest

    /// -Σ p log p in nats, as log l - w / l: both terms are small where the softmax has collapsed, so nothing
    /// cancels however large the logits are (log-sum-exp less the mean logit would lose everything).
    HD double entropy() const { return std::log(sum) - weighted / sum; }
};

}  // namespace wobble
