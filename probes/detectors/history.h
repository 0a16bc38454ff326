// What a positive quantity usually is, and whether a new value of it stands out.
#pragma once

#include <cstdint>
#include <vector>

namespace wobble {

/// Of at least one number, none of them NaN.
double median(std::vector<double> values);

/// Judges values by their logarithm against the median of the last usual ones, in spreads: 1.4826 times the
/// median distance from that median, which is a standard deviation where values are normal (Rousseeuw &
/// Croux 1993). A tenth of the values may be anything without moving either by much.
class History {
  public:
    struct Rule {
        int64_t window = 64;     // usual values that are remembered
        int64_t least = 20;      // before that many nothing stands out
        double spreads = 8;      // what stands out is farther away than that,
        double smallest = 0.02;  // where a spread is never less than this, in units of log x
    };
    struct Verdict {
        bool out = false;
        double usual = 0;    // the median of the usual values
        double spreads = 0;  // from there; infinite where the value is not finite
    };

    explicit History(Rule rule) : rule_(rule) {}

    /// The next value. One that stands out is not remembered: neither a NaN nor a spike widens the window,
    /// and those that follow are judged as if it had not been. When half a window of them in a row stand out
    /// the level itself has changed: they are the usual ones from then on.
    Verdict take(double x);

    /// Everything the next verdict depends on, as numbers, and back from there.
    std::vector<double> state() const;
    void restore(const std::vector<double>& state);

  private:
    Rule rule_;
    std::vector<double> usual_;  // logarithms, oldest first
    std::vector<double> out_;    // the last ones in a row that stood out
};

}  // namespace wobble
