// Who wants to see what: a kernel is launched at a site, and the recorder says how closely to look and keeps
// what was seen.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "probes/observation.h"
#include "probes/watch.h"

namespace wobble {

/// A place in the model: {"attn.qkv", 3} is "h.3.attn.qkv"; layer -1 stands outside the layers. In the
/// backward phase a site without `part` is the gradient of its input, and one with ".weight" or ".bias" that
/// of the parameter.
struct Site {
    const char* name;
    int layer = -1;
    Phase phase = Phase::Forward;
    const char* part = "";

    Site of(const char* parameter) const { return {name, layer, phase, parameter}; }
    std::string full_name() const {
        return (layer < 0 ? std::string() : "h." + std::to_string(layer) + ".") + name + part;
    }
};

/// Which sites to look at: "moments" or "full:h.*.attn.*,moments:*". Of several patterns (as in the shell)
/// the first that matches a site decides; sites that none matches are left alone.
class ProbePlan {
  public:
    ProbePlan() = default;
    /// UserError when `text` is not such a list.
    explicit ProbePlan(const std::string& text);

    Tier tier(const std::string& site) const;
    bool looks() const;

  private:
    struct Rule {
        Tier tier;
        std::string pattern;
    };
    std::vector<Rule> rules_;
};

class Recorder {
  public:
    explicit Recorder(ProbePlan plan) : plan_(std::move(plan)) {}

    Tier tier(const Site& site) const { return plan_.tier(site.full_name()); }
    void record(const Site& site, const char* kernel, const char* channel, Statistics statistics);
    /// In the order in which they were first launched.
    const std::vector<Record>& records() const { return records_; }
    /// The record that was the first, in time, to see a value that is not finite; null when all were.
    const Record* first_nonfinite() const {
        return first_nonfinite_ < 0 ? nullptr : &records_[size_t(first_nonfinite_)];
    }
    void clear();

  private:
    ProbePlan plan_;
    std::vector<Record> records_;
    std::unordered_map<std::string, size_t> index_;
    int64_t first_nonfinite_ = -1;
};

}  // namespace wobble
