// Bench cases over flat arrays and columns: activation, residual, sums, AdamW.

#include "bench/kernel_case.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/reduce.h"
#include "kernels/residual.h"
#include "kernels/round.h"

namespace wobble::bench {

namespace {

using namespace shape;

template <class E>
KernelCase activation_forward() {
    const int64_t n = rows * F;
    return over_rows("", dimensions({rows, F}), {.bytes = 2.0 * double(n) * sizeof(E)}, flat_rows(n),
                     [=](Operands& operands) {
                         return ActivationForward<E>{
                             .x = operands.normal<E>(n), .y = operands.room<E>(n), .n = n};
                     });
}

/// Not in place, where slopes would be multiplied up from launch to launch.
template <class E>
KernelCase activation_backward() {
    const int64_t n = rows * F;
    return over_rows("", dimensions({rows, F}), {.bytes = 3.0 * double(n) * sizeof(E)}, flat_rows(n),
                     [=](Operands& operands) {
                         return ActivationBackward<E>{.x = operands.normal<E>(n),
                                                      .dy = operands.normal<E>(n, 1e-4),
                                                      .dx = operands.room<E>(n),
                                                      .n = n};
                     });
}

template <class E>
KernelCase gated_forward() {
    return over_rows("", dimensions({rows, 2 * F}), {.bytes = 3.0 * double(rows * F) * sizeof(E)}, rows,
                     [](Operands& operands) {
                         return GatedForward<E>{
                             .x = operands.normal<E>(rows * 2 * F), .y = operands.room<E>(rows * F), .F = F};
                     });
}

template <class E>
KernelCase gated_backward() {
    return over_rows("", dimensions({rows, 2 * F}), {.bytes = 5.0 * double(rows * F) * sizeof(E)}, rows,
                     [](Operands& operands) {
                         return GatedBackward<E>{.x = operands.normal<E>(rows * 2 * F),
                                                 .dy = operands.normal<E>(rows * F, 1e-4),
                                                 .dx = operands.room<E>(rows * 2 * F),
                                                 .F = F};
                     });
}

/// The other activations, as they are applied to the layer's hidden values.
template <class E, class Act>
KernelCase other_activation(const char* role) {
    const int64_t n = rows * F;
    return over_rows(role, dimensions({rows, F}), {.bytes = 2.0 * double(n) * sizeof(E)}, flat_rows(n),
                     [=](Operands& operands) {
                         return ActivationForward<E, Act>{
                             .x = operands.normal<E>(n), .y = operands.room<E>(n), .n = n};
                     });
}

template <class E>
KernelCase residual() {
    const int64_t n = rows * C;
    return over_rows("", dimensions({rows, C}), {.bytes = 3.0 * double(n) * sizeof(E)}, flat_rows(n),
                     [=](Operands& operands) {
                         return Residual<E>{.x = operands.normal<E>(n),
                                            .branch = operands.normal<E>(n, 0.1),
                                            .y = operands.room<E>(n),
                                            .n = n};
                     });
}

template <class E>
KernelCase scale() {
    const int64_t n = rows * C;
    return over_rows("", dimensions({rows, C}), {.bytes = 2.0 * double(n) * sizeof(E)}, flat_rows(n),
                     [=](Operands& operands) {
                         return Scale<E>{
                             .x = operands.normal<E>(n), .y = operands.room<E>(n), .n = n, .factor = E(0.5)};
                     });
}

template <class E>
KernelCase round_weights() {
    const int64_t n = rows * C;
    return over_rows("", dimensions({rows, C}), {.bytes = double(n) * (sizeof(E) + sizeof(Accumulator<E>))},
                     flat_rows(n), [=](Operands& operands) {
                         return RoundWeights<E>{.master = operands.normal<Accumulator<E>>(n, 0.02),
                                                .weight = operands.room<E>(n),
                                                .n = n};
                     });
}

/// The two stages of a bias gradient.
template <class E>
KernelCase column_sum() {
    const int64_t chunks = chunk_count(rows);
    return over_rows("", dimensions({rows, 3 * C}), {.bytes = double(rows * 3 * C) * sizeof(E)}, chunks,
                     [=](Operands& operands) {
                         return ColumnSum<E>{.x = operands.normal<E>(rows * 3 * C, 1e-4),
                                             .chunks = operands.room<Accumulator<E>>(chunks * 3 * C),
                                             .rows = rows,
                                             .C = 3 * C};
                     });
}

template <class E>
KernelCase sum_chunks() {
    using A = Accumulator<E>;
    const int64_t count = chunk_count(rows), columns = 3 * C;
    return over_rows("", dimensions({count, columns}), {.bytes = double((count + 1) * columns) * sizeof(A)},
                     SumChunks<E>::teams(columns), [=](Operands& operands) {
                         return SumChunks<E>{.chunks = operands.normal<A>(count * columns, 1e-4),
                                             .out = operands.room<A>(columns),
                                             .count = count,
                                             .C = columns,
                                             .accumulate = false};
                     });
}

template <class E>
KernelCase squared_sum() {
    const int64_t n = C * F;
    return over_rows(
        "", dimensions({C, F}), {.bytes = double(n) * sizeof(E)}, flat_rows(n), [=](Operands& operands) {
            return SquaredSum<E>{
                .x = operands.normal<E>(n, 1e-4), .partials = operands.room<double>(flat_rows(n)), .n = n};
        });
}

/// Two arrays in turns: compared with the last one, the same one would not have changed.
template <class E>
KernelCase squared_change() {
    const int64_t n = C * F;
    const auto compare_with = [=](Operands& operands, E* previous) {
        return SquaredChange<E>{.x = operands.normal<E>(n, 1e-4),
                                .previous = previous,
                                .partials = operands.room<double>(flat_rows(n)),
                                .n = n};
    };
    const Cost cost{.bytes = 3.0 * double(n) * sizeof(E)};
    KernelCase c = over_rows("", dimensions({C, F}), cost, flat_rows(n),
                             [=](Operands& operands) { return compare_with(operands, operands.room<E>(n)); });
    c.prepare = [=] {
        auto operands = std::make_shared<Operands>(device);
        E* previous = operands->template room<E>(n);
        const auto first = compare_with(*operands, previous), second = compare_with(*operands, previous);
        auto turn = std::make_shared<bool>(false);
        return Prepared{[=](Context& context) {
                            *turn = !*turn;
                            launch(context, flat_rows(n), *turn ? first : second, {"bench"});
                        },
                        [operands] { operands->reset(); }};
    };
    return c;
}

/// The same step again and again: decays of 1 hold the moments as they are, and the rate is too small to move
/// the weights in thousands of launches.
template <class E>
KernelCase adamw() {
    using A = Accumulator<E>;
    const int64_t n = C * F, weights = n * int64_t(sizeof(E)), sums = n * int64_t(sizeof(A));
    return over_rows("", dimensions({C, F}), {.bytes = double(2 * weights + 5 * sums)}, flat_rows(n),
                     [=](Operands& operands) {
                         return AdamW<E>{.weight = operands.normal<E>(n, 0.02),
                                         .gradient = operands.normal<A>(n, 1e-3),
                                         .m = operands.normal<A>(n, 1e-3),
                                         .v = operands.squares<A>(n, 1e-3),
                                         .update_squares = operands.room<double>(flat_rows(n)),
                                         .weight_squares = operands.room<double>(flat_rows(n)),
                                         .n = n,
                                         .clip = A(0.5),
                                         .lr = A(1e-8),
                                         .decay = A(0.1),
                                         .beta1 = A(1),
                                         .beta2 = A(1),
                                         .epsilon = A(1e-8),
                                         .one_minus_beta1 = A(0),
                                         .one_minus_beta2 = A(0),
                                         .bias1 = A(1),
                                         .bias2 = A(1)};
                     });
}

template <class E>
void add(std::vector<KernelCase>& table) {
    table.push_back(activation_forward<E>());
    table.push_back(activation_backward<E>());
    table.push_back(other_activation<E, GeluExact>("gelu_exact"));
    table.push_back(other_activation<E, ReluSquared>("relu_squared"));
    table.push_back(other_activation<E, Silu>("silu"));
    table.push_back(gated_forward<E>());
    table.push_back(gated_backward<E>());
    table.push_back(residual<E>());
    table.push_back(scale<E>());
    table.push_back(column_sum<E>());
    table.push_back(sum_chunks<E>());
    // The optimizer's operands are float32 in either.
    if constexpr (std::is_same_v<E, Accumulator<E>>) {
        table.push_back(squared_sum<E>());
        table.push_back(squared_change<E>());
        table.push_back(adamw<E>());
    } else {
        table.push_back(round_weights<E>());
    }
}

}  // namespace

void add_flat_cases(std::vector<KernelCase>& table) {
    add<float>(table);
    add<bf16>(table);
}

}  // namespace wobble::bench
