#include "probes/detectors/detector.h"

#include <cmath>
#include <utility>

namespace wobble {

const char* severity_name(Severity severity) {
    switch (severity) {
        case Severity::Note:
            return "note";
        case Severity::Warning:
            return "warning";
        case Severity::Alarm:
            return "alarm";
    }
    return "";
}

std::vector<Event> Detector::look(const Evidence& evidence) {
    step_ = evidence.step.step;
    watch(evidence);
    return std::exchange(events_, {});
}

void Detector::raise(Severity severity, const std::string& site, double expected, double seen,
                     std::string summary, std::string detail) {
    double& last = number("raised " + site + " " + severity_name(severity), -double(quiet));
    for (int s = int(severity); s <= int(Severity::Alarm); ++s) {
        if (double(step_) <
            number("raised " + site + " " + severity_name(Severity(s)), -double(quiet)) + quiet)
            return;
    }
    last = double(step_);
    events_.push_back(
        {step_, name_, version_, severity, site, expected, seen, std::move(summary), std::move(detail)});
}

History& Detector::history(const std::string& of, const History::Rule& rule) {
    const auto [found, is_new] = histories_.try_emplace(of, rule);
    if (is_new) {
        if (const auto saved = restored_.find(of); saved != restored_.end()) {
            found->second.restore(saved->second);
            restored_.erase(saved);
        }
    }
    return found->second;
}

double Detector::recent(const std::string& of, double value, int64_t count) {
    std::vector<double>& values = recent_[of];
    if (std::isfinite(value)) values.push_back(value);
    if (int64_t(values.size()) > count) values.erase(values.begin());
    return int64_t(values.size()) < count ? NAN : median(values);
}

double& Detector::number(const std::string& of, double initial) {
    return numbers_.try_emplace(of, initial).first->second;
}

DetectorState Detector::state() const {
    DetectorState all;
    for (const auto& [of, saved] : restored_) all[name_ + "/history/" + of] = saved;
    for (const auto& [of, history] : histories_) all[name_ + "/history/" + of] = history.state();
    for (const auto& [of, values] : recent_) all[name_ + "/recent/" + of] = values;
    for (const auto& [of, value] : numbers_) all[name_ + "/number/" + of] = {value};
    return all;
}

void Detector::restore(const DetectorState& all) {
    histories_.clear(), recent_.clear(), numbers_.clear(), restored_.clear();
    const std::string histories = name_ + "/history/", recent = name_ + "/recent/",
                      numbers = name_ + "/number/";
    for (const auto& [key, values] : all) {
        if (key.starts_with(histories)) restored_[key.substr(histories.size())] = values;
        else if (key.starts_with(recent)) recent_[key.substr(recent.size())] = values;
        else if (key.starts_with(numbers) && !values.empty())
            numbers_[key.substr(numbers.size())] = values[0];
    }
}

}  // namespace wobble
