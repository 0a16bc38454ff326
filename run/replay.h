// Going back into a run: from its nearest checkpoint or snapshot the steps are done once more, bit for bit,
// with whatever probes are wanted; and every step is held against the hash that the run left of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run/command_line.h"
#include "run/recorded_run.h"
#include "run/trainer.h"

namespace wobble {

class Replay {
  public:
    /// From the newest state that has at most step - 1 steps and is what the run had there; from `step` on
    /// the steps are looked at. `change` may set options that no bit of the weights depends on: probes,
    /// threads. UserError where the run is not there to be repeated.
    Replay(const std::string& run, int64_t step, std::function<void(Options&)> change);

    /// Where it began, as a phrase: "checkpoint 500".
    const std::string& start() const { return start_; }
    /// Sentences about starts that could not be used.
    const std::vector<std::string>& warnings() const { return warnings_; }
    int64_t first_step() const { return first_step_; }

    /// What a step was in the run and is now.
    struct Step {
        StepRow row;
        bool checked;                                 // the run has a hash of it
        bool same_batch = true, same_numbers = true;  // weights, loss and gradient norm

        bool same() const { return same_batch && same_numbers; }
    };
    Step step();
    /// Whether the run ended at the last step for not being finite.
    bool ended() const { return ended_; }

    Trainer& trainer() { return *trainer_; }
    RecordedRun& run() { return run_; }
    int64_t checked() const { return checked_; }

  private:
    void begin(int64_t steps);
    std::unique_ptr<Trainer> make_trainer(int64_t step);

    RecordedRun run_;
    std::function<void(Options&)> change_;
    std::unique_ptr<Trainer> trainer_;
    std::string start_;
    std::vector<std::string> warnings_;
    int64_t looks_from_, first_step_ = 1, changes_at_ = 0, checked_ = 0;
    bool ended_ = false, stops_ = false;
};

/// Why a step of a replay is not what the run recorded. `again`: whether a second replay was the same as the
/// first; nothing when there was none.
std::string explain_difference(Replay& replay, const Replay::Step& step, std::optional<bool> again);

/// ./train replay. Returns whether every step was the same.
bool run_replay(const Command& command);

}  // namespace wobble
