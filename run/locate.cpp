#include "run/locate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "run/progress.h"
#include "run/replay.h"

namespace wobble {
namespace {

/// Steps before the event's whose numbers are what is usual.
constexpr int64_t history = 8;
/// A size is unusual when it is as many times as large as the largest of the steps before, or as small ...
constexpr double times = 2;
/// ... and lies so many of their own spreads outside of them, in the logarithm.
constexpr double spreads = 3;

std::string key_of(const Record& r) {
    return r.site + '/' + phase_name(r.phase) + '/' + r.kernel + '/' + r.channel;
}

/// The two sizes that are followed; in logarithms.
struct Sizes {
    double rms, absmax;
};
Sizes sizes_of(const Moments& m) {
    return {std::log(m.rms()), std::log(m.absmax())};
}

/// By how much x lies outside of what was, as a factor; 1: it does not.
double outside(const std::vector<double>& before, double x) {
    if (before.size() < 2 || !std::isfinite(x)) return 1;
    const auto [low, high] = std::minmax_element(before.begin(), before.end());
    if (!std::isfinite(*low) || !std::isfinite(*high)) return 1;
    const double beyond = x > *high ? x - *high : *low - x;
    return beyond > std::max(std::log(times), spreads * (*high - *low)) ? std::exp(x - *high) : 1;
}

struct Suspect {
    const Record* record;
    double factor;  // infinite: not finite
};

struct Findings {
    std::optional<Origin> origin;
    std::string how;                // a phrase: what is wrong with it
    std::vector<std::string> next;  // and with what came after it
};

/// Follows the sizes of every channel up to a step.
class Histories {
  public:
    void add(const std::vector<Record>& records) {
        for (const Record& r : records) {
            const Sizes s = sizes_of(r.moments());
            auto& [rms, absmax] = all_[key_of(r)];
            rms.push_back(s.rms), absmax.push_back(s.absmax);
        }
    }
    /// Records that are out of bounds, in the order of the step.
    std::vector<Suspect> suspects(const std::vector<Record>& records) const {
        std::vector<Suspect> found;
        for (const Record& r : records) {
            if (r.moments().nonfinite() > 0) {
                found.push_back({&r, INFINITY});
                continue;
            }
            const auto before = all_.find(key_of(r));
            if (before == all_.end()) continue;
            const Sizes s = sizes_of(r.moments());
            const double rms = outside(before->second.first, s.rms),
                         absmax = outside(before->second.second, s.absmax);
            const double factor = std::fabs(std::log(rms)) > std::fabs(std::log(absmax)) ? rms : absmax;
            if (factor != 1) found.push_back({&r, factor});
        }
        return found;
    }

