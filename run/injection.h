// Faults on request: --inject 'nan@step=50,site=h.2.mlp.fc,row=3' changes one number that a step computes, so
// that alarms, replay and locate can be tried on a run whose fault is known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "probes/recorder.h"

namespace wobble {

/// One --inject: nan, inf, -inf, bitflip or scale=X, then where. What the text leaves open is empty until
/// `complete` has filled it in.
struct InjectionOrder {
    std::string text;
    int64_t step = 0;  // 1 is the first
    Injection injection;
    bool any_phase = true;
};

/// UserError where `text` is no such order.
InjectionOrder parse_injection(const std::string& text);

/// Fills in phase, kernel and channel from what a step without faults showed at tier moments: the output of
/// the site's last kernel, in the first phase that knows the site. UserError where the model has no such
/// site.
void complete(InjectionOrder& order, const std::vector<Record>& records);

/// What a step with the order's place made NaN showed. UserError when nothing was there.
void check_that_it_hits(const InjectionOrder& order, const std::vector<Record>& records);

}  // namespace wobble
