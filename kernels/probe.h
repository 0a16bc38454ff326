// What a kernel knows of a probe: a value passed through one of its channels.
#pragma once

#include "kernels/pack.h"

namespace wobble {

/// The probe of a bare kernel: it compiles to nothing. Any probe has this one method:
///   observe(channel, row, at, value)   the kernel computed `value` at columns `at` of `row`
struct NoProbe {
    template <class A, int N>
    HD void observe(int, int64_t, At<N>, Pack<A, N>) {}
};

/// Hands out a probe for each part of a kernel's work: none, for a bare kernel. What probes saw is merged in
/// the order of the parts.
struct NoWatch {
    NoProbe probe(int64_t) { return {}; }
};

}  // namespace wobble
