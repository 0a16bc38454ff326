// Norms of queries and keys, head by head (Henry et al. 2020, Dehghani et al. 2023): attention's logits stay
// bounded however large its weights grow. Over the D channels x of a head,
//
//   y = (x - mean) · rstd · gain,   rstd = 1 / sqrt(mean((x - mean)²) + epsilon),
//
// with the mean taken out in a layer norm and left in (0 in the formulas) in an RMS norm. All heads share one
// gain: the query heads of a layer are one launch, its key heads another.
//
// Backward, with x̂ = (x - mean) · rstd and g = dy · gain, the term mean(g) in a layer norm only:
//   dx = rstd · (g - mean(g) - x̂ · mean(g · x̂)),   dgain = Σ_rows Σ_heads dy · x̂.
#pragma once

#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// One row per team: all its heads, in place.
template <class T>
struct HeadNormForward {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "head_norm_forward";
    enum Channel { Output, InverseStd };
    static constexpr const char* channels[] = {"output", "rstd"};

    T* x;                      // the first head of the first row, [rows, row_stride]
    const T* gain;             // [D], or null: ones
    T* kept;                   // [rows, H, D]: the inputs, for backward; or null
    A* mean;                   // [rows, H], for backward of a layer norm; or null
    A* rstd;                   // [rows, H], for backward; or null
    int64_t row_stride;        // elements from one row of x to the next
    int64_t heads, head_size;  // H, D
    A epsilon;
    bool centred;  // layer norm, not RMS norm

    int64_t row_elements() const { return heads * head_size; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        const int64_t D = head_size;
        // Squares are added up as shares of their mean, so that the sum does not overflow before the mean
        // does.
        const A share = A(1) / A(D);
        for (int64_t h = 0; h < heads; ++h) {
            T* in = x + row * row_stride + h * D;
            if (kept) {
                T* raw = kept + (row * heads + h) * D;
                team.each(D, [&](auto at) { store(raw, at, load(in, at)); });
            }
            A rough = 0;
            if (centred) {
                Sum<Team, A> sum;
                team.each(D, [&](auto at) { sum += load(in, at); });
                rough = team.sum(sum) / A(D);
            }
            // As in layernorm.h: what the first mean lost to rounding is put back.
            Sum<Team, A> deviations, squares;
            team.each(D, [&](auto at) {
                const auto d = load(in, at) - rough;
                deviations += d;
                squares.add_product(d, d * share);
            });
            const A correction = centred ? team.sum(deviations) / A(D) : A(0);
            const A variance = team.sum(squares) - correction * correction;
            const A r =
                A(1) / std::sqrt((variance > A(0) || variance != variance ? variance : A(0)) + epsilon);

            team.each(D, [&](auto at) {
                auto value = ((load(in, at) - rough) - correction) * r;
                if (gain) value = value * load(gain, at);
                store(in, at, probe.writes(Output, row, at_column(h * D, at), value));
            });
            probe.wrote(Output, row, h * D, in, D);
            if (team.leads()) {
                const A seen = probe.observe(InverseStd, row, At<1>{h}, splat<1>(r))[0];
                if (mean) mean[row * heads + h] = rough + correction;
                if (rstd) rstd[row * heads + h] = seen;
            }
        }
    }
};

/// One chunk of rows per team: the gradients of its heads, in place, and the chunk's share of dgain, which
/// `SumChunks` adds up in order.
template <class T>
struct HeadNormBackward {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "head_norm_backward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* kept;                   // [rows, H, D], of forward
    const A* mean;                   // [rows, H], of forward; not read in an RMS norm
    const A* rstd;                   // [rows, H], of forward
    const T* gain;                   // [D], or null
    T* dx;                           // [rows, row_stride]: gradients of the outputs, then of the inputs
    A* dgain_chunks;                 // [chunks, D], or null without a gain
    int64_t row_stride;              // of dx
    int64_t rows, heads, head_size;  // rows, H, D
    bool centred;

    int64_t row_elements() const { return ceil_div(rows, chunk_count(rows)) * heads * head_size; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t chunk, Probe& probe) const {
        const int64_t D = head_size;
        const Range range = chunk_rows(chunk, rows);
        A* dgain = dgain_chunks + chunk * D;
        if (gain) team.each(D, [&](auto at) { store(dgain, at, splat<at.width>(A(0))); });
        for (int64_t row = range.begin; row < range.end; ++row) {
            for (int64_t h = 0; h < heads; ++h) {
                const T* in = kept + (row * heads + h) * D;
                T* grad = dx + row * row_stride + h * D;
                const A mu = centred ? mean[row * heads + h] : A(0), r = rstd[row * heads + h];

                if (gain) {
                    team.each(D, [&](auto at) {
                        const auto d = load(grad, at);
                        store(dgain, at, fused(d, (load(in, at) - mu) * r, load(dgain, at)));
                    });
                }
                const T* weight = gain;
                const auto within = [&](auto at) INLINED {
                    const auto d = load(grad, at);
                    return weight ? d * load(weight, at) : d;
                };
                Sum<Team, A> sum_g, sum_gx;
                team.each(D, [&](auto at) {
                    const auto g = within(at);
                    sum_g += g;
                    sum_gx.add_product(g, (load(in, at) - mu) * r);
                });
                const A mean_g = centred ? team.sum(sum_g) / A(D) : A(0);
                const A mean_gx = team.sum(sum_gx) / A(D);

                team.each(D, [&](auto at) {
                    const auto normalised = (load(in, at) - mu) * r;
                    const auto value = (within(at) - mean_g - normalised * mean_gx) * r;
                    store(grad, at, probe.writes(Output, row, at_column(h * D, at), value));
                });
                probe.wrote(Output, row, h * D, grad, D);
            }
        }
    }
};

}  // namespace wobble
