#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/error.h"
#include "model/family.h"
#include "probes/recorder.h"
#include "run/machine.h"
#include "run/progress.h"
#include "run/trainer.h"

namespace wobble {

Dataset open_training_data(const Options& o) {
    const double holdout = holdout_share(o);
    return Dataset::open(o.data, {.context = int(o.model.context),
                                  .vocab = int(o.vocab),
                                  .seed = o.data_seed,
                                  .holdout = holdout,
                                  .part = holdout > 0 ? Part::Train : Part::All});
}

Trainer::Trainer(const Options& options)
    : options_(options),
      data_(open_training_data(options)),
      held_out_(open_held_out(options, data_.vocab())),
      context_(make_context(options)),
      model_(make_model(model_config(options, data_.vocab()), options.precision, options.batch, true,
                        context_.device)),
      optimizer_(model_->table(), adamw_settings(options), context_.device),
      schedule_(schedule(options)),
      observer_(options_, model_->table(), data_, context_.device),
      detectors_({.vocab = double(data_.vocab()),
                  .floor = data_.loss_floor().value_or(0),
                  .bf16 = options.precision != Precision::Float32,
                  .warmup = options.warmup}),
      landscape_(context_, *model_, options.batch),
      hash_(model_->table().buffer_size, context_.device) {
    draw_weights(context_, *model_, options.init_seed);
    optimizer_.measure_distance_from(observer_.initial_weights());
    optimizer_.group_tokens(observer_.decile_of_token());
    for (const std::string& fault : options_.inject) injections_.push_back(parse_injection(fault));
    if (!injections_.empty()) try_injections();
}

namespace {

/// Whether something that is done every so many steps (0: never) is due after `done` of them.
bool due(int64_t every, int64_t done) {
    return every > 0 && done % every == 0;
}

}  // namespace

/// Loss and gradient of the whole step: micro-batches one after the other, their gradients added up in
/// float32. Nobody waits for them.
void Trainer::gradients(const Batch& batch, Observer* observer, const std::function<bool(int64_t)>& stop) {
    const int64_t micro = options_.batch * options_.model.context;
    const double scale = 1.0 / double(batch.valid_targets);
    for (int64_t i = 0; i < options_.accum; ++i) {
        if (context_.recorder) context_.recorder->begin_micro(i);
        model_->forward(context_, batch.inputs.data() + i * micro, batch.targets.data() + i * micro,
                        options_.batch, options_.model.context, scale, i > 0);
        if (observer) observer->after_forward(i, model_->losses());
        model_->backward(context_);
        if (observer) observer->after_backward(context_, i, model_->gradients());
        if (stop && stop(i)) return;
    }
    // The optimizer's launches are none of a micro-batch: their faults are those of the first.
    if (context_.recorder) context_.recorder->begin_micro(0);
    model_->weight_identities(context_);
}

std::vector<Injection> Trainer::injections_of(int64_t step) const {
    std::vector<Injection> due;
    for (const InjectionOrder& order : injections_)
        if (order.step == step) due.push_back(order.injection);
    return due;
}

StepRow Trainer::step() {
    const auto begin = std::chrono::steady_clock::now();
    batch_ = read_batch(data_, at_.cursor, int(options_.batch * options_.accum));
    const std::vector<Injection> faults = injections_of(at_.step + 1);
    observer_.begin(context_, at_.step, faults);
    const OnNonfinite policy = on_nonfinite(options_);
    const double lr = schedule_.at(at_.step);
    if (due(options_.sharpness_every, at_.step)) landscape_.remember_weights();
    const auto update = [&](OnNonfinite how) {
        optimizer_.launch(context_, model_->weights(), model_->gradients(), lr, at_.step + 1, how,
                          model_->loss_on_device());
        model_->weights_changed(context_);
        hash_.launch(context_, model_->weights());
    };
    const auto forward_backward_update = [&] {
        gradients(batch_, &observer_);
        update(OnNonfinite::Stop);
    };
    if (options_.cuda_graph && faults.empty())
        graphs_.run(context_.device, int(observer_.tier()), forward_backward_update);
    else forward_backward_update();

    // Everything is under way; what follows waits for it.
    const double targets = double(batch_.valid_targets), loss = model_->loss() / targets;
    objective_ = model_->objective() / targets;
    StepReport report = optimizer_.report(context_);
    const bool computed = std::isfinite(loss) && report.nonfinite.empty();
    origin_.reset();
    if (!report.applied) {
        if (!std::isfinite(loss)) report.grad_norm = NAN, report.nonfinite.clear();
        if (was_finite_) origin_ = find_origin();
        if (policy == OnNonfinite::Continue) {
            const std::string nonfinite = report.nonfinite;
            update(policy);
            report = optimizer_.report(context_);
            report.nonfinite = nonfinite;
        }
    }
    weights_finite_ = std::isfinite(report.update_norm) && std::isfinite(report.weight_norm);
    if (computed && !weights_finite_ && was_finite_) origin_ = find_weight();
    const bool finite = computed && weights_finite_;
    observation_ = observer_.end(context_, at_.step + 1, batch_, report.grad_norm, finite);
    if (report.applied && finite) look_around(observation_, lr);
    const bool moves_on = report.applied || policy == OnNonfinite::Skip;
    if (moves_on) {
        ++at_.step;
        at_.tokens += batch_.valid_targets;
        at_.cursor += options_.batch * options_.accum;
    }
    const uint64_t weights_hash = hash_.value(), batch_hash = hash_of(batch_);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const StepRow row{.step = moves_on ? at_.step : at_.step + 1,
                      .tokens = at_.tokens,
                      .loss = loss,
                      .lr = lr,
                      .grad_norm = report.grad_norm,
                      .clip = report.clip,
                      .update_norm = report.update_norm,
                      .weight_norm = report.weight_norm,
                      .seconds = seconds,
                      .tokens_per_second = double(batch_.valid_targets) / seconds,
                      .applied = report.applied,
                      .finite = finite,
                      .weights_hash = weights_hash,
                      .batch_hash = batch_hash};
    events_ = detectors_.look(row, observation_);
    if (!finite && was_finite_) events_.insert(events_.begin(), not_finite(row, report.nonfinite));
    was_finite_ = finite;
    return row;
}

Event Trainer::not_finite(const StepRow& row, const std::string& gradient) const {
    Event event{.step = row.step,
                .detector = "not finite",
                .version = 1,
                .severity = Severity::Alarm,
                .site = origin_ ? origin_->site : "",
                .expected = 0,
                .seen = NAN,
                .summary = "the step is not finite, first at ",
                .detail = origin_ ? origin_->json().dump() : "{}"};
    if (origin_) event.summary += origin_->phrase();
    else
        event.summary +=
            "no site when it is repeated: what the step saw was no consequence of its numbers, but a fault "
            "of "
            "processor or memory";
    if (!gradient.empty()) event.summary += ", and so the gradient of " + gradient;
    event.summary += row.applied ? "" : "; the update was not applied";
    return event;
}

/// Curvature, on the steps that it was asked for: extra passes over the step's batch after its update.
void Trainer::look_around(Observation& seen, double lr) {
    const auto add = [&](std::vector<MeasureRow> rows) {
        for (MeasureRow& row : rows) seen.measures.push_back(std::move(row));
    };
    if (due(options_.sharpness_every, at_.step) && lr > 0)
        add(landscape_.critical_sharpness(batch_, lr, objective_));
    if (due(options_.hessian_every, at_.step) && lr > 0) {
        const double bias2 = 1 / (1 - std::pow(options_.beta2, double(at_.step + 1)));
        add(landscape_.hessian(batch_, optimizer_.v(), bias2, adamw_settings(options_), lr));
    }
}

std::vector<BatchRow> Trainer::batch_rows() const {
    std::vector<BatchRow> rows;
    for (size_t i = 0; i < batch_.provenance.size(); ++i) {
        const Provenance& p = batch_.provenance[i];
        rows.push_back({.micro = int64_t(i) / options_.batch,
                        .row = int64_t(i) % options_.batch,
                        .source = p.source,
                        .document = p.document,
                        .offset = p.offset});
    }
    return rows;
}

Origin Trainer::place(const Record& record, int64_t row, int64_t column, int64_t micro) const {
    return origin_of(record, row, column, micro,
                     {batch_, data_, options_.batch, int64_t(options_.model.context)}, model_->table());
}

/// Kernels repeat bit for bit, so the same batch is simply run again with a probe at every site.
std::optional<Origin> Trainer::find_origin() {
    if (const auto weight = find_weight()) return weight;
    Recorder recorder{ProbePlan("moments")};
    recorder.inject(injections_of(at_.step + 1));
    Recorder* const usual = std::exchange(context_.recorder, &recorder);
    int64_t micro = 0;
    gradients(batch_, nullptr, [&](int64_t i) {
        micro = i;
        return recorder.first_nonfinite() != nullptr;
    });
    // Finite parts may still have a sum that is not.
    if (!recorder.first_nonfinite())
        optimizer_.look_at_gradients(context_, model_->weights(), model_->gradients());
    wait_for(context_.device);
    context_.recorder = usual;
    const Record* first = recorder.first_nonfinite();
    if (!first) return std::nullopt;
    return place(*first, first->moments().first_row, first->moments().first_column, micro);
}

/// The first weight that is not finite, as what its update wrote.
std::optional<Origin> Trainer::find_weight() {
    const HostCopy<float> weights = on_host(model_->weights());
    for (const Parameter& p : model_->table().parameters) {
        const float* const w = weights.data() + p.offset;
        const float* const bad = std::find_if(w, w + p.size, [](float x) { return !std::isfinite(x); });
        if (bad == w + p.size) continue;
        const int64_t columns = p.shape.back();
        return Origin{.site = p.name,
                      .kernel = "adamw",
                      .channel = "weight",
                      .phase = Phase::Update,
                      .row = (bad - w) / columns,
                      .column = (bad - w) % columns,
                      .nonfinite = std::count_if(w, w + p.size, [](float x) { return !std::isfinite(x); }),
                      .values = p.size,
                      .parameter = p.name,
                      .token = std::nullopt};
    }
    return std::nullopt;
}

std::optional<Origin> Trainer::find_largest(const Record& wanted) {
    batch_ = read_batch(data_, at_.cursor, int(options_.batch * options_.accum));
    Recorder recorder(ProbePlan("full:" + wanted.site + ",off:*"), wanted.site);
    recorder.keep_rows();
    Recorder* const usual = std::exchange(context_.recorder, &recorder);
    std::optional<Origin> largest;
    gradients(batch_, nullptr, [&](int64_t micro) {
        const auto consider = [&](double value, int64_t row, int64_t column) {
            if (largest && !(std::fabs(value) > std::fabs(largest->value))) return;
            largest = place(wanted, row, column, micro);
            largest->value = value;
        };
        if (wanted.site == "loss") {  // a number a token, which the model keeps
            const int64_t rows = options_.batch * options_.model.context;
            const HostCopy<float> losses(context_.device, model_->losses(), rows);
            for (int64_t row = 0; row < rows; ++row) consider(losses[row], row, 0);
        }
        for (const Record& r : recorder.records()) {
            const SampledRows* const all = r.statistics.sample.get();
            if (!all || r.site != wanted.site || r.phase != wanted.phase ||
                std::string(r.kernel) != wanted.kernel || std::string(r.channel) != wanted.channel)
                continue;
            for (int64_t i = 0; i < all->rows * all->columns; ++i)
                consider(all->values[size_t(i)], i / all->columns, i % all->columns);
        }
        recorder.clear();
        return false;
    });
    wait_for(context_.device);
    context_.recorder = usual;
    return largest;
}

/// Takes a step without each of the faults, to see what there is, and with it; and goes back. Which rows
/// there are may depend on the tokens: they are those of the fault's own step.
void Trainer::try_injections() {
    Snapshot before;
    take_snapshot(before);
    const auto records_with = [&](int64_t step, std::vector<Injection> faults) {
        const int64_t sequences = options_.batch * options_.accum;
        batch_ = read_batch(data_, (step - 1) * sequences, int(sequences));
        Recorder recorder{ProbePlan("moments")};
        recorder.inject(std::move(faults));
        context_.recorder = &recorder;
        gradients(batch_, nullptr);
        optimizer_.launch(context_, model_->weights(), model_->gradients(), schedule_.at(0), 1,
                          OnNonfinite::Stop, model_->loss_on_device());
        optimizer_.report(context_);
        wait_for(context_.device);
        context_.recorder = nullptr;
        std::vector<Record> records = recorder.take().records;
        restore(before);
        return records;
    };
    for (InjectionOrder& order : injections_) {
        complete(order, records_with(order.step, {}));
        Injection seen = order.injection;
        seen.change = NAN;
        check_that_it_hits(order, records_with(order.step, {seen}));
    }
}

std::vector<EvalRow> Trainer::evaluate() {
    std::vector<EvalRow> rows;
    for (const HeldOut& set : held_out_) {
        const Evaluation e =
            wobble::evaluate(context_, *model_, set.data, options_.batch, options_.eval_sequences);
        rows.push_back(
            {.step = at_.step, .name = set.name, .loss = e.loss, .tokens = e.tokens, .seconds = e.seconds});
    }
    return rows;
}

void Trainer::write_checkpoint(const std::string& run, int keep, const char* folder) {
    const HostCopy<float> weights = on_host(model_->weights()), m = on_host(optimizer_.m()),
                          v = on_host(optimizer_.v());
    const DetectorState detectors = detectors_.state();
    write_snapshot(run, folder, {at_, weights.data(), m.data(), v.data(), detectors}, table(), keep);
}

void Trainer::take_snapshot(Snapshot& snapshot) {
    const int64_t n = table().buffer_size;
    snapshot.at = at_;
    snapshot.detectors = detectors_.state();
    for (const auto& [from, to] :
         {std::pair(model_->weights(), &snapshot.weights), std::pair(optimizer_.m(), &snapshot.m),
          std::pair(optimizer_.v(), &snapshot.v)}) {
        to->resize(size_t(n));
        copy_out(context_.device, to->data(), from, n);
    }
}

void Trainer::restore(const Snapshot& snapshot) {
    const int64_t n = table().buffer_size;
    at_ = snapshot.at;
    detectors_.restore(snapshot.detectors);
    copy_in(context_.device, model_->weights(), snapshot.weights.data(), n);
    copy_in(context_.device, optimizer_.m(), snapshot.m.data(), n);
    copy_in(context_.device, optimizer_.v(), snapshot.v.data(), n);
    model_->weights_changed(context_);
    was_finite_ = weights_finite_ = true;
}

uint64_t Trainer::weights_hash() {
    hash_.launch(context_, model_->weights());
    return hash_.value();
}

std::vector<std::string> Trainer::resume(const std::string& run) {
    std::vector<std::string> warnings;
    if (const std::optional<CheckpointFiles> files = open_latest_checkpoint(run, &warnings))
        restore(read_snapshot(*files, table()));
    return warnings;
}

std::string Trainer::describe() const {
    const ModelConfig& c = model_->config();
    const auto n = [](int64_t value) { return std::to_string(value); };
    char memory[32];
    std::snprintf(memory, sizeof memory, "%.0f MB", double(model_->bytes()) * 1e-6);
    const std::string flags = flags_of(c);
    std::string text =
        "model   GPT-2" + (flags.empty() ? "" : " with " + flags) + ", L" + n(c.layers) + " H" + n(c.heads) +
        " C" + n(c.channels) + " T" + n(c.context) + " V" + n(c.vocab) +
        (options_.precision == Precision::Float32    ? ": "
         : options_.precision == Precision::Bfloat16 ? " in bf16: "
                                                     : " in bf16, weights rounded stochastically: ") +
        with_commas(parameter_count()) + " parameters, " + memory + ", " + n(context_.threads) +
        (context_.threads == 1 ? " thread\n" : " threads\n");
    const std::string device = where(options_, context_);
    if (!device.empty()) text += "device  " + device + "\n";
    std::string lines = data_.describe();
    for (size_t at = 0; at < lines.size();) {
        const size_t end = std::min(lines.find('\n', at), lines.size());
        text += "data    " + lines.substr(at, end - at) + "\n";
        at = end + 1;
    }
    for (const HeldOut& set : held_out_) {
        text += "eval    " + set.name + ": " + with_commas(set.data.tokens()) + " held-out tokens\n";
    }
    return text;
}

}  // namespace wobble
