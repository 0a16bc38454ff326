// Bench cases of the kernels that check identities, on the weights whose gradients they tie together. They
// run only where somebody looks.

#include "bench/kernel_case.h"
#include "kernels/identities.h"

namespace wobble::bench {

namespace {

using namespace shape;

/// Of the gradient of the output head's matrix.
template <class E>
KernelCase column_totals() {
    return over_rows("", dimensions({V, C}), {.bytes = double(V * C) * sizeof(E)}, ColumnTotals<E>::teams(C),
                     [](Operands& operands) {
                         return ColumnTotals<E>{.x = operands.normal<E>(V * C, 1e-4),
                                                .out = operands.room<Accumulator<E>>(C),
                                                .rows = V,
                                                .C = C};
                     });
}

/// Of the weight that makes queries, keys and values, head by head.
template <class E>
KernelCase block_dots() {
    using A = Accumulator<E>;
    const int64_t n = C * 3 * C, blocks = 3 * H;
    return over_rows("", dimensions({C, 3 * C}), {.bytes = double(n) * (sizeof(E) + sizeof(A))}, blocks,
                     [=](Operands& operands) {
                         return BlockDots<E>{.x = operands.normal<E>(n, 0.02),
                                             .y = operands.normal<A>(n, 1e-4),
                                             .dots = operands.room<double>(blocks),
                                             .sizes = operands.room<double>(blocks),
                                             .C = 3 * C,
                                             .height = C,
                                             .width = D};
                     });
}

template <class E>
void add(std::vector<KernelCase>& table) {
    // Of gradients, which are float32 in either.
    if constexpr (std::is_same_v<E, Accumulator<E>>) table.push_back(column_totals<E>());
    table.push_back(block_dots<E>());
}

}  // namespace

void add_identity_cases(std::vector<KernelCase>& table) {
    add<float>(table);
    add<bf16>(table);
}

}  // namespace wobble::bench
