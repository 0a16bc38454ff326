// Checkpoints of a run: RUN/checkpoints/step-00000500/ (or the same in another folder of the run) holds
// model.safetensors (the weights) and state.safetensors (everything else that the next step depends on), and
// detectors.safetensors what the run's detectors have seen so far. A directory of that name is whole at every
// moment: it is written, and later removed, under a hidden name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/safetensors.h"

namespace wobble {

/// An opened checkpoint, all checks passed. `step` is the number of optimizer steps done.
struct CheckpointFiles {
    int64_t step;
    SafetensorsFile model, state;
    std::optional<SafetensorsFile> detectors;  // there is none where nothing had been seen
};

/// Writes checkpoint `step`, replacing one of the same step, and then removes all but the newest `keep` of
/// those up to `step` (0 keeps all). Later ones, as an abandoned continuation may have left, stay. Killed or
/// failing at any moment, it leaves every earlier checkpoint in use; what a killed one left half-written is
/// removed by the next. A run must have one writer only. UserError when the checkpoint cannot be written
/// (full disk, no permission).
void write_checkpoint(const std::string& run, int64_t step, const std::vector<TensorView>& model,
                      const std::vector<TensorView>& state, int keep,
                      const std::vector<TensorView>& detectors = {}, const char* folder = "checkpoints");

/// The newest whole checkpoint. For each damaged one that was passed over, a sentence is added to `warnings`
/// (may be null). Nothing when the run has no checkpoint; UserError when it has some and none is whole.
std::optional<CheckpointFiles> open_latest_checkpoint(const std::string& run,
                                                      std::vector<std::string>* warnings);

/// Checkpoint number `step`; UserError when it is damaged, or, listing those there are, when there is none.
CheckpointFiles open_checkpoint(const std::string& run, int64_t step, const char* folder = "checkpoints");

/// The steps that there are checkpoints of, newest first, damaged ones too.
std::vector<int64_t> checkpoint_steps(const std::string& run, const char* folder = "checkpoints");
/// The name of its directory.
std::string checkpoint_name(int64_t step);

/// Copies the tensor of the name, dtype and shape of `expected` to `destination` (byte_count(expected)
/// bytes); `expected.data` is not used. UserError saying what was found when there is none or it is of
/// another kind.
void read_tensor(const SafetensorsFile&, const TensorView& expected, void* destination);

}  // namespace wobble
