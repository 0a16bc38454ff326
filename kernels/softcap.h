// A soft cap on logits, z = c · tanh(raw / c), which leaves small ones alone and lets none beyond ±c
// (Gemma 2, 2024): the function and its slope, which attention applies to its own logits, and the kernel that
// caps those of the output head. Backward of the latter is part of the classifier, which knows c:
//   draw = dz · (1 - (z / c)²).
#pragma once

#include "kernels/tanh.h"
#include "kernels/team.h"

namespace wobble {

/// c · tanh(s / c)
template <class A, int N>
HD Pack<A, N> capped(Pack<A, N> s, A cap) {
    return hyperbolic_tangent(s / splat<N>(cap)) * cap;
}
/// Its slope 1 - (s' / c)², from the capped logit s'.
template <class A, int N>
HD Pack<A, N> slope_of_capped(Pack<A, N> s, A cap) {
    const auto t = s / splat<N>(cap);
    return (A(1) - t) * (t + A(1));
}
/// c = 0: no cap.
template <class A>
HD A capped(A s, A cap) {
    return cap > 0 ? capped(splat<1>(s), cap)[0] : s;
}
template <class A>
HD A slope_of_capped(A s, A cap) {
    return slope_of_capped(splat<1>(s), cap)[0];
}

/// In place; one row of V logits per team.
template <class T>
struct LogitSoftcap {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "logit_softcap";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    T* logits;  // [rows, V]
    int64_t V;
    A cap;  // c > 0

    int64_t row_elements() const { return V; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        T* z = logits + row * V;
        team.each(V, [&](auto at)
                         INLINED { store(z, at, probe.writes(Output, row, at, capped(load(z, at), cap))); });
        probe.wrote(Output, row, 0, z, V);
    }
};

}  // namespace wobble
