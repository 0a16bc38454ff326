#include "report/cost.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "report/evidence.h"

namespace wobble {
namespace {

// The first steps grow buffers and warm caches.
constexpr int64_t warm_up = 5;
constexpr size_t steps_asked = 2000, fewest_pairs = 5;

double median(std::vector<double> values) {
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace

nlohmann::ordered_json cost(History& history, const StepHistory& steps, const std::vector<Setting>& config) {
    nlohmann::ordered_json out = {
        {"recorded", nullptr}, {"beside", nullptr}, {"pairs", 0}, {"share", nullptr}, {"sentence", ""}};
    const auto setting = [&](const std::string& key) {
        for (const Setting& s : config)
            if (s.key == key) return s.value;
        return std::string();
    };
    // Tensors are written on recorded steps alone; the ring writes statistics of others too.
    const std::vector<int64_t> recorded = history.recorded_steps("tensors_packed", steps_asked);
    if (recorded.empty()) {
        out["sentence"] = "No step was recorded, so there is nothing to compare.";
        return out;
    }
    auto is_recorded = history.database().prepare("SELECT 1 FROM tensors_packed WHERE step = ? LIMIT 1");
    const auto bare = [&](int64_t step) {
        sqlite3_reset(is_recorded.get());
        history.database().bind(is_recorded, step);
        return !history.database().next(is_recorded);
    };
    const auto seconds = [&](int64_t step) {
        const auto row = steps.row_at(step);
        return row && steps.step[*row] == step ? steps.seconds[*row] : NAN;
    };
    std::vector<double> with, without, ratios;
    for (const int64_t step : recorded) {
        const double here = seconds(step);
        if (step <= warm_up || !std::isfinite(here)) continue;
        double sum = 0;
        int neighbours = 0;
        for (const int64_t beside : {step - 1, step + 1}) {
            const double there = seconds(beside);
            if (beside <= warm_up || !std::isfinite(there) || !(there > 0) || !bare(beside)) continue;
            sum += there, ++neighbours;
        }
        if (neighbours == 0) continue;
        with.push_back(here), without.push_back(sum / neighbours), ratios.push_back(here * neighbours / sum);
    }
    out["pairs"] = ratios.size();
    if (ratios.size() < fewest_pairs) {
        out["sentence"] =
            ratios.empty() ? "Every step was recorded, or none beside one that was not, so this run cannot "
                             "tell what recording costs; ./train bench measures it."
                           : "Too few recorded steps stand beside unrecorded ones to tell what recording "
                             "costs; ./train bench measures it.";
        return out;
    }
    const double share = median(ratios) - 1;
    out["recorded"] = rounded(median(with)), out["beside"] = rounded(median(without));
    out["share"] = rounded(share);
    char text[400];
    std::snprintf(text, sizeof text,
                  "A recorded step took %.3g ms and one beside it %.3g ms: %.1f %% %s (medians over %zu "
                  "pairs).",
                  1000 * median(with), 1000 * median(without), std::fabs(100 * share),
                  share < 0 ? "less" : "more", ratios.size());
    std::string sentence = text;
    if (const std::string every = setting("probe-every"); !every.empty() && every != "1") {
        std::snprintf(text, sizeof text, " One step in %s is recorded, which makes %.2f %% of the whole run.",
                      every.c_str(), 100 * share / std::max(1.0, std::strtod(every.c_str(), nullptr)));
        sentence += text;
    }
    if (const std::string ring = setting("ring"); !ring.empty() && ring != "0") {
        sentence += " The ring (--ring " + ring +
                    ") gathers moments in the other steps too; what that costs shows only beside a run with "
                    "--ring 0 or --probes off.";
    }
    out["sentence"] = sentence;
    return out;
}

}  // namespace wobble
