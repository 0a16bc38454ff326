// run.db: what a run records, as an SQLite database that other processes can query while the run goes on.
//
// Tables (run_db_tables.h): run (key, value), steps, evals, batches, sites, stats, histograms. Rows of a step
// carry the number of the optimizer step just done, 1 for the first. SQLite has no NaN, and readers stumble
// over infinities: both are stored as NULL.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "probes/recorder.h"

struct sqlite3;
struct sqlite3_stmt;

namespace wobble {

/// One optimizer step. `tokens`: seen since the start of the run. `loss`: nats per token, mean over the
/// step's batch. `grad_norm`: before clipping. `clip`: the factor applied to the gradient, 1 when not
/// clipped. `applied`: false when the update was skipped. `finite`: false when the loss, a gradient or a
/// weight was not.
struct StepRow {
    int64_t step, tokens;
    double loss, lr, grad_norm, clip, update_norm, weight_norm, seconds, tokens_per_second;
    bool applied, finite;
};

/// Where one sequence of a step's batch came from: micro-batch, row in it, number of the data source,
/// document in that source, and the offset of the sequence in that document.
struct BatchRow {
    int64_t micro, row;
    int source;
    int64_t document, offset;
};

/// The mean loss (nats per token) over `tokens` held-out tokens of the set `name`, after `step` steps.
struct EvalRow {
    int64_t step;
    std::string name;
    double loss;
    int64_t tokens;
    double seconds;
};

/// The writer of a run.db. Rows are visible to others, and outlive a killed process, once committed;
/// destruction commits. Every function throws UserError naming the file when it is locked for longer than the
/// time given, the disk is full, or it cannot be used otherwise.
class RunDb {
  public:
    /// Opens or creates the database. UserError when it cannot be written, is no database, belongs to another
    /// program or to a newer version of this one.
    explicit RunDb(const std::string& path,
                   std::chrono::milliseconds lock_timeout = std::chrono::seconds(10));

    /// Sets a value of table run, and commits.
    void set(const std::string& key, const std::string& value);
    std::optional<std::string> get(const std::string& key);

    /// A resumed run repeats the steps after `step`: removes their rows from every table, and commits.
    void forget_after(int64_t step);

    /// Commits when a second has passed since the last commit. UserError when the step is there already. A
    /// step with a non-finite loss, rate, norm or clip is stored as not finite, whatever the row says.
    void add_step(const StepRow&, const std::vector<BatchRow>& batches);

    /// What the recorder saw in a step, into sites, stats and histograms. Committed with the step.
    void add_statistics(int64_t step, const std::vector<Record>& records);

    /// Replaces an evaluation of the same step and name, and commits.
    void add_eval(const EvalRow&);

    void commit();

  private:
    struct Close {
        void operator()(sqlite3*) const;
    };
    struct Finalize {
        void operator()(sqlite3_stmt*) const;
    };
    using Statement = std::unique_ptr<sqlite3_stmt, Finalize>;

    Statement prepare(const char* sql);
    void execute(const char* sql);
    void check(int code, const char* what);
    int64_t query(const char* sql);
    void create_tables();
    void begin();

    /// Binds the values to the statement's parameters in order and runs it.
    template <class... Values>
    void run(Statement&, const Values&... values);

    std::string path_;
    std::unique_ptr<sqlite3, Close> database_;
    int64_t site_number(const Record& record);

    Statement insert_step_, insert_batch_, insert_stats_, insert_histogram_;
    std::unordered_map<std::string, int64_t> sites_;
    std::chrono::steady_clock::time_point committed_;
};

}  // namespace wobble
