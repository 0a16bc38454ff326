// What the report shows of an event beside its own words: what moved first, the batches around it, the
// largest token losses.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "report/history.h"

namespace wobble {

// Steps with events of which so much is read: a run that broke has thousands, and the first ones tell.
constexpr size_t steps_with_movers = 24, steps_with_batches = 200, movers_shown = 8, batches_shown = 32,
                 sequences_shown = 16, tokens_shown = 256;

/// {step: {batches: {total, rows}, losses: {step, rows}, tokens: [[micro, row, [token]]], movers: {from,
/// series, left, list}}} of the steps with events, alarms before warnings before notes. Batches are those of
/// the step, the one before and the one behind. Rows of batches are [step, micro, row, source, document,
/// offset], of losses [rank, micro, row, position, token, loss, source, document, offset].
nlohmann::ordered_json evidence(History&, const StepHistory&, const std::vector<Site>&,
                                const std::vector<StoredEvent>&);

/// A number with four significant digits; null for what is not finite.
nlohmann::ordered_json rounded(double x);

}  // namespace wobble
