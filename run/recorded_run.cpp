#include "run/recorded_run.h"

#include <algorithm>
#include <filesystem>

#include "kernels/error.h"
#include "run/config_file.h"
#include "run/flight_recorder.h"

namespace wobble {
namespace {

std::string database_of(const std::string& run) {
    const std::string path = run + "/run.db";
    if (!std::filesystem::exists(path))
        throw UserError(run + " holds no run (no run.db); expected the directory of a run");
    return path;
}

}  // namespace

RecordedRun::RecordedRun(const std::string& path)
    : path_(path), db_(database_of(path), std::chrono::seconds(10)) {
    if (db_.number("SELECT count(*) FROM sqlite_schema WHERE name = 'hashes'") == 0)
        throw UserError(path +
                        " was recorded by an older program, which left no hashes of its steps; expected a "
                        "newer run; train it again, or resume it and go back to later steps");
}

std::string RecordedRun::about(const std::string& key) {
    auto row = db_.prepare("SELECT value FROM run WHERE key = ?");
    db_.bind(row, key);
    return db_.next(row) ? Sqlite::text(row, 0) : "";
}

int64_t RecordedRun::last_step() {
    return db_.number("SELECT ifnull(max(step), 0) FROM steps");
}

Options RecordedRun::options(int64_t step) {
    auto row = db_.prepare("SELECT step, config FROM configs WHERE step < ? ORDER BY step DESC LIMIT 1");
    db_.bind(row, step);
    if (!db_.next(row))
        throw UserError(path_ + " has no configuration for step " + std::to_string(step) +
                        ": an older program took it; expected a later step; --step " +
                        std::to_string(db_.number("SELECT ifnull(min(step), 0) + 1 FROM configs")) +
                        " is the first");
    return parse_config(Sqlite::text(row, 1), path_ + "/run.db, configuration after step " +
                                                  std::to_string(Sqlite::integer(row, 0)));
}

int64_t RecordedRun::next_configuration(int64_t step) {
    auto row = db_.prepare("SELECT min(step) + 1 FROM configs WHERE step >= ?");
    db_.bind(row, step);
    db_.next(row);
    const int64_t next = Sqlite::integer(row, 0);
    return next > 0 ? next : INT64_MAX;
}

RecordedRun::Hashes RecordedRun::hashes(int64_t step) {
    auto row = db_.prepare("SELECT weights, batch FROM hashes WHERE step = ?");
    db_.bind(row, step);
    Hashes hashes;
    if (!db_.next(row)) return hashes;
    hashes.weights = uint64_t(Sqlite::integer(row, 0));
    if (step > 0) hashes.batch = uint64_t(Sqlite::integer(row, 1));
    return hashes;
}

std::optional<RecordedRun::Numbers> RecordedRun::numbers(int64_t step) {
    auto row = db_.prepare("SELECT loss, grad_norm, applied, finite FROM steps WHERE step = ?");
    db_.bind(row, step);
    if (!db_.next(row)) return std::nullopt;
    return Numbers{Sqlite::real(row, 0), Sqlite::real(row, 1), Sqlite::integer(row, 2) != 0,
                   Sqlite::integer(row, 3) != 0};
}

RecordedRun::StoredEvent RecordedRun::event(int64_t id) {
    auto row = db_.prepare("SELECT step, severity, detector, site, summary FROM events WHERE id = ?");
    db_.bind(row, id);
    if (!db_.next(row))
        throw UserError("--event " + std::to_string(id) + ": " + path_ + " has " +
                        std::to_string(db_.number("SELECT count(*) FROM events")) +
                        " events and none of that number; ./train events " + path_ + " lists them");
    return {id,
            Sqlite::integer(row, 0),
            Sqlite::text(row, 1),
            Sqlite::text(row, 2),
            Sqlite::text(row, 3),
            Sqlite::text(row, 4)};
}

std::vector<RecordedRun::Start> RecordedRun::starts(int64_t step) const {
    std::vector<Start> all;
    for (const char* folder : {"checkpoints", kept_snapshots, rolling_snapshots}) {
        for (const int64_t of : checkpoint_steps(path_, folder))
            if (of <= step) all.push_back({folder, of});
    }
    std::stable_sort(all.begin(), all.end(), [](const Start& a, const Start& b) { return a.step > b.step; });
    return all;
}

}  // namespace wobble
