// What looking cost a run, as far as its own steps tell.
#pragma once

#include <nlohmann/json.hpp>

#include "report/history.h"

namespace wobble {

/// {recorded, beside, pairs, share, sentence}: median seconds of recorded steps and of unrecorded ones right
/// beside them, and the median of their ratios less 1. Neighbours are compared because a machine's speed
/// drifts. Numbers are null, and the sentence says why, where a run cannot tell.
nlohmann::ordered_json cost(History&, const StepHistory&, const std::vector<Setting>&);

}  // namespace wobble
