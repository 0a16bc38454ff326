// Who wants to see what: a kernel is launched at a site, and the recorder says whether to look.
#pragma once

#include <string>
#include <vector>

#include "probes/moments.h"

namespace wobble {

enum class Phase { Forward, Backward, Update };

/// A place in the model: `attn.qkv` of layer 3 is "h.3.attn.qkv"; layer -1 stands outside the layers.
struct Site {
    const char* name;
    int layer = -1;
    Phase phase = Phase::Forward;

    std::string full_name() const { return layer < 0 ? name : "h." + std::to_string(layer) + "." + name; }
};

/// Keeps what was observed since it was last cleared, in the order of the launches.
class Recorder {
  public:
    struct Record {
        std::string site;
        Phase phase;
        const char* kernel;
        const char* channel;
        Moments moments;
    };

    bool wants(const Site&) const { return enabled_; }
    void enable(bool on) { enabled_ = on; }
    void record(const Site& site, const char* kernel, const char* channel, const Moments& moments) {
        records_.push_back({site.full_name(), site.phase, kernel, channel, moments});
    }
    const std::vector<Record>& records() const { return records_; }
    void clear() { records_.clear(); }

  private:
    bool enabled_ = true;
    std::vector<Record> records_;
};

}  // namespace wobble
