#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/batch.h"
#include "kernels/error.h"
#include "run/config_file.h"
#include "run/evaluate.h"
#include "run/machine.h"
#include "run/progress.h"

namespace wobble {

std::vector<HeldOut> open_held_out(const Options& o, int vocab) {
    std::vector<HeldOut> sets;
    // The order of evaluation is always the same (seed 0), so that runs with other data seeds can be
    // compared.
    const DatasetOptions how{.context = int(o.model.context), .vocab = int(o.vocab), .seed = 0};
    if (holdout_share(o) > 0) {
        DatasetOptions kept = how;
        kept.holdout = holdout_share(o), kept.part = Part::HeldOut;
        sets.push_back({"held_out", Dataset::open(o.data, kept)});
    }
    for (const std::string& val : o.val) {
        const size_t equals = val.find('=');
        sets.push_back({val.substr(0, equals), Dataset::open(val.substr(equals + 1), how)});
    }
    for (const HeldOut& set : sets) {
        if (set.data.vocab() > vocab) {
            throw UserError("--val " + set.name + " has a vocabulary of " + std::to_string(set.data.vocab()) +
                            "; expected at most the " + std::to_string(vocab) +
                            " of --data; choose held-out data of the same kind");
        }
    }
    return sets;
}

Evaluation evaluate(Context& context, Model<float>& model, const Dataset& data, int64_t batch,
                    int64_t sequences) {
    const auto begin = std::chrono::steady_clock::now();
    const int64_t all = data.sequences_per_epoch();
    const int64_t count = sequences == 0 ? all : std::min(sequences, all);
    double loss = 0;
    int64_t tokens = 0;
    for (int64_t first = 0; first < count; first += batch) {
        const int64_t rows = std::min(batch, count - first);
        const Batch b = read_batch(data, first, int(rows));
        model.forward(context, b.inputs.data(), b.targets.data(), rows, data.context(), 0);
        loss += model.loss();
        tokens += b.valid_targets;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return {loss / double(tokens), tokens, seconds};
}

void read_tensors(const SafetensorsFile& file, const std::string& prefix, const ParameterTable& table,
                  Device device, float* buffer) {
    for (const Parameter& p : table.parameters) {
        std::vector<float> values(size_t(p.size));
        read_tensor(file, {prefix + p.name, DType::F32, p.shape, nullptr}, values.data());
        copy_in(device, buffer + p.offset, values.data(), p.size);
    }
}

void load_weights(const SafetensorsFile& file, Context& context, Model<float>& model) {
    read_tensors(file, "", model.table(), model.device(), model.weights());
    model.weights_changed(context);
}

Context make_context(const Options& options) {
    Context context(options.threads > 0 ? int(options.threads) : usable_cores());
    context.matmul_precision = matmul_precision(options);
    if (options.device == "cpu") return context;
    const std::string& absence = cuda_absence();
    if (absence.empty()) {
        context.device = Device::Cuda;
    } else if (options.device == "cuda") {
        throw UserError("--device cuda: " + absence + "; choose --device cpu, or auto for what is there" +
                        (built_for_cuda() ? "" : ", or build where nvcc is"));
    }
    return context;
}

std::string where(const Options& options, const Context& context) {
    if (context.device == Device::Cuda) return "the GPU, " + cuda_name();
    if (options.device == "cpu" || !built_for_cuda()) return "";
    return "the CPU: " + cuda_absence();
}

void note_where(const Options& options, const Context& context) {
    const std::string text = where(options, context);
    if (!text.empty()) std::fprintf(stderr, "note: this runs on %s\n", text.c_str());
}

Trained load_trained(const std::string& run, int64_t checkpoint, int64_t threads, int64_t batch) {
    if (!std::filesystem::exists(run + "/config.toml")) {
        throw UserError(run + " holds no run (no config.toml); expected the directory of a run");
    }
    Options options = read_config(run + "/config.toml");
    std::vector<std::string> warnings;
    std::optional<CheckpointFiles> files;
    if (checkpoint >= 0) files.emplace(open_checkpoint(run, checkpoint));
    else files = open_latest_checkpoint(run, &warnings);
    for (const std::string& warning : warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
    if (!files) throw UserError(run + " has no checkpoint yet; train it further, or choose another run");
    const TensorView* wte = files->model.find("wte.weight");
    if (!wte || wte->shape.size() != 2) {
        throw UserError(run +
                        ": the checkpoint holds no matrix wte.weight; expected a checkpoint of ./train");
    }
    options.threads = threads;
    Trained trained{options, files->step, make_context(options), nullptr};
    trained.model = make_model(model_config(options, wte->shape[0]), options.precision, batch, false,
                               trained.context.device);
    load_weights(files->model, trained.context, *trained.model);
    note_where(options, trained.context);
    return trained;
}

void run_evaluation(const Command& command) {
    const int64_t batch = 16;
    Trained trained = load_trained(command.run, command.checkpoint, command.options.threads, batch);
    if (!command.options.val.empty()) {
        trained.options.val = command.options.val;
        trained.options.holdout = 0;
    }
    const std::vector<HeldOut> sets = open_held_out(trained.options, int(trained.model->config().vocab));
    if (sets.empty()) {
        throw UserError(
            "the run keeps no data back (--holdout 0, no --val); name some, for example --val "
            "test=text:FILE");
    }
    nlohmann::json json = {{"run", command.run}, {"step", trained.step}, {"evals", nlohmann::json::array()}};
    for (const HeldOut& set : sets) {
        const Evaluation e =
            evaluate(trained.context, *trained.model, set.data, batch, command.options.eval_sequences);
        if (command.json) {
            json["evals"].push_back({{"name", set.name}, {"loss", e.loss}, {"tokens", e.tokens}});
        } else {
            std::printf(
                "%s: loss %.4f nats (%.3f bits) per token, perplexity %.3f, over %s tokens; step %lld\n",
                set.name.c_str(), e.loss, e.loss / std::log(2.0), std::exp(e.loss),
                with_commas(e.tokens).c_str(), static_cast<long long>(trained.step));
        }
    }
    if (command.json) std::printf("%s\n", json.dump(2).c_str());
}

}  // namespace wobble
