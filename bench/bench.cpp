#include "bench/bench.h"

#include <cstdio>

#include "bench/peers.h"
#include "bench/progress.h"
#include "bench/report.h"
#include "bench/roof.h"
#include "bench/timings.h"
#include "kernels/error.h"
#include "run/evaluate.h"
#include "run/machine.h"
#include "run/output_file.h"

namespace wobble {

namespace {

Device bench_device(const BenchOptions& options) {
    Options asked;
    asked.device = options.device;
    return make_context(asked).device;
}

}  // namespace

void check(const BenchOptions& options) {
    if (options.device != "auto" && options.device != "cpu" && options.device != "cuda")
        throw UserError("--device " + options.device + " is unknown; expected auto, cpu or cuda");
    if (options.threads < 0) {
        throw UserError("--threads is " + std::to_string(options.threads) + "; expected at least 0");
    }
    if (options.steps_only && options.kernels_only) {
        throw UserError("--steps-only and --kernels-only were both given; leave one of them out");
    }
    if (options.steps_only && !options.kernels.empty()) {
        throw UserError("--kernels and --steps-only were both given; leave one of them out");
    }
    bench::shape::choose(bench_device(options));
    if (bench::matching_cases(options.kernels).empty()) {
        throw UserError("--kernels " + options.kernels +
                        " matches no kernel; expected names or patterns such as 'layernorm*,product/mlp.*'");
    }
    check_output_file("--json", options.json);
}

namespace bench {

namespace {

/// How long to measure what, in seconds.
struct Plan {
    double roofs = 1;  // each time
    Effort kernel;
    double preparing = 0.2;     // the operands of a kernel
    std::vector<Effort> steps;  // of step_models()
    Effort generation;
    double pytorch;  // for each of two models; 0: not at all

    explicit Plan(bool quick) {
        if (quick) {
            kernel = {.seconds = 0.12, .least_rounds = 3, .sample_seconds = 2e-4};
            // The largest model takes seconds for one round.
            steps = {{0.5, 3, 0}, {1, 3, 0}, {1, 1, 0}, {1, 1, 0}};
            generation = {1, 3, 0};
            pytorch = 0;
        } else {
            kernel = {.seconds = 0.7, .least_rounds = 5, .sample_seconds = 1e-3};
            steps = {{3, 9, 0}, {6, 9, 0}, {40, 5, 0}, {25, 5, 0}};
            generation = {10, 9, 0.2};
            pytorch = 15;
        }
    }
};

/// The models that other programs are timed on: all but the smallest, in float32.
std::vector<StepModel> peer_models() {
    const std::vector<StepModel>& all = step_models(Device::Cpu);
    std::vector<StepModel> models(all.begin() + 1, all.end());
    std::erase_if(models, [](const StepModel& m) { return m.precision != wobble::Precision::Float32; });
    return models;
}

/// One run of the bench: its parts one after the other, text to stdout and all numbers into `json`.
class Session {
  public:
    explicit Session(const BenchOptions& options)
        : options_(options),
          threads_(options.threads > 0 ? int(options.threads) : usable_cores()),
          plan_(options.quick),
          kernels_(options.steps_only ? std::vector<KernelCase>() : matching_cases(options.kernels)),
          progress_(planned_seconds()) {
        json = {{"machine", describe_machine(threads_)}, {"quick", options.quick},
                {"others", nlohmann::json::object()},    {"kernels", nlohmann::json::array()},
                {"steps", nlohmann::json::array()},      {"generation", nlohmann::json::array()}};
        const std::string processor = json["machine"]["processor"];
        say("machine: " + processor + ", " + build_description() + "\n");
        measure_roofs();
    }

    void run() {
        if (!options_.steps_only) time_kernels();
        if (!options_.kernels_only) time_models();
        // Generation and the other programs are timed on the CPU.
        if (!options_.kernels_only && shape::device == Device::Cpu) time_tokens(), time_peers();
        json["roofs"] = to_json(roofs_);
    }

    nlohmann::json json;

