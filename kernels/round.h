// Weights in the precision that the model computes with, rounded from their master copies.
#pragma once

#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

template <class T>
struct RoundWeights {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "round_weights";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const A* master;  // [n]
    T* weight;        // [n]
    int64_t n;

    int64_t row_elements() const { return flat_row; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t first = row * flat_row, length = flat_row_length(row, n);
        team.each(length, [&](auto at) INLINED {
            store(weight + first, at, probe.writes(Output, row, at, load(master + first, at)));
        });
        probe.wrote(Output, row, 0, weight + first, length);
    }
};

}  // namespace wobble
