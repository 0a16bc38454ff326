// What a run recorded, as the report reads it: its run.db, also while another process writes to it, and its
// config.toml. Tables that a run has not are empty.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "probes/sqlite.h"

namespace wobble {

/// Table steps, a column each. NaN: not finite.
struct StepHistory {
    static constexpr std::array<const char*, 7> names = {
        "loss", "grad_norm", "update_norm", "weight_norm", "lr", "clip", "tokens_per_second"};

    std::vector<int64_t> step;
    std::array<std::vector<double>, names.size()> columns;
    std::vector<double> seconds;
    int64_t tokens = 0;                       // seen by the last step
    int64_t not_finite = 0, not_applied = 0;  // steps

    size_t size() const { return step.size(); }
    const std::vector<double>& loss() const { return columns[0]; }
    const std::vector<double>& grad_norm() const { return columns[1]; }
    /// The row of the last step that is at most so late; nothing before the first.
    std::optional<size_t> row_at(int64_t at) const;
};

struct StoredEvent {
    int64_t id, step;
    std::string detector, severity, site;
    double expected, seen;
    std::string summary, detail;
};

struct StoredEval {
    int64_t step;
    std::string name;
    double loss;
    int64_t tokens;
};

/// A row of table sites. `layer` is taken from the name where it tells one.
struct Site {
    int64_t number;
    std::string name;
    int layer;  // -1: outside the layers
    std::string phase, channel, kernel;
};

struct BatchPlace {
    int64_t step, micro, row, source, document, offset;
};

struct TokenLoss {
    int64_t rank, micro, row, position, token;
    double loss;
    int64_t source, document, offset;
};

/// The beginning of a sequence that a step read.
struct SequenceStart {
    int64_t micro, row;
    std::vector<int32_t> tokens;
};

struct Setting {
    std::string group, key, value;
};

class History {
  public:
    /// Opens the run in this directory. UserError when there is none, or it was recorded by a program too
    /// old.
    explicit History(const std::string& run);

    const std::string& path() const { return path_; }
    /// The last part of the path.
    std::string name() const;

    StepHistory steps();
    std::vector<StoredEval> evals();
    /// By step; alarms, then warnings, then notes where there are more than `limit`, and then `left_out` says
    /// how many are missing.
    std::vector<StoredEvent> events(size_t limit, int64_t& left_out);
    /// Keys and values of table run, without the configuration.
    std::vector<std::pair<std::string, std::string>> info();
    /// config.toml of the directory, or what table run holds of it.
    std::vector<Setting> config();
    std::vector<Site> sites();

    /// The sequences of a step, the first `limit`; `total` is how many there were.
    std::vector<BatchPlace> batches(int64_t step, size_t limit, int64_t& total);
    /// The largest token losses of the last step, at most so late, that recorded any; `step` becomes that
    /// one.
    std::vector<TokenLoss> largest_losses(int64_t& step);

    /// What the first `rows` sequences of a step began with, where the run kept it: around alarms.
    std::vector<SequenceStart> tokens(int64_t step, size_t rows, size_t tokens);

    /// Of a table whose key begins with the step: about `count` steps that have rows, evenly spread between
    /// the first and the last, and the last ones at or before each of `also`. All where there are not more.
    /// Takes one look-up for each step, however many rows there are.
    std::vector<int64_t> recorded_steps(const std::string& table, size_t count,
                                        const std::vector<int64_t>& also = {});
    /// The last `count` steps with rows, at most `until`, ascending.
    std::vector<int64_t> recorded_before(const std::string& table, int64_t until, size_t count);

    bool has(const std::string& table);
    Sqlite& database() { return db_; }
    /// Grows with every commit of another connection to the database.
    int64_t version() { return db_.number("PRAGMA data_version"); }
    int64_t bytes() const;

  private:
    std::string path_;
    Sqlite db_;
};

/// The value of a column of the packed tables (stats_packed, tensors_packed, heads_packed), which hold
/// float32 as integers. NaN for NULL.
double packed_real(const Sqlite::Statement& statement, int column);

}  // namespace wobble
