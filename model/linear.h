// A linear layer, y = x W + b with W [in, out].
#pragma once

#include "kernels/product.h"
#include "kernels/reduce.h"
#include "model/tensors.h"
#include "probes/launch.h"

namespace wobble {

/// out [C] (+)= the sum of `count` chunks [count, C].
template <class T>
void sum_chunks(Context& context, const Site& site, const Accumulator<T>* chunks, Accumulator<T>* out,
                int64_t C, int64_t count, bool accumulate) {
    launch(context, SumChunks<T>::teams(C),
           SumChunks<T>{.chunks = chunks, .out = out, .count = count, .C = C, .accumulate = accumulate},
           site);
}

template <class T>
class Linear {
  public:
    using Tensor = typename Tensors<T>::Tensor;

    Linear(Site site, int64_t in, int64_t out) : site_(site), in_(in), out_(out) {}

    void bind(const Tensors<T>& tensors) {
        weight = tensors.at(site_.of(".weight").full_name());
        bias = tensors.at(site_.of(".bias").full_name());
    }

    /// y = x W + b, then what `more` says (activation, residual).
    void forward(Context& context, const T* x, T* y, int64_t rows, Product<T> more = {}) const {
        more.a = x, more.b = weight.weight, more.c = y, more.m = rows, more.n = out_, more.k = in_;
        more.bias = bias.weight;
        launch(context, more, site_);
    }

    /// dW (+)= xᵀ dy, db (+)= Σ_rows dy, and dx = dy Wᵀ.
    void backward(Context& context, const T* x, const T* dy, T* dx, const Workspace<T>& w) const {
        const Site site{site_.name, site_.layer, Phase::Backward};
        launch(context,
               Product<T, Accumulator<T>>{.a = x,
                                          .b = dy,
                                          .c = weight.gradient,
                                          .m = in_,
                                          .n = out_,
                                          .k = w.rows,
                                          .transpose_a = true,
                                          .accumulate = w.accumulate},
               site.of(".weight"));
        if (bias) {
            const int64_t chunks = chunk_count(w.rows);
            launch(context, chunks, ColumnSum<T>{.x = dy, .chunks = w.chunks_a, .rows = w.rows, .C = out_},
                   site.of(".bias"));
            sum_chunks<T>(context, site.of(".bias"), w.chunks_a, bias.gradient, out_, chunks, w.accumulate);
        }
        launch(
            context,
            Product<T>{
                .a = dy, .b = weight.weight, .c = dx, .m = w.rows, .n = in_, .k = out_, .transpose_b = true},
            site);
    }

    Tensor weight, bias;  // [in, out], [out]

  private:
    Site site_;
    int64_t in_, out_;
};

}  // namespace wobble
