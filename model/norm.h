// A norm over the channels of a row, of whatever kind the configuration asks for: the one place that chooses.
#pragma once

#include "kernels/layernorm.h"
#include "kernels/residual.h"
#include "kernels/rmsnorm.h"
#include "model/linear.h"
#include "model/memory.h"

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
        weight_ = tensors.at(site_.of(".weight").full_name());
        bias_ = tensors.at(site_.of(".bias").full_name());
    }

    /// Returns the output [rows, C], which stands until the next call.
    const T* forward(Context& context, const T* x, int64_t rows) const {
        switch (kind_) {
            case NormKind::LayerNorm:
                launch(context, rows,
                       LayerNormForward<T>{.x = x,
                                           .weight = weight_.weight,
                                           .bias = bias_.weight,
                                           .y = y_,
                                           .mean = mean_,
                                           .rstd = rstd_,
                                           .C = C_,
                                           .epsilon = A(epsilon_),
                                           .zero_centred = zero_centred_},
                       site_);
                break;
            case NormKind::RMSNorm:
                launch(context, rows,
                       RMSNormForward<T>{.x = x,
                                         .weight = weight_.weight,
                                         .y = y_,
                                         .rstd = rstd_,
                                         .C = C_,
                                         .epsilon = A(epsilon_),
                                         .zero_centred = zero_centred_},
                       site_);
                break;
            case NormKind::None:
                return x;
        }
        if (factor_ != 1) scale(context, y_, y_, rows);
        return y_;
    }

    /// dx = dresidual + the norm's gradient, and the gradients of gain and bias. x: what forward was given;
    /// dresidual may be null, or dx.
    void backward(Context& context, const T* x, T* dy, const T* dresidual, T* dx,
                  const Workspace<T>& w) const {
        const Site site{site_.name, site_.layer, Phase::Backward};
        if (factor_ != 1) scale(context, dy, dy, w.rows);
        const int64_t chunks = chunk_count(w.rows);
        switch (kind_) {
            case NormKind::LayerNorm:
                launch(context, chunks,
                       LayerNormBackward<T>{.x = x,
                                            .weight = weight_.weight,
                                            .mean = mean_,
                                            .rstd = rstd_,
                                            .dy = dy,
                                            .dresidual = dresidual,
                                            .dx = dx,
                                            .dweight_chunks = weight_ ? w.chunks_a : nullptr,
                                            .dbias_chunks = bias_ ? w.chunks_b : nullptr,
                                            .rows = w.rows,
                                            .C = C_,
                                            .epsilon = A(epsilon_),
                                            .zero_centred = zero_centred_},
                       site);
                break;
            case NormKind::RMSNorm:
                launch(context, chunks,
                       RMSNormBackward<T>{.x = x,
                                          .weight = weight_.weight,
                                          .rstd = rstd_,
                                          .dy = dy,
                                          .dresidual = dresidual,
                                          .dx = dx,
                                          .dweight_chunks = weight_ ? w.chunks_a : nullptr,
                                          .rows = w.rows,
                                          .C = C_,
                                          .epsilon = A(epsilon_),
                                          .zero_centred = zero_centred_},
                       site);
                break;
            case NormKind::None:
                break;
        }
        examples(context, site, x, dy, w);
        const auto sum = [&](const char* part, const A* from, A* to) {
            sum_chunks<T>(context, site.of(part), from, to, C_, chunks, w.accumulate);
        };
        if (weight_) sum(".weight", w.chunks_a, weight_.gradient);
        if (bias_) sum(".bias", w.chunks_b, bias_.gradient);
    }

  private:
    void scale(Context& context, const T* in, T* out, int64_t rows) const {
        launch(context, flat_rows(rows * C_),
               Scale<T>{.x = in, .y = out, .n = rows * C_, .factor = A(factor_)}, site_.of(".scale"));
    }
    /// Each sequence's squared gradient norm with respect to gain and bias, where it is wanted.
    void examples(Context& context, const Site& site, const T* x, const T* dy, const Workspace<T>& w) const {
        if (!context.recorder || !context.recorder->example_squares()) return;
        const int64_t batch = w.rows / w.sequence;
        double* squares = context.recorder->example_squares();
        if (kind_ == NormKind::LayerNorm) {
            launch(context, batch,
                   LayerNormExamples<T>{.x = x,
                                        .mean = mean_,
                                        .rstd = rstd_,
                                        .dy = dy,
                                        .workspace = context.scratch.get<A>(batch * 2 * C_),
                                        .squares = squares,
                                        .sequence = w.sequence,
                                        .C = C_,
                                        .has_weight = bool(weight_),
                                        .has_bias = bool(bias_)},
                   site.of(".examples"));
        } else if (weight_) {
            launch(context, batch,
                   RMSNormExamples<T>{.x = x,
                                      .rstd = rstd_,
                                      .dy = dy,
                                      .workspace = context.scratch.get<A>(batch * C_),
                                      .squares = squares,
                                      .sequence = w.sequence,
                                      .C = C_},
                   site.of(".examples"));
        }
    }

    NormKind kind_;
    Site site_;
    int64_t C_;
    bool zero_centred_;
    double epsilon_, factor_;
    Tensor weight_, bias_;                 // [C], may be missing
    T* y_ = nullptr;                       // [rows, C]
    A *mean_ = nullptr, *rstd_ = nullptr;  // [rows]
};

}  // namespace wobble
