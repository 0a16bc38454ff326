#include <algorithm>
#include <cmath>
#include <numeric>

#include "optim/optimizer.h"
#include "optim/record.h"
#include "probes/launch.h"

namespace wobble {

namespace {

constexpr const char* token_table = "wte.weight";

Site site_of(const Parameter& p) {
    return {p.name.c_str(), -1, Phase::Update};
}

enum Squares { OfGradient, OfUpdate, OfWeight, squares_kinds };

}  // namespace

template <class T>
int64_t Optimizer<T>::row_length(const Parameter& p) {
    return p.role == Role::Embedding ? p.shape[1] : flat_row;
}

template <class T>
Optimizer<T>::Optimizer(Unplaced, const ParameterTable& table, const AdamWSettings& settings)
    : table_(table), settings_(settings) {
    first_row_.push_back(0);
    for (const Parameter& p : table_.parameters)
        first_row_.push_back(first_row_.back() + ceil_div(p.size, row_length(p)));
}

template <class T>
Optimizer<T>::Optimizer(const ParameterTable& table, const AdamWSettings& settings, Device device)
    : Optimizer(Unplaced(), table, settings) {
    std::vector<int32_t> of_row;
    for (int64_t t = 0; t < tensors(); ++t) of_row.resize(size_t(first_row_[size_t(t) + 1]), int32_t(t));
    memory_.plan(device, [this](Memory& memory) { lay_out(memory); });
    copy_in(device, on_.first_row, first_row_.data(), tensors() + 1);
    copy_in(device, on_.of_row, of_row.data(), rows());
    scalars_ = std::make_unique<Pinned>(device, 3 * sizeof(double));
}

template <class T>
auto Optimizer<T>::plan(const ParameterTable& table, Device device) -> std::vector<Memory::Section> {
    const AdamWSettings any;
    Optimizer optimizer(Unplaced(), table, any);
    return Memory().measure(device, [&](Memory& memory) { optimizer.lay_out(memory); });
}

template <class T>
void Optimizer<T>::lay_out(Memory& memory) {
    memory.begin("optimizer");
    m_ = memory.take<A>(table_.buffer_size);
    v_ = memory.take<A>(table_.buffer_size);
    on_ = {.squares = memory.take<SquaredSum<A>>(tensors()),
           .updates = memory.take<AdamWAtStep<T>>(tensors()),
           .first_row = memory.take<int64_t>(tensors() + 1),
           .of_row = memory.take<int32_t>(rows()),
           .partials = memory.take<double>(squares_kinds * rows()),
           .totals = memory.take<double>(squares_kinds * tensors()),
           .now = memory.take<UpdateScalars<A>>(1)};
}

/// The tensors' kernels.
template <class T>
void Optimizer<T>::point_at(T* weights, const A* gradients) {
    if (!updates_.empty() && updates_[0].weight == weights && updates_[0].gradient == gradients) return;
    squares_.clear(), updates_.clear();
    for (size_t t = 0; t < table_.parameters.size(); ++t) {
        const Parameter& p = table_.parameters[t];
        const int64_t length = row_length(p);
        double* const partials = on_.partials + first_row_[t];
        squares_.push_back({.x = gradients + p.offset, .partials = partials, .n = p.size, .length = length});
        const bool decays = p.decay || settings_.decay_everything;
        updates_.push_back({AdamW<T>{.weight = weights + p.offset,
                                     .gradient = gradients + p.offset,
                                     .m = m_ + p.offset,
                                     .v = v_ + p.offset,
                                     .update_squares = partials + OfUpdate * rows(),
                                     .weight_squares = partials + OfWeight * rows(),
                                     .n = p.size,
                                     .clip = 1,
                                     .lr = 0,
                                     .decay = A(decays ? settings_.weight_decay * p.decay_factor : 0),
                                     .beta1 = A(settings_.beta1),
                                     .beta2 = A(settings_.beta2),
                                     .epsilon = A(settings_.epsilon * p.epsilon_factor),
                                     .one_minus_beta1 = A(1 - settings_.beta1),
                                     .one_minus_beta2 = A(1 - settings_.beta2),
                                     .bias1 = 1,
                                     .bias2 = 1,
                                     .length = length,
                                     .per_unit = 1,
                                     .initial = initial_ ? initial_ + p.offset : nullptr},
                            on_.now, p.lr_factor});
    }
    copy_in(memory_.device(), on_.squares, squares_.data(), tensors());
    copy_in(memory_.device(), on_.updates, updates_.data(), tensors());
}

/// All tensors in one launch, or, where somebody wants to see them apart, one after the other.
template <class T>
template <class Kernel>
void Optimizer<T>::run(Context& context, const std::vector<Kernel>& kernels, const Kernel* on_device) {
    if (!context.recorder) {
        run_bare(context, rows(), Together<Kernel>{on_device, on_.of_row, on_.first_row, flat_row});
        return;
    }
    for (size_t t = 0; t < kernels.size(); ++t)
        wobble::launch(context, first_row_[t + 1] - first_row_[t], kernels[t], site_of(table_.parameters[t]));
}

template <class T>
void Optimizer<T>::launch(Context& context, T* weights, const A* gradients, double lr, int64_t step,
                          OnNonfinite policy, const double* loss) {
    if (!reported_) wait_for(memory_.device());
    reported_ = false;
    point_at(weights, gradients);
    double* const scalars = reinterpret_cast<double*>(scalars_->data());
    scalars[0] = lr;
    scalars[1] = 1 / (1 - std::pow(settings_.beta1, double(step)));
    scalars[2] = 1 / (1 - std::pow(settings_.beta2, double(step)));
    copy_in_later(memory_.device(), &on_.now->lr, scalars, 3);

    run(context, squares_, on_.squares);
    const auto totals = [&](Squares of) {
        return Totals<double>{.x = on_.partials + of * rows(),
                              .begin = on_.first_row,
                              .totals = on_.totals + of * tensors(),
                              .length = ceil_div(rows(), tensors())};
    };
    run_bare(context, tensors(), totals(OfGradient));
    run_bare(context, 1,
             PrepareUpdate<A>{.squares = on_.totals,
                              .loss = loss,
                              .now = on_.now,
                              .tensors = tensors(),
                              .parameters = table_.count(),
                              .most = settings_.clip,
                              .always = policy == OnNonfinite::Continue});
    run(context, updates_, on_.updates);
    run_bare(context, tensors(), totals(OfUpdate));
    run_bare(context, tensors(), totals(OfWeight));
}

template <class T>
void Optimizer<T>::look_at_gradients(Context& context, T* weights, const A* gradients) {
    point_at(weights, gradients);
    run(context, squares_, on_.squares);
}

template <class T>
StepReport Optimizer<T>::report(Context& context) {
    UpdateScalars<A> now;
    std::vector<double> totals(size_t(squares_kinds * tensors()));
    copy_out(memory_.device(), &now, on_.now, 1);
    copy_out(memory_.device(), totals.data(), on_.totals, int64_t(totals.size()));
    reported_ = true;
    const auto norm = [&](Squares of) {
        const auto first = totals.begin() + of * tensors();
        return std::sqrt(std::accumulate(first, first + tensors(), 0.0));
    };
    StepReport report;
    report.grad_norm = now.grad_norm;
    if (now.nonfinite >= 0) report.nonfinite = table_.parameters[size_t(now.nonfinite)].name;
    if (!now.applies) return report;
    report.clip = now.clip;
    report.update_norm = norm(OfUpdate), report.weight_norm = norm(OfWeight);
    report.applied = true;
    if (context.recorder) record(*context.recorder, now, totals.data());
    return report;
}

template <class T>
void Optimizer<T>::record(Recorder& recorder, const UpdateScalars<A>& now, const double* totals) const {
    for (size_t t = 0; t < table_.parameters.size(); ++t) {
        const Parameter& p = table_.parameters[t];
        const Site site = site_of(p);
        if (recorder.tier(site) == Tier::Off) continue;
        const Record* gradient = recorder.find(site, SquaredSum<A>::name);
        Observation& seen = recorder.observation();
        seen.tensors.push_back(
            tensor_row(p.name, p.size, recorder.sums(site), now.clip, double(A(now.per_unit)),
                       totals[OfUpdate * tensors() + int64_t(t)], totals[OfWeight * tensors() + int64_t(t)],
                       gradient ? gradient->moments().absmax() : NAN, initial_ != nullptr));
        if (p.name != token_table || decile_of_token_.empty()) continue;
        std::vector<double> squares[squares_kinds];
        for (int of = 0; of < squares_kinds; ++of) {
            squares[of].resize(size_t(p.shape[0]));
            copy_out(memory_.device(), squares[of].data(), on_.partials + of * rows() + first_row_[t],
                     p.shape[0]);
        }
        for (EmbeddingRow& row :
             embedding_rows(p.name, decile_of_token_, p.shape[1], squares[OfWeight].data(),
                            squares[OfGradient].data(), squares[OfUpdate].data())) {
            seen.embeddings.push_back(std::move(row));
        }
    }
}

template class Optimizer<float>;
template class Optimizer<double>;

}  // namespace wobble
