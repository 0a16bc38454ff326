// Detectors of what every step has: loss and gradient norm.
#include <algorithm>
#include <cmath>

#include "probes/detectors/detectors.h"
#include "probes/detectors/words.h"

namespace wobble {
namespace {

/// Loss or gradient norm far from what it was, for a step or a few.
class Spike : public Detector {
  public:
    /// Where it is an alarm, and a warning: so many times the usual value.
    Spike(const char* of, double StepRow::*value, double warning, double alarm)
        : Detector(std::string(of) + " spike", 1), of_(of), value_(value), warning_(warning), alarm_(alarm) {}

  private:
    void watch(const Evidence& e) override {
        const double x = e.step.*value_;
        const History::Verdict v = history(of_, {.window = 128, .least = 20, .spreads = 7}).take(x);
        if (!v.out) return;
        if (!std::isfinite(x)) {
            raise(Severity::Alarm, of_, v.usual, x, of_ + " is " + number_text(x));
            return;
        }
        const double times = x / v.usual;
        const bool up = times > 1;
        // A value in a wide scatter may be many times the usual one and no more than the tail of it.
        const Severity severity = v.spreads < 9       ? Severity::Note
                                  : times >= alarm_   ? Severity::Alarm
                                  : times >= warning_ ? Severity::Warning
                                                      : Severity::Note;
        raise(severity, of_, v.usual, x,
              of_ + (up ? " jumps to " : " falls to ") + number_text(x) + ", " + number_text(times) +
                  " times the " + number_text(v.usual) + " of the steps before",
              as_json({{"spreads", v.spreads}}));
    }

    std::string of_;
    double StepRow::*value_;
    double warning_, alarm_;
};

/// An update that is many times what this learning rate usually makes of a gradient: AdamW's own bounds hold
/// it within a few.
class WholeUpdate : public Detector {
  public:
    WholeUpdate() : Detector("whole update", 1) {}

  private:
    void watch(const Evidence& e) override {
        const StepRow& s = e.step;
        if (!s.applied || !(s.lr > 0)) return;
        const History::Verdict v =
            history("norm", {.window = 128, .least = 20, .spreads = 7}).take(s.update_norm / s.lr);
        const double usual = v.usual * s.lr, times = s.update_norm / usual;
        if (!v.out || times < 10) return;
        raise(times >= 100 || !std::isfinite(times) ? Severity::Alarm : Severity::Warning, "update norm",
              usual, s.update_norm,
              "the update has a norm of " + number_text(s.update_norm) + ", " + number_text(times) +
                  " times as much as before at this learning rate",
              as_json({{"spreads", v.spreads}}));
    }
};

/// Before anything is learned no guess should be much worse than that all tokens are alike.
class FirstLoss : public Detector {
  public:
    FirstLoss() : Detector("first loss", 1) {}

  private:
    void watch(const Evidence& e) override {
        double& seen = number("seen", 0);
        if (seen++ > 0) return;
        const double even = std::log(e.facts.vocab), loss = e.step.loss;
        if (!(loss > even + std::max(1.0, 0.3 * even))) return;
        raise(loss > 2 * even + 1 ? Severity::Alarm : Severity::Warning, "loss", even, loss,
              "the first loss is " + number_text(loss) + "; guessing among " + number_text(e.facts.vocab) +
                  " tokens has " + number_text(even) + ": the initial weights are too large");
    }
};

/// The loss is above where it began, at any time; or has left the best it had reached, and stays away.
class Divergence : public Detector {
  public:
    Divergence() : Detector("divergence", 1) {}

  private:
    static constexpr int64_t window = 16;
    void watch(const Evidence& e) override {
        const double loss = e.step.loss;
        if (!std::isfinite(loss)) return;
        const double begin = number("begin", loss);
        if (loss > 1.3 * begin + 0.2) {
            raise(Severity::Alarm, "loss", begin, loss,
                  "the loss is " + number_text(loss) + "; it began at " + number_text(begin));
        }
        const double now = recent("loss", loss, window);
        if (std::isnan(now)) return;
        double& best = number("best", INFINITY);
        best = std::min(best, now);
        // Of the way from the first losses to the best, so much is lost again.
        double& first = number("first", now);
        const double away = now - best, way = std::max(first - best, 0.05 * best);
        if (away > 0.5 * way && away > 0.1 * best) {
            raise(now > first * 1.02 ? Severity::Alarm : Severity::Warning, "loss", best, now,
                  "the loss stays at " + number_text(now) + ", where it had been " + number_text(best) +
                      "; it began at " + number_text(first));
        }
    }
};

/// The loss does not come down: from the start, or any more.
class Stall : public Detector {
  public:
    Stall() : Detector("stall", 1) {}

  private:
    static constexpr int64_t window = 100;
    void watch(const Evidence& e) override {
        if (!std::isfinite(e.step.loss)) return;
        number("first", e.step.loss);
        const double now = recent("loss", e.step.loss, window);
        double& count = number("steps", 0);
        if (++count < double(window + e.facts.warmup) || int64_t(count) % window != 0) return;
        const double first = number("first", 0), before = number("before", INFINITY);
        number("before", 0) = now;
        const double room = first - e.facts.floor;
        if (now > first - 0.05 * room && room > 0.05 * first) {
            raise(Severity::Warning, "loss", e.facts.floor, now,
                  "after " + std::to_string(int64_t(count)) + " steps the loss is " + number_text(now) +
                      "; it began at " + number_text(first));
            return;
        }
        // A plateau is told once.
        const bool flat = before - now < 0.002 * now && now > e.facts.floor * 1.05;
        double& was_flat = number("flat", 0);
        if (flat && was_flat == 0) {
            raise(Severity::Note, "loss", before, now,
                  "the loss has not come down for " + std::to_string(window) + " steps: " + number_text(now));
        }
        was_flat = flat;
    }
};

}  // namespace

std::vector<std::unique_ptr<Detector>> detectors_of_step() {
    std::vector<std::unique_ptr<Detector>> all;
    all.push_back(std::make_unique<Spike>("loss", &StepRow::loss, 1.15, 1.4));
    all.push_back(std::make_unique<Spike>("gradient norm", &StepRow::grad_norm, 15, 40));
    all.push_back(std::make_unique<WholeUpdate>());
    all.push_back(std::make_unique<FirstLoss>());
    all.push_back(std::make_unique<Divergence>());
    all.push_back(std::make_unique<Stall>());
    return all;
}

}  // namespace wobble
