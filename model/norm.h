// A norm over the channels of a row, of whatever kind the configuration asks for.
#pragma once

#include "kernels/residual.h"
#include "model/linear.h"
#include "model/memory.h"
#include "model/norms.h"

namespace wobble {

template <class T>
class Norm {
  public:
    using A = Accumulator<T>;
    using Tensor = typename Tensors<T>::Tensor;

    /// `factor`: what the output is multiplied by, 1 for nothing.
    Norm(const ModelConfig& config, Site site, double factor = 1)
        : kind_(config.norm),
          site_(site),
          C_(config.channels),
          zero_centred_(config.zero_centred_gain),
          epsilon_(config.norm_epsilon),
          factor_(factor) {}

    void lay_out(Memory& memory, int64_t rows) {
        y_ = memory.take<T>(rows * C_);
        mean_ = memory.take<A>(rows), rstd_ = memory.take<A>(rows);
    }
    void bind(const Tensors<T>& tensors) {
        alpha_ = tensors.at(site_.of(".alpha").full_name());
        weight_ = tensors.at(site_.of(".weight").full_name());
        bias_ = tensors.at(site_.of(".bias").full_name());
    }

    /// Returns the output [rows, C], which stands until the next call.
    const T* forward(Context& context, const T* x, int64_t rows) const {
        if (kind_ == NormKind::None) return x;
        with_norm(kind_, [&](auto norm) { launch(context, rows, norm.forward(operands(x)), site_); });
        if (factor_ != 1) scale(context, y_, y_, rows);
        return y_;
    }

    /// dx = dresidual + the norm's gradient, and the gradients of its parameters. x: what forward was given;
    /// dresidual may be null, or dx.
    void backward(Context& context, const T* x, T* dy, const T* dresidual, T* dx,
                  const Workspace<T>& w) const {
        const Site site{site_.name, site_.layer, Phase::Backward};
        if (factor_ != 1) scale(context, dy, dy, w.rows);
        const int64_t chunks = chunk_count(w.rows);
        const NormGradients<T> gradients{.dy = dy,
                                         .dresidual = dresidual,
                                         .dx = dx,
                                         .dweight_chunks = weight_ ? w.chunks_a : nullptr,
                                         .dbias_chunks = bias_ ? w.chunks_b : nullptr,
                                         .dalpha_chunks = alpha_ ? w.chunks_alpha : nullptr,
                                         .rows = w.rows};
        with_norm(kind_,
                  [&](auto norm) { launch(context, chunks, norm.backward(operands(x), gradients), site); });
        examples(context, site, x, dy, w);
        const auto sum = [&](const char* part, const A* from, A* to, int64_t columns) {
            sum_chunks<T>(context, site.of(part), from, to, columns, chunks, w.accumulate);
        };
        if (weight_) sum(".weight", w.chunks_a, weight_.gradient, C_);
        if (bias_) sum(".bias", w.chunks_b, bias_.gradient, C_);
        if (alpha_) sum(".alpha", w.chunks_alpha, alpha_.gradient, 1);
    }

  private:
    void scale(Context& context, const T* in, T* out, int64_t rows) const {
        launch(context, flat_rows(rows * C_),
               Scale<T>{.x = in, .y = out, .n = rows * C_, .factor = A(factor_)}, site_.of(".scale"));
    }
    NormOperands<T> operands(const T* x) const {
        return {.x = x,
                .weight = weight_.weight,
                .bias = bias_.weight,
                .alpha = alpha_.weight,
                .y = y_,
                .mean = mean_,
                .rstd = rstd_,
                .C = C_,
                .epsilon = A(epsilon_),
                .zero_centred = zero_centred_};
    }
    /// Each sequence's squared gradient norm with respect to the norm's parameters, where it is wanted.
    void examples(Context& context, const Site& site, const T* x, const T* dy, const Workspace<T>& w) const {
        if (!context.recorder || !context.recorder->example_squares()) return;
        if (!weight_ && !bias_ && !alpha_) return;
        const int64_t batch = w.rows / w.sequence;
        const NormSequences<T> sequences{.dy = dy,
                                         .workspace = w.examples,
                                         .squares = context.recorder->example_squares(),
                                         .sequence = w.sequence};
        with_norm(kind_, [&](auto norm) {
            launch(context, batch, norm.examples(operands(x), sequences), site.of(".examples"));
        });
    }

    NormKind kind_;
    Site site_;
    int64_t C_;
    bool zero_centred_;
    double epsilon_, factor_;
    Tensor weight_, bias_, alpha_;         // [C], [C], [1]; each may be missing
    T* y_ = nullptr;                       // [rows, C]
    A *mean_ = nullptr, *rstd_ = nullptr;  // [rows]
};

}  // namespace wobble
