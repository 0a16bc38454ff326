// The last few hundred steps in memory: the moments of every site at each of them, for when something has
// gone wrong and the steps before it were not all recorded.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "probes/observation.h"
#include "probes/site_map.h"

namespace wobble {

/// What a ring held, oldest step first.
struct RingDump {
    struct Step {
        int64_t step;
        std::vector<int32_t> sites;    // [n], into `sites` below
        std::vector<Moments> moments;  // [n]
    };
    std::vector<SiteName> sites;
    std::deque<Step> steps;
};

/// A channel of a step takes 112 bytes of Moments and a number of 4 bytes, the names of the sites are kept
/// once: the 900 channels of a 12-layer model take 104 kB a step, the last 300 steps 31 MB.
class Ring {
  public:
    /// Keeps the last `steps` steps; none when that is 0.
    explicit Ring(int64_t steps) : room_(steps) {}

    /// Copies the moments of a step, which takes the place of the oldest when the ring is full. Steps from
    /// this one on that are there already were undone (by a resumption, say) and are dropped.
    void push(int64_t step, const std::vector<Record>& records);

    /// The number of steps in it.
    int64_t size() const { return int64_t(steps_.size()); }

    /// Hands over what is there, and is empty.
    RingDump take();

  private:
    int32_t site_number(const Record&, int32_t guess);

    int64_t room_;
    std::deque<RingDump::Step> steps_;
    std::vector<SiteName> names_;
    SiteMap numbers_;  // of names_
};

}  // namespace wobble
