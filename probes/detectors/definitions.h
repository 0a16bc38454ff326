// What others call a spike, so that a run can be described in their words: each definition applied to the
// losses and gradient norms of a run, after it, whatever its own detectors said.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace wobble {

/// A published rule for one series, one number a step.
struct SpikeDefinition {
    const char* name;
    const char* rule;    // in a sentence
    const char* source;  // where it is from
    int64_t window;      // steps that it looks back on
    /// Indices of the spikes in a series. What is not finite is one, and is left out of every window.
    std::vector<int64_t> (*spikes)(const std::vector<double>& series);
};

const std::vector<SpikeDefinition>& spike_definitions();
/// UserError naming those there are when there is none of the name.
const SpikeDefinition& spike_definition(const std::string& name);

}  // namespace wobble
