// Attention's kernels are many and take long to compile, so launches of them are instantiated in
// attention_*.cu alone, once for each type of element.
#pragma once

#include "kernels/context.h"
#include "probes/recorder.h"

namespace wobble {

struct bf16;
template <class T>
struct AttentionForward;
template <class T>
struct AttentionBackward;
template <class T>
struct AttentionBackwardQuery;
template <class T>
struct AttentionBackwardKey;

/// `prefix` stands before each: `extern` where they are only used.
#define ATTENTION_LAUNCHES(prefix, T)                                                              \
    prefix template void launch(Context&, const AttentionForward<T>&, const Site&);                \
    prefix template void launch(Context&, const AttentionBackward<T>&, const Site&);               \
    prefix template void launch(Context&, int64_t, const AttentionForward<T>&, const Site&);       \
    prefix template void launch(Context&, int64_t, const AttentionBackwardQuery<T>&, const Site&); \
    prefix template void launch(Context&, int64_t, const AttentionBackwardKey<T>&, const Site&);

ATTENTION_LAUNCHES(extern, bf16)
ATTENTION_LAUNCHES(extern, float)
ATTENTION_LAUNCHES(extern, double)

}  // namespace wobble
