// Other programs, timed beside this one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/timings.h"

namespace wobble::bench {

/// Steps of these models in PyTorch, bare and with hooks that compute the same moments: what
/// bench/peers/pytorch_hooks.py measures in `seconds` for each, with as many threads. The interpreter is
/// named by the environment variable PYTHON, python3 by default. Where that cannot be, {"did_not_run":
/// REASON}.
nlohmann::json time_pytorch_hooks(const std::vector<StepModel>& models, int threads, double seconds);

/// The lines for people, one at least.
std::string pytorch_to_text(const nlohmann::json& result);

}  // namespace wobble::bench
