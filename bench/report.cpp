#include "bench/report.h"

#include <cstdarg>
#include <cstdio>
#include <fstream>

#include "bench/roof.h"
#include "run/machine.h"
#include "run/progress.h"

namespace wobble::bench {

using nlohmann::json;

std::string format(const char* pattern, ...) {
    char text[400];
    va_list arguments;
    va_start(arguments, pattern);
    std::vsnprintf(text, sizeof text, pattern, arguments);
    va_end(arguments);
    return text;
}

namespace {

std::string processor_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (line.rfind("model name", 0) == 0) return line.substr(std::min(line.find(':') + 2, line.size()));
    }
    return "unknown";
}

/// What the roof is for a case, and how much of a second's worth a launch needs.
struct Share {
    const char* name;
    double amount, roof;

    Share(const KernelCase& kernel, const Roofs& roofs)
        : name("copy"), amount(kernel.cost.bytes), roof(roofs.copy) {
        if (!kernel.computes()) return;
        const bool pairs = kernel.precision == "bfloat16";
        name = pairs ? "pair_multiply_add" : "multiply_add";
        amount = kernel.cost.flops;
        roof = pairs ? roofs.pair_multiply_add : roofs.multiply_add;
    }

    double of(const Timing& timing) const { return amount / timing.seconds.median / roof; }
};

json timing_json(const Timing& t) {
    return {{"probes", t.probes},
            {"rounds", t.rounds},
            {"seconds", t.seconds.median},
            {"seconds_quartiles", {t.seconds.low_quartile, t.seconds.high_quartile}},
            {"least_seconds", t.least_seconds},
            {"overhead", t.overhead.median},
            {"overhead_quartiles", {t.overhead.low_quartile, t.overhead.high_quartile}},
            {"processor_overhead", t.processor_overhead.median}};
}

}  // namespace

json describe_machine(int threads) {
    return {{"processor", processor_name()},
            {"usable_cores", usable_cores()},
            {"last_level_cache_bytes", last_level_cache()},
            {"build", build_description()},
            {"threads", threads}};
}

json to_json(const Roofs& roofs) {
    return {{"multiply_add_flops_per_second", roofs.multiply_add},
            {"pair_multiply_add_flops_per_second", roofs.pair_multiply_add},
            {"copy_bytes_per_second", roofs.copy},
            {"copy_working_set_bytes", copy_working_set()},
            {"multiply_add_samples", roofs.multiply_add_samples},
            {"pair_multiply_add_samples", roofs.pair_multiply_add_samples},
            {"copy_samples", roofs.copy_samples}};
}

json to_json(const KernelTimings& timings, const Roofs& roofs) {
    const KernelCase& kernel = timings.kernel;
    const Share share(kernel, roofs);
    json rows = json::array();
    for (const Timing& t : timings.timings) {
        json row = timing_json(t);
        row.update({{"kernel", kernel.kernel},
                    {"case", kernel.name()},
                    {"shape", kernel.shape},
                    {"precision", kernel.precision},
                    {"launches_per_round", timings.calls},
                    {"bytes", kernel.cost.bytes},
                    {"flops", kernel.cost.flops},
                    {"bytes_per_second", kernel.cost.bytes / t.seconds.median},
                    {"flops_per_second", kernel.cost.flops / t.seconds.median},
                    {"roof", share.name},
                    {"share_of_roof", share.of(t)}});
        rows.push_back(row);
    }
    return rows;
}

json to_json(const StepTimings& timings, const Roofs& roofs) {
    json rows = json::array();
    for (const Timing& t : timings.timings) {
        json row = timing_json(t);
        row.update({{"model", timings.model.name()},
                    {"parameters", timings.parameters},
                    {"tokens", timings.model.tokens()},
                    {"flops", timings.flops},
                    {"how", t.computed ? "computed from the parts of each round" : "measured"},
                    {"tokens_per_second", double(timings.model.tokens()) / t.seconds.median},
                    {"share_of_roof",
                     timings.flops / t.seconds.median / roofs.multiply_add_of(timings.model.precision)}});
        rows.push_back(row);
    }
    return rows;
}

