// Matrix product  C = op(A) · op(B), row-major, op the identity or the transpose, with what follows it fused:
// accumulation into C, bias, activation, residual.
//
// A packed product in the manner of Goto & van de Geijn (2008), one text for every instruction set, from the
// panels and register tiles of panels.h. K is cut into blocks of KC. B's panels of a block are packed once,
// by all threads; A's by the thread that needs them, a few rows of tiles at a time, which stay in its
// second-level cache: packed as a whole, A would go out to memory and back.
//
// Every element of C adds up its K products in the same order whatever the number of threads: blocks of K one
// after the other, inside a block k ascending. Threads share tiles of C only.
//
// With a single row, as in generation, nothing of B is needed twice: it is read from memory where it lies, in
// an order of its own that follows from the shape alone. The sum is the same but for its rounding.
#pragma once

#include <omp.h>

#include <algorithm>

#include "kernels/activation.h"
#include "kernels/context.h"
#include "kernels/panels.h"
#include "kernels/probe.h"
#include "kernels/rows.h"

namespace wobble {

enum class Epilogue { None, Gelu };

/// C is of type Out: T, or the accumulator's for gradients.
template <class T, class Out = T>
struct Product {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "product";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    using ObservesPair = void;  // what is added to the residual, and the residual, where that is not C itself

    const T* a = nullptr;  // [m, k], or [k, m] if transpose_a
    const T* b = nullptr;  // [k, n], or [n, k] if transpose_b
    Out* c = nullptr;      // [m, n]
    int64_t m = 0, n = 0, k = 0;
    bool transpose_a = false, transpose_b = false;
    bool accumulate = false;  // C += instead of C =; then nothing else may follow
    const T* bias = nullptr;  // [n], added to every row
    Epilogue activation = Epilogue::None;
    T* before_activation = nullptr;  // [m, n], kept for backward when there is an activation
    const T* residual = nullptr;     // [m, n], added last; may be `c` where there is no activation

    using P = Panel<T>;
    using Shape = Tile<P>;
    using Vector = typename Shape::Vector;

    /// Tiles of C are grouped into tasks, a number that depends on the shape alone. One probe watches each
    /// task. Those of a single row are strips of columns.
    struct Tasks {
        int64_t row_panels, column_panels;  // register tiles of a task, down and across
        int64_t down, across;               // tasks
    };
    Tasks tasks() const {
        const int64_t rows = ceil_div(m, Shape::MR), columns = ceil_div(n, Shape::NR);
        if (m == 1) {
            constexpr int64_t strip = most_strip / Shape::NR;
            return {1, strip, 1, ceil_div(columns, strip)};
        }
        Tasks t{8, 8, 0, 0};  // 96 × 256 floats: both operands' blocks fit the second-level cache
        for (;;) {
            t.down = ceil_div(rows, t.row_panels), t.across = ceil_div(columns, t.column_panels);
            if (t.down * t.across >= 32 || (t.row_panels <= 2 && t.column_panels <= 2)) return t;
            if (t.row_panels >= t.column_panels) t.row_panels /= 2;
            else t.column_panels /= 2;
        }
    }
    int64_t parts() const {
        const Tasks t = tasks();
        return t.down * t.across;
    }

    ObservedMatrix<Out> observed() const { return {c, n, m}; }

    /// CUDA's text, in product_cuda.h. run(rows, kernel) launches a row kernel that belongs to it; `watched`:
    /// whether one must pass over what was written.
    template <class Run>
    void on_cuda(const Context& context, bool watched, Run&& run) const;

    template <class Watch>
    void operator()(Context& context, Watch& watch) const {
        if (m == 1) one_row(context, watch);
        else all_rows(context, watch);
    }

  private:
    static constexpr int64_t most_strip = 256;  // columns

