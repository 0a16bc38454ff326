// Bench cases of attention: the CPU's text over blocks in training, the text over rows for one more token,
// and the two backward kernels over rows on a single sequence.

#include "bench/kernel_case.h"
#include "kernels/attention_blocks.h"

namespace wobble::bench {

namespace {

using namespace shape;

/// FLOPs of `products` products of q and k, or of p and v, over all pairs of a query and a key it sees.
Cost cost(const AttentionShape& shape, int products) {
    const int64_t first = shape.sequence - shape.queries;  // position of the first query
    const int64_t pairs = shape.batch * shape.heads * shape.queries * (2 * first + shape.queries + 1) / 2;
    return {.flops = 2.0 * products * double(pairs * shape.head_size)};
}

std::string describe(const AttentionShape& shape) {
    return dimensions({shape.batch, shape.heads, shape.queries, shape.sequence, shape.head_size});
}

/// q, k and v of unit variance: logits as a model has them after its start.
template <class E>
E* qkv(Operands& operands, const AttentionShape& shape) {
    return operands.normal<E>(shape.batch * shape.sequence * 3 * shape.channels());
}

template <class E>
AttentionForward<E> forward(Operands& operands, const AttentionShape& shape) {
    return {.qkv = qkv<E>(operands, shape),
            .out = operands.room<E>(shape.batch * shape.queries * shape.channels()),
            .lse = operands.room<Accumulator<E>>(shape.rows()),
            .shape = shape};
}

/// What forward leaves for backward, made by it.
template <class E>
AttentionForward<E> after_forward(Operands& operands, const AttentionShape& shape) {
    const AttentionForward<E> kernel = forward<E>(operands, shape);
    Context context(1);
    context.device = device;
    launch(context, kernel, {"bench"});
    return kernel;
}

template <class E>
E* dout(Operands& operands, const AttentionShape& shape) {
    return operands.normal<E>(shape.batch * shape.sequence * shape.channels(), 1e-4);
}

template <class E>
void add(std::vector<KernelCase>& table) {
    using A = Accumulator<E>;
    const AttentionShape training{B, T, H, D, T}, single{1, T, H, D, T}, append{1, T, H, D, 1};
    table.push_back(as_a_whole("", describe(training), cost(training, 2),
                               [=](Operands& operands) { return forward<E>(operands, training); }));
    table.push_back(over_rows("append", describe(append), cost(append, 2), append.rows(),
                              [=](Operands& operands) { return forward<E>(operands, append); }));
    table.push_back(as_a_whole("", describe(training), cost(training, 5), [=](Operands& operands) {
        const AttentionForward<E> before = after_forward<E>(operands, training);
        return AttentionBackward<E>{.qkv = before.qkv,
                                    .out = before.out,
                                    .dout = dout<E>(operands, training),
                                    .lse = before.lse,
                                    .dqkv = operands.room<E>(training.batch * T * 3 * C),
                                    .delta = operands.room<A>(training.rows()),
                                    .shape = training};
    }));
    const int64_t rows = single.rows();
    table.push_back(over_rows("queries", describe(single), cost(single, 3), rows, [=](Operands& operands) {
        const AttentionForward<E> before = after_forward<E>(operands, single);
        return AttentionBackwardQuery<E>{.qkv = before.qkv,
                                         .out = before.out,
                                         .dout = dout<E>(operands, single),
                                         .lse = before.lse,
                                         .delta = operands.room<A>(rows),
                                         .dqkv = operands.room<E>(T * 3 * C),
                                         .shape = single};
    }));
    table.push_back(over_rows("keys", describe(single), cost(single, 4), rows, [=](Operands& operands) {
        const AttentionForward<E> before = after_forward<E>(operands, single);
        return AttentionBackwardKey<E>{.qkv = before.qkv,
                                       .dout = dout<E>(operands, single),
                                       .lse = before.lse,
                                       .delta = operands.normal<A>(rows, 1e-4),
                                       .dqkv = operands.room<E>(T * 3 * C),
                                       .shape = single};
    }));
}

}  // namespace

void add_attention_cases(std::vector<KernelCase>& table) {
    add<float>(table);
    add<bf16>(table);
}

}  // namespace wobble::bench
