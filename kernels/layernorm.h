// Layer norm:  y = (x - mean) · rstd · gain + bias,  rstd = 1 / sqrt(variance + epsilon), over the C
// channels of a row. The gain is weight or 1 + weight; either of weight and bias may be missing.
//
// Backward, with x̂ = (x - mean) · rstd and g = dy · gain:
//   dx = rstd · (g - mean(g) - x̂ · mean(g · x̂)),   dweight = Σ_rows dy · x̂,   dbias = Σ_rows dy.
#pragma once

#include "kernels/gain.h"
#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {

/// One row of C channels per team.
template <class T>
struct LayerNormForward {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "layernorm_forward";
    enum Channel { Output, InverseStd, Kurtosis };
    /// kurtosis: of the C inputs of a row, 3 for normal ones; rows whose inputs are all equal have none, nor
    /// have those that epsilon dwarfs: their fourth powers would vanish.
    static constexpr const char* channels[] = {"output", "rstd", "kurtosis"};

    const T* x;       // [rows, C]
    const T* weight;  // [C], or null: a gain of 1
    const T* bias;    // [C], or null: 0
    T* y;             // [rows, C]
    A* mean;          // [rows], kept for backward
    A* rstd;          // [rows], kept for backward
    int64_t C;
    A epsilon;
    bool zero_centred = false;  // the gain is 1 + weight

    int64_t row_elements() const { return C; }
    ObservedMatrix<T> observed() const { return {y, C}; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe& probe) const {
        if (weight && bias && !zero_centred) normalise<true>(team, row, probe);
        else normalise<false>(team, row, probe);
    }

  private:
    /// Common: with gain and bias as they are.
    template <bool Common, class Team, class Probe>
    HD void normalise(Team team, int64_t row, Probe& probe) const {
        const T* in = x + row * C;
        T* out = y + row * C;

        Sum<Team, A> sum;
        team.each(C, [&](auto at) { sum += load(in, at); });
        const A rough = team.sum(sum) / A(C);

        // The second pass also adds up the deviations themselves: what the first mean lost to rounding is put
        // back, so a mean thousands of times the spread does no harm. Squares are added up as shares of their
        // mean, so that the sum does not overflow before the variance does.
        const A share = A(1) / A(C);
        Sum<Team, A> deviations, squares;
        team.each(C, [&](auto at) {
            const auto d = load(in, at) - rough;
            deviations += d;
            squares.add_product(d, d * share);
        });
        const A correction = team.sum(deviations) / A(C);
        const A mu = rough + correction;
        const A variance = team.sum(squares) - correction * correction;
        const A r = A(1) / std::sqrt((variance > A(0) || variance != variance ? variance : A(0)) + epsilon);

        Sum<Team, A> seconds, fourths;  // of the normalised inputs
        team.each(C, [&](auto at) {
            const auto normalised = ((load(in, at) - rough) - correction) * r;
            auto value = normalised * gain_at<Common>(weight, zero_centred, at);
            if (Common || bias) value = value + load(bias, at);
            store(out, at, probe.writes(Output, row, at, value));
            if constexpr (Probe::looks) {
                const auto square = normalised * normalised;
                seconds += square;
                fourths.add_product(square, square);
            }
        });
        probe.wrote(Output, row, 0, out, C);
        if (team.leads()) {
            mean[row] = mu;
            rstd[row] = probe.observe(InverseStd, row, At<1>{0}, splat<1>(r))[0];
        }
        if constexpr (Probe::looks) {
            const A second = team.sum(seconds), fourth = team.sum(fourths);
            if (team.leads() && second > A(C) * A(1e-12)) {
                probe.observe(Kurtosis, row, At<1>{0}, splat<1>(A(C) * fourth / (second * second)));
            }
        }
    }
};

/// One chunk of rows per team: dx for each of its rows, and the chunk's share of dweight and dbias, which
/// `SumChunks` adds up in order. dx = dresidual + the norm's own gradient; the two may be the same memory.
template <class T>
struct LayerNormBackward {
    using Element = T;
    using A = Accumulator<T>;
    static constexpr const char* name = "layernorm_backward";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    /// Over the channels of a row, of the norm's own share of dx: Σ dx = 0 and Σ dx · x̂ = 0, less what
    /// epsilon makes of the latter.
    enum Identity { SumOfDx, DxTimesNormalised };
    static constexpr const char* identities[2] = {"sum dx", "sum dx * x_hat"};

    const T* x;          // [rows, C], the input of forward
    const T* weight;     // [C], or null: a gain of 1
    const A* mean;       // [rows]
    const A* rstd;       // [rows]
    const T* dy;         // [rows, C]
    const T* dresidual;  // [rows, C], or null
    T* dx;               // [rows, C]
    A* dweight_chunks;   // [chunks, C], or null where nobody wants them
    A* dbias_chunks;     // [chunks, C], or null
    int64_t rows, C;
    A epsilon;                  // forward's, for the identities alone
    bool zero_centred = false;  // the gain is 1 + weight

    int64_t row_elements() const { return ceil_div(rows, chunk_count(rows)) * C; }
    ObservedMatrix<T> observed() const { return {dx, C, rows}; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t chunk, Probe& probe) const {
        if (weight && !zero_centred && dweight_chunks && dbias_chunks) back<true>(team, chunk, probe);
        else back<false>(team, chunk, probe);
    }

