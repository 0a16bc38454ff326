// Timing on a machine that is never quiet: speeds drift by ten percent within seconds as clocks and
// neighbours change. What is to be compared is therefore measured in turns, in many short rounds, and
// compared round by round.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace wobble::bench {

/// How long to measure one thing.
struct Effort {
    double seconds;         // stop after that,
    int least_rounds;       // but not before as many rounds,
    double sample_seconds;  // each variant being repeated for at least this long in a round
    /// Called before every round, outside the time taken; may be empty.
    std::function<void()> before_round = {};
    /// Called after the calls of a variant, within the time taken: until they are done, where they only
    /// began.
    std::function<void()> finish = {};
};

/// Seconds per call of one variant, round by round: of the wall clock, and of the processors (all threads of
/// this process together), which other processes disturb less.
struct Rounds {
    std::vector<double> wall, processor;
};

/// What came out, in the order of the variants.
struct Turns {
    std::vector<Rounds> variants;
    int64_t calls;  // of each variant in a round
};

/// Calls the variants in turns, each once beforehand; only the first is, where one round is enough. Who
/// begins changes from round to round.
Turns measure_in_turns(const std::vector<std::function<void()>>& variants, const Effort& effort);

/// The middle of some values, and where their quarters end (linear between neighbours). NaN without values.
struct Middle {
    double median, low_quartile, high_quartile;
};
Middle middle(std::vector<double> values);

/// What `costs` takes beyond `base`, round by round, as a share of `base`.
std::vector<double> paired_overheads(const std::vector<double>& costs, const std::vector<double>& base);

/// How much of the machine others use, since this was made: what disturbs a measurement most.
class OtherWork {
  public:
    OtherWork();
    /// As a share of all processors, also what a virtual machine's host took away; NaN where /proc/stat does
    /// not tell.
    double share() const;

  private:
    /// Seconds of all processors together.
    struct Spent {
        double busy, all, by_this_process;
    };
    static Spent spent();

    Spent begin_;
};

}  // namespace wobble::bench
