// How a branch f (attention, or the network) joins the residual stream x, with N a norm and s a factor:
//
//   pre        x + s · f(N(x))        GPT-2, LLaMA
//   post       N(x + s · f(x))        Vaswani et al. 2017, GPT-1
//   peri       x + s · N(f(N(x)))     Kim et al. 2025; Gemma 2
//   reordered  x + s · N(f(x))        OLMo 2
//
// The one place that knows of placements.
#pragma once

#include <optional>

#include "model/norm.h"

namespace wobble {

template <class T>
class ResidualBranch {
  public:
    /// `norm`: the site of the norm before the branch or of the sum; `norm_out`: of the one behind the
    /// branch; `add`: of the sum, where that is a step of its own.
    ResidualBranch(const ModelConfig& config, int64_t layer, const char* norm, const char* norm_out,
                   const char* add)
        : C_(config.channels), scale_(config.branch_factor()), add_{add, int(layer)} {
        if (config.norm == NormKind::None) return;
        const Placement p = config.norm_placement;
        // 1 / sqrt(l), l counted from 1 (Sun et al. 2025, "The curse of depth in large language models").
        const double factor = config.norm_depth_scaling ? 1 / std::sqrt(double(layer + 1)) : 1;
        if (p == Placement::Pre || p == Placement::Peri)
            before_.emplace(config, Site{norm, int(layer)}, factor);
        if (p == Placement::Peri || p == Placement::Reordered)
            after_.emplace(config, Site{norm_out, int(layer)});
        if (p == Placement::Post) of_sum_.emplace(config, Site{norm, int(layer)});
    }

    void lay_out(Memory& memory, int64_t rows) {
        for (auto* norm : {&before_, &after_, &of_sum_})
            if (*norm) (*norm)->lay_out(memory, rows);
        if (!is_fused()) branch_ = memory.take<T>(rows * C_);
        sum_ = memory.take<T>(rows * C_);
    }
    void bind(const Tensors<T>& tensors) {
        for (auto* norm : {&before_, &after_, &of_sum_})
            if (*norm) (*norm)->bind(tensors);
    }

    /// What the stream x [rows, C] becomes. f(in, out, more): the branch, whose last product ends with
    /// `more`.
    template <class F>
    const T* forward(Context& context, const T* x, int64_t rows, F&& f) {
        in_ = before_ ? before_->forward(context, x, rows) : x;
        if (is_fused()) {
            f(in_, sum_, Product<T>{.residual = x});
        } else {
            f(in_, branch_, Product<T>{});
            launch(context, flat_rows(rows * C_),
                   Residual<T>{.x = x,
                               .branch = after_ ? after_->forward(context, branch_, rows) : branch_,
                               .y = sum_,
                               .n = rows * C_,
                               .scale = Accumulator<T>(scale_)},
                   add_);
        }
        return of_sum_ ? of_sum_->forward(context, sum_, rows) : sum_;
    }

    /// Turns w.stream from the gradient of what forward returned into that of x. f(in, dout) leaves the
    /// gradient of the branch's input in w.channels.
    template <class F>
    void backward(Context& context, const T* x, Workspace<T>& w, F&& f) const {
        const Site site{add_.name, add_.layer, Phase::Backward};
        const int64_t n = w.rows * C_;
        if (of_sum_) {
            of_sum_->backward(context, sum_, w.stream, nullptr, w.branch, w);
            std::swap(w.stream, w.branch);
        }
        T* d = w.stream;
        if (scale_ != 1) {
            d = after_ ? w.channels : w.branch;
            launch(context, flat_rows(n),
                   Scale<T>{.x = w.stream, .y = d, .n = n, .factor = Accumulator<T>(scale_)},
                   site.of(".scale"));
        }
        if (after_) {
            after_->backward(context, branch_, d, nullptr, w.branch, w);
            d = w.branch;
        }
        f(in_, d);
        if (before_) {
            before_->backward(context, x, w.channels, w.stream, w.stream, w);
        } else {
            launch(context, flat_rows(n),
                   Residual<T>{.x = w.stream, .branch = w.channels, .y = w.stream, .n = n}, site);
        }
    }

  private:
    /// Whether the branch's last product adds the stream itself.
    bool is_fused() const { return !after_ && scale_ == 1; }

    int64_t C_;
    double scale_;
    Site add_;
    std::optional<Norm<T>> before_, after_, of_sum_;
    T *branch_ = nullptr, *sum_ = nullptr;  // [rows, C]
    const T* in_ = nullptr;                 // what the branch was given
};

}  // namespace wobble
