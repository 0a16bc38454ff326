// The matrix product on CUDA: made by cuBLASLt, with what it can do best (bias, accumulation, GELU in
// bfloat16) in the same launch; the residual, and what probes see, by a row kernel that follows.
#pragma once

#include "kernels/cublas.h"
#include "kernels/product.h"

namespace wobble {

/// c = activation(before), or what is there already, + residual. One row per team.
template <class T, class Out>
struct ProductFinish {
    using Element = Out;
    static constexpr const char* name = Product<T, Out>::name;
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    using ObservesPair = void;

    Out* c;               // [m, n]
    const Out* before;    // [m, n], before GELU; null: c holds the product
    const Out* residual;  // [m, n], or null
    int64_t n;

    int64_t row_elements() const { return n; }
    ObservedMatrix<Out> observed() const { return {c, n}; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        Out* out = c + row * n;
        if (before) team.each(n, [&](auto at) { store(out, at, Gelu::value(load(before + row * n, at))); });
        if constexpr (Probe::looks) {
            if (residual) {
                team.sync();
                probe.pair(out, n, residual + row * n, n, n, 1);
                team.sync();
            }
        }
        team.each(n, [&](auto at) {
            auto value = load(out, at);
            if (residual) value = value + load(residual + row * n, at);
            store(out, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, out, n);
    }
};

template <class T, class Out>
template <class Run>
void Product<T, Out>::on_cuda(const Context& context, bool watched, Run&& run) const {
    using Fused = CublasProduct::Epilogue;
    const bool gelu = activation == Epilogue::Gelu;
    // float32 keeps the digits of our own GELU.
    const bool fused = gelu && std::is_same_v<Out, bf16> && CublasProduct::gelu_fits(n);
    Out* const before = reinterpret_cast<Out*>(before_activation);
    multiply_on_cuda(context, {.in = cublas_type<T>,
                               .out = cublas_type<Out>,
                               .a = a,
                               .b = b,
                               .c = gelu && !fused ? before : c,
                               .m = m,
                               .n = n,
                               .k = k,
                               .transpose_a = transpose_a,
                               .transpose_b = transpose_b,
                               .accumulate = accumulate || in_place(),
                               .bias = bias,
                               .epilogue = fused ? Fused::Gelu : Fused::None,
                               .before = fused ? before : nullptr});
    const Out* const added = in_place() ? nullptr : reinterpret_cast<const Out*>(residual);
    if (watched || added || (gelu && !fused)) {
        run(m, ProductFinish<T, Out>{
                   .c = c, .before = gelu && !fused ? before : nullptr, .residual = added, .n = n});
    }
}

}  // namespace wobble
