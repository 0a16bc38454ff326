// Residual: y = x + scale · branch. On the CPU the plain sum is made inside the product that ends a branch
// (its epilogue); this kernel serves where something stands between the two, or a product has no epilogue.
// Backward hands dy to both, `Scale` multiplying the branch's.
#pragma once

#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

template <class T>
struct Residual {
    using Element = T;
    static constexpr const char* name = "residual";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    using ObservesPair = void;  // scale · branch, and x

    const T* x;       // [n]
    const T* branch;  // [n]
    T* y;             // [n], may be either of them
    int64_t n;
    Accumulator<T> scale = 1;

    int64_t row_elements() const { return flat_row; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t first = row * flat_row;
        const int64_t length = flat_row_length(row, n);
        if constexpr (Probe::looks) {
            probe.pair(branch + first, length, x + first, length, length, 1, scale);
            team.sync();
        }
        team.each(length, [&](auto at) {
            const auto value = fused(load(branch + first, at), scale, load(x + first, at));
            store(y + first, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, y + first, length);
    }
};

/// y = factor · x
template <class T>
struct Scale {
    using Element = T;
    static constexpr const char* name = "scale";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* x;  // [n]
    T* y;        // [n], may be x
    int64_t n;
    Accumulator<T> factor;

    int64_t row_elements() const { return flat_row; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t first = row * flat_row;
        const int64_t length = flat_row_length(row, n);
        team.each(length, [&](auto at) {
            const auto value = load(x + first, at) * factor;
            store(y + first, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, y + first, length);
    }
};

}  // namespace wobble
