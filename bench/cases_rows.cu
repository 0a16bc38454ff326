// Bench cases whose rows are positions: embedding, layer norm, classifier.

#include "bench/kernel_case.h"
#include "kernels/classifier.h"
#include "kernels/dyt.h"
#include "kernels/embedding.h"
#include "kernels/head_norm.h"
#include "kernels/layernorm.h"
#include "kernels/rmsnorm.h"
#include "kernels/rotary.h"
#include "kernels/value_residual.h"

namespace wobble::bench {

namespace {

using namespace shape;

template <class E>
KernelCase embedding_forward() {
    const double tables = double((V + T) * C), out = double(rows * C);
    return over_rows("", dimensions({rows, C}), {.bytes = (tables + out) * sizeof(E)}, rows,
                     [](Operands& operands) {
                         return EmbeddingForward<E>{.tokens = operands.indices(rows, V),
                                                    .wte = operands.normal<E>(V * C, 0.02),
                                                    .wpe = operands.normal<E>(T * C, 0.02),
                                                    .y = operands.room<E>(rows * C),
                                                    .sequence = T,
                                                    .C = C};
                     });
}

template <class E>
KernelCase token_embedding_backward() {
    using A = Accumulator<E>;
    const double bytes = double(rows * C * int64_t(sizeof(E)) + 2 * V * C * int64_t(sizeof(A)));
    return over_rows("", dimensions({rows, C}), {.bytes = bytes}, V, [](Operands& operands) {
        TokenIndex index;
        index.build(operands.host_indices(rows, V).data(), rows, V);
        return TokenEmbeddingBackward<E>{.order = operands.copy(index.order),
                                         .starts = operands.copy(index.starts),
                                         .dy = operands.normal<E>(rows * C),
                                         .dwte = operands.sums<A>(V * C),
                                         .C = C};
    });
}

template <class E>
KernelCase position_embedding_backward() {
    using A = Accumulator<E>;
    const double bytes = double(rows * C * int64_t(sizeof(E)) + T * C * int64_t(sizeof(A)));
    return over_rows("", dimensions({rows, C}), {.bytes = bytes}, T, [](Operands& operands) {
        return PositionEmbeddingBackward<E>{.dy = operands.normal<E>(rows * C),
                                            .dwpe = operands.room<A>(T * C),
                                            .batch = B,
                                            .sequence = T,
                                            .C = C,
                                            .accumulate = false};
    });
}

template <class E>
KernelCase layernorm_forward() {
    using A = Accumulator<E>;
    return over_rows("", dimensions({rows, C}), {.bytes = 2.0 * double(rows * C) * sizeof(E)}, rows,
                     [](Operands& operands) {
                         return LayerNormForward<E>{.x = operands.normal<E>(rows * C),
                                                    .weight = operands.normal<E>(C, 0.1, 1),
                                                    .bias = operands.normal<E>(C, 0.1),
                                                    .y = operands.room<E>(rows * C),
                                                    .mean = operands.room<A>(rows),
                                                    .rstd = operands.room<A>(rows),
                                                    .C = C,
                                                    .epsilon = A(1e-5)};
                     });
}

/// With the gradient of the residual stream, as in the model, though not in its place: that would grow.
template <class E>
KernelCase layernorm_backward() {
    using A = Accumulator<E>;
    const int64_t chunks = chunk_count(rows);
    return over_rows("", dimensions({rows, C}), {.bytes = 4.0 * double(rows * C) * sizeof(E)}, chunks,
                     [=](Operands& operands) {
                         return LayerNormBackward<E>{.x = operands.normal<E>(rows * C),
                                                     .weight = operands.normal<E>(C, 0.1, 1),
                                                     .mean = operands.normal<A>(rows, 0.02),
                                                     .rstd = operands.normal<A>(rows, 0.02, 1),
                                                     .dy = operands.normal<E>(rows * C, 1e-4),
                                                     .dresidual = operands.normal<E>(rows * C, 1e-4),
                                                     .dx = operands.room<E>(rows * C),
                                                     .dweight_chunks = operands.room<A>(chunks * C),
                                                     .dbias_chunks = operands.room<A>(chunks * C),
                                                     .rows = rows,
                                                     .C = C,
                                                     .epsilon = A(1e-5)};
                     });
}

template <class E>
KernelCase layernorm_examples() {
    using A = Accumulator<E>;
    return over_rows("", dimensions({B, T, C}), {.bytes = 2.0 * double(rows * C) * sizeof(E)}, B,
                     [](Operands& operands) {
                         return LayerNormExamples<E>{.x = operands.normal<E>(rows * C),
                                                     .mean = operands.normal<A>(rows, 0.02),
                                                     .rstd = operands.normal<A>(rows, 0.02, 1),
                                                     .dy = operands.normal<E>(rows * C, 1e-4),
                                                     .workspace = operands.room<A>(2 * B * C),
                                                     .squares = operands.sums<double>(B),
                                                     .sequence = T,
                                                     .C = C};
                     });
}

template <class E>
KernelCase rmsnorm_forward() {
    using A = Accumulator<E>;
    return over_rows("", dimensions({rows, C}), {.bytes = 2.0 * double(rows * C) * sizeof(E)}, rows,
                     [](Operands& operands) {
                         return RMSNormForward<E>{.x = operands.normal<E>(rows * C),
                                                  .weight = operands.normal<E>(C, 0.1, 1),
                                                  .y = operands.room<E>(rows * C),
                                                  .rstd = operands.room<A>(rows),
                                                  .C = C,
                                                  .epsilon = A(1e-5)};
                     });
}

template <class E>
KernelCase rmsnorm_backward() {
    using A = Accumulator<E>;
    const int64_t chunks = chunk_count(rows);
    return over_rows("", dimensions({rows, C}), {.bytes = 4.0 * double(rows * C) * sizeof(E)}, chunks,
                     [=](Operands& operands) {
                         return RMSNormBackward<E>{.x = operands.normal<E>(rows * C),
                                                   .weight = operands.normal<E>(C, 0.1, 1),
                                                   .rstd = operands.normal<A>(rows, 0.02, 1),
                                                   .dy = operands.normal<E>(rows * C, 1e-4),
                                                   .dresidual = operands.normal<E>(rows * C, 1e-4),
                                                   .dx = operands.room<E>(rows * C),
                                                   .dweight_chunks = operands.room<A>(chunks * C),
                                                   .rows = rows,
                                                   .C = C,
                                                   .epsilon = A(1e-5)};
                     });
}

template <class E>
KernelCase rmsnorm_examples() {
    using A = Accumulator<E>;
    return over_rows("", dimensions({B, T, C}), {.bytes = 2.0 * double(rows * C) * sizeof(E)}, B,
                     [](Operands& operands) {
                         return RMSNormExamples<E>{.x = operands.normal<E>(rows * C),
                                                   .rstd = operands.normal<A>(rows, 0.02, 1),
                                                   .dy = operands.normal<E>(rows * C, 1e-4),
                                                   .workspace = operands.room<A>(B * C),
                                                   .squares = operands.sums<double>(B),
                                                   .sequence = T,
                                                   .C = C};
                     });
}

/// The queries and keys of qkv, turned again at each launch: a rotation does not grow.
template <class E>
KernelCase rotary() {
    using A = Accumulator<E>;
    return over_rows("", dimensions({rows, 2 * C}), {.bytes = 4.0 * double(rows * C) * sizeof(E)}, rows,
                     [](Operands& operands) {
                         A* cosine = operands.room<A>(T * D / 2);
                         A* sine = operands.room<A>(T * D / 2);
                         fill_rotary(cosine, sine, T, D, 10000);
                         return Rotary<E>{.x = operands.normal<E>(rows * 3 * C),
                                          .cosine = cosine,
                                          .sine = sine,
                                          .row_stride = 3 * C,
                                          .heads = 2 * H,
                                          .head_size = D,
                                          .rotated = D,
                                          .first = 0,
                                          .sequence = T,
                                          .inverse = false};
                     });
}

/// RMS norm of the queries, in place: what is normed again stays as it is but for epsilon.
template <class E>
KernelCase head_norm_forward() {
    using A = Accumulator<E>;
    return over_rows("", dimensions({rows, C}), {.bytes = 3.0 * double(rows * C) * sizeof(E)}, rows,
                     [](Operands& operands) {
                         return HeadNormForward<E>{.x = operands.normal<E>(rows * 3 * C),
                                                   .gain = operands.normal<E>(D, 0, 1),
                                                   .kept = operands.room<E>(rows * C),
                                                   .mean = nullptr,
                                                   .rstd = operands.room<A>(rows * H),
                                                   .row_stride = 3 * C,
                                                   .heads = H,
                                                   .head_size = D,
                                                   .epsilon = A(1e-5),
                                                   .centred = false};
                     });
}

/// In place, so the gradients of one launch are those of the outputs in the next: with gains and rstd of 1
/// they stay as they are once what lies along the inputs is taken out.
template <class E>
KernelCase head_norm_backward() {
    using A = Accumulator<E>;
    const int64_t chunks = chunk_count(rows);
    return over_rows("", dimensions({rows, C}), {.bytes = 3.0 * double(rows * C) * sizeof(E)}, chunks,
                     [=](Operands& operands) {
                         return HeadNormBackward<E>{.kept = operands.normal<E>(rows * C),
                                                    .mean = nullptr,
                                                    .rstd = operands.normal<A>(rows * H, 0, 1),
                                                    .gain = operands.normal<E>(D, 0, 1),
                                                    .dx = operands.normal<E>(rows * 3 * C, 1e-4),
                                                    .dgain_chunks = operands.room<A>(chunks * D),
                                                    .row_stride = 3 * C,
                                                    .rows = rows,
                                                    .heads = H,
                                                    .head_size = D,
                                                    .centred = false};
                     });
}

/// The values of qkv and those of the first layer's, with λ = 1/2: repeated, they end up equal.
template <class E>
KernelCase value_residual_forward() {
    return over_rows("", dimensions({rows, C}), {.bytes = 3.0 * double(rows * C) * sizeof(E)}, rows,
                     [](Operands& operands) {
                         return ValueResidualForward<E>{.v = operands.normal<E>(rows * 3 * C),
                                                        .v_first = operands.normal<E>(rows * 3 * C),
                                                        .stride = 3 * C,
                                                        .first_stride = 3 * C,
                                                        .width = C,
                                                        .lambda = Accumulator<E>(0.5)};
                     });
}

/// With λ = 0, which is as much work: the gradient would vanish otherwise, launch by launch.
template <class E>
KernelCase value_residual_backward() {
    return over_rows("", dimensions({rows, C}), {.bytes = 4.0 * double(rows * C) * sizeof(E)}, rows,
                     [](Operands& operands) {
                         return ValueResidualBackward<E>{.dv = operands.normal<E>(rows * 3 * C, 1e-4),
                                                         .dv_first = operands.normal<E>(rows * C, 1e-4),
                                                         .stride = 3 * C,
                                                         .first_stride = C,
                                                         .width = C,
                                                         .lambda = Accumulator<E>(0),
                                                         .accumulate = true};
                     });
}

template <class E>
RuleOperands<E> dyt_operands(Operands& operands) {
    return {.x = operands.normal<E>(rows * C),
            .alpha = operands.normal<E>(1, 0, 0.5),
            .weight = operands.normal<E>(C, 0.1, 1),
            .bias = operands.normal<E>(C, 0.1),
            .C = C,
            .epsilon = 0};
}

template <class E>
KernelCase norm_forward() {
    return over_rows("", dimensions({rows, C}), {.bytes = 2.0 * double(rows * C) * sizeof(E)}, rows,
                     [](Operands& operands) {
                         return NormForward<E, DynamicTanh>{.in = dyt_operands<E>(operands),
                                                            .y = operands.room<E>(rows * C)};
                     });
}

template <class E>
KernelCase norm_backward() {
    using A = Accumulator<E>;
    const int64_t chunks = chunk_count(rows);
    return over_rows("", dimensions({rows, C}), {.bytes = 4.0 * double(rows * C) * sizeof(E)}, chunks,
                     [=](Operands& operands) {
                         return NormBackward<E, DynamicTanh>{.in = dyt_operands<E>(operands),
                                                             .dy = operands.normal<E>(rows * C, 1e-4),
                                                             .dresidual = operands.normal<E>(rows * C, 1e-4),
                                                             .dx = operands.room<E>(rows * C),
                                                             .dweight_chunks = operands.room<A>(chunks * C),
                                                             .dbias_chunks = operands.room<A>(chunks * C),
                                                             .dalpha_chunks = operands.room<A>(chunks),
                                                             .rows = rows};
                     });
}

template <class E>
KernelCase norm_examples() {
    return over_rows(
        "", dimensions({B, T, C}), {.bytes = 2.0 * double(rows * C) * sizeof(E)}, B, [](Operands& operands) {
            return NormExamples<E, DynamicTanh>{.in = dyt_operands<E>(operands),
                                                .dy = operands.normal<E>(rows * C, 1e-4),
                                                .workspace = operands.room<Accumulator<E>>(2 * B * C),
                                                .squares = operands.sums<double>(B),
                                                .sequence = T};
        });
}

/// The gradient apart from the logits: in their place it would be the next launch's logits.
template <class E>
KernelCase softmax_cross_entropy(const char* role, int64_t count, int64_t vocab, bool more = false) {
    using A = Accumulator<E>;
    return over_rows(role, dimensions({count, vocab}), {.bytes = 2.0 * double(count * vocab) * sizeof(E)},
                     count, [=](Operands& operands) {
                         return SoftmaxCrossEntropy<E>{
                             .logits = operands.normal<E>(count * vocab, 2),
                             .targets = operands.indices(count, vocab),
                             .losses = operands.room<A>(count),
                             .dlogits = operands.room<E>(count * vocab),
                             .V = vocab,
                             .scale = A(1.0 / double(count)),
                             .z_loss = A(more ? 1e-4 : 0),
                             .label_smoothing = A(more ? 0.1 : 0),
                             .softcap = A(more ? 30 : 0),
                             .objectives = more ? operands.room<A>(count) : nullptr};
                     });
}

/// Repeated launches cap what is capped already.
template <class E>
KernelCase logit_softcap() {
    return over_rows("", dimensions({rows, V}), {.bytes = 2.0 * double(rows * V) * sizeof(E)}, rows,
                     [](Operands& operands) {
                         return LogitSoftcap<E>{
                             .logits = operands.normal<E>(rows * V, 2), .V = V, .cap = Accumulator<E>(30)};
                     });
}

template <class E>
void add(std::vector<KernelCase>& table) {
    table.push_back(embedding_forward<E>());
    table.push_back(layernorm_forward<E>());
    table.push_back(softmax_cross_entropy<E>("", rows, V));
    table.push_back(softmax_cross_entropy<E>("50257", 128, 50257));         // the vocabulary of GPT-2
    table.push_back(softmax_cross_entropy<E>("objective", rows, V, true));  // with all that may be minimised
    table.push_back(logit_softcap<E>());
    table.push_back(layernorm_backward<E>());
    table.push_back(layernorm_examples<E>());
    table.push_back(rmsnorm_forward<E>());
    table.push_back(rmsnorm_backward<E>());
    table.push_back(rmsnorm_examples<E>());
    table.push_back(norm_forward<E>());
    table.push_back(norm_backward<E>());
    table.push_back(norm_examples<E>());
    table.push_back(rotary<E>());
    table.push_back(head_norm_forward<E>());
    table.push_back(head_norm_backward<E>());
    table.push_back(value_residual_forward<E>());
    table.push_back(value_residual_backward<E>());
    table.push_back(token_embedding_backward<E>());
    table.push_back(position_embedding_backward<E>());
}

}  // namespace

void add_row_cases(std::vector<KernelCase>& table) {
    add<float>(table);
    add<bf16>(table);
}

}  // namespace wobble::bench
