// A training run at one moment, complete: what its next steps depend on besides its configuration, in the
// host's memory, and as the files of a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/parameters.h"
#include "probes/detectors/detector.h"

namespace wobble {

/// Random numbers need no state: they are functions of the seeds and of these.
struct Counters {
    int64_t step = 0;    // optimizer steps done
    int64_t tokens = 0;  // targets trained on
    int64_t cursor = 0;  // next sequence of the data

    bool operator==(const Counters&) const = default;
};

struct Snapshot {
    Counters at;
    std::vector<float> weights, m, v;  // [table.buffer_size]
    DetectorState detectors;
};

/// The same where it lies.
struct SnapshotView {
    Counters at;
    const float *weights, *m, *v;
    const DetectorState& detectors;

    static SnapshotView of(const Snapshot& s) {
        return {s.at, s.weights.data(), s.m.data(), s.v.data(), s.detectors};
    }
};

/// Writes it into a folder of the run, as `write_checkpoint` does.
void write_snapshot(const std::string& run, const char* folder, const SnapshotView& snapshot,
                    const ParameterTable& table, int keep);

/// UserError when the files are not those of such a model.
Snapshot read_snapshot(const CheckpointFiles& files, const ParameterTable& table);

}  // namespace wobble
