// The gradient noise scale: how many sequences a batch needs before its gradient says more about the loss
// than about the draw.
//
// The gradient of the mean loss of b sequences drawn at random is G + e, where G is the gradient over all
// data and e has mean 0 and covariance Σ / b. Hence
//
//     E |G_b|² = |G|² + tr Σ / b,
//
// and two sizes, b and B, give two equations for |G|² and tr Σ: McCandlish, Kaplan, Amodei et al., "An
// Empirical Model of Large-Batch Training" (2018, arXiv 1812.06162), appendix A.1. There the noise scale is
// B_simple = tr Σ / |G|². The parts of the large batch may differ in size. Each is weighted by its size b_i,
// and with w_i = b_i / Σ b_j
//
//     E Σ w_i |G_i|² = |G|² + tr Σ · Σ w_i / b_i = |G|² + tr Σ / b,    b = Σ b_i / n,
//
// so they count as n parts of the mean size. These weights make Σ w_i |G_i|² - |G_B|² the spread of the parts
// about the batch where the batch is their weighted mean.
#pragma once

#include <vector>

namespace wobble {

/// |G|² of the gradient of the mean loss of `size` sequences. A size is a fraction where part of the
/// sequences is padding.
struct GradientNorm {
    double size;
    double squared_norm;
};

/// What one step says of the gradient. Each is unbiased and noisy: either may be negative.
struct NoiseEstimate {
    double trace;         // tr Σ of one sequence's gradient
    double squared_norm;  // |G|² of the gradient over all data

    bool finite() const;
};

/// The estimates from the parts of a batch (its micro-batches; or its sequences, of size 1 each) and from the
/// batch, whose gradient is the parts' mean weighted by size. Parts of size 0, all padding, are left out.
/// Both are NaN where a norm is not finite, where no part is left or where the parts' mean size is not below
/// the batch's.
NoiseEstimate estimate_noise(const std::vector<GradientNorm>& parts, GradientNorm batch);

/// The noise scale over steps. The quotient of two noisy estimates is biased and may be of either sign, so
/// both are averaged before they are divided (appendix A.1): exponential moving averages, free of the bias
/// towards their first value 0 by division by 1 - decay^steps.
class NoiseScale {
  public:
    /// About a hundred steps, where the noise scale moves over thousands. Weights that fall by d a step have
    /// the noise of a plain mean of (1 + d) / (1 - d) = 199 steps: a fourteenth of one step's.
    static constexpr double kDecay = 0.99;

    explicit NoiseScale(double decay = kDecay) : decay_(decay) {}

    /// Takes in a step. An estimate that is not finite is passed over: it would stay for good.
    void add(const NoiseEstimate& step);

    /// The averages; NaN before the first step.
    NoiseEstimate mean() const;
    /// tr Σ / |G|² in sequences; NaN before the first step and where the averaged |G|² is not positive.
    double scale() const;

  private:
    double decay_;
    double trace_ = 0, squared_norm_ = 0;
    double weight_ = 0;  // 1 - decay^steps, the sum of the weights of all steps
};

}  // namespace wobble
