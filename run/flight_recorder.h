// What is kept of the last steps until somebody needs it: snapshots to go back to, the batches, the moments.
// At an alarm all of it goes to disk.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "run/options.h"
#include "run/snapshot.h"

namespace wobble {

class RunWriter;
class Trainer;

/// Where snapshots lie in a run: those that an alarm kept, and those that the next ones replace.
constexpr const char *kept_snapshots = "snapshots", *rolling_snapshots = "snapshots/last";

class FlightRecorder {
  public:
    /// Of the run in directory `run`.
    FlightRecorder(const Options& options, std::string run);

    /// Before a step: takes a snapshot where one is due.
    void before_step(Trainer& trainer);
    /// After a step: writes the evidence when the step raised an alarm, and the batches for two steps more.
    /// Returns a sentence about what was kept; empty when nothing was.
    std::string after_step(Trainer& trainer, RunWriter& db, int64_t step);

  private:
    /// The batches of so many steps up to an alarm, and of so many after it.
    static constexpr int64_t batches_before = 8, batches_after = 2;
    /// Alarms of one incident come together: evidence is kept once in so many steps, ...
    static constexpr int64_t rest = 10;
    /// ... and so often in all. What happens first explains what follows, and the disk is the user's.
    static constexpr int most_incidents = 16;

    struct StepBatch {
        int64_t step;
        std::vector<int32_t> inputs, targets;
    };

    void write_batches(RunWriter& db);
    std::vector<int64_t> keep_snapshots(const Trainer& trainer);

    int64_t every_, most_, sequences_, context_;
    bool on_disk_;
    std::string run_;
    std::deque<Snapshot> snapshots_;  // oldest first, where they lie in memory
    std::deque<StepBatch> batches_;   // not yet written
    int64_t last_incident_ = -rest, following_ = 0;
    int incidents_ = 0;
};

}  // namespace wobble
