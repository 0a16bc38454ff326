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

/// What the search came to.
struct Findings {
    std::optional<Origin> origin;   // nothing stands out without one
    std::string how;                // what is wrong there
    std::vector<std::string> next;  // and with what came after it
    std::string difference;         // why the replay is not what the run did; empty: it is
    std::string struck;             // the first site where the two part, where the run had watched the step
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

/// The first channel, in the order of the step, of which the run recorded something else than the replay
/// shows: where a fault struck. Empty when there is none, or the run had not watched the step.
std::string first_recorded_difference(RecordedRun& run, int64_t step, const std::vector<Record>& records) {
    const auto differs = [](double then, double now) {
        return std::isfinite(now) && float(then) != float(now);
    };
    for (const Record& r : records) {
        auto row = run.database().prepare(
            "SELECT count, rms, min, max, nans FROM stats JOIN sites USING (site) WHERE step = ? AND name = "
            "? "
            "AND phase = ? AND kernel = ? AND channel = ?");
        run.database().bind(row, step, r.site, phase_name(r.phase), r.kernel, r.channel);
        if (!run.database().next(row)) continue;
        const Moments& m = r.moments();
        const int64_t count = Sqlite::integer(row, 0), nans = Sqlite::integer(row, 4);
        const double rms = Sqlite::real(row, 1), low = Sqlite::real(row, 2), high = Sqlite::real(row, 3);
        const bool same =
            count == m.count && nans == m.nans &&
            (count == 0 || !(differs(rms, m.rms()) || differs(low, m.min) || differs(high, m.max)));
        if (same) continue;
        char numbers[160];
        std::snprintf(
            numbers, sizeof numbers,
            ": the run saw %lld NaN, a RMS of %.4g and values of %.4g to %.4g there, its replay %lld, "
            "%.4g and %.4g to %.4g",
            static_cast<long long>(nans), printable(rms), printable(low), printable(high),
            static_cast<long long>(m.nans), m.rms(), m.min, m.max);
        return name_of(r) + numbers;
    }
    return "";
}

/// The replay of an event's step, watched, and of the steps before it.
struct Watched {
    Histories histories;
    Snapshot before;                        // the event's step
    std::vector<Record> records;            // of it
    std::optional<Replay::Step> different;  // the first that was not what the run did
};

Watched watch(Replay& replay, int64_t last) {
    Watched watched;
    WorkProgress progress(double(last - replay.first_step() + 1));
    progress.begin("replaying up to step " + std::to_string(last));
    for (int64_t step = replay.first_step(); step <= last && !replay.ended(); ++step) {
        if (step == last) replay.trainer().take_snapshot(watched.before);
        const Replay::Step done = replay.step();
        if (!done.same() && !watched.different) watched.different = done;
        Observation seen = replay.trainer().take_observation();
        if (step < last) watched.histories.add(seen.records);
        else watched.records = std::move(seen.records);
        progress.done(1);
    }
    return watched;
}

/// Where in the record's numbers the trouble is; its site alone where that cannot be told.
Origin place_of(const Record& r, Trainer& trainer, const Snapshot& before) {
    if (r.phase == Phase::Update) {
        Snapshot after;
        trainer.take_snapshot(after);
        return largest_update(r, trainer.table(), before, after);
    }
    trainer.restore(before);
    if (const auto largest = trainer.find_largest(r)) return *largest;
    return {.site = r.site, .kernel = r.kernel, .channel = r.channel, .phase = r.phase};
}

Findings find(Replay& replay, int64_t step, const Watched& watched) {
    Findings found;
    const std::vector<Suspect> suspects = watched.histories.suspects(watched.records);
    if (replay.trainer().origin()) {
        found.origin = replay.trainer().origin();
        found.how = "not finite";
    } else if (!suspects.empty()) {
        found.origin = place_of(*suspects[0].record, replay.trainer(), watched.before);
        found.how = describe(suspects[0]);
    }
    for (size_t i = 1; i < suspects.size() && i <= 5; ++i)
        found.next.push_back(name_of(*suspects[i].record) + ": " + describe(suspects[i]));
    if (watched.different) {
        found.difference = explain_difference(replay, *watched.different, std::nullopt);
        if (watched.different->row.step == step)
            found.struck = first_recorded_difference(replay.run(), step, watched.records);
    }
    return found;
}

void print_json(const Command& command, const RecordedRun::StoredEvent& event, const Findings& found) {
    nlohmann::ordered_json json = {{"run", command.run},
                                   {"event", event.id},
                                   {"step", event.step},
                                   {"summary", event.summary},
                                   {"replay_is_same", found.difference.empty()}};
    if (found.origin) json["origin"] = found.origin->json(), json["how"] = found.how;
    json["next"] = found.next;
    if (!found.difference.empty()) json["difference"] = found.difference;
    if (!found.struck.empty()) json["struck"] = found.struck;
    std::printf("%s\n", json.dump(2).c_str());
}

void print_text(const Replay& replay, const RecordedRun::StoredEvent& event, const Findings& found) {
    std::printf("event %lld, step %lld, %s: %s\n", static_cast<long long>(event.id),
                static_cast<long long>(event.step), event.severity.c_str(), event.summary.c_str());
    const bool same = found.difference.empty();
    if (same) std::printf("replayed from %s, bit for bit what the run did\n", replay.start().c_str());
    else std::printf("the replay is not what the run did: %s\n", found.difference.c_str());
    if (!found.struck.empty()) std::printf("the first that differs: %s\n", found.struck.c_str());
    if (found.origin) {
        std::printf("first: %s: %s\n", found.origin->phrase().c_str(), found.how.c_str());
        for (const std::string& next : found.next) std::printf("then:  %s\n", next.c_str());
    } else if (event.step == 1) {
        std::printf("every value is finite, and there is no step before the first to compare with\n");
    } else {
        std::printf("%severy kernel's output is within what the steps before it showed%s\n",
                    same ? "" : "in the replay ",
                    same ? ": what the event tells built up over more steps than these" : "");
    }
}

}  // namespace

void run_locate(const Command& command) {
    const RecordedRun::StoredEvent event = RecordedRun(command.run).event(command.event);
    Replay replay(command.run, std::max<int64_t>(1, event.step - history), [&](Options& options) {
        options.probes = "moments", options.probe_every = 1, options.ring = 0;
        options.threads = command.options.threads;
    });
    const Watched watched = watch(replay, event.step);
    for (const std::string& warning : replay.warnings()) std::fprintf(stderr, "note: %s\n", warning.c_str());
    const Findings found = find(replay, event.step, watched);
    if (command.json) print_json(command, event, found);
    else print_text(replay, event, found);
}

}  // namespace wobble