  private:
    double planned_seconds() const {
        double seconds = 2 * plan_.roofs + double(kernels_.size()) * (plan_.kernel.seconds + plan_.preparing);
        if (options_.kernels_only) return seconds;
        for (const Effort& effort : plan_.steps) seconds += effort.seconds + plan_.roofs;
        seconds += plan_.generation.seconds;
        return seconds + plan_.pytorch * double(peer_models().size());
    }
    void say(const std::string& text) {
        progress_.hide();
        std::fputs(text.c_str(), stdout);
        std::fflush(stdout);
    }
    Effort ticking(Effort effort) {
        effort.before_round = [this] { progress_.tick(); };
        return effort;
    }
    void measure_roofs() {
        progress_.begin("roofs", plan_.roofs);
        roofs_.measure(threads_, shape::device);
    }

    void time_kernels() {
        const OtherWork others;
        std::vector<KernelTimings> timings;
        for (const KernelCase& kernel : kernels_) {
            progress_.begin(
                format("kernel %zu of %zu: %s", timings.size() + 1, kernels_.size(), kernel.name().c_str()),
                plan_.kernel.seconds + plan_.preparing);
            timings.push_back(time_kernel(kernel, threads_, ticking(plan_.kernel)));
        }
        json["others"]["kernels"] = others.share();
        const std::string disturbance = to_text(others);
        measure_roofs();

        std::string text = to_text(roofs_, threads_) + "\n", precision;
        for (const KernelTimings& t : timings) {
            if (t.kernel.precision != precision) {
                precision = t.kernel.precision;
                text += "\n" + kernels_heading(precision);
            }
            text += to_text(t, roofs_);
            for (const auto& row : to_json(t, roofs_)) json["kernels"].push_back(row);
        }
        say(text +
            "Medians over rounds in which the tiers took turns; overheads are medians of each round's ratio "
            "to off.\n" +
            format("Operands that stay in the last-level cache (%.0f MiB) can be faster than the roof of "
                   "copying in "
                   "memory.\n",
                   double(last_level_cache()) / double(1 << 20)) +
            disturbance);
    }

    void time_models() {
        const OtherWork others;
        say("\nWhole steps: batch, forward, backward, clipping, AdamW, and all that is observed where probes "
            "look\n");
        const std::vector<StepModel>& models = step_models(shape::device);
        for (size_t i = 0; i < models.size(); ++i) {
            const StepModel& model = models[i];
            progress_.begin("steps of " + model.name(), plan_.steps[i].seconds);
            const StepTimings timings = time_steps(model, threads_, shape::device, ticking(plan_.steps[i]));
            measure_roofs();
            say(to_text(timings, roofs_));
            for (const auto& row : to_json(timings, roofs_)) json["steps"].push_back(row);
        }
        json["others"]["steps"] = others.share();
        say("* computed from the parts of each round: nine steps of one kind and one of the other\n" +
            to_text(roofs_, threads_) + "\n" + to_text(others));
    }

    void time_tokens() {
        progress_.begin("generation", plan_.generation.seconds);
        std::string text =
            "\nGeneration, one token after the other, with the keys and values of those before\n";
        // GPT-2's 124M parameters, too many for any cache.
        const ModelConfig config{.vocab = 50257, .context = 256, .layers = 12, .heads = 12, .channels = 768};
        for (const GenerationTimings& t : time_generation(config, threads_, ticking(plan_.generation))) {
            text += to_text(t, roofs_);
            json["generation"].push_back(to_json(t, roofs_));
        }
        say(text);
    }

    void time_peers() {
        if (plan_.pytorch > 0) {
            progress_.begin("PyTorch with hooks", plan_.pytorch * double(peer_models().size()));
            json["pytorch"] = time_pytorch_hooks(peer_models(), threads_, plan_.pytorch);
        } else {
            json["pytorch"] = {{"did_not_run", "it is left out of a quick bench"}};
        }
        say("\n" + pytorch_to_text(json["pytorch"]));
    }

    const BenchOptions& options_;
    int threads_;
    Plan plan_;
    std::vector<KernelCase> kernels_;
    ProgressLine progress_;
    Roofs roofs_;
};

}  // namespace

}  // namespace bench

void run_bench(const BenchOptions& options) {
    bench::Session session(options);
    session.run();
    if (!options.json.empty()) write_output_file("--json", options.json, session.json.dump(1) + "\n");
}

}  // namespace wobble
