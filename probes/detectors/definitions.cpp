#include "probes/detectors/definitions.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "kernels/error.h"

namespace wobble {
namespace {

using Series = std::vector<double>;

double mean(std::span<const double> x) {
    double sum = 0;
    for (const double v : x) sum += v;
    return sum / double(x.size());
}

/// Divided by n, or, unbiased, by n - 1.
double deviation(std::span<const double> x, bool unbiased) {
    const double centre = mean(x);
    double squares = 0;
    for (const double v : x) squares += (v - centre) * (v - centre);
    return std::sqrt(squares / double(x.size() - (unbiased ? 1 : 0)));
}

/// Goes over a series. is_spike(x, before) is asked of each finite value, with the last `window` values
/// before it once there are `least`; a spike is remembered like others if `spikes_count`.
std::vector<int64_t> against_window(const Series& series, int64_t window, int64_t least, bool spikes_count,
                                    const std::function<bool(double, std::span<const double>)>& is_spike) {
    std::vector<int64_t> found;
    Series before;
    for (size_t i = 0; i < series.size(); ++i) {
        const double x = series[i];
        bool spike = !std::isfinite(x);
        if (!spike && int64_t(before.size()) >= least) {
            const size_t length = std::min(before.size(), size_t(window));
            spike = is_spike(x, std::span(before).last(length));
        }
        if (spike) found.push_back(int64_t(i));
        if (std::isfinite(x) && (!spike || spikes_count)) before.push_back(x);
    }
    return found;
}

std::vector<int64_t> olmo2(const Series& series) {
    return against_window(series, 1000, 2, true, [](double x, std::span<const double> before) {
        return std::fabs(x - mean(before)) >= 7 * deviation(before, false);
    });
}

std::vector<int64_t> olmo_core(const Series& series) {
    return against_window(series, 128, 128, true, [](double x, std::span<const double> before) {
        return x > mean(before) + 6 * deviation(before, false);
    });
}

std::vector<int64_t> olmo_core_skip(const Series& series) {
    return against_window(series, 128, 64, true, [](double x, std::span<const double> before) {
        return x > mean(before) + 6 * deviation(before, true);
    });
}

/// In llm.c the window of 128 takes the new value in before its z is worked out, which can then be at most
/// (n - 1) / sqrt(n) = 11.2; here it stays outside.
std::vector<int64_t> llmc(const Series& series) {
    return against_window(series, 128, 128, true, [](double x, std::span<const double> before) {
        return x > mean(before) + 3 * deviation(before, false);
    });
}

/// Moving averages of mean and variance, begun with 25 values; what is beyond 2.5 deviations enters them
/// clipped.
std::vector<int64_t> zclip(const Series& series) {
    constexpr size_t warmup = 25;
    constexpr double decay = 0.97, most = 2.5;
    std::vector<int64_t> found;
    Series first;
    double centre = 0, variance = 0;
    for (size_t i = 0; i < series.size(); ++i) {
        double x = series[i];
        if (!std::isfinite(x)) {
            found.push_back(int64_t(i));
            continue;
        }
        if (first.size() < warmup) {
            first.push_back(x);
            if (first.size() == warmup) {
                const double spread = deviation(first, false);
                centre = mean(first), variance = spread * spread;
            }
            continue;
        }
        const double z = (x - centre) / (std::sqrt(variance) + 1e-6);
        if (z > most) {
            found.push_back(int64_t(i));
            x = centre + most * most / z * std::sqrt(variance);
        }
        centre = decay * centre + (1 - decay) * x;
        variance = decay * variance + (1 - decay) * (x - centre) * (x - centre);
    }
    return found;
}

std::vector<int64_t> spam(const Series& series) {
    return against_window(series, 1000, 1, false, [](double x, std::span<const double> before) {
        return std::fabs(x) > 50 * std::fabs(mean(before));
    });
}

/// Measured against the first hundred values for ever.
std::vector<int64_t> megatron(const Series& series) {
    std::vector<int64_t> found;
    Series first;
    for (size_t i = 0; i < series.size(); ++i) {
        const double x = series[i];
        if (!std::isfinite(x)) found.push_back(int64_t(i));
        else if (first.size() < 100) first.push_back(x);
        else if (x >= 10 * *std::max_element(first.begin(), first.end())) found.push_back(int64_t(i));
    }
    return found;
}

}  // namespace

const std::vector<SpikeDefinition>& spike_definitions() {
    static const std::vector<SpikeDefinition> all = {
        {"olmo2", "at least 7 standard deviations from the mean of the last 1000 steps",
         "Team OLMo 2024, 2 OLMo 2 Furious", 1000, olmo2},
        {"olmo-core",
         "more than 6 standard deviations above the mean of the last 128 steps, spikes among them",
         "OLMo-core, StabilityMonitor", 128, olmo_core},
        {"olmo-core-skip", "more than 6 unbiased standard deviations above the mean of the last 128 steps",
         "OLMo-core, SkipStepOptimizer", 128, olmo_core_skip},
        {"llm.c", "z of more than 3 in a window of the 128 steps before it", "llm.c, outlier_detector", 128,
         llmc},
        {"zclip", "z of more than 2.5 against moving averages of mean and variance",
         "Kumar et al. 2025, ZClip", 33, zclip},
        {"spam", "more than 50 times the mean so far", "Huang et al. 2025, SPAM", 1000, spam},
        {"megatron", "at least 10 times the largest of the first 100 steps",
         "Megatron-LM, is_unexpectedly_large", 100, megatron},
    };
    return all;
}

const SpikeDefinition& spike_definition(const std::string& name) {
    std::string names;
    for (const SpikeDefinition& d : spike_definitions()) {
        if (name == d.name) return d;
        names += std::string(names.empty() ? "" : ", ") + d.name;
    }
    throw UserError("--definition " + name + " is unknown; expected " + names + " or all");
}

}  // namespace wobble
