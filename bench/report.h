// The bench's results, as text for people and as JSON. Seconds, bytes and FLOPs in JSON; shares are of 1.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/timings.h"

namespace wobble::bench {

/// Processor, caches, cores, compiler and threads.
nlohmann::json describe_machine(int threads);

nlohmann::json to_json(const Roofs& roofs);
/// One row for each tier.
nlohmann::json to_json(const KernelTimings& timings, const Roofs& roofs);
/// One row for each way of looking.
nlohmann::json to_json(const StepTimings& timings, const Roofs& roofs);
nlohmann::json to_json(const GenerationTimings& timings, const Roofs& roofs);

/// One line about the roofs.
std::string to_text(const Roofs& roofs, int threads);
/// Two lines above the kernels of one precision, and one line for each of them.
std::string kernels_heading(const std::string& precision);
std::string to_text(const KernelTimings& timings, const Roofs& roofs);
/// A block of lines for each model.
std::string to_text(const StepTimings& timings, const Roofs& roofs);
/// One line.
std::string to_text(const GenerationTimings& timings, const Roofs& roofs);

/// One line about how much others used the machine meanwhile.
std::string to_text(const OtherWork& others);

/// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...);

}  // namespace wobble::bench
