// Bench cases of the matrix product, in each of its roles in a layer: forward with what is fused behind it,
// the gradient of the input, and that of the weight.

#include "bench/kernel_case.h"
#include "kernels/product.h"

namespace wobble::bench {

namespace {

using namespace shape;

/// What a role asks for besides the product itself.
struct Fused {
    bool bias = false, gelu = false, residual = false, accumulate = false;
};

template <class E, class Out = E>
KernelCase product(const char* role, int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b,
                   Fused fused = {}) {
    const double elements = double(m * k + k * n + m * n * (int(fused.gelu) + int(fused.residual)));
    const double results = double(m * n * (1 + int(fused.accumulate)));
    const Cost cost{.bytes = elements * sizeof(E) + results * sizeof(Out),
                    .flops = 2.0 * double(m) * double(n) * double(k)};
    return as_a_whole(role, dimensions({m, n, k}), cost, [=](Operands& operands) {
        Product<E, Out> p;
        p.a = operands.normal<E>(m * k);
        p.b = operands.normal<E>(k * n, 1 / std::sqrt(double(k)));
        p.c = fused.accumulate ? operands.sums<Out>(m * n) : operands.room<Out>(m * n);
        p.m = m, p.n = n, p.k = k, p.transpose_a = transpose_a, p.transpose_b = transpose_b;
        p.accumulate = fused.accumulate;
        if (fused.bias) p.bias = operands.normal<E>(n, 0.1);
        if (fused.gelu) p.activation = Epilogue::Gelu, p.before_activation = operands.room<E>(m * n);
        if (fused.residual) p.residual = operands.normal<E>(m * n);
        return p;
    });
}

template <class E>
void add(std::vector<KernelCase>& table) {
    const auto forward = [&](const char* role, int64_t in, int64_t out, Fused fused = {}) {
        table.push_back(product<E>(role, rows, out, in, false, false, fused));
    };
    forward("plain", C, 3 * C);
    forward("attn.qkv", C, 3 * C, {.bias = true});
    forward("attn.proj", C, C, {.bias = true, .residual = true});
    forward("mlp.fc", C, F, {.bias = true, .gelu = true});
    forward("mlp.proj", F, C, {.bias = true, .residual = true});
    table.push_back(product<E>("head", rows, V, C, false, true));
    // dx = dy Wᵀ, dW = xᵀ dy
    table.push_back(product<E>("mlp.fc.dx", rows, C, F, false, true));
    table.push_back(product<E, Accumulator<E>>("mlp.fc.dw", C, F, rows, true, false));
    table.push_back(product<E, Accumulator<E>>("mlp.fc.dw+=", C, F, rows, true, false, {.accumulate = true}));
}

}  // namespace

void add_product_cases(std::vector<KernelCase>& table) {
    add<float>(table);
    add<bf16>(table);
}

}  // namespace wobble::bench