    template <class Watch>
    void all_rows(Context& context, Watch& watch) const {
        const MatrixView<T> left{a, transpose_a ? 1 : k, transpose_a ? m : 1};
        // B is packed by columns: seen as its transpose, a row of the view is a column of op(B).
        const MatrixView<T> right{b, transpose_b ? k : 1, transpose_b ? 1 : n};
        const Tasks grid = tasks();
        const int64_t depth_most = std::min(k, Shape::KC);
        // Groups of whole tasks, so that a task never straddles two of them.
        const int64_t group_across =
            std::max<int64_t>(1, Shape::most_columns / (grid.column_panels * Shape::NR));
        const int64_t panels_across = std::min(group_across * grid.column_panels, ceil_div(n, Shape::NR));
        const int64_t packed_most = Shape::padded(depth_most);
        // Where C is narrower than the sums, blocks of K add up beside it.
        const bool apart = !std::is_same_v<Out, A> && k > Shape::KC;
        char* memory =
            context.scratch.get<char>((apart ? m * n * int64_t(sizeof(A)) : 0) +
                                      panels_across * Shape::NR * packed_most * int64_t(sizeof(P)));
        A* partial = nullptr;
        if constexpr (std::is_same_v<Out, A>) partial = c;
        else if (apart) partial = reinterpret_cast<A*>(memory);
        P* packed_b = reinterpret_cast<P*>(memory + (apart ? m * n * int64_t(sizeof(A)) : 0));
        constexpr int64_t packed_together = 4;  // panels

#pragma omp parallel num_threads(context.threads) if (context.worth_sharing(m * n * k / 8))
        for (int64_t ta = 0; ta < grid.across; ta += group_across) {
            const int64_t across = std::min(group_across, grid.across - ta);
            const int64_t b_first = ta * grid.column_panels;
            const int64_t b_panels = std::min(across * grid.column_panels, ceil_div(n, Shape::NR) - b_first);
            const int64_t tasks_in_turn = in_turn(grid.down, across, context.threads);
            P* packed_a = context.thread_scratch[size_t(omp_get_thread_num())].template get<P>(
                grid.row_panels * Shape::MR * packed_most);
            for (int64_t k0 = 0; k0 == 0 || k0 < k; k0 += Shape::KC) {
                const int64_t depth = std::min(k - k0, Shape::KC), packed = Shape::padded(depth);
#pragma omp for schedule(static)
                for (int64_t p = 0; p < b_panels; p += packed_together) {
                    const int64_t j = (b_first + p) * Shape::NR;
                    pack_panels<Shape::NR>(
                        right, j, std::min({packed_together * Shape::NR, n - j, (b_panels - p) * Shape::NR}),
                        k0, depth, packed_b + p * Shape::NR * packed);
                }
                int64_t packed_down = -1;  // the row of tasks whose block of A this thread has packed
#pragma omp for schedule(dynamic, tasks_in_turn)
                for (int64_t task = 0; task < grid.down * across; ++task) {
                    const int64_t d = task / across, e = task % across;
                    auto probe = watch.probe(d * grid.across + ta + e);
                    const int64_t i = d * grid.row_panels * Shape::MR;
                    const int64_t rows = std::min(grid.row_panels * Shape::MR, m - i);
                    if (d != packed_down) pack_panels<Shape::MR>(left, i, rows, k0, depth, packed_a);
                    packed_down = d;
                    const Range columns{e * grid.column_panels,
                                        std::min((e + 1) * grid.column_panels, b_panels)};
                    for (int64_t q = columns.begin; q < columns.end; ++q) {
                        for (int64_t p = 0; p < ceil_div(rows, Shape::MR); ++p) {
                            prefetch(i + p * Shape::MR, (b_first + q) * Shape::NR);
                            typename Shape::Sums sums;
                            multiply_panels(packed, packed_rows(packed_a + p * Shape::MR * packed),
                                            packed_b + q * Shape::NR * packed, sums);
                            finish(sums, partial, i + p * Shape::MR, (b_first + q) * Shape::NR, k0 > 0,
                                   k0 + depth >= k, probe);
                        }
                    }
                }
            }
        }
    }

    /// op(B) as it lies: a dot product for each of its columns, or a sum of its rows, some of them added up
    /// by each thread, so that all of it is read front to back.
    template <class Watch>
    void one_row(Context& context, Watch& watch) const {
        const Tasks grid = tasks();
        const int64_t strip = grid.column_panels * Shape::NR;
        const int64_t chunks = transpose_b ? 0 : std::clamp<int64_t>(k / 32, 1, most_chunks);
        A* sums = context.scratch.get<A>(chunks * n);  // [chunks, n]
#pragma omp parallel num_threads(context.threads) if (context.worth_sharing(n * k / 8))
        {
#pragma omp for schedule(dynamic, 1)
            for (int64_t chunk = 0; chunk < chunks; ++chunk) {
                A* sum = sums + chunk * n;
                std::fill_n(sum, n, A(0));
                for (int64_t i = chunk * k / chunks; i < (chunk + 1) * k / chunks; ++i) {
                    const A x = A(a[i]);
                    const T* row = b + i * n;
                    Lane{}.each(n, [sum, x, row](auto at)
                                       INLINED { store(sum, at, fused(load(row, at), x, load(sum, at))); });
                }
            }
#pragma omp for schedule(dynamic, 1)
            for (int64_t task = 0; task < grid.across; ++task) {
                auto probe = watch.probe(task);
                const int64_t first = task * strip, columns = std::min(strip, n - first);
                alignas(64) A total[most_strip], branch[most_strip];
                if (transpose_b) {
                    for (int64_t j = 0; j < columns; ++j) total[j] = dot(Lane{}, a, b + (first + j) * k, k);
                } else {
                    std::copy_n(sums + first, columns, total);
                    for (int64_t chunk = 1; chunk < chunks; ++chunk)
                        add_scaled(Lane{}, total, sums + chunk * n + first, A(1), columns, false);
                }
                Lane{}.each(columns, [&](auto at) INLINED {
                    finish_pack(load(total, at), nullptr, 0, at_column(first, at), false, true,
                                branch + at.index, probe);
                });
                observe(branch, 0, first, 1, columns, probe);
            }
        }
    }

