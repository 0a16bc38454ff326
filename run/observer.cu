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

Observer::Observer(const Options& options, const ParameterTable& table, const Dataset& data, Device device)
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
    memory_.plan(device, [this](Memory& memory) { lay_out(memory); });
    if (!options.distance_from_init) return;
    std::vector<float> initial(size_t(table.buffer_size));
    initialise(table, options.init_seed, initial.data());
    copy_in(device, initial_, initial.data(), table.buffer_size);
}

void Observer::lay_out(Memory& memory) {
    const int64_t n = table_.buffer_size;
    if (options_.distance_from_init) initial_ = memory.take<float>(n);
    if (options_.noise_scale) gradients_before_ = memory.take<float>(n);
    if (frequency_) losses_ = memory.take<float>(options_.accum * micro_rows());
    partials_ = memory.take<double>(flat_rows(n));
    micro_squares_ = memory.take<double>(options_.accum);
    example_squares_ = memory.take<double>(options_.accum * options_.batch);
    norms_squares_ = memory.take<double>(1);
}

std::vector<int> Observer::decile_of_token() const {
    std::vector<int> deciles;
    if (!frequency_) return deciles;
    for (int64_t token = 0; token < frequency_->vocab(); ++token)
        deciles.push_back(frequency_->decile(int32_t(token)));
    return deciles;
}

void Observer::begin(Context& context, int64_t steps_done, std::vector<Injection> faults) {
    const bool wanted = steps_done + 1 >= first_;
    const bool due = wanted && steps_done % options_.probe_every == 0;
    const bool wants = plan_.looks() || options_.noise_scale || options_.example_norms;
    records_ = due && wants;
    const bool rings = wanted && plan_.looks() && options_.ring > 0;
    recorder_.clear();
    recorder_.limit(records_ ? Tier::Full : Tier::Moments);
    recorder_.inject(std::move(faults));
    tier_ = records_ ? Tier::Full : rings ? Tier::Moments : Tier::Off;
    context.recorder = tier_ != Tier::Off || recorder_.injects() ? &recorder_ : nullptr;
    recorder_.measure_examples(records_ && options_.example_norms ? example_squares_ : nullptr);
    if (!records_) return;
    clear(memory_.device(), example_squares_, options_.accum * options_.batch);
    if (options_.noise_scale) clear(memory_.device(), gradients_before_, table_.buffer_size);
}

void Observer::after_forward(int64_t micro, const float* losses) {
    if (!records_ || !losses_) return;
    copy_within(memory_.device(), losses_ + micro * micro_rows(), losses, micro_rows());
}

void Observer::after_backward(Context& context, int64_t micro, const float* gradients) {
    if (!records_) return;
    if (options_.noise_scale) {
        const int64_t n = table_.buffer_size;
        run_bare(context, flat_rows(n),
                 SquaredChange<float>{
                     .x = gradients, .previous = gradients_before_, .partials = partials_, .n = n});
        run_bare(context, 1, Total<double>{partials_, micro_squares_ + micro, flat_rows(n)});
    }
    if (!options_.example_norms) return;
    if (micro < options_.accum - 1) {
        recorder_.measure_examples(example_squares_ + (micro + 1) * options_.batch);
        return;
    }
    clear(memory_.device(), norms_squares_, 1);
    for (const Parameter& p : table_.parameters) {
        if (p.name.find("ln_") == std::string::npos) continue;
        run_bare(context, flat_rows(p.size),
                 SquaredSum<float>{.x = gradients + p.offset, .partials = partials_, .n = p.size});
        run_bare(context, 1, Total<double>{partials_, norms_squares_, flat_rows(p.size), true});
    }
}

int64_t Observer::targets_in(const Batch& batch, int64_t first_sequence, int64_t sequences) const {
    const auto begin = batch.targets.begin() + first_sequence * options_.model.context;
    return std::count_if(begin, begin + sequences * options_.model.context, [](int32_t t) { return t >= 0; });
}

void Observer::add_losses(Observation& seen, const Batch& batch) {
    std::vector<float> losses(size_t(options_.accum * micro_rows()));
    copy_out(memory_.device(), losses.data(), losses_, int64_t(losses.size()));
    TokenLosses of_tokens(*frequency_);
    for (int64_t micro = 0; micro < options_.accum; ++micro) {
        of_tokens.add(MicroLosses<float>{.micro = micro,
                                         .losses = losses.data() + micro * micro_rows(),
                                         .targets = batch.targets.data() + micro * micro_rows(),
                                         .provenance = batch.provenance.data() + micro * options_.batch,
                                         .rows = options_.batch,
                                         .context = options_.model.context});
    }
    seen.losses = of_tokens.rows();
    seen.largest_losses = of_tokens.largest();
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
    std::vector<double> micro_squares(size_t(options_.accum));
    copy_out(memory_.device(), micro_squares.data(), micro_squares_, options_.accum);
    const double all = double(batch.valid_targets), T = double(options_.model.context);
    std::vector<GradientNorm> parts;
    for (int64_t micro = 0; micro < options_.accum; ++micro) {
        const double own = double(targets_in(batch, micro * options_.batch, options_.batch));
        parts.push_back({own / T, own > 0 ? micro_squares[size_t(micro)] * (all / own) * (all / own) : 0});
    }
    const NoiseEstimate estimate = estimate_noise(parts, {all / T, grad_norm * grad_norm});
    if (finite) noise_.add(estimate);
    add_measures(seen, "noise", estimate, noise_);
}

void Observer::add_examples(Observation& seen, const Batch& batch, bool finite) {
    std::vector<double> example_squares(size_t(options_.accum * options_.batch));
    copy_out(memory_.device(), example_squares.data(), example_squares_, int64_t(example_squares.size()));
    double norms_squares;
    copy_out(memory_.device(), &norms_squares, norms_squares_, 1);
    const double all = double(batch.valid_targets), T = double(options_.model.context);
    std::vector<GradientNorm> parts;
    for (int64_t i = 0; i < options_.accum * options_.batch; ++i) {
        const double own = double(targets_in(batch, i, 1));
        const double squares = own > 0 ? example_squares[size_t(i)] * (all / own) * (all / own) : 0;
        parts.push_back({own / T, squares});
        seen.examples.push_back({i / options_.batch, i % options_.batch, std::sqrt(squares)});
    }
    const NoiseEstimate estimate = estimate_noise(parts, {all / T, norms_squares});
    if (finite) norm_noise_.add(estimate);
    add_measures(seen, "noise.norms", estimate, norm_noise_);
}

Observation Observer::end(Context& context, int64_t step, const Batch& batch, double grad_norm, bool finite) {
    context.recorder = nullptr;
    if (options_.ring > 0 && plan_.looks() && step >= first_) ring_.push(step, recorder_.records());
    if (!records_) return {};
    Observation seen = recorder_.take();
    if (losses_) add_losses(seen, batch);
    if (options_.noise_scale) add_noise(seen, batch, grad_norm, finite);
    if (options_.example_norms) add_examples(seen, batch, finite);
    return seen;
}

}  // namespace wobble
