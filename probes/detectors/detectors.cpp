#include "probes/detectors/detectors.h"

#include <algorithm>
#include <iterator>

namespace wobble {

Detectors::Detectors(RunFacts facts) : facts_(facts) {
    for (auto& some : {detectors_of_step, detectors_of_tensors, detectors_of_activations}) {
        auto made = some();
        all_.insert(all_.end(), std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
    }
}

std::vector<Event> Detectors::look(const StepRow& step, const Observation& seen) {
    std::vector<Event> events;
    for (const auto& detector : all_) {
        for (Event& event : detector->look({step, seen, facts_})) events.push_back(std::move(event));
    }
    std::stable_sort(events.begin(), events.end(),
                     [](const Event& a, const Event& b) { return a.severity > b.severity; });
    return events;
}

DetectorState Detectors::state() const {
    DetectorState all;
    for (const auto& detector : all_) all.merge(detector->state());
    return all;
}

void Detectors::restore(const DetectorState& state) {
    for (const auto& detector : all_) detector->restore(state);
}

}  // namespace wobble