json to_json(const GenerationTimings& timings, const Roofs& roofs) {
    const double seconds = timings.seconds.median;
    return {{"model", timings.model.name()},
            {"rounds", timings.rounds},
            {"seconds", seconds},
            {"seconds_quartiles", {timings.seconds.low_quartile, timings.seconds.high_quartile}},
            {"tokens_per_second", 1 / seconds},
            {"bytes", timings.bytes},
            {"bytes_per_second", timings.bytes / seconds},
            {"share_of_copying", timings.bytes / seconds / roofs.copy}};
}

std::string to_text(const Roofs& roofs, int threads) {
    return format(
        "roof: %.1f GFLOP/s of multiply-adds in registers, in bfloat16 %.1f, %.1f GB/s copied in memory, "
        "with %d thread%s",
        roofs.multiply_add * 1e-9, roofs.pair_multiply_add * 1e-9, roofs.copy * 1e-9, threads,
        threads == 1 ? "" : "s");
}

std::string to_text(const OtherWork& others) {
    const double share = others.share();
    return format("other processes used %.0f%% of the processors meanwhile%s\n", share * 100,
                  share > 0.05 ? "; do not rely on these times" : "");
}

std::string kernels_heading(const std::string& precision) {
    return format("%-28s %-16s %-7s  %24s  %26s  %26s\n", precision.c_str(), "", "", "off          ",
                  "moments         ", "full          ") +
           format("%-28s %-16s %-7s  %9s %8s %5s  %10s %5s %9s  %10s %5s %9s\n", "kernel", "shape", "unit",
                  "us", "rate", "roof", "us", "roof", "overhead", "us", "roof", "overhead");
}

std::string to_text(const KernelTimings& timings, const Roofs& roofs) {
    const KernelCase& kernel = timings.kernel;
    const Share share(kernel, roofs);
    const Timing& off = timings.timings.front();
    std::string line =
        format("%-28s %-16s %-7s  %9.1f %8.1f %4.0f%%", kernel.name().c_str(), kernel.shape.c_str(),
               kernel.computes() ? "GFLOP/s" : "GB/s", off.seconds.median * 1e6,
               share.amount / off.seconds.median * 1e-9, share.of(off) * 100);
    for (size_t i = 1; i < timings.timings.size(); ++i) {
        const Timing& t = timings.timings[i];
        line += format("  %10.1f %4.0f%% %+8.1f%%", t.seconds.median * 1e6, share.of(t) * 100,
                       t.overhead.median * 100);
    }
    return line + "\n";
}

std::string to_text(const StepTimings& timings, const Roofs& roofs) {
    std::string text = format("%s: %s parameters, %s tokens a step, rounds: %d\n",
                              timings.model.name().c_str(), with_commas(timings.parameters).c_str(),
                              with_commas(timings.model.tokens()).c_str(), timings.timings.front().rounds) +
                       format("  %-31s %9s %10s %6s %10s %20s %16s\n", "probes", "ms/step", "tokens/s",
                              "roof", "overhead", "quartiles", "processor time");
    for (const Timing& t : timings.timings) {
        const double seconds = t.seconds.median;
        text +=
            format("  %-31s %9.2f %10s %5.0f%%", (t.probes + (t.computed ? " *" : "")).c_str(), seconds * 1e3,
                   with_commas(std::llround(double(timings.model.tokens()) / seconds)).c_str(),
                   timings.flops / seconds / roofs.multiply_add_of(timings.model.precision) * 100);
        if (&t != &timings.timings.front()) {
            text += format(" %+9.2f%% %+9.2f%% %+8.2f%% %+15.2f%%", t.overhead.median * 100,
                           t.overhead.low_quartile * 100, t.overhead.high_quartile * 100,
                           t.processor_overhead.median * 100);
        }
        text += "\n";
    }
    return text;
}

std::string to_text(const GenerationTimings& timings, const Roofs& roofs) {
    const double seconds = timings.seconds.median;
    return format("%s: %.2f ms a token, %.0f tokens/s, %.1f GB/s of weights, %.0f%% of copying; rounds: %d\n",
                  timings.model.name().c_str(), seconds * 1e3, 1 / seconds, timings.bytes / seconds * 1e-9,
                  timings.bytes / seconds / roofs.copy * 100, timings.rounds);
}

}  // namespace wobble::bench
