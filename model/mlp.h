// The network of a block: y = act(x W + b) W' + b', or, gated, y = (act(gate) · up) W' + b' with gate and up
// side by side in x W + b.
#pragma once

#include "kernels/activation.h"
#include "model/linear.h"
#include "model/memory.h"

namespace wobble {

template <class T>
class Mlp {
  public:
    Mlp(const ModelConfig& config, int layer)
        : layer_(layer),
          F_(config.width()),
          activation_(config.activation),
          gated_(config.gated),
          fc_({"mlp.fc", layer}, config.channels, config.fc_width()),
          proj_({"mlp.proj", layer}, F_, config.channels) {}

    void lay_out(Memory& memory, int64_t rows) {
        before_ = memory.take<T>(rows * (gated_ ? 2 * F_ : F_));
        hidden_ = memory.take<T>(rows * F_);
    }
    void bind(const Tensors<T>& tensors) { fc_.bind(tensors), proj_.bind(tensors); }

    void forward(Context& context, const T* x, T* y, int64_t rows, const Product<T>& more) const {
        if (activation_ == Activation::Gelu && !gated_) {
            fc_.forward(context, x, hidden_, rows,
                        {.activation = Epilogue::Gelu, .before_activation = before_});
        } else {
            fc_.forward(context, x, before_, rows);
            activate(context, rows);
        }
        proj_.forward(context, hidden_, y, rows, more);
    }
    /// Leaves the gradient of x in w.channels.
    void backward(Context& context, const T* x, const T* dy, const Workspace<T>& w) const {
        proj_.backward(context, hidden_, dy, w.wide, w);
        // Gated, the gradient is twice as wide and takes the place of what it is made from.
        T* dx = gated_ ? before_ : w.wide;
        const Site site{name(), layer_, Phase::Backward};
        with_activation(activation_, [&](auto act) {
            using Act = decltype(act);
            const int64_t n = w.rows * F_;
            if (gated_)
                launch(context, w.rows, GatedBackward<T, Act>{.x = before_, .dy = w.wide, .dx = dx, .F = F_},
                       site);
            else
                launch(context, flat_rows(n),
                       ActivationBackward<T, Act>{.x = before_, .dy = w.wide, .dx = dx, .n = n}, site);
        });
        fc_.backward(context, x, dx, w.channels, w);
    }

  private:
    void activate(Context& context, int64_t rows) const {
        const Site site{name(), layer_};
        with_activation(activation_, [&](auto act) {
            using Act = decltype(act);
            const int64_t n = rows * F_;
            if (gated_)
                launch(context, rows, GatedForward<T, Act>{.x = before_, .y = hidden_, .F = F_}, site);
            else
                launch(context, flat_rows(n), ActivationForward<T, Act>{.x = before_, .y = hidden_, .n = n},
                       site);
        });
    }
    const char* name() const { return activation_ == Activation::Gelu && !gated_ ? "mlp.gelu" : "mlp.act"; }

    int layer_;
    int64_t F_;
    Activation activation_;
    bool gated_;
    T *before_ = nullptr, *hidden_ = nullptr;  // [rows, F], before and after the activation
    Linear<T> fc_, proj_;
};

}  // namespace wobble
