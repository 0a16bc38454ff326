// QK-norm: a norm of each head's queries, or of its keys, in place in rows of qkv.
#pragma once

#include "kernels/head_norm.h"
#include "model/linear.h"
#include "model/memory.h"

namespace wobble {

template <class T>
class HeadNorm {
  public:
    using A = Accumulator<T>;

    /// `heads`: in a row.
    HeadNorm(const ModelConfig& config, Site site, int64_t heads)
        : site_(site),
          heads_(heads),
          D_(config.head_size()),
          epsilon_(config.norm_epsilon),
          centred_(config.qk_norm == QkNorm::LayerNorm) {}

    void lay_out(Memory& memory, int64_t rows) {
        kept_ = memory.take<T>(rows * heads_ * D_);
        mean_ = memory.take<A>(rows * heads_), rstd_ = memory.take<A>(rows * heads_);
    }
    void bind(const Tensors<T>& tensors) { gain_ = tensors.at(site_.of(".weight").full_name()); }

    /// x: the first head of the first row; rows are `stride` apart.
    void forward(Context& context, T* x, int64_t stride, int64_t rows) const {
        launch(context, rows,
               HeadNormForward<T>{.x = x,
                                  .gain = gain_.weight,
                                  .kept = kept_,
                                  .mean = mean_,
                                  .rstd = rstd_,
                                  .row_stride = stride,
                                  .heads = heads_,
                                  .head_size = D_,
                                  .epsilon = A(epsilon_),
                                  .centred = centred_},
               site_);
    }
    /// dx: gradients of what forward left there, then of what it found.
    void backward(Context& context, T* dx, int64_t stride, const Workspace<T>& w) const {
        const Site site{site_.name, site_.layer, Phase::Backward};
        const int64_t chunks = chunk_count(w.rows);
        launch(context, chunks,
               HeadNormBackward<T>{.kept = kept_,
                                   .mean = mean_,
                                   .rstd = rstd_,
                                   .gain = gain_.weight,
                                   .dx = dx,
                                   .dgain_chunks = w.chunks_a,
                                   .row_stride = stride,
                                   .rows = w.rows,
                                   .heads = heads_,
                                   .head_size = D_,
                                   .centred = centred_},
               site);
        if (gain_)
            sum_chunks<T>(context, site.of(".weight"), w.chunks_a, gain_.gradient, D_, chunks, w.accumulate);
    }

  private:
    Site site_;
    int64_t heads_, D_;
    double epsilon_;
    bool centred_;
    typename Tensors<T>::Tensor gain_;     // [D], may be missing
    T* kept_ = nullptr;                    // [rows, H, D]
    A *mean_ = nullptr, *rstd_ = nullptr;  // [rows, H]
};

}  // namespace wobble
