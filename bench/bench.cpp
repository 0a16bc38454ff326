#include "bench/bench.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "bench/peers.h"
#include "bench/progress.h"
#include "bench/report.h"
#include "bench/roof.h"
#include "bench/timings.h"
#include "kernels/error.h"
#include "run/machine.h"

namespace wobble {

void check(const BenchOptions& options) {
    if (options.threads < 0) {
        throw UserError("--threads is " + std::to_string(options.threads) + "; expected at least 0");
    }
    if (options.steps_only && options.kernels_only) {
        throw UserError("--steps-only and --kernels-only were both given; leave one of them out");
    }
    if (options.steps_only && !options.kernels.empty()) {
        throw UserError("--kernels and --steps-only were both given; leave one of them out");
    }
    if (bench::matching_cases(options.kernels).empty()) {
        throw UserError("--kernels " + options.kernels +
                        " matches no kernel; expected names or patterns such as 'layernorm*,product/mlp.*'");
    }
    if (options.json.empty()) return;
    const std::filesystem::path file = options.json;
    const std::filesystem::path directory = file.has_parent_path() ? file.parent_path() : ".";
    if (!std::filesystem::is_directory(directory)) {
        throw UserError("--json " + options.json + ": there is no directory " + directory.string() +
                        "; make it, or choose another");
    }
    if (std::filesystem::is_directory(file) || access(directory.c_str(), W_OK) != 0) {
        throw UserError("--json " + options.json + " cannot be written; choose another file");
    }
}

namespace bench {

namespace {

/// How long to measure what, in seconds.
struct Plan {
    double roofs = 1;
    Effort kernel;
    double preparing = 0.2;     // the operands of a kernel
    std::vector<Effort> steps;  // of step_models()
    double pytorch;             // for each of two models; 0: not at all

    explicit Plan(bool quick) {
        if (quick) {
            kernel = {.seconds = 0.12, .least_rounds = 3, .sample_seconds = 2e-4};
            // The largest model takes seconds for one round.
            steps = {{0.5, 3, 0}, {1, 3, 0}, {1, 1, 0}};
            pytorch = 0;
        } else {
            kernel = {.seconds = 0.7, .least_rounds = 5, .sample_seconds = 1e-3};
            steps = {{3, 9, 0}, {6, 9, 0}, {40, 5, 0}};
            pytorch = 15;
        }
    }
};

/// The models that other programs are timed on: all but the smallest.
std::vector<StepModel> peer_models() {
    return {step_models().begin() + 1, step_models().end()};
}

void say(ProgressLine& progress, const std::string& text) {
    progress.hide();
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
}

/// Written beside the file and then renamed, so that what stands there is whole.
void write_json(const std::string& path, const nlohmann::json& json) {
    const std::string temporary = path + ".partial";
    std::ofstream out(temporary);
    out << json.dump(1) << '\n';
    out.close();
    if (!out || std::rename(temporary.c_str(), path.c_str()) != 0) {
        std::remove(temporary.c_str());
        throw UserError("--json " + path + " cannot be written; choose another file");
    }
}

}  // namespace

}  // namespace bench

void run_bench(const BenchOptions& options) {
    using namespace bench;
    const int threads = options.threads > 0 ? int(options.threads) : usable_cores();
    const Plan plan(options.quick);
    const std::vector<KernelCase> kernels =
        options.steps_only ? std::vector<KernelCase>() : matching_cases(options.kernels);
    const bool with_peers = !options.kernels_only && plan.pytorch > 0;

    double planned = 3 * plan.roofs + double(kernels.size()) * (plan.kernel.seconds + plan.preparing);
    if (!options.kernels_only) {
        for (const Effort& effort : plan.steps) planned += effort.seconds;
        if (with_peers) planned += plan.pytorch * double(peer_models().size());
    }
    ProgressLine progress(planned);
    const auto ticking = [&](Effort effort) {
        effort.before_round = [&] { progress.tick(); };
        return effort;
    };
    Roofs roofs;
    const auto measure_roofs = [&] {
        progress.begin("roofs", plan.roofs);
        roofs.measure(threads);
    };

    nlohmann::json json = {{"machine", describe_machine(threads)},
                           {"quick", options.quick},
                           {"kernels", nlohmann::json::array()},
                           {"steps", nlohmann::json::array()}};
    say(progress,
        "machine: " + json["machine"]["processor"].get<std::string>() + ", " + build_description() + "\n");
    measure_roofs();

    if (!kernels.empty()) {
        std::vector<KernelTimings> timings;
        for (const KernelCase& kernel : kernels) {
            progress.begin(
                format("kernel %zu of %zu: %s", timings.size() + 1, kernels.size(), kernel.name().c_str()),
                plan.kernel.seconds + plan.preparing);
            timings.push_back(time_kernel(kernel, threads, ticking(plan.kernel)));
        }
        measure_roofs();
        std::string text = to_text(roofs, threads) + "\n";
        std::string precision;
        for (const KernelTimings& t : timings) {
            if (t.kernel.precision != precision) {
                precision = t.kernel.precision;
                text += "\n" + kernels_heading(precision);
            }
            text += to_text(t, roofs);
            for (const auto& row : to_json(t, roofs)) json["kernels"].push_back(row);
        }
        text += format(
            "Medians over rounds in which the tiers took turns; overheads are medians of each round's "
            "ratio to off.\nOperands that stay in the last-level cache (%.0f MiB) can be faster than "
            "the roof of copying in memory.\n",
            double(last_level_cache()) / double(1 << 20));
        say(progress, text);
    }
    if (!options.kernels_only) {
        say(progress,
            "\nWhole steps: forward, backward, clipping, AdamW, and the recorder where probes look\n");
        for (size_t i = 0; i < step_models().size(); ++i) {
            const StepModel& model = step_models()[i];
            progress.begin("steps of " + model.name(), plan.steps[i].seconds);
            const StepTimings timings = time_steps(model, threads, ticking(plan.steps[i]));
            roofs.measure(threads);
            say(progress, to_text(timings, roofs));
            for (const auto& row : to_json(timings, roofs)) json["steps"].push_back(row);
        }
        say(progress,
            to_text(roofs, threads) +
                "\n* computed from the parts of each round: nine steps of one kind and one of the other\n\n");
        if (with_peers) {
            progress.begin("PyTorch with hooks", plan.pytorch * double(peer_models().size()));
            json["pytorch"] = time_pytorch_hooks(peer_models(), threads, plan.pytorch);
        } else {
            json["pytorch"] = {{"did_not_run", "it is left out of a quick bench"}};
        }
        say(progress, pytorch_to_text(json["pytorch"]));
    }
    json["roofs"] = to_json(roofs);
    if (!options.json.empty()) write_json(options.json, json);
}

}  // namespace wobble
