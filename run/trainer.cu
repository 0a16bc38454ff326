#include <chrono>
#include <cmath>
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
      landscape_(context_, *model_, options.batch) {
    draw_weights(context_, *model_, options.init_seed);
    optimizer_.measure_distance_from(observer_.initial_weights());
    optimizer_.group_tokens(observer_.decile_of_token());
}

namespace {

/// Whether something that is done every so many steps (0: never) is due after `done` of them.
bool due(int64_t every, int64_t done) {
    return every > 0 && done % every == 0;
}

}  // namespace

/// Loss and gradient of the whole step: micro-batches one after the other, their gradients added up in
/// float32. Nobody waits for them.
void Trainer::gradients(const Batch& batch, Observer* observer) {
    const int64_t micro = options_.batch * options_.model.context;
    const double scale = 1.0 / double(batch.valid_targets);
    for (int64_t i = 0; i < options_.accum; ++i) {
        model_->forward(context_, batch.inputs.data() + i * micro, batch.targets.data() + i * micro,
                        options_.batch, options_.model.context, scale, i > 0);
        if (observer) observer->after_forward(i, model_->losses());
        model_->backward(context_);
        if (observer) observer->after_backward(context_, i, model_->gradients());
    }
    model_->weight_identities(context_);
}

StepRow Trainer::step() {
    const auto begin = std::chrono::steady_clock::now();
    batch_ = read_batch(data_, cursor_, int(options_.batch * options_.accum));
    observer_.begin(context_, step_);
    const OnNonfinite policy = on_nonfinite(options_);
    const double lr = schedule_.at(step_);
    if (due(options_.sharpness_every, step_)) landscape_.remember_weights();
    const auto update = [&](OnNonfinite how) {
        optimizer_.launch(context_, model_->weights(), model_->gradients(), lr, step_ + 1, how,
                          model_->loss_on_device());
        model_->weights_changed(context_);
    };
    const auto forward_backward_update = [&] {
        gradients(batch_, &observer_);
        update(OnNonfinite::Stop);
    };
    if (options_.cuda_graph) graphs_.run(context_.device, int(observer_.tier()), forward_backward_update);
    else forward_backward_update();

    // Everything is under way; what follows waits for it.
    const double targets = double(batch_.valid_targets), loss = model_->loss() / targets;
    objective_ = model_->objective() / targets;
    StepReport report = optimizer_.report(context_);
    if (!report.applied) {
        if (!std::isfinite(loss)) report.grad_norm = NAN, report.nonfinite.clear();
        origin_ = find_origin();
        if (!report.nonfinite.empty()) origin_ += ", and so the gradient of " + report.nonfinite;
        if (policy == OnNonfinite::Continue) {
            update(policy);
            report = optimizer_.report(context_);
        }
    }
    const bool finite = std::isfinite(loss) && report.nonfinite.empty();
    observation_ = observer_.end(context_, step_ + 1, batch_, report.grad_norm, finite);
    if (report.applied && finite) look_around(observation_, lr);
    if (report.applied || policy == OnNonfinite::Skip) {
        ++step_;
        tokens_ += batch_.valid_targets;
        cursor_ += options_.batch * options_.accum;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const StepRow row{.step = report.applied || policy == OnNonfinite::Skip ? step_ : step_ + 1,
                      .tokens = tokens_,
                      .loss = loss,
                      .lr = lr,
                      .grad_norm = report.grad_norm,
                      .clip = report.clip,
                      .update_norm = report.update_norm,
                      .weight_norm = report.weight_norm,
                      .seconds = seconds,
                      .tokens_per_second = double(batch_.valid_targets) / seconds,
                      .applied = report.applied,
                      .finite = finite};
    events_ = detectors_.look(row, observation_);
    return row;
}

/// Curvature, on the steps that it was asked for: extra passes over the step's batch after its update.
void Trainer::look_around(Observation& seen, double lr) {
    const auto add = [&](std::vector<MeasureRow> rows) {
        for (MeasureRow& row : rows) seen.measures.push_back(std::move(row));
    };
    if (due(options_.sharpness_every, step_) && lr > 0)
        add(landscape_.critical_sharpness(batch_, lr, objective_));
    if (due(options_.hessian_every, step_) && lr > 0) {
        const double bias2 = 1 / (1 - std::pow(options_.beta2, double(step_ + 1)));
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

/// Kernels repeat bit for bit, so the same batch is simply run again with a probe at every site.
std::string Trainer::find_origin() {
    Recorder recorder{ProbePlan("moments")};
    Recorder* const usual = std::exchange(context_.recorder, &recorder);
    gradients(batch_, nullptr);
    wait_for(context_.device);
    context_.recorder = usual;
    const Record* first = recorder.first_nonfinite();
    if (!first) return "the sum over micro-batches";
    const Moments& m = first->moments();
    return first->site + " (" + phase_name(first->phase) + ", " + first->channel + " of " + first->kernel +
           ", row " + std::to_string(m.first_row) + ", column " + std::to_string(m.first_column) + "; " +
           std::to_string(m.nonfinite()) + " of " + std::to_string(m.nonfinite() + m.count) + " values)";
}

std::vector<EvalRow> Trainer::evaluate() {
    std::vector<EvalRow> rows;
    for (const HeldOut& set : held_out_) {
        const Evaluation e =
            wobble::evaluate(context_, *model_, set.data, options_.batch, options_.eval_sequences);
        rows.push_back(
            {.step = step_, .name = set.name, .loss = e.loss, .tokens = e.tokens, .seconds = e.seconds});
    }
    return rows;
}

/// The tensors of a buffer in the host's memory.
std::vector<TensorView> Trainer::views(const std::string& prefix, const float* buffer) const {
    std::vector<TensorView> views;
    for (const Parameter& p : model_->table().parameters) {
        views.push_back({prefix + p.name, DType::F32, p.shape, buffer + p.offset});
    }
    return views;
}

namespace {

/// The counters, as tensors, so that the checksums cover them.
std::vector<TensorView> counter_views(const int64_t& step, const int64_t& tokens, const int64_t& cursor) {
    return {{"step", DType::I64, {1}, &step},
            {"tokens", DType::I64, {1}, &tokens},
            {"cursor", DType::I64, {1}, &cursor}};
}

}  // namespace

void Trainer::write_checkpoint(const std::string& run, int keep) {
    const HostCopy<float> weights = on_host(model_->weights()), m = on_host(optimizer_.m()),
                          v = on_host(optimizer_.v());
    std::vector<TensorView> state = counter_views(step_, tokens_, cursor_);
    for (const auto& moments : {views("m.", m.data()), views("v.", v.data())}) {
        state.insert(state.end(), moments.begin(), moments.end());
    }
    const DetectorState seen = detectors_.state();
    std::vector<TensorView> detectors;
    for (const auto& [name, numbers] : seen)
        detectors.push_back({name, DType::F64, {int64_t(numbers.size())}, numbers.data()});
    wobble::write_checkpoint(run, step_, views("", weights.data()), state, keep, detectors);
}

std::vector<std::string> Trainer::resume(const std::string& run) {
    std::vector<std::string> warnings;
    const std::optional<CheckpointFiles> files = open_latest_checkpoint(run, &warnings);
    if (!files) return warnings;
    for (const TensorView& view : counter_views(step_, tokens_, cursor_)) {
        read_tensor(files->state, view, const_cast<void*>(view.data));
    }
    load_weights(files->model, context_, *model_);
    for (const auto& [prefix, moments] : {std::pair("m.", optimizer_.m()), std::pair("v.", optimizer_.v())})
        read_tensors(files->state, prefix, model_->table(), context_.device, moments);
    DetectorState seen;
    if (files->detectors) {
        for (const TensorView& tensor : files->detectors->tensors()) {
            std::vector<double>& numbers = seen[tensor.name];
            numbers.resize(size_t(byte_count(tensor)) / sizeof(double));
            read_tensor(*files->detectors, {tensor.name, DType::F64, tensor.shape, nullptr}, numbers.data());
        }
    }
    detectors_.restore(seen);
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
