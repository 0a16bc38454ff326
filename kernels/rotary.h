// Rotary position embedding (Su et al. 2021): the first R channels of each query and key head are turned, in
// pairs (i, i + R/2), by the angle of their position:
//
//   y_i       = x_i · cos a - x_(i+R/2) · sin a
//   y_(i+R/2) = x_(i+R/2) · cos a + x_i · sin a,    a = position · base^(-2i/R),   i < R/2
//
// so that the product of a query and a key depends on how far apart they are. Pairs lie half of R apart, as
// in GPT-NeoX and Llama; the paper pairs neighbours, which is the same up to the order of the channels.
//
// Backward turns the gradient the other way: the transpose of a rotation is its inverse.
#pragma once

#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// One row per team, all its heads in place. On CUDA, D must be a multiple of a pack where R/2 is one.
template <class T>
struct Rotary {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "rotary";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};  // the channels that were turned

    T* x;                        // the first head of the first row, [rows, row_stride]
    const A* cosine;             // [context, R/2], of `fill_rotary`
    const A* sine;               // [context, R/2]
    int64_t row_stride;          // elements from one row to the next
    int64_t heads;               // side by side
    int64_t head_size, rotated;  // D, R: even, at most D
    int64_t first, sequence;     // row r is at position first + r % sequence
    bool inverse;                // for backward

    int64_t row_elements() const { return heads * rotated; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t half = rotated / 2, position = first + row % sequence;
        const A* cosines = cosine + position * half;
        const A* sines = sine + position * half;
        const A direction = inverse ? A(-1) : A(1);
        for (int64_t h = 0; h < heads; ++h) {
            const int64_t column = h * head_size;
            T* low = x + row * row_stride + column;
            T* high = low + half;
            team.each(half, [&](auto at) {
                const auto a = load(low, at), b = load(high, at);
                const auto c = load(cosines, at), s = load(sines, at) * direction;
                store(low, at, probe.writes(Output, row, at_column(column, at), a * c - b * s));
                store(high, at, probe.writes(Output, row, at_column(column + half, at), b * c + a * s));
            });
            probe.wrote(Output, row, column, low, rotated);
        }
    }
};

/// cos and sin of position · base^(-2i/R), worked out in float64, for positions below `context`.
template <class A>
void fill_rotary(A* cosine, A* sine, int64_t context, int64_t rotated, double base) {
    const int64_t half = rotated / 2;
    for (int64_t i = 0; i < half; ++i) {
        const double frequency = std::pow(base, -2 * double(i) / double(rotated));
        for (int64_t position = 0; position < context; ++position) {
            const double angle = double(position) * frequency;
            cosine[position * half + i] = A(std::cos(angle));
            sine[position * half + i] = A(std::sin(angle));
        }
    }
}

}  // namespace wobble
