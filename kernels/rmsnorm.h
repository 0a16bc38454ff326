// RMS norm (Zhang & Sennrich 2019):  y = x · rstd · gain,  rstd = 1 / sqrt(mean(x²) + epsilon), over the C
// channels of a row. Layer norm without its mean and its bias. The gain is weight, 1 + weight or 1.
//
// Backward, with x̂ = x · rstd and g = dy · gain:
//   dx = rstd · (g - x̂ · mean(g · x̂)),   dweight = Σ_rows dy · x̂.
#pragma once

#include "kernels/gain.h"
#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// One row of C channels per team.
template <class T>
struct RMSNormForward {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "rmsnorm_forward";
    enum Channel { Output, InverseStd, Kurtosis };
    /// kurtosis: of the C inputs of a row, about 0 as the norm itself: mean(x⁴) / mean(x²)², 3 for normal
    /// ones. Rows that epsilon dwarfs have none: their fourth powers would vanish.
    static constexpr const char* channels[] = {"output", "rstd", "kurtosis"};

    const T* x;       // [rows, C]
    const T* weight;  // [C], or null: a gain of 1
    T* y;             // [rows, C]
    A* rstd;          // [rows], kept for backward
    int64_t C;
    A epsilon;
    bool zero_centred = false;  // the gain is 1 + weight

    int64_t row_elements() const { return C; }
    ObservedMatrix<T> observed() const { return {y, C}; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        if (weight && !zero_centred) normalise<true>(team, row, probe);
        else normalise<false>(team, row, probe);
    }

  private:
    /// Common: with a gain as it is.
    template <bool Common, class Team, class Probe>
    HD void normalise(Team team, int64_t row, Probe& probe) const {
        const T* in = x + row * C;
        T* out = y + row * C;

        // Squares are added up as shares of their mean, so that the sum does not overflow before the mean
        // does.
        const A share = A(1) / A(C);
        Sum<Team, A> squares;
        team.each(C, [&](auto at) {
            const auto value = load(in, at);
            squares.add_product(value, value * share);
        });
        const A r = A(1) / std::sqrt(team.sum(squares) + epsilon);

        Sum<Team, A> seconds, fourths;  // of the normalised inputs
        team.each(C, [&](auto at) {
            const auto normalised = load(in, at) * r;
            const auto value = normalised * gain_at<Common>(weight, zero_centred, at);
            store(out, at, probe.writes(Output, row, at, value));
            if constexpr (Probe::looks) {
                const auto square = normalised * normalised;
                seconds += square;
                fourths.add_product(square, square);
            }
        });
        probe.wrote(Output, row, 0, out, C);
        if (team.leads()) rstd[row] = probe.observe(InverseStd, row, At<1>{0}, splat<1>(r))[0];
        if constexpr (Probe::looks) {
            const A second = team.sum(seconds), fourth = team.sum(fourths);
            if (team.leads() && second > A(C) * A(1e-12)) {
                probe.observe(Kurtosis, row, At<1>{0}, splat<1>(A(C) * fourth / (second * second)));
            }
        }
    }
};

/// One chunk of rows per team: dx for each of its rows, and the chunk's share of dweight, which `SumChunks`
/// adds up in order. dx = dresidual + the norm's own gradient; the two may be the same memory.
template <class T>
struct RMSNormBackward {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "rmsnorm_backward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    /// Over the channels of a row, of the norm's own share of dx: Σ dx · x = 0, less what epsilon makes of
    /// it, which is rstd² · epsilon · Σ g · x̂.
    enum Identity { DxTimesX };
    static constexpr const char* identities[1] = {"sum dx * x"};

    const T* x;          // [rows, C], the input of forward
    const T* weight;     // [C], or null: a gain of 1
    const A* rstd;       // [rows]
    const T* dy;         // [rows, C]
    const T* dresidual;  // [rows, C], or null
    T* dx;               // [rows, C]
    A* dweight_chunks;   // [chunks, C], or null where nobody wants them
    int64_t rows, C;
    A epsilon;                  // forward's, for the identity alone
    bool zero_centred = false;  // the gain is 1 + weight

