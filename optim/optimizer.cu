#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/adamw.h"
#include "kernels/reduce.h"
#include "optim/optimizer.h"
#include "optim/record.h"
#include "probes/launch.h"

namespace wobble {

namespace {

constexpr const char* token_table = "wte.weight";

/// The power of two that brings x near 1, held where it and its square are ordinary float32 numbers.
double unit_for(double x) {
    if (!(x > 0) || !std::isfinite(x)) return 1;
    return std::ldexp(1.0, std::clamp(-std::ilogb(x), -120, 120));
}

}  // namespace

template <class T>
int64_t Optimizer<T>::row_length(const Parameter& p) {
    return p.role == Role::Embedding ? p.shape[1] : flat_row;
}

template <class T>
Optimizer<T>::Optimizer(const ParameterTable& table, const AdamWSettings& settings)
    : table_(table), settings_(settings) {
    int64_t rows = 0;
    for (const Parameter& p : table_.parameters) rows = std::max(rows, ceil_div(p.size, row_length(p)));
    memory_.plan([this, rows](Memory& memory) {
        m_ = memory.take<Accumulator<T>>(table_.buffer_size);
        v_ = memory.take<Accumulator<T>>(table_.buffer_size);
        gradient_squares_ = memory.take<double>(rows);
        update_squares_ = memory.take<double>(rows);
        weight_squares_ = memory.take<double>(rows);
    });
}

template <class T>
void Optimizer<T>::record(Recorder& recorder, const Parameter& p, double clip, double per_unit,
                          double update_squares, double weight_squares) const {
    const Site site{p.name.c_str(), -1, Phase::Update};
    const Record* gradient = recorder.find(site, SquaredSum<T>::name);
    Observation& seen = recorder.observation();
    seen.tensors.push_back(tensor_row(p.name, p.size, recorder.sums(site), clip, per_unit, update_squares,
                                      weight_squares, gradient ? gradient->moments().absmax() : NAN,
                                      initial_ != nullptr));
    if (p.name != token_table || decile_of_token_.empty()) return;
    for (EmbeddingRow& row : embedding_rows(p.name, decile_of_token_, p.shape[1], weight_squares_,
                                            token_gradient_squares_.data(), update_squares_)) {
        seen.embeddings.push_back(std::move(row));
    }
}

template <class T>
StepReport Optimizer<T>::step(Context& context, T* weights, const Accumulator<T>* gradients, double lr,
                              int64_t step, OnNonfinite policy) {
    using A = Accumulator<T>;
    StepReport report;
    const auto total = [](const double* partials, int64_t n) {
        return std::accumulate(partials, partials + n, 0.0);
    };
    const auto squares_of_gradient = [&](const Parameter& p) {
        const int64_t length = row_length(p), rows = ceil_div(p.size, length);
        launch(context, rows,
               SquaredSum<A>{
                   .x = gradients + p.offset, .partials = gradient_squares_, .n = p.size, .length = length},
               {p.name.c_str(), -1, Phase::Update});
        return total(gradient_squares_, rows);
    };

    double squares = 0;
    for (const Parameter& p : table_.parameters) {
        const double sum = squares_of_gradient(p);
        if (p.name == token_table && !decile_of_token_.empty())
            token_gradient_squares_.assign(gradient_squares_, gradient_squares_ + p.shape[0]);
        if (!std::isfinite(sum) && report.nonfinite.empty()) report.nonfinite = p.name;
        squares += sum;
    }
    report.grad_norm = std::sqrt(squares);
    if (!report.nonfinite.empty() && policy != OnNonfinite::Continue) return report;
    if (settings_.clip > 0 && report.grad_norm > settings_.clip)
        report.clip = settings_.clip / report.grad_norm;

    const double bias1 = 1 / (1 - std::pow(settings_.beta1, double(step)));
    const double bias2 = 1 / (1 - std::pow(settings_.beta2, double(step)));
    const double clipped_rms = report.grad_norm * report.clip / std::sqrt(double(table_.count()));
    const double per_unit = unit_for(clipped_rms);
    double update_squares = 0, weight_squares = 0;
    for (const Parameter& p : table_.parameters) {
        const int64_t length = row_length(p), rows = ceil_div(p.size, length);
        const bool decays = p.decay || settings_.decay_everything;
        const Site site{p.name.c_str(), -1, Phase::Update};
        launch(context, rows,
               AdamW<T>{.weight = weights + p.offset,
                        .gradient = gradients + p.offset,
                        .m = m_ + p.offset,
                        .v = v_ + p.offset,
                        .update_squares = update_squares_,
                        .weight_squares = weight_squares_,
                        .n = p.size,
                        .clip = A(report.clip),
                        .lr = A(lr * p.lr_factor),
                        .decay = A(decays ? settings_.weight_decay * p.decay_factor : 0),
                        .beta1 = A(settings_.beta1),
                        .beta2 = A(settings_.beta2),
                        .epsilon = A(settings_.epsilon * p.epsilon_factor),
                        .one_minus_beta1 = A(1 - settings_.beta1),
                        .one_minus_beta2 = A(1 - settings_.beta2),
                        .bias1 = A(bias1),
                        .bias2 = A(bias2),
                        .length = length,
                        .per_unit = A(per_unit),
                        .initial = initial_ ? initial_ + p.offset : nullptr},
               site);
        const double updated = total(update_squares_, rows), weight = total(weight_squares_, rows);
        update_squares += updated, weight_squares += weight;
        if (context.recorder && context.recorder->tier(site) != Tier::Off) {
            record(*context.recorder, p, report.clip, per_unit, updated, weight);
        }
    }
    report.update_norm = std::sqrt(update_squares);
    report.weight_norm = std::sqrt(weight_squares);
    report.applied = true;
    return report;
}

template class Optimizer<float>;
template class Optimizer<double>;

}  // namespace wobble