  private:
    /// Common: with a gain as it is, and with both its gradient and that of the bias.
    template <bool Common, class Team, class Probe>
    HD void back(Team team, int64_t chunk, Probe& probe) const {
        const Range range = chunk_rows(chunk, rows);
        A* dw = Common || dweight_chunks ? dweight_chunks + chunk * C : nullptr;
        A* db = Common || dbias_chunks ? dbias_chunks + chunk * C : nullptr;
        team.each(C, [&](auto at) {
            if (Common || dw) store(dw, at, splat<at.width>(A(0)));
            if (Common || db) store(db, at, splat<at.width>(A(0)));
        });
        for (int64_t row = range.begin; row < range.end; ++row) {
            const T* in = x + row * C;
            const T* grad = dy + row * C;
            const A mu = mean[row], r = rstd[row];

            Sum<Team, A> sum_g, sum_gx;
            team.each(C, [&](auto at) {
                const auto normalised = (load(in, at) - mu) * r;
                const auto g = load(grad, at) * gain_at<Common>(weight, zero_centred, at);
                sum_g += g;
                sum_gx.add_product(g, normalised);
            });
            const A mean_g = team.sum(sum_g) / A(C), mean_gx = team.sum(sum_gx) / A(C);

            team.each(C, [&](auto at) {
                const auto normalised = (load(in, at) - mu) * r;
                const auto d = load(grad, at);
                auto value =
                    (d * gain_at<Common>(weight, zero_centred, at) - mean_g - normalised * mean_gx) * r;
                if (dresidual) value = value + load(dresidual + row * C, at);
                store(dx + row * C, at, probe.writes(Output, row, at, value));
                if (Common || dw) store(dw, at, fused(d, normalised, load(dw, at)));
                if (Common || db) store(db, at, load(db, at) + d);
            });
            probe.wrote(Output, row, 0, dx + row * C, C);
            if constexpr (Probe::looks) {
                if (probe.full()) identities_of<Common>(team, row, in, grad, mean_g, mean_gx, probe);
            }
        }
    }

    template <bool Common, class Team, class Probe>
    HD void identities_of(Team team, int64_t row, const T* in, const T* grad, A mean_g, A mean_gx,
                          Probe& probe) const {
        const A mu = mean[row], r = rstd[row];
        Sum<Team, A> sum, sum_x, scale, scale_x;
        team.each(C, [&](auto at) {
            const auto normalised = (load(in, at) - mu) * r;
            const auto g = load(grad, at) * gain_at<Common>(weight, zero_centred, at),
                       along = normalised * mean_gx;
            const auto own = (g - mean_g - along) * r;
            const auto size = (magnitude(g) + std::fabs(mean_g) + magnitude(along)) * r;
            sum += own;
            sum_x.add_product(own, normalised);
            scale += size;
            scale_x.add_product(size, magnitude(normalised));
        });
        // mean(x̂²) = 1 - epsilon · rstd². From rstd, not from x̂, so that a wrong rstd does not excuse itself.
        const A expected = r * mean_gx * A(C) * (epsilon * r * r);
        const A total = team.sum(sum), total_x = team.sum(sum_x), size = team.sum(scale),
                size_x = team.sum(scale_x);
        if (team.leads()) {
            probe.residual(SumOfDx, row, double(total), double(size));
            probe.residual(DxTimesNormalised, row, double(total_x) - double(expected), double(size_x));
        }
    }
};

/// One sequence per team: the squared norm of its own share of dweight and dbias together, of those that the
/// norm has, added to what is there. Over all norms of a model that stands for the gradient of each example
/// (Gray et al. 2024), at the price of one more look at dy and x.
template <class T>
struct LayerNormExamples {
    using Element = T;
    using A = Accumulator<T>;
    using Observed = double;
    static constexpr const char* name = "layernorm_examples";
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};

    const T* x;       // [B, T, C], the input of forward
    const A* mean;    // [B, T]
    const A* rstd;    // [B, T]
    const T* dy;      // [B, T, C]
    A* workspace;     // [B, 2, C]
    double* squares;  // [B]
    int64_t sequence, C;
    bool has_weight = true, has_bias = true;

    int64_t row_elements() const { return sequence * C; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t b, Probe& probe) const {
        A* dw = workspace + 2 * b * C;
        A* db = dw + C;
        for (int64_t row = b * sequence; row < (b + 1) * sequence; ++row) {
            const bool first = row == b * sequence;
            const A mu = mean[row], r = rstd[row];
            team.each(C, [&](auto at) {
                const auto d = load(dy + row * C, at), normalised = (load(x + row * C, at) - mu) * r;
                store(dw, at, first ? d * normalised : fused(d, normalised, load(dw, at)));
                store(db, at, first ? d : load(db, at) + d);
            });
        }
        Sum<Team, double> sum;
        team.each(C, [&](auto at) {
            const auto w = convert<double>(load(dw, at)), own_bias = convert<double>(load(db, at));
            if (has_weight) sum.add_product(w, w);
            if (has_bias) sum.add_product(own_bias, own_bias);
        });
        const double total = team.sum(sum);
        if (team.leads()) squares[b] += probe.observe(Output, b, At<1>{0}, splat<1>(total))[0];
    }
};

}  // namespace wobble
