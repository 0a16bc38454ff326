// Value residual (Zhou et al. 2024): the values of a layer's attention are mixed with those of the first
// layer,
//
//   v ← (1 - λ) v + λ v_first,
//
// so that what the tokens were reaches deep layers undiluted. Backward:  dv_first += λ dv,  dv ← (1 - λ) dv.
#pragma once

#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// One row per team, in place.
template <class T>
struct ValueResidualForward {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "value_residual_forward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    T* v;                          // the values of the first row, [rows, stride]
    const T* v_first;              // those of the first layer, [rows, first_stride]
    int64_t stride, first_stride;  // elements from one row to the next
    int64_t width;                 // of a row's values
    A lambda;

    int64_t row_elements() const { return width; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        T* own = v + row * stride;
        const T* first = v_first + row * first_stride;
        const A keep = A(1) - lambda;
        // A pack, a power of two, divides both strides where it divides this.
        const int64_t strides = stride | first_stride;
        team.each(width, strides, [&](auto at) {
            const auto value = load(own, at) * keep + load(first, at) * lambda;
            store(own, at, probe.writes(Output, row, at, value));
        });
        probe.wrote(Output, row, 0, own, width);
    }
};

/// One row per team: dv in place, and its share of dv_first.
template <class T>
struct ValueResidualBackward {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "value_residual_backward";
    enum Channel { Output, First };
    static constexpr const char* channels[] = {"output", "first"};

    T* dv;        // of the mixed values, then of the layer's own, [rows, stride]
    T* dv_first;  // [rows, first_stride]
    int64_t stride, first_stride, width;
    A lambda;
    bool accumulate;  // dv_first has a share of other layers already

    int64_t row_elements() const { return width; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        T* own = dv + row * stride;
        T* first = dv_first + row * first_stride;
        const int64_t strides = stride | first_stride;  // as in forward
        const A keep = A(1) - lambda;
        team.each(width, strides, [&](auto at) {
            const auto grad = load(own, at);
            auto share = grad * lambda;
            if (accumulate) share = share + load(first, at);
            store(own, at, probe.writes(Output, row, at, grad * keep));
            store(first, at, probe.writes(First, row, at, share));
        });
        probe.wrote(Output, row, 0, own, width);
        probe.wrote(First, row, 0, first, width);
    }
};

}  // namespace wobble
