// All detectors of a run.
#pragma once

#include <memory>
#include <vector>

#include "probes/detectors/detector.h"

namespace wobble {

std::vector<std::unique_ptr<Detector>> detectors_of_step();
std::vector<std::unique_ptr<Detector>> detectors_of_tensors();
std::vector<std::unique_ptr<Detector>> detectors_of_activations();

class Detectors {
  public:
    explicit Detectors(RunFacts facts);

    /// The events of a step, the most severe first.
    std::vector<Event> look(const StepRow& step, const Observation& seen);

    /// What checkpoints hold of them.
    DetectorState state() const;
    void restore(const DetectorState& state);

  private:
    RunFacts facts_;
    std::vector<std::unique_ptr<Detector>> all_;
};

}  // namespace wobble
