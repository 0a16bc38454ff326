// Residual: y = x + branch. On the CPU the forward sum is made inside the product that ends a branch (its
// epilogue); this kernel serves where a product has no epilogue. Backward is the identity for both: layer
// norm's backward adds it.
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

    const T* x;       // [n]
    const T* branch;  // [n]
    T* y;             // [n], may be either of them
    int64_t n;

    int64_t row_elements() const { return flat_row; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t first = row * flat_row;
        const int64_t length = flat_row_length(row, n);
        team.each(length, [&](auto at) {
            const auto value = load(x + first, at) + load(branch + first, at);
            store(y + first, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, y + first, length);
    }
};

}  // namespace wobble
