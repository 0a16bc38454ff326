// Whole training steps, as the program makes them: batches from a synthetic source, the model, the optimizer,
// and what a run looks at besides its loss.

#include <deque>
#include <memory>

#include "bench/timings.h"
#include "data/batch.h"
#include "model/gpt.h"
#include "optim/optimizer.h"
#include "run/observer.h"

namespace wobble::bench {

std::string StepModel::name() const {
    const auto n = [](const char* letter, int64_t value) { return letter + std::to_string(value); };
    return n("L", config.layers) + n("_H", config.heads) + n("_C", config.channels) +
           n("_T", config.context) + n("_V", config.vocab) + n("_B", batch) +
           (precision == wobble::Precision::Bfloat16 ? "_bfloat16" : "");
}

const std::vector<StepModel>& step_models(Device device) {
    static const std::vector<StepModel> on_gpu = {
        {{.vocab = 50257, .context = 1024, .layers = 12, .heads = 12, .channels = 768},
         32,
         wobble::Precision::Bfloat16}};
    if (device == Device::Cuda) return on_gpu;
    static const std::vector<StepModel> models = {
        {{.vocab = 256, .context = 64, .layers = 2, .heads = 2, .channels = 64}, 8},
        {{.vocab = 256, .context = 64, .layers = 4, .heads = 4, .channels = 128}, 12},
        {{.vocab = 256, .context = 256, .layers = 6, .heads = 6, .channels = 384}, 16},
        {{.vocab = 256, .context = 256, .layers = 6, .heads = 6, .channels = 384},
         16,
         wobble::Precision::Bfloat16}};
    return models;
}

namespace {

/// Weights that each token meets: embeddings are looked up, but that the head uses one of them.
double weights_of_a_token(const ModelConfig& config, const ParameterTable& table) {
    double weights = 0;
    for (const Parameter& p : table.parameters)
        if (p.role != Role::Embedding || (p.name == "wte.weight" && config.tied)) weights += double(p.size);
    return weights;
}

}  // namespace

double flops_per_token(const ModelConfig& config, const ParameterTable& table) {
    // Twice the keys that a query sees, in the mean: T without a window.
    const double T = double(config.context), window = std::min(double(config.window), T);
    const double keys = config.window > 0 ? window * (2 - window / T) : T;
    return 6 * (weights_of_a_token(config, table) + double(config.layers * config.channels) * keys);
}

namespace {

/// Nine steps of one kind and one of the other, per step, round by round.
Rounds one_in_ten(const Rounds& usual, const Rounds& tenth) {
    const auto mix = [](std::vector<double> nine, const std::vector<double>& one) {
        for (size_t i = 0; i < nine.size(); ++i) nine[i] = (9 * nine[i] + one[i]) / 10;
        return nine;
    };
    return {mix(usual.wall, tenth.wall), mix(usual.processor, tenth.processor)};
}

/// One model, and for each tier somebody who looks at it; so all of them see the same memory.
class Steps {
  public:
    Steps(const StepModel& step_model, int threads, Device device)
        : model_(make_model(step_model.config, step_model.precision, step_model.batch, true, device)),
          optimizer_(model_->table(), {}, device),
          context_(threads),
          data_(Dataset::open(source(step_model), {.context = int(step_model.config.context)})) {
        context_.device = device;
        draw_weights(context_, *model_, 1);
        for (const char* tier : tiers) {
            Options& options = options_.emplace_back();
            options.batch = step_model.batch, options.model.context = step_model.config.context;
            options.probes = tier, options.probe_every = 1;
            observers_.push_back(std::make_unique<Observer>(options, model_->table(), data_, device));
        }
        optimizer_.group_tokens(observers_.back()->decile_of_token());
    }

    void step(size_t tier) {
        Observer& observer = *observers_[tier];
        const int64_t batch_size = options_[tier].batch;
        const Batch batch = read_batch(data_, done_ * batch_size, int(batch_size));
        observer.begin(context_, done_);
        model_->forward(context_, batch.inputs.data(), batch.targets.data(), batch_size,
                        options_[tier].model.context, 1 / double(batch.valid_targets));
        observer.after_forward(0, model_->losses());
        model_->backward(context_);
        observer.after_backward(context_, 0, model_->gradients());
        model_->weight_identities(context_);
        ++done_;
        const StepReport report =
            optimizer_.step(context_, model_->weights(), model_->gradients(), 1e-4, done_, OnNonfinite::Stop);
        model_->weights_changed(context_);
        observer.end(context_, done_, batch, report.grad_norm, true);
    }

    const ParameterTable& table() const { return model_->table(); }

  private:
    static std::string source(const StepModel& step_model) {
        // A chain over a large vocabulary would be a large table.
        const char* order = step_model.config.vocab > 1024 ? "0" : "1";
        return std::string("synthetic:markov?order=") + order +
               "&vocab=" + std::to_string(step_model.config.vocab) + "&seed=1";
    }

    std::unique_ptr<Model<float>> model_;
    Optimizer<float> optimizer_;
    Context context_;
    Dataset data_;
    std::deque<Options> options_;  // which observers refer to
    std::vector<std::unique_ptr<Observer>> observers_;
    int64_t done_ = 0;
};

}  // namespace

StepTimings time_steps(const StepModel& model, int threads, Device device, const Effort& effort) {
    Steps steps(model, threads, device);
    std::vector<std::function<void()>> variants;
    for (size_t tier = 0; tier < std::size(tiers); ++tier)
        variants.push_back([&, tier] { steps.step(tier); });
    const Turns turns = measure_in_turns(variants, effort);
    const Rounds &off = turns.variants[0], &moments = turns.variants[1], &full = turns.variants[2];

    return {model,
            steps.table().count(),
            flops_per_token(model.config, steps.table()) * double(model.tokens()),
            {timing("off", false, off, off), timing("moments", false, moments, off),
             timing("full", false, full, off),
             timing("full every 10th, else off", true, one_in_ten(off, full), off),
             timing("full every 10th, else moments", true, one_in_ten(moments, full), off)}};
}

std::vector<GenerationTimings> time_generation(const ModelConfig& config, int threads, const Effort& effort) {
    Context context(threads);
    std::vector<GenerationTimings> timings;
    std::vector<std::unique_ptr<Model<float>>> models;
    std::vector<std::function<void()>> variants;
    for (const wobble::Precision precision : {wobble::Precision::Float32, wobble::Precision::Bfloat16}) {
        models.push_back(make_model(config, precision, 1, false));
        Model<float>* model = models.back().get();
        draw_weights(context, *model, 1);
        variants.push_back([&context, model, position = int64_t(0)]() mutable {
            model->append(context, int32_t(position % model->config().vocab), position);
            position = (position + 1) % model->config().context;
        });
        const size_t size = precision == wobble::Precision::Float32 ? sizeof(float) : sizeof(bf16);
        timings.push_back(
            {{config, 1, precision}, 0, weights_of_a_token(config, model->table()) * double(size), {}});
    }
    const Turns turns = measure_in_turns(variants, effort);
    for (size_t i = 0; i < timings.size(); ++i) {
        timings[i].rounds = int(turns.variants[i].wall.size());
        timings[i].seconds = middle(turns.variants[i].wall);
    }
    return timings;
}

}  // namespace wobble::bench
