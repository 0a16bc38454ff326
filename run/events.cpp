#include "run/events.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "probes/detectors/definitions.h"
#include "probes/sqlite.h"

namespace wobble {
namespace {

Sqlite open_database(const std::string& run) {
    const std::string path = run + "/run.db";
    if (!std::filesystem::exists(path))
        throw UserError(run + " holds no run (no run.db); expected the directory of a run");
    return Sqlite(path, std::chrono::seconds(10));
}

void list_stored(const Command& command, Sqlite& db) {
    if (db.number("SELECT count(*) FROM sqlite_schema WHERE name = 'events'") == 0)
        throw UserError(command.run +
                        " was recorded by an older program, without events; expected a newer run; "
                        "--definition all needs none");
    auto rows =
        db.prepare("SELECT id, step, detector, severity, site, summary FROM events ORDER BY step, id");
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    int64_t count = 0;
    while (db.next(rows)) {
        ++count;
        const auto text = [&](int column) { return Sqlite::text(rows, column); };
        if (command.json) {
            all.push_back({{"id", Sqlite::integer(rows, 0)},
                           {"step", Sqlite::integer(rows, 1)},
                           {"detector", text(2)},
                           {"severity", text(3)},
                           {"site", text(4)},
                           {"summary", text(5)}});
        } else {
            std::printf("%5lld  step %-7lld %-8s %s\n", static_cast<long long>(Sqlite::integer(rows, 0)),
                        static_cast<long long>(Sqlite::integer(rows, 1)), text(3).c_str(), text(5).c_str());
        }
    }
    if (command.json) std::printf("%s\n", all.dump(2).c_str());
    else if (count == 0) std::printf("no events in %s\n", command.run.c_str());
}

struct Series {
    std::vector<int64_t> steps;
    std::vector<double> loss, grad_norm;
};

Series read_series(Sqlite& db) {
    Series series;
    auto rows = db.prepare("SELECT step, loss, grad_norm FROM steps ORDER BY step");
    while (db.next(rows)) {
        series.steps.push_back(Sqlite::integer(rows, 0));
        series.loss.push_back(Sqlite::real(rows, 1));
        series.grad_norm.push_back(Sqlite::real(rows, 2));
    }
    return series;
}

void apply_definitions(const Command& command, Sqlite& db) {
    std::vector<const SpikeDefinition*> wanted;
    if (command.definition == "all") {
        for (const SpikeDefinition& d : spike_definitions()) wanted.push_back(&d);
    } else {
        wanted.push_back(&spike_definition(command.definition));
    }
    const Series series = read_series(db);
    if (series.steps.empty()) throw UserError(command.run + " has no steps yet; expected at least one");
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const SpikeDefinition* d : wanted) {
        if (!command.json) std::printf("%s: %s (%s)\n", d->name, d->rule, d->source);
        for (const auto& [name, values] :
             {std::pair("loss", &series.loss), {"grad_norm", &series.grad_norm}}) {
            const std::vector<int64_t> found = d->spikes(*values);
            const double score = 100 * double(found.size()) / double(values->size());
            std::vector<int64_t> steps;
            for (const int64_t i : found) steps.push_back(series.steps[size_t(i)]);
            if (command.json) {
                all.push_back(
                    {{"definition", d->name}, {"series", name}, {"score_percent", score}, {"steps", steps}});
                continue;
            }
            std::printf("  %-9s  %4zu of %zu steps, a score of %.3f %%", name, found.size(), values->size(),
                        score);
            for (size_t i = 0; i < steps.size() && i < 8; ++i)
                std::printf("%s%lld", i == 0 ? ": step " : ", ", static_cast<long long>(steps[i]));
            std::printf("%s\n", steps.size() > 8 ? ", …" : "");
        }
    }
    if (command.json) std::printf("%s\n", all.dump(2).c_str());
}

}  // namespace

void list_events(const Command& command) {
    Sqlite db = open_database(command.run);
    if (command.definition.empty()) list_stored(command, db);
    else apply_definitions(command, db);
}

}  // namespace wobble