    /// How many tasks a thread takes at a time: a row of them, which share a block of A, where there are rows
    /// enough to go round.
    static int64_t in_turn(int64_t down, int64_t across, int threads) {
        const int64_t pieces = ceil_div(4 * int64_t(threads), down);  // of a row
        return std::max<int64_t>(1, across / pieces);
    }
    /// Calls for the tile of C at (i0, j0), which will be needed when its sums are done.
    HOST void prefetch(int64_t i0, int64_t j0) const {
        const Out* tile = c + i0 * n + j0;
        const int64_t rows = std::min<int64_t>(Shape::MR, m - i0);
        for (int64_t i = 0; i < rows; ++i) {
            __builtin_prefetch(tile + i * n, 1);
            __builtin_prefetch(tile + i * n + Shape::NR - 1, 1);
        }
    }

    /// Writes a tile of sums to C at (i0, j0), the last block of K with all that follows the product.
    template <class Probe>
    void finish(const Vector (&sums)[Shape::MR][2], A* partial, int64_t i0, int64_t j0, bool continued,
                bool last, Probe& probe) const {
        const int64_t rows = std::min<int64_t>(Shape::MR, m - i0);
        const int64_t columns = std::min<int64_t>(Shape::NR, n - j0);
        alignas(64) A branch[Shape::MR * Shape::NR];  // what is added to the residual, kept for a probe
        if (columns == Shape::NR) {
            for (int64_t i = 0; i < rows; ++i) {
                UNROLL for (int h = 0; h < 2; ++h) {
                    finish_pack(sums[i][h], partial, i0 + i, At<Shape::width>{j0 + h * Shape::width},
                                continued, last, branch + i * Shape::NR + h * Shape::width, probe);
                }
            }
        } else {
            for (int64_t i = 0; i < rows; ++i) {
                A sum[Shape::NR];
                std::memcpy(sum, sums[i], sizeof sum);
                for (int64_t j = 0; j < columns; ++j) {
                    finish_pack(splat<1>(sum[j]), partial, i0 + i, At<1>{j0 + j}, continued, last,
                                branch + i * Shape::NR + j, probe);
                }
            }
        }
        if (last) observe(branch, i0, j0, rows, columns, probe);
    }

    /// Shows a probe what was written to C at (i0, j0), and what was added to the residual there.
    template <class Probe>
    void observe([[maybe_unused]] const A* branch, [[maybe_unused]] int64_t i0, [[maybe_unused]] int64_t j0,
                 [[maybe_unused]] int64_t rows, [[maybe_unused]] int64_t columns,
                 [[maybe_unused]] Probe& probe) const {
        if constexpr (Probe::looks) {
            const int64_t first = i0 * n + j0;
            if (residual && !in_place()) probe.pair(branch, Shape::NR, residual + first, n, columns, rows);
            probe.wrote(Output, i0, j0, c + first, columns, rows, n);
        }
    }

    /// A residual in C itself is added first: later blocks of K find partial sums in its place.
    HD bool in_place() const {
        return static_cast<const void*>(residual) == c && activation == Epilogue::None;
    }

    template <int N, class Probe>
    HOST void finish_pack(Pack<A, N> value, [[maybe_unused]] A* partial, int64_t row, At<N> at,
                          bool continued, bool last, [[maybe_unused]] A* branch, Probe& probe) const {
        Out* out = c + row * n;
        const bool adds_first = in_place();
        if (continued) value = value + load(partial + row * n, at);
        else if (accumulate || adds_first) value = value + load(out, at);
        if (!last) {
            store(partial + row * n, at, value);
            return;
        }
        if (bias) value = value + load(bias, at);
        if (activation == Epilogue::Gelu) {
            store(before_activation + row * n, at, value);
            value = Gelu::value(value);
        }
        if (residual && !adds_first) {
            const auto beside = load(residual + row * n, at);
            if constexpr (Probe::looks) store(branch, At<N>{0}, value);
            value = value + beside;
        }
        store(out, at, probe.writes(Output, row, at, value));
    }
};

}  // namespace wobble
