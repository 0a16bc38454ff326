// run.db: what a run records, as an SQLite database that other processes can query while the run goes on.
//
// Tables (run_db_tables.h): run (key, value), steps, evals, batches; sites, and of what was observed at them
// stats, histograms, channels, heads, residuals, streams; tensors, embeddings, losses, largest_losses,
// examples, measures. Rows of a step carry the number of the optimizer step just done, 1 for the first.
// SQLite has no NaN, and readers stumble over infinities: both are stored as NULL.
//
// Size, of a 12-layer model with 12 heads (900 channels, 150 tensors), measured over 2,000 recorded steps: 79
// kB a step at tier moments (stats 56, tensors 12, heads 7, everything else 4), so that 100,000 recorded
// steps take 7.9 GB; 377 kB a step with every site at tier full (histograms 273), 38 GB. stats, tensors and
// heads are views of tables that hold reals as float32; with SQLite's own reals they would take half as much
// again.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "probes/detectors/event.h"
#include "probes/observation.h"
#include "probes/ring.h"
#include "probes/site_map.h"
#include "probes/sqlite.h"

namespace wobble {

/// One optimizer step. `tokens`: seen since the start of the run. `loss`: nats per token, mean over the
/// step's batch. `grad_norm`: before clipping. `clip`: the factor applied to the gradient, 1 when not
/// clipped. `applied`: false when the update was skipped. `finite`: false when the loss, a gradient or a
/// weight was not.
struct StepRow {
    int64_t step, tokens;
    double loss, lr, grad_norm, clip, update_norm, weight_norm, seconds, tokens_per_second;
    bool applied, finite;
    // Fingerprints of all weights after the step, and of the tokens that it read; 0: not taken.
    uint64_t weights_hash = 0, batch_hash = 0;
};

/// Where one sequence of a step's batch came from: micro-batch, row in it, number of the data source,
/// document in that source, and the offset of the sequence in that document.
struct BatchRow {
    int64_t micro, row;
    int source;
    int64_t document, offset;
};

/// The tokens of one sequence of a step's batch [T], and the targets, -1 where there is none.
struct TokensRow {
    int64_t micro, row;
    std::vector<int32_t> inputs, targets;
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
    /// program or to another version of this one.
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

    /// What the probes saw in a step. Committed with the step. Channels that saw no value have no row.
    void add_observation(int64_t step, const Observation&);

    /// Moments of the steps of a ring, except where there are some of that step and site. Committed with the
    /// next step, or by commit().
    void add_ring(const RingDump&);

    void add_events(const std::vector<Event>&);
    /// Replaces those of the same step.
    void add_tokens(int64_t step, const std::vector<TokensRow>&);
    /// The configuration of the steps after `step`, and the hash of the weights that they begin with.
    void set_config(int64_t step, const std::string& toml, uint64_t weights_hash);
    /// Replaces an evaluation of the same step and name, and commits.
    void add_eval(const EvalRow&);

    void commit();
    /// Gives up what was not committed, after an error.
    void rollback() noexcept;

  private:
    using Statement = Sqlite::Statement;

    void create_tables();
    void begin();
    void add_records(int64_t step, const std::vector<Record>&);
    void add_moments(Statement& statement, const char* into, int64_t step, int64_t site, const Moments&);
    void add_histogram(int64_t step, int64_t site, const Histogram&);
    /// The number of a site in table sites, which it is added to when it is new.
    int64_t site_number(const SiteKey&, int layer);
    /// Inserts a row; `into` is "INSERT INTO table". The statement is prepared where it is empty.
    template <class... Values>
    void insert(Statement&, const char* into, const Values&... values);

    Sqlite sqlite_;
    Statement step_, batch_, stats_, ring_, histogram_, channel_, head_, residual_, stream_, tensor_,
        embedding_, loss_, token_, example_, measure_, event_, hash_, tokens_;
    SiteMap sites_;
    bool open_ = false;  // a transaction was begun, and not ended by commit()
    std::chrono::steady_clock::time_point committed_;
};

}  // namespace wobble
