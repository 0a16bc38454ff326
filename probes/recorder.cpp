#include "probes/recorder.h"

#include <fnmatch.h>

#include "kernels/error.h"

namespace wobble {

const char* phase_name(Phase phase) {
    switch (phase) {
        case Phase::Forward:
            return "forward";
        case Phase::Backward:
            return "backward";
        case Phase::Update:
            return "update";
    }
    return "";
}

namespace {

Tier tier_of(const std::string& name, const std::string& text) {
    if (name == "off") return Tier::Off;
    if (name == "moments") return Tier::Moments;
    if (name == "full") return Tier::Full;
    throw UserError(
        "--probes " + text + ": '" + name +
        "' is not a tier; expected off, moments or full; write for example full:h.*.attn.*,moments:*");
}

}  // namespace

ProbePlan::ProbePlan(const std::string& text) {
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(',', at), text.size());
        const std::string rule = text.substr(at, end - at);
        const size_t colon = rule.find(':');
        const std::string pattern = colon == std::string::npos ? "*" : rule.substr(colon + 1);
        const Tier tier = tier_of(rule.substr(0, colon), text);
        if (pattern.empty()) {
            throw UserError("--probes " + text +
                            ": a tier has no site; expected a pattern after the colon, as in full:h.0.*");
        }
        rules_.push_back({tier, pattern});
        at = end + 1;
    }
}

Tier ProbePlan::tier(const std::string& site) const {
    for (const Rule& rule : rules_) {
        if (fnmatch(rule.pattern.c_str(), site.c_str(), 0) == 0) return rule.tier;
    }
    return Tier::Off;
}

bool ProbePlan::looks() const {
    for (const Rule& rule : rules_) {
        if (rule.tier != Tier::Off) return true;
    }
    return false;
}

void Recorder::record(const Site& site, const char* kernel, const char* channel, Statistics statistics) {
    std::string name = site.full_name();
    const std::string key = name + '/' + phase_name(site.phase) + '/' + kernel + '/' + channel;
    const auto [place, is_new] = index_.try_emplace(key, records_.size());
    if (statistics.moments.nonfinite() > 0 && first_nonfinite_ < 0) first_nonfinite_ = int64_t(place->second);
    if (is_new) {
        records_.push_back({std::move(name), site.layer, site.phase, kernel, channel, std::move(statistics)});
    } else {
        records_[place->second].statistics.merge(statistics);
    }
}

void Recorder::clear() {
    records_.clear();
    index_.clear();
    first_nonfinite_ = -1;
}

}  // namespace wobble
