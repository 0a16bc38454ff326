// What a person sees while the bench runs: one line on stderr that renews itself, where stderr is a terminal.
#pragma once

#include <chrono>
#include <string>

namespace wobble::bench {

class ProgressLine {
  public:
    /// `planned`: seconds that everything is meant to take.
    explicit ProgressLine(double planned);
    ~ProgressLine() { hide(); }

    /// Something that is meant to take `planned` seconds begins; what went before is done.
    void begin(const std::string& what, double planned);
    /// Renews the line, a few times a second at most.
    void tick();
    /// Takes the line away, so that other text can be written.
    void hide();

  private:
    using Clock = std::chrono::steady_clock;

    bool terminal_, shown_ = false;
    std::string what_;
    double left_;         // planned for what has not begun yet
    double current_ = 0;  // planned for what is going on
    Clock::time_point begun_, drawn_;
};

}  // namespace wobble::bench
