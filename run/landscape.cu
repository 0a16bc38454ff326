#include <algorithm>
#include <cmath>

#include "probes/curvature.h"
#include "run/landscape.h"

namespace wobble {

namespace {

/// Puts weights back when a look is over.
class WeightsKept {
  public:
    explicit WeightsKept(Model<float>& model)
        : model_(model), kept_(model.weights(), model.weights() + model.table().buffer_size) {}
    WeightsKept(const WeightsKept&) = delete;
    WeightsKept& operator=(const WeightsKept&) = delete;
    ~WeightsKept() { std::copy(kept_.begin(), kept_.end(), model_.weights()); }

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
    before_.assign(model_.weights(), model_.weights() + model_.table().buffer_size);
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
    float* w = model_.weights();
    const auto objective_along = [&](double alpha) {
        for (size_t i = 0; i < before_.size(); ++i)
            w[i] = float(before_[i] + alpha * (double(after.weights()[i]) - double(before_[i])));
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
    const auto gradient_at = [&](std::span<const float> direction, double step, std::span<float> out) {
        float* w = model_.weights();
        for (size_t i = 0; i < direction.size(); ++i)
            w[i] = float(double(kept.weights()[i]) + step * double(direction[i]));
        gradient(batch);
        std::copy(model_.gradients(), model_.gradients() + n, out.begin());
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
            gradient_at, n, [&](int64_t i) { return std::sqrt(double(v[i]) * bias2) + settings.epsilon; },
            options);
    });
    rows.push_back({"hessian.preconditioned.edge", adaptive_edge_of_stability(settings.beta1, lr)});
    return rows;
}

}  // namespace wobble
