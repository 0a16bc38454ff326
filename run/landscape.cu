#include <algorithm>
#include <cmath>

#include "probes/curvature.h"
#include "run/landscape.h"

namespace wobble {

namespace {

std::vector<float> weights_of(Model<float>& model) {
    std::vector<float> weights(size_t(model.table().buffer_size));
    copy_out(model.device(), weights.data(), model.weights(), model.table().buffer_size);
    return weights;
}
void put(Model<float>& model, const std::vector<float>& weights) {
    copy_in(model.device(), model.weights(), weights.data(), model.table().buffer_size);
}

/// Puts weights back when a look is over.
class WeightsKept {
  public:
    explicit WeightsKept(Model<float>& model) : model_(model), kept_(weights_of(model)) {}
    WeightsKept(const WeightsKept&) = delete;
    WeightsKept& operator=(const WeightsKept&) = delete;
    ~WeightsKept() { put(model_, kept_); }

    const std::vector<float>& weights() const { return kept_; }
    double norm() const {
        double squares = 0;
        for (float w : kept_) squares += double(w) * double(w);
        return std::sqrt(squares);
    }

  private:
    Model<float>& model_;
    std::vector<float> kept_;
};

}  // namespace

void Landscape::remember_weights() {
    before_ = weights_of(model_);
}

double Landscape::objective(const Batch& batch) {
    const int64_t T = model_.config().context, micro = sequences_ * T;
    double objective = 0;
    for (size_t at = 0; at < batch.inputs.size(); at += size_t(micro)) {
        model_.forward(context_, batch.inputs.data() + at, batch.targets.data() + at, sequences_, T, 0);
        objective += model_.objective();
    }
    return objective / double(batch.valid_targets);
}

void Landscape::gradient(const Batch& batch) {
    const int64_t T = model_.config().context, micro = sequences_ * T;
    for (size_t at = 0; at < batch.inputs.size(); at += size_t(micro)) {
        model_.forward(context_, batch.inputs.data() + at, batch.targets.data() + at, sequences_, T,
                       1 / double(batch.valid_targets), at > 0);
        model_.backward(context_);
    }
}

std::vector<MeasureRow> Landscape::critical_sharpness(const Batch& batch, double lr, double start) {
    const WeightsKept after(model_);
    std::vector<float> w = after.weights();
    const auto objective_along = [&](double alpha) {
        for (size_t i = 0; i < before_.size(); ++i)
            w[i] = float(before_[i] + alpha * (double(after.weights()[i]) - double(before_[i])));
        put(model_, w);
        return objective(batch);
    };
    CriticalOptions options{.start = last_alpha_, .start_loss = start};
    // A loss is the float32 sum of a softmax and the mean of many: differences below this are rounding.
    options.noise = 1e-7 * std::abs(start);
    const CriticalSharpness found = wobble::critical_sharpness(objective_along, lr, options);
    if (std::isfinite(found.alpha)) last_alpha_ = found.alpha;
    return {{"sharpness.critical", found.sharpness},
            {"sharpness.edge", 2 / lr},
            {"sharpness.evaluations", double(found.evaluations)}};
}

std::vector<MeasureRow> Landscape::hessian(const Batch& batch, const float* v, double bias2,
                                           const AdamWSettings& settings, double lr) {
    const WeightsKept kept(model_);
    const int64_t n = model_.table().buffer_size;
    const HostCopy<float> second_moments(model_.device(), v, n);
    std::vector<float> w = kept.weights();
    const auto gradient_at = [&](std::span<const float> direction, double step, std::span<float> out) {
        for (size_t i = 0; i < direction.size(); ++i)
            w[i] = float(double(kept.weights()[i]) + step * double(direction[i]));
        put(model_, w);
        gradient(batch);
        copy_out(model_.device(), out.data(), model_.gradients(), n);
    };
    EigenvalueOptions<float> options{.max_iterations = 30, .tolerance = 1e-3, .weight_norm = kept.norm()};
    std::vector<MeasureRow> rows;
    const auto look = [&](const std::string& name, std::vector<float>& warm, auto solve) {
        options.start = warm;
        Eigenvalue<float> found = solve();
        rows.push_back({name, found.value});
        rows.push_back({name + ".residual", found.residual});
        rows.push_back({name + ".iterations", double(found.iterations)});
        warm = std::move(found.vector);
    };
    look("hessian.largest", steepest_, [&] { return largest_eigenvalue<float>(gradient_at, n, options); });
    rows.push_back({"hessian.edge", 2 / lr});
    look("hessian.preconditioned", steepest_preconditioned_, [&] {
        return largest_preconditioned_eigenvalue<float>(
            gradient_at, n,
            [&](int64_t i) { return std::sqrt(double(second_moments[i]) * bias2) + settings.epsilon; },
            options);
    });
    rows.push_back({"hessian.preconditioned.edge", adaptive_edge_of_stability(settings.beta1, lr)});
    return rows;
}

}  // namespace wobble
