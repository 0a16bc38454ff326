// What a kernel knows of a probe: a value passed through one of its channels.
#pragma once

#include "kernels/pack.h"

namespace wobble {

/// The probe of a bare kernel: it compiles to nothing. Any probe has this shape:
///   observe(channel, row, at, value)   the kernel computed `value` at columns `at` of `row`
///   merge(other)                       take in what another probe saw of later rows
struct NoProbe {
    template <class A, int N>
    HD void observe(int, int64_t, At<N>, Pack<A, N>) {}
    HD void merge(const NoProbe&) {}
};

}  // namespace wobble
