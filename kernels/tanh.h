// The hyperbolic tangent of packs, within a few units in the last place over the whole range.
#pragma once

#include "kernels/pack.h"

namespace wobble {

/// tanh x; ±1 for ±inf, NaN for NaN, x for small x.
///
/// With e = e^(-2|x|), tanh |x| = (1 - e) / (1 + e), which cancels near 0. There Lambert's continued fraction
/// x / (1 + x² / (3 + x² / (5 + x² / (7 + x² / 9)))) stands in; at |x| = 0.5 it is off by 1e-10 of tanh x.
template <int N>
HD Pack<float, N> hyperbolic_tangent(Pack<float, N> x) {
#ifdef __CUDA_ARCH__
    return generate<float, N>([&](int i) { return tanhf(x.v[i]); });
#else
    const auto size = magnitude(x);
    const auto e = exponential(size * -2.0f);
    const auto large = (1.0f - e) / (e + 1.0f);
    const auto square = where_less(size, splat<N>(0.5f), x * x, splat<N>(0.0f));
    const auto above = fused(fused(square, splat<N>(1.0f), 105.0f), square, 945.0f);
    const auto below = fused(fused(square, splat<N>(15.0f), 420.0f), square, 945.0f);
    const auto signed_large = where_less(x, splat<N>(0.0f), splat<N>(0.0f) - large, large);
    return where_less(size, splat<N>(0.5f), x * (above / below), signed_large);
#endif
}

template <int N>
HD Pack<double, N> hyperbolic_tangent(Pack<double, N> x) {
    return generate<double, N>([&](int i) { return std::tanh(x.v[i]); });
}

template <class T>
HD T hyperbolic_tangent(T x) {
    return hyperbolic_tangent(splat<1>(x))[0];
}

}  // namespace wobble
