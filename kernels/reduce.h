// Sums over rows, in two stages and a fixed order: partial sums of chunks of rows, then the chunks in order.
#pragma once

#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// First stage, one chunk of rows per team: chunks[chunk, c] = Σ over the chunk's rows of x[row, c].
template <class T>
struct ColumnSum {
    using Element = T;
    using A = Accumulator<T>;
    using Stored = A;
    static constexpr const char* name = "column_sum";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* x;  // [rows, C]
    A* chunks;   // [chunk_count(rows), C]
    int64_t rows, C;

    int64_t row_elements() const { return ceil_div(rows, chunk_count(rows)) * C; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t chunk, Probe& probe) const {
        const Range range = chunk_rows(chunk, rows);
        A* out = chunks + chunk * C;
        for (int64_t row = range.begin; row < range.end; ++row) {
            const bool first = row == range.begin;
            team.each(C, [&](auto at) {
                const auto value = load(x + row * C, at);
                store(out, at, first ? value : load(out, at) + value);
            });
        }
        if constexpr (Probe::looks) {
            team.each(C, [&](auto at) { store(out, at, probe.writes(Output, chunk, at, load(out, at))); });
            probe.wrote(Output, chunk, 0, out, C);
        }
    }
};

/// Second stage, `columns` columns per team: out[c] = Σ_chunk chunks[chunk, c], added to what is there if
/// `accumulate`.
template <class T>
struct SumChunks {
    using Element = T;
    using A = Accumulator<T>;
    using Stored = A;
    static constexpr const char* name = "sum_chunks";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    static constexpr int64_t columns = 256;

    const A* chunks;  // [count, C]
    A* out;           // [C]
    int64_t count, C;
    bool accumulate;

    static int64_t teams(int64_t C) { return ceil_div(C, columns); }
    int64_t row_elements() const { return count * columns; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t first = row * columns, rest = C - first;
        const int64_t length = rest < columns ? rest : columns;
        team.each(length, C, [&](auto at) {
            auto sum = load(chunks + first, at);
            for (int64_t i = 1; i < count; ++i) sum = sum + load(chunks + i * C + first, at);
            if (accumulate) sum = sum + load(out + first, at);
            store(out + first, at, probe.writes(Output, 0, at_column(first, at), sum));
        });
        probe.wrote(Output, 0, first, out + first, length);
    }
};

/// Σ x² of a flat array, one partial sum in float64 per `length` elements. The squares are taken in
/// float64, so values near the largest float neither overflow nor, near the smallest, vanish.
template <class T>
struct SquaredSum {
    using Element = T;
    static constexpr const char* name = "squared_sum";
    enum Channel { Value };
    static constexpr const char* channels[] = {"value"};

    const T* x;        // [n]
    double* partials;  // [ceil_div(n, length)]
    int64_t n;
    int64_t length = flat_row;

    int64_t row_elements() const { return length; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const T* in = x + row * length;
        Sum<Team, double> sum;
        team.each(flat_row_length(row, n, length), [&](auto at) {
            const auto value = convert<double>(probe.observe(Value, row, at, load(in, at)));
            sum += value * value;
        });
        const double total = team.sum(sum);
        if (team.leads()) partials[row] = total;
    }
};

/// Σ (x - previous)² in the same way, and previous = x: what has been added to a sum since the last time.
template <class T>
struct SquaredChange {
    using Element = T;
    static constexpr const char* name = "squared_change";
    enum Channel { Change };
    static constexpr const char* channels[] = {"change"};

    const T* x;        // [n]
    T* previous;       // [n]
    double* partials;  // [flat_rows(n)]
    int64_t n;

    int64_t row_elements() const { return flat_row; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t first = row * flat_row;
        Sum<Team, double> sum;
        team.each(flat_row_length(row, n), [&](auto at) {
            const auto now = load(x + first, at);
            const auto change =
                convert<double>(probe.observe(Change, row, at, now - load(previous + first, at)));
            store(previous + first, at, now);
            sum += change * change;
        });
        const double total = team.sum(sum);
        if (team.leads()) partials[row] = total;
    }
};

/// totals[i] = Σ x over piece i of an array, in float64, added to what is there if `accumulate`. One piece
/// per team.
template <class T>
struct Totals {
    using Element = T;
    static constexpr const char* name = "totals";

    const T* x;
    const int64_t* begin;  // [pieces + 1]: piece i is x[begin[i]] … x[begin[i + 1] - 1]
    double* totals;        // [pieces]
    int64_t length;        // of a piece, about
    bool accumulate = false;

    int64_t row_elements() const { return length; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t piece, Probe&) const {
        const int64_t first = begin[piece];
        Sum<Team, double> sum;
        team.each(begin[piece + 1] - first, 1, [&](auto at) { sum += convert<double>(load(x + first, at)); });
        const double total = team.sum(sum);
        if (team.leads()) totals[piece] = accumulate ? totals[piece] + total : total;
    }
};

/// *total = Σ x of a whole array, in the same way. One team.
template <class T>
struct Total {
    using Element = T;
    static constexpr const char* name = "total";

    const T* x;     // [n]
    double* total;  // [1]
    int64_t n;
    bool accumulate = false;

    int64_t row_elements() const { return n; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t, Probe&) const {
        Sum<Team, double> sum;
        team.each(n, [&](auto at) { sum += convert<double>(load(x, at)); });
        const double found = team.sum(sum);
        if (team.leads()) *total = accumulate ? *total + found : found;
    }
};

/// A row of one of many kernels of a kind, as if they were one: tensors of all sizes in one launch.
template <class Kernel>
struct Together {
    using Element = typename Kernel::Element;
    static constexpr const char* name = Kernel::name;

    const Kernel* kernels;     // of each tensor
    const int32_t* of_row;     // [rows]: the tensor whose row it is
    const int64_t* first_row;  // of each tensor
    int64_t length;            // of a row, about

    int64_t row_elements() const { return length; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int32_t which = of_row[row];
        kernels[which](team, row - first_row[which], probe);
    }
};

}  // namespace wobble
