// A detector watches a run, step after step, for one kind of trouble.
//
// A new one is a class with a name, a version, what it watches in a sentence, and `watch`; its line in
// detectors.cpp puts it into every run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "probes/detectors/event.h"
#include "probes/detectors/history.h"
#include "probes/observation.h"
#include "probes/run_db.h"

namespace wobble {

/// What does not change during a run and rules depend on.
struct RunFacts {
    double vocab = 0;    // tokens
    double floor = 0;    // the lowest loss that the data allow, nats; 0: not known
    bool bf16 = false;   // what weights and activations are stored in; float32 otherwise
    int64_t warmup = 0;  // steps
};

/// A step as detectors see it. `seen` is empty on steps whose observation is not recorded.
struct Evidence {
    const StepRow& step;
    const Observation& seen;
    const RunFacts& facts;
};

/// Numbers by name, as checkpoints hold them.
using DetectorState = std::map<std::string, std::vector<double>>;

class Detector {
  public:
    Detector(std::string name, int version) : name_(std::move(name)), version_(version) {}
    virtual ~Detector() = default;
    Detector(const Detector&) = delete;
    Detector& operator=(const Detector&) = delete;

    const std::string& name() const { return name_; }
    /// The events of a step.
    std::vector<Event> look(const Evidence& evidence);

    /// Everything that later events depend on, under names that begin with the detector's; and back.
    DetectorState state() const;
    void restore(const DetectorState& all);

  protected:
    virtual void watch(const Evidence& evidence) = 0;
    /// Raises an event, unless one of the same site, at least as severe, is less than `quiet` steps old.
    void raise(Severity severity, const std::string& site, double expected, double seen, std::string summary,
               std::string detail = "{}");
    /// What has been seen of a quantity; it is made with the rule when it is new.
    History& history(const std::string& of, const History::Rule& rule);
    /// The median of the last `count` values of a quantity, this one included where it is finite; NaN
    /// before there are so many.
    double recent(const std::string& of, double value, int64_t count);
    /// A number that is kept from step to step; `initial` when it is new.
    double& number(const std::string& of, double initial);

    static constexpr int64_t quiet = 50;

  private:
    std::string name_;
    int version_;
    int64_t step_ = 0;
    std::vector<Event> events_;
    std::map<std::string, History> histories_;
    std::map<std::string, std::vector<double>> recent_;
    std::map<std::string, double> numbers_;
    DetectorState restored_;  // histories that nobody has asked for yet
};

}  // namespace wobble
