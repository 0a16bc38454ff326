// What a run left behind for those who go back to it: its configurations, the hashes of its steps, its
// checkpoints and snapshots, its events.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "probes/sqlite.h"
#include "run/options.h"
#include "run/snapshot.h"

namespace wobble {

class RecordedRun {
  public:
    /// UserError when `path` holds no run, or one of an older program, which took no hashes.
    explicit RecordedRun(const std::string& path);

    const std::string& path() const { return path_; }
    /// A value of table run; empty when there is none.
    std::string about(const std::string& key);
    /// The last step on record; 0: none.
    int64_t last_step();

    /// The configuration of step `step`, and the first later step with another one (INT64_MAX: none).
    Options options(int64_t step);
    int64_t next_configuration(int64_t step);

    struct Hashes {
        std::optional<uint64_t> weights, batch;
    };
    Hashes hashes(int64_t step);

    struct Numbers {
        double loss, grad_norm;  // NaN: not finite
        bool applied, finite;
    };
    std::optional<Numbers> numbers(int64_t step);

    struct StoredEvent {
        int64_t id, step;
        std::string severity, detector, site, summary;
    };
    /// UserError when there is no such event.
    StoredEvent event(int64_t id);

    /// Where a replay can begin: folders and steps of checkpoints and snapshots of at most `step` steps,
    /// newest first. Besides these there is always the first step.
    struct Start {
        std::string folder;
        int64_t step;
    };
    std::vector<Start> starts(int64_t step) const;

    Sqlite& database() { return db_; }

  private:
    std::string path_;
    Sqlite db_;
};

}  // namespace wobble
