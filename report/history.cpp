#include "report/history.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/error.h"

namespace wobble {

namespace fs = std::filesystem;

namespace {

// Tables with packed reals came with this version of run.db, and have been as they are since.
constexpr int64_t oldest_version = 2;

std::string database_of(const std::string& run) {
    const std::string file = run + "/run.db";
    std::error_code error;
    if (fs::is_regular_file(file, error)) return file;
    const std::string expected = "; expected the directory of a run, such as runs/0001";
    if (!fs::exists(run, error)) throw UserError(run + " does not exist" + expected);
    if (!fs::is_directory(run, error)) throw UserError(run + " is not a directory" + expected);
    throw UserError(run + " holds no run (no run.db)" + expected);
}

std::string trimmed(const std::string& text) {
    const size_t begin = text.find_first_not_of(" \t\r"), end = text.find_last_not_of(" \t\r");
    return begin == std::string::npos ? "" : text.substr(begin, end + 1 - begin);
}

}  // namespace

double packed_real(const Sqlite::Statement& statement, int column) {
    if (sqlite3_column_type(statement.get(), column) != SQLITE_INTEGER)
        return Sqlite::real(statement, column);
    return double(std::bit_cast<float>(static_cast<int32_t>(Sqlite::integer(statement, column))));
}

std::optional<size_t> StepHistory::row_at(int64_t at) const {
    const auto after = std::upper_bound(step.begin(), step.end(), at);
    if (after == step.begin()) return std::nullopt;
    return size_t(after - step.begin()) - 1;
}

History::History(const std::string& run) : path_(run), db_(database_of(run), std::chrono::seconds(10)) {
    while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
    const int64_t found = db_.number("PRAGMA user_version");
    if (found == 0 && db_.number("SELECT count(*) FROM sqlite_schema") == 0) return;  // just begun
    if (found == 0)
        throw UserError(path_ + "/run.db is the database of another program; expected that of a run");
    if (found < oldest_version)
        throw UserError(path_ + " was recorded by an older program, run.db version " + std::to_string(found) +
                        "; expected version " + std::to_string(oldest_version) +
                        " or later; record it again");
}

std::string History::name() const {
    const fs::path path = fs::path(path_).lexically_normal();
    const std::string last = path.filename().string();
    if (!last.empty() && last != "." && last != "..") return last;
    std::error_code error;
    const fs::path whole = fs::canonical(path, error);
    return error ? path_ : whole.filename().string();
}

bool History::has(const std::string& table) {
    auto found = db_.prepare("SELECT 1 FROM sqlite_schema WHERE name = ?");
    db_.bind(found, table);
    return db_.next(found);
}

int64_t History::bytes() const {
    int64_t sum = 0;
    for (const char* suffix : {"", "-wal"}) {
        std::error_code error;
        const auto size = fs::file_size(path_ + "/run.db" + suffix, error);
        if (!error) sum += int64_t(size);
    }
    return sum;
}

StepHistory History::steps() {
    StepHistory h;
    if (!has("steps")) return h;
    std::string sql = "SELECT step, seconds, tokens, finite, applied";
    for (const char* name : StepHistory::names) sql += std::string(", ") + name;
    auto rows = db_.prepare(sql + " FROM steps ORDER BY step");
    while (db_.next(rows)) {
        h.step.push_back(Sqlite::integer(rows, 0));
        h.seconds.push_back(Sqlite::real(rows, 1));
        h.tokens = Sqlite::integer(rows, 2);
        h.not_finite += Sqlite::integer(rows, 3) == 0;
        h.not_applied += Sqlite::integer(rows, 4) == 0;
        for (size_t i = 0; i < h.columns.size(); ++i) h.columns[i].push_back(Sqlite::real(rows, int(i) + 5));
    }
    return h;
}

std::vector<StoredEval> History::evals() {
    std::vector<StoredEval> evals;
    if (!has("evals")) return evals;
    auto rows = db_.prepare("SELECT step, name, loss, tokens FROM evals ORDER BY step, name");
    while (db_.next(rows))
        evals.push_back({Sqlite::integer(rows, 0), Sqlite::text(rows, 1), Sqlite::real(rows, 2),
                         Sqlite::integer(rows, 3)});
    return evals;
}

std::vector<StoredEvent> History::events(size_t limit, int64_t& left_out) {
    std::vector<StoredEvent> events;
    left_out = 0;
    if (!has("events")) return events;
    auto rows = db_.prepare(
        "SELECT id, step, detector, severity, site, expected, seen, summary, detail FROM events ORDER BY "
        "CASE severity WHEN 'alarm' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END, step, id LIMIT ?");
    db_.bind(rows, int64_t(limit));
    while (db_.next(rows)) {
        const auto text = [&](int column) { return Sqlite::text(rows, column); };
        events.push_back({Sqlite::integer(rows, 0), Sqlite::integer(rows, 1), text(2), text(3), text(4),
                          Sqlite::real(rows, 5), Sqlite::real(rows, 6), text(7), text(8)});
    }
    left_out = db_.number("SELECT count(*) FROM events") - int64_t(events.size());
    std::sort(events.begin(), events.end(), [](const StoredEvent& a, const StoredEvent& b) {
        return a.step != b.step ? a.step < b.step : a.id < b.id;
    });
    return events;
}

std::vector<std::pair<std::string, std::string>> History::info() {
    std::vector<std::pair<std::string, std::string>> info;
    if (!has("run")) return info;
    auto rows = db_.prepare("SELECT key, value FROM run WHERE key <> 'config' ORDER BY rowid");
    while (db_.next(rows)) info.emplace_back(Sqlite::text(rows, 0), Sqlite::text(rows, 1));
    return info;
}

std::vector<Setting> History::config() {
    std::stringstream text;
    if (std::ifstream file(path_ + "/config.toml"); file) {
        text << file.rdbuf();
    } else if (has("run")) {
        auto row = db_.prepare("SELECT value FROM run WHERE key = 'config'");
        if (db_.next(row)) text << Sqlite::text(row, 0);
    }
    // One `key = value` a line under groups that are comments, as the trainer writes it. What a person wrote
    // otherwise is shown as it stands.
    std::vector<Setting> settings;
    std::string line, group;
    bool blank_before = false;
    while (std::getline(text, line)) {
        line = trimmed(line);
        if (line.starts_with("#")) {
            if (blank_before) group = trimmed(line.substr(1));
        } else if (const size_t equals = line.find('='); equals != std::string::npos) {
            settings.push_back({group, trimmed(line.substr(0, equals)), trimmed(line.substr(equals + 1))});
        }
        blank_before = line.empty();
    }
    return settings;
}

std::vector<Site> History::sites() {
    std::vector<Site> sites;
    if (!has("sites")) return sites;
    auto rows = db_.prepare("SELECT site, name, layer, phase, channel, kernel FROM sites ORDER BY site");
    while (db_.next(rows)) {
        const auto text = [&](int column) { return Sqlite::text(rows, column); };
        Site s{Sqlite::integer(rows, 0), text(1), int(Sqlite::integer(rows, 2)), text(3), text(4), text(5)};
        if (int layer; s.layer < 0 && std::sscanf(s.name.c_str(), "h.%d.", &layer) == 1) s.layer = layer;
        sites.push_back(std::move(s));
    }
    return sites;
}

std::vector<BatchPlace> History::batches(int64_t step, size_t limit, int64_t& total) {
    std::vector<BatchPlace> places;
    total = 0;
    if (!has("batches")) return places;
    auto rows = db_.prepare(
        "SELECT step, micro, row, source, document, offset FROM batches WHERE step = ? ORDER BY micro, row");
    db_.bind(rows, step);
    for (; db_.next(rows); ++total) {
        const auto at = [&](int column) { return Sqlite::integer(rows, column); };
        if (places.size() < limit) places.push_back({at(0), at(1), at(2), at(3), at(4), at(5)});
    }
    return places;
}

std::vector<TokenLoss> History::largest_losses(int64_t& step) {
    std::vector<TokenLoss> losses;
    if (!has("largest_losses")) return losses;
    auto rows = db_.prepare(
        "SELECT rank, micro, row, position, token, loss, source, document, offset, step FROM largest_losses "
        "WHERE step = (SELECT max(step) FROM largest_losses WHERE step <= ?) ORDER BY rank");
    db_.bind(rows, step);
    while (db_.next(rows)) {
        const auto at = [&](int column) { return Sqlite::integer(rows, column); };
        losses.push_back({at(0), at(1), at(2), at(3), at(4), Sqlite::real(rows, 5), at(6), at(7), at(8)});
        step = at(9);
    }
    return losses;
}

std::vector<SequenceStart> History::tokens(int64_t step, size_t count, size_t length) {
    std::vector<SequenceStart> sequences;
    if (!has("tokens")) return sequences;
    auto rows =
        db_.prepare("SELECT micro, row, inputs FROM tokens WHERE step = ? ORDER BY micro, row LIMIT ?");
    db_.bind(rows, step, int64_t(count));
    while (db_.next(rows)) {
        const void* bytes = sqlite3_column_blob(rows.get(), 2);
        const size_t size = size_t(sqlite3_column_bytes(rows.get(), 2)) / sizeof(int32_t);
        std::vector<int32_t> tokens(std::min(size, length));
        if (!tokens.empty()) std::memcpy(tokens.data(), bytes, tokens.size() * sizeof(int32_t));
        sequences.push_back({Sqlite::integer(rows, 0), Sqlite::integer(rows, 1), std::move(tokens)});
    }
    return sequences;
}

std::vector<int64_t> History::recorded_steps(const std::string& table, size_t count,
                                             const std::vector<int64_t>& also) {
    std::vector<int64_t> steps;
    if (!has(table) || count == 0) return steps;
    // A subquery for the empty table, whose min is NULL.
    auto next = db_.prepare("SELECT min(step) FROM " + table + " WHERE step >= ?");
    auto last_before = db_.prepare("SELECT max(step) FROM " + table + " WHERE step <= ?");
    const auto ask = [&](Sqlite::Statement& statement, int64_t at) -> std::optional<int64_t> {
        sqlite3_reset(statement.get());
        db_.bind(statement, at);
        db_.next(statement);
        if (sqlite3_column_type(statement.get(), 0) == SQLITE_NULL) return std::nullopt;
        return Sqlite::integer(statement, 0);
    };
    // All of them, as long as they are few.
    for (auto step = ask(next, INT64_MIN); step && steps.size() <= count; step = ask(next, *step + 1))
        steps.push_back(*step);
    if (steps.size() <= count) return steps;
    const int64_t first = steps.front(), last = *ask(last_before, INT64_MAX);
    steps = {last};
    for (size_t i = 0; i < count; ++i) {
        const auto at = first + int64_t(double(last - first) * double(i) / double(count));
        steps.push_back(*ask(next, at));
    }
    for (const int64_t step : also)
        if (const auto at = ask(last_before, step)) steps.push_back(*at);
    std::sort(steps.begin(), steps.end());
    steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
    return steps;
}

std::vector<int64_t> History::recorded_before(const std::string& table, int64_t until, size_t count) {
    std::vector<int64_t> steps;
    if (!has(table)) return steps;
    auto last_before = db_.prepare("SELECT max(step) FROM " + table + " WHERE step <= ?");
    for (int64_t at = until; steps.size() < count; at = steps.back() - 1) {
        sqlite3_reset(last_before.get());
        db_.bind(last_before, at);
        db_.next(last_before);
        if (sqlite3_column_type(last_before.get(), 0) == SQLITE_NULL) break;
        steps.push_back(Sqlite::integer(last_before, 0));
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
}

}  // namespace wobble