    int64_t row_elements() const { return ceil_div(rows, chunk_count(rows)) * C; }
    ObservedMatrix<T> observed() const { return {dx, C, rows}; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t chunk, Probe& probe) const {
        if (weight && !zero_centred && dweight_chunks) back<true>(team, chunk, probe);
        else back<false>(team, chunk, probe);
    }

  private:
    /// Common: with a gain as it is, and with its gradient.
    template <bool Common, class Team, class Probe>
    HD void back(Team team, int64_t chunk, Probe& probe) const {
        const Range range = chunk_rows(chunk, rows);
        A* dw = Common || dweight_chunks ? dweight_chunks + chunk * C : nullptr;
        if (Common || dw) team.each(C, [&](auto at) { store(dw, at, splat<at.width>(A(0))); });
        for (int64_t row = range.begin; row < range.end; ++row) {
            const T* in = x + row * C;
            const T* grad = dy + row * C;
            const A r = rstd[row];

            Sum<Team, A> sum_gx;
            team.each(C, [&](auto at) {
                sum_gx.add_product(load(grad, at) * gain_at<Common>(weight, zero_centred, at),
                                   load(in, at) * r);
            });
            const A mean_gx = team.sum(sum_gx) / A(C);

            team.each(C, [&](auto at) {
                const auto normalised = load(in, at) * r;
                const auto d = load(grad, at);
                auto value = (d * gain_at<Common>(weight, zero_centred, at) - normalised * mean_gx) * r;
                if (dresidual) value = value + load(dresidual + row * C, at);
                store(dx + row * C, at, probe.writes(Output, row, at, value));
                if (Common || dw) store(dw, at, fused(d, normalised, load(dw, at)));
            });
            probe.wrote(Output, row, 0, dx + row * C, C);
            if constexpr (Probe::looks) {
                if (probe.full()) identity_of<Common>(team, row, in, grad, mean_gx, probe);
            }
        }
    }

    template <bool Common, class Team, class Probe>
    HD void identity_of(Team team, int64_t row, const T* in, const T* grad, A mean_gx, Probe& probe) const {
        const A r = rstd[row];
        Sum<Team, A> sum, scale;
        team.each(C, [&](auto at) {
            const auto value = load(in, at), normalised = value * r;
            const auto g = load(grad, at) * gain_at<Common>(weight, zero_centred, at),
                       along = normalised * mean_gx;
            sum.add_product(g - along, normalised);
            scale.add_product(magnitude(g) + magnitude(along), magnitude(normalised));
        });
        // mean(x̂²) = 1 - epsilon · rstd². From rstd, not from x̂, so that a wrong rstd does not excuse itself.
        const A expected = A(C) * mean_gx * (epsilon * r * r);
        const A total = team.sum(sum), size = team.sum(scale);
        if (team.leads()) probe.residual(DxTimesX, row, double(total) - double(expected), double(size));
    }
};

/// One sequence per team: the squared norm of its own share of dweight, added to what is there. See
/// `LayerNormExamples`. For norms that have a weight.
template <class T>
struct RMSNormExamples {
    using Element = T;
    using A = Accumulator<T>;
    using Observed = double;
    static constexpr const char* name = "rmsnorm_examples";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* x;       // [B, T, C], the input of forward
    const A* rstd;    // [B, T]
    const T* dy;      // [B, T, C]
    A* workspace;     // [B, C]
    double* squares;  // [B]
    int64_t sequence, C;

    int64_t row_elements() const { return sequence * C; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t b, Probe& probe) const {
        A* dw = workspace + b * C;
        for (int64_t row = b * sequence; row < (b + 1) * sequence; ++row) {
            const bool first = row == b * sequence;
            const A r = rstd[row];
            team.each(C, [&](auto at) {
                const auto d = load(dy + row * C, at), normalised = load(x + row * C, at) * r;
                store(dw, at, first ? d * normalised : fused(d, normalised, load(dw, at)));
            });
        }
        Sum<Team, double> sum;
        team.each(C, [&](auto at) {
            const auto w = convert<double>(load(dw, at));
            sum.add_product(w, w);
        });
        const double total = team.sum(sum);
        if (team.leads()) squares[b] += probe.observe(Output, b, At<1>{0}, splat<1>(total))[0];
    }
};

}  // namespace wobble
