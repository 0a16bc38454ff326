// Sums over parts of a matrix that exact arithmetic would make zero, or equal to another one: the balance of
// the output head's gradient, and the products of weights with their gradients that invariances of attention
// tie together.
#pragma once

#include "kernels/probe.h"
#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// out[c] = Σ_rows x[row, c], `columns` columns per team. Of the head's gradient dW = dlogitsᵀ x every column
/// adds up to nothing, since each row of dlogits does: without z-loss or a cap of the logits.
template <class T>
struct ColumnTotals {
    using Element = T;
    using A = Accumulator<T>;
    using Stored = A;
    static constexpr const char* name = "column_totals";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    enum Identity { SumOverRows };
    static constexpr const char* identities[1] = {"sum over rows"};
    static constexpr int64_t columns = 256;

    const T* x;  // [rows, C]
    A* out;      // [C]
    int64_t rows, C;

    static int64_t teams(int64_t C) { return ceil_div(C, columns); }
    int64_t row_elements() const { return rows * columns; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t team_index, Probe& probe) const {
        const int64_t first = team_index * columns, rest = C - first,
                      length = rest < columns ? rest : columns;
        team.each(length, C, [&](auto at) {
            constexpr int N = decltype(at)::width;
            auto sum = splat<N>(A(0)), size = sum;
            for (int64_t row = 0; row < rows; ++row) {
                const auto value = load(x + row * C + first, at);
                sum = sum + value;
                if constexpr (Probe::looks) size = size + magnitude(value);
            }
            store(out + first, at, probe.writes(Output, 0, at_column(first, at), sum));
            if constexpr (Probe::looks) {
                if (probe.full()) {
                    for (int i = 0; i < N; ++i)
                        probe.residual(SumOverRows, first + at.index + i, double(sum[i]), double(size[i]));
                }
            }
        });
        probe.wrote(Output, 0, first, out + first, length);
    }
};

/// Σ x · y over each block of two matrices [rows, C] that are cut into blocks of height × width, and Σ |x ·
/// y|; one block per team, row by row of blocks.
template <class T>
struct BlockDots {
    using Element = T;
    using A = Accumulator<T>;
    using Observed = double;  // what the probe sees, where it is not the accumulator type
    static constexpr const char* name = "block_dots";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* x;                // [rows, C]
    const A* y;                // [rows, C]
    double* dots;              // [blocks]
    double* sizes;             // [blocks]
    int64_t C, height, width;  // width divides C, height the rows

    int64_t row_elements() const { return height * width; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t block, Probe& probe) const {
        const int64_t across = C / width;
        const int64_t corner = block / across * height * C + block % across * width;
        Sum<Team, double> dot, size;
        for (int64_t row = 0; row < height; ++row) {
            team.each(width, [&](auto at) {
                const auto product = convert<double>(load(x + corner + row * C, at)) *
                                     convert<double>(load(y + corner + row * C, at));
                dot += product;
                size += magnitude(product);
            });
        }
        const double total = team.sum(dot), total_size = team.sum(size);
        if (team.leads()) {
            dots[block] = probe.observe(Output, block, At<1>{0}, splat<1>(total))[0];
            sizes[block] = total_size;
        }
    }
};

}  // namespace wobble
