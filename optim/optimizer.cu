#include <cmath>
#include <numeric>

#include "kernels/adamw.h"
#include "kernels/reduce.h"
#include "optim/optimizer.h"
#include "probes/launch.h"

namespace wobble {

template <class T>
Optimizer<T>::Optimizer(const ParameterTable& table, const AdamWSettings& settings)
    : table_(table), settings_(settings) {
    memory_.plan([this](Memory& memory) {
        m_ = memory.take<Accumulator<T>>(table_.buffer_size);
        v_ = memory.take<Accumulator<T>>(table_.buffer_size);
        partials_a_ = memory.take<double>(flat_rows(table_.buffer_size));
        partials_b_ = memory.take<double>(flat_rows(table_.buffer_size));
    });
}

template <class T>
StepReport Optimizer<T>::step(Context& context, T* weights, const Accumulator<T>* gradients, double lr,
                              int64_t step, OnNonfinite policy) {
    using A = Accumulator<T>;
    StepReport report;
    const auto total = [](const double* partials, int64_t n) {
        return std::accumulate(partials, partials + n, 0.0);
    };

    double squares = 0;
    for (const Parameter& p : table_.parameters) {
        const int64_t rows = flat_rows(p.size);
        launch(context, rows, SquaredSum<A>{.x = gradients + p.offset, .partials = partials_a_, .n = p.size},
               {p.name.c_str(), -1, Phase::Update});
        const double sum = total(partials_a_, rows);
        if (!std::isfinite(sum) && report.nonfinite.empty()) report.nonfinite = p.name;
        squares += sum;
    }
    report.grad_norm = std::sqrt(squares);
    if (!report.nonfinite.empty() && policy != OnNonfinite::Continue) return report;
    if (settings_.clip > 0 && report.grad_norm > settings_.clip)
        report.clip = settings_.clip / report.grad_norm;

    const double bias1 = 1 / (1 - std::pow(settings_.beta1, double(step)));
    const double bias2 = 1 / (1 - std::pow(settings_.beta2, double(step)));
    double update_squares = 0, weight_squares = 0;
    for (const Parameter& p : table_.parameters) {
        const int64_t rows = flat_rows(p.size);
        const bool decays = p.decay || settings_.decay_everything;
        launch(context, rows,
               AdamW<T>{.weight = weights + p.offset,
                        .gradient = gradients + p.offset,
                        .m = m_ + p.offset,
                        .v = v_ + p.offset,
                        .update_squares = partials_a_,
                        .weight_squares = partials_b_,
                        .n = p.size,
                        .clip = A(report.clip),
                        .lr = A(lr),
                        .decay = A(decays ? settings_.weight_decay : 0),
                        .beta1 = A(settings_.beta1),
                        .beta2 = A(settings_.beta2),
                        .epsilon = A(settings_.epsilon),
                        .one_minus_beta1 = A(1 - settings_.beta1),
                        .one_minus_beta2 = A(1 - settings_.beta2),
                        .bias1 = A(bias1),
                        .bias2 = A(bias2)},
               {p.name.c_str(), -1, Phase::Update});
        update_squares += total(partials_a_, rows);
        weight_squares += total(partials_b_, rows);
    }
    report.update_norm = std::sqrt(update_squares);
    report.weight_norm = std::sqrt(weight_squares);
    report.applied = true;
    return report;
}

template class Optimizer<float>;
template class Optimizer<double>;

}  // namespace wobble
