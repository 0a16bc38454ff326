// The network of a block: y = act(x W + b) W' + b'.
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
          fc({"mlp.fc", layer}, config.channels, F_),
          proj({"mlp.proj", layer}, F_, config.channels) {}

    void lay_out(Memory& memory, int64_t rows) {
        before_ = memory.take<T>(rows * F_);
        hidden_ = memory.take<T>(rows * F_);
    }
    void bind(const Tensors<T>& tensors) { fc.bind(tensors), proj.bind(tensors); }

    void forward(Context& context, const T* x, T* y, int64_t rows, const Product<T>& more) const {
        fc.forward(context, x, hidden_, rows, {.activation = Epilogue::Gelu, .before_activation = before_});
        proj.forward(context, hidden_, y, rows, more);
    }
    /// Leaves the gradient of x in w.channels.
    void backward(Context& context, const T* x, const T* dy, const Workspace<T>& w) const {
        proj.backward(context, hidden_, dy, w.wide, w);
        launch(context, flat_rows(w.rows * F_),
               ActivationBackward<T>{.x = before_, .dy = w.wide, .dx = w.wide, .n = w.rows * F_},
               {"mlp.gelu", layer_, Phase::Backward});
        fc.backward(context, x, w.wide, w.channels, w);
    }

  private:
    int layer_;
    int64_t F_;
    T *before_ = nullptr, *hidden_ = nullptr;  // [rows, F], before and after the activation

  public:
    Linear<T> fc, proj;
};

}  // namespace wobble
