// What a person sees while a run goes on: one line that renews itself on a terminal, a line now and then
// elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "probes/run_db.h"

namespace wobble {

class Progress {
  public:
    /// A line is printed every `log_every` steps; 0: on a terminal a live line, elsewhere some forty lines in
    /// all.
    Progress(int64_t first_step, int64_t last_step, int64_t log_every);

    void step(const StepRow& row);
    /// Prints a warning or an alarm as it happens; notes are in the database.
    void event(const Event& event);
    /// Prints a line of its own, clear of the live line.
    void say(const std::string& line);

  private:
    using Clock = std::chrono::steady_clock;

    int64_t last_step_, every_;
    bool live_;
    bool line_open_ = false;
    double seconds_per_step_ = 0;  // a moving average; 0 before the first step
    Clock::time_point shown_;
};

/// How far work of a known amount has come: a line on stderr that renews itself on a terminal, a line for
/// each part elsewhere.
class WorkProgress {
  public:
    /// `work`: of all parts, in any unit that takes the same time throughout.
    explicit WorkProgress(double work);
    ~WorkProgress() { hide(); }
    WorkProgress(const WorkProgress&) = delete;
    WorkProgress& operator=(const WorkProgress&) = delete;

    void begin(const std::string& part);
    /// So much more is done.
    void done(double work);
    /// Takes the live line away, so that other text can be written.
    void hide();

  private:
    using Clock = std::chrono::steady_clock;
    std::string line() const;

    double work_, done_ = 0;
    bool live_, shown_ = false;
    std::string part_;
    Clock::time_point begun_ = Clock::now(), drawn_;
};

/// NaN without the sign that printf would show.
double printable(double x);

/// 75 as "1:15", 3700 as "1:01:40".
std::string duration(double seconds);

/// 12345 as "12,345".
std::string with_commas(int64_t n);

}  // namespace wobble
