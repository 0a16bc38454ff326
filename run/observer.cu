#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "data/token_counts.h"
#include "kernels/error.h"
#include "kernels/reduce.h"
#include "probes/launch.h"
#include "run/observer.h"

namespace wobble {

Observer::Observer(const Options& options, const ParameterTable& table, const Dataset& data)
    : options_(options),
      table_(table),
      plan_(options.probes),
      recorder_(plan_, options.spectra),
      ring_(plan_.looks() ? options.ring : 0) {
    if (options.noise_scale && options.accum < 2) {
        throw UserError(
            "--noise-scale with --accum " + std::to_string(options.accum) +
            ": expected micro-batches to compare; choose --accum 2 or more, with a smaller --batch");
    }
    if (plan_.looks()) frequency_ = std::make_unique<TokenFrequency>(count_tokens(data));
    if (options.distance_from_init) {
        initial_.resize(size_t(table.buffer_size));
        initialise(table, options.init_seed, initial_.data());
    }
    if (options.noise_scale) gradients_before_.resize(size_t(table.buffer_size));
    partials_.resize(size_t(flat_rows(table.buffer_size)));
}

std::vector<int> Observer::decile_of_token() const {
    std::vector<int> deciles;
    if (!frequency_) return deciles;
    for (int64_t token = 0; token < frequency_->vocab(); ++token)
        deciles.push_back(frequency_->decile(int32_t(token)));
    return deciles;
}

void Observer::begin(Context& context, int64_t steps_done) {
    const bool due = steps_done % options_.probe_every == 0;
    const bool wants = plan_.looks() || options_.noise_scale || options_.example_norms;
    records_ = due && wants;
    const bool rings = plan_.looks() && options_.ring > 0;
    recorder_.clear();
    recorder_.limit(records_ ? Tier::Full : Tier::Moments);
    context.recorder = records_ || rings ? &recorder_ : nullptr;
    losses_ = records_ && frequency_ ? std::make_unique<TokenLosses>(*frequency_) : nullptr;
    micro_squares_.assign(size_t(options_.accum), 0.0);
    example_squares_.assign(size_t(options_.accum * options_.batch), 0.0);
    const bool examples = records_ && options_.example_norms;
    recorder_.measure_examples(examples ? example_squares_.data() : nullptr);
    if (records_ && options_.noise_scale) std::fill(gradients_before_.begin(), gradients_before_.end(), 0.0f);
}

void Observer::after_forward(int64_t micro, const Batch& batch, const float* losses) {
    if (!losses_) return;
    losses_->add(
        MicroLosses<float>{.micro = micro,
                           .losses = losses,
                           .targets = batch.targets.data() + micro * options_.batch * options_.model.context,
                           .provenance = batch.provenance.data() + micro * options_.batch,
                           .rows = options_.batch,
                           .context = options_.model.context});
}

void Observer::after_backward(Context& context, int64_t micro, const float* gradients) {
    if (!records_) return;
    // The probes of a site would see these launches as the site's own.
    Recorder* const recorder = std::exchange(context.recorder, nullptr);
    const auto squares = [&](const auto& kernel) {
        const int64_t rows = flat_rows(kernel.n);
        launch(context, rows, kernel, {"gradient", -1, Phase::Backward});
        return std::accumulate(partials_.begin(), partials_.begin() + rows, 0.0);
    };
    if (options_.noise_scale) {
        micro_squares_[size_t(micro)] = squares(SquaredChange<float>{.x = gradients,
                                                                     .previous = gradients_before_.data(),
                                                                     .partials = partials_.data(),
                                                                     .n = table_.buffer_size});
    }
    const bool last = micro == options_.accum - 1;
    if (last && options_.example_norms) {
        norms_squares_ = 0;
        for (const Parameter& p : table_.parameters) {
            if (p.name.find("ln_") == std::string::npos) continue;
            norms_squares_ += squares(
                SquaredSum<float>{.x = gradients + p.offset, .partials = partials_.data(), .n = p.size});
        }
    }
    context.recorder = recorder;
    if (options_.example_norms && !last)
        recorder_.measure_examples(example_squares_.data() + (micro + 1) * options_.batch);
}

int64_t Observer::targets_in(const Batch& batch, int64_t first_sequence, int64_t sequences) const {
    const auto begin = batch.targets.begin() + first_sequence * options_.model.context;
    return std::count_if(begin, begin + sequences * options_.model.context, [](int32_t t) { return t >= 0; });
}

namespace {

void add_measures(Observation& seen, const std::string& prefix, const NoiseEstimate& estimate,
                  const NoiseScale& running) {
    seen.measures.push_back({prefix + ".trace", estimate.trace});
    seen.measures.push_back({prefix + ".squared_norm", estimate.squared_norm});
    seen.measures.push_back({prefix + ".scale", running.scale()});
}

}  // namespace

// Gradients carry the factor 1 / (targets of the step): a part's own mean is larger by targets of the step /
// its own. Sizes are in whole sequences' worth of targets.

void Observer::add_noise(Observation& seen, const Batch& batch, double grad_norm, bool finite) {
    const double all = double(batch.valid_targets), T = double(options_.model.context);
    std::vector<GradientNorm> parts;
    for (int64_t micro = 0; micro < options_.accum; ++micro) {
        const double own = double(targets_in(batch, micro * options_.batch, options_.batch));
        parts.push_back({own / T, own > 0 ? micro_squares_[size_t(micro)] * (all / own) * (all / own) : 0});
    }
    const NoiseEstimate estimate = estimate_noise(parts, {all / T, grad_norm * grad_norm});
    if (finite) noise_.add(estimate);
    add_measures(seen, "noise", estimate, noise_);
}

void Observer::add_examples(Observation& seen, const Batch& batch, bool finite) {
    const double all = double(batch.valid_targets), T = double(options_.model.context);
    std::vector<GradientNorm> parts;
    for (int64_t i = 0; i < options_.accum * options_.batch; ++i) {
        const double own = double(targets_in(batch, i, 1));
        const double squares = own > 0 ? example_squares_[size_t(i)] * (all / own) * (all / own) : 0;
        parts.push_back({own / T, squares});
        seen.examples.push_back({i / options_.batch, i % options_.batch, std::sqrt(squares)});
    }
    const NoiseEstimate estimate = estimate_noise(parts, {all / T, norms_squares_});
    if (finite) norm_noise_.add(estimate);
    add_measures(seen, "noise.norms", estimate, norm_noise_);
}

Observation Observer::end(Context& context, int64_t step, const Batch& batch, double grad_norm, bool finite) {
    context.recorder = nullptr;
    if (options_.ring > 0 && plan_.looks()) ring_.push(step, recorder_.records());
    if (!records_) return {};
    Observation seen = recorder_.take();
    if (losses_) {
        seen.losses = losses_->rows();
        seen.largest_losses = losses_->largest();
    }
    if (options_.noise_scale) add_noise(seen, batch, grad_norm, finite);
    if (options_.example_norms) add_examples(seen, batch, finite);
    return seen;
}

}  // namespace wobble