  private:
    std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> all_;
};

std::string describe(const Suspect& s) {
    if (std::isinf(s.factor))
        return std::to_string(s.record->moments().nonfinite()) + " values are not finite";
    char text[96];
    std::snprintf(text, sizeof text,
                  s.factor > 1 ? "%.3g times as large as in the steps before"
                               : "%.3g times the size of the steps before",
                  s.factor);
    return text;
}

std::string name_of(const Record& r) {
    return r.site + " (" + phase_name(r.phase) + ", " + r.channel + " of " + r.kernel + ")";
}

/// The weight of a tensor that an update moved the farthest.
Origin largest_update(const Record& r, const ParameterTable& table, const Snapshot& before,
                      const Snapshot& after) {
    const Parameter& p = table.at(r.site);
    int64_t largest = 0;
    double most = -1;
    for (int64_t i = 0; i < p.size; ++i) {
        const double moved = std::fabs(double(after.weights[size_t(p.offset + i)]) -
                                       double(before.weights[size_t(p.offset + i)]));
        if (moved > most || std::isnan(moved)) most = moved, largest = i;
    }
    return {.site = r.site,
            .kernel = r.kernel,
            .channel = r.channel,
            .phase = r.phase,
            .row = largest / p.shape.back(),
            .column = largest % p.shape.back(),
            .values = p.size,
            .value = most,
            .parameter = p.name,
            .token = std::nullopt};
}

/// What the run recorded of a step at each channel, and the replay shows otherwise: where a fault struck.
std::optional<std::string> first_recorded_difference(RecordedRun& run, int64_t step,
                                                     const std::vector<Record>& records) {
    auto row = run.database().prepare(
        "SELECT s.count, s.rms, s.min, s.max, s.nans FROM stats s JOIN sites USING (site) WHERE s.step = ? "
        "AND "
        "sites.name = ? AND sites.phase = ? AND sites.kernel = ? AND sites.channel = ?");
    for (const Record& r : records) {
        run.database().bind(row, step, r.site, phase_name(r.phase), r.kernel, r.channel);
        const bool there = run.database().next(row);
        std::string text;
        if (there) {
            const Moments& m = r.moments();
            const double rms = Sqlite::real(row, 1), low = Sqlite::real(row, 2), high = Sqlite::real(row, 3);
            const auto differs = [](double then, double now) {
                return std::isfinite(now) && !(float(then) == float(now));
            };
            if (Sqlite::integer(row, 0) != m.count || Sqlite::integer(row, 4) != m.nans ||
                (m.count > 0 && (differs(rms, m.rms()) || differs(low, m.min) || differs(high, m.max)))) {
                char numbers[160];
                std::snprintf(
                    numbers, sizeof numbers,
                    ": the run saw %lld NaN, a RMS of %.4g and at most %.4g there, its replay %lld, "
                    "%.4g and %.4g",
                    static_cast<long long>(Sqlite::integer(row, 4)), printable(rms), printable(high),
                    static_cast<long long>(m.nans), m.rms(), m.max);
                text = name_of(r) + numbers;
            }
        }
        sqlite3_reset(row.get());
        if (!text.empty()) return text;
    }
    return std::nullopt;
}

}  // namespace

void run_locate(const Command& command) {
    RecordedRun recorded(command.run);
    const RecordedRun::StoredEvent event = recorded.event(command.event);
    const int64_t first = std::max<int64_t>(1, event.step - history);
    Replay replay(command.run, first, [&](Options& options) {
        options.probes = "moments", options.probe_every = 1, options.ring = 0;
        options.threads = command.options.threads;
    });
    Trainer* trainer = &replay.trainer();
    Histories histories;
    Snapshot before;
    Replay::Step step{};
    std::optional<Replay::Step> different;
    std::vector<Record> records;
    {
        WorkProgress progress(double(event.step - replay.first_step() + 1));
        progress.begin("replaying up to step " + std::to_string(event.step));
        for (int64_t s = replay.first_step(); s <= event.step; ++s) {
            trainer = &replay.trainer();
            trainer->observe_from(first);
            if (s == event.step) trainer->take_snapshot(before);
            step = replay.step();
            trainer = &replay.trainer();
            if (!step.same() && !different) different = step;
            Observation seen = trainer->take_observation();
            if (s < event.step) histories.add(seen.records);
            else records = std::move(seen.records);
            progress.done(1);
            if (replay.ended()) break;
        }
    }
    for (const std::string& warning : replay.warnings()) std::fprintf(stderr, "note: %s\n", warning.c_str());

    Findings found;
    const std::vector<Suspect> suspects = histories.suspects(records);
    if (trainer->origin()) {
        found.origin = trainer->origin();
        found.how = "not finite";
    } else if (!suspects.empty()) {
        const Record& r = *suspects[0].record;
        if (r.phase == Phase::Update) {
            Snapshot after;
            trainer->take_snapshot(after);
            found.origin = largest_update(r, trainer->table(), before, after);
        } else {
            trainer->restore(before);
            found.origin = trainer->find_largest(r);
        }
        found.how = describe(suspects[0]);
        if (!found.origin)
            found.origin = Origin{.site = r.site,
                                  .kernel = r.kernel,
                                  .channel = r.channel,
                                  .phase = r.phase,
                                  .token = std::nullopt};
    }
    for (size_t i = 1; i < suspects.size() && i <= 5; ++i)
        found.next.push_back(name_of(*suspects[i].record) + ": " + describe(suspects[i]));
    std::string difference, struck;
    if (different) {
        difference = explain_difference(replay, *different, std::nullopt);
        if (const auto where = first_recorded_difference(recorded, different->row.step, records);
            where && different->row.step == event.step)
            struck = *where;
    }

    if (command.json) {
        nlohmann::ordered_json json = {{"run", command.run},
                                       {"event", event.id},
                                       {"step", event.step},
                                       {"summary", event.summary},
                                       {"replay_is_same", !different}};
        if (found.origin) json["origin"] = found.origin->json(), json["how"] = found.how;
        json["next"] = found.next;
        if (different) json["difference"] = difference;
        if (!struck.empty()) json["struck"] = struck;
        std::printf("%s\n", json.dump(2).c_str());
        return;
    }
    std::printf("event %lld, step %lld, %s: %s\n", static_cast<long long>(event.id),
                static_cast<long long>(event.step), event.severity.c_str(), event.summary.c_str());
    if (different) {
        std::printf("the replay is not what the run did: %s\n", difference.c_str());
        if (!struck.empty()) std::printf("the first that differs: %s\n", struck.c_str());
    } else {
        std::printf("replayed from %s, bit for bit what the run did\n", replay.start().c_str());
    }
    if (!found.origin) {
        std::printf("%s%s\n", different ? "in the replay " : "",
                    event.step == first
                        ? "no step before this one is there to compare with, and every value is finite"
                    : different
                        ? "every kernel's output is within what the steps before it showed"
                        : "every kernel's output is within what the steps before it showed: what the event "
                          "tells built up over more steps than these");
        return;
    }
    std::printf("first: %s: %s\n", found.origin->phrase().c_str(), found.how.c_str());
    for (const std::string& next : found.next) std::printf("then:  %s\n", next.c_str());
}

}  // namespace wobble
