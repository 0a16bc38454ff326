#include "bench/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "run/progress.h"

namespace wobble::bench {

ProgressLine::ProgressLine(double planned) : terminal_(isatty(STDERR_FILENO)), left_(planned) {}

void ProgressLine::begin(const std::string& what, double planned) {
    what_ = what, current_ = planned, left_ = std::max(0.0, left_ - planned);
    begun_ = Clock::now(), drawn_ = {};
    tick();
}

void ProgressLine::tick() {
    const auto now = Clock::now();
    if (!terminal_ || now - drawn_ < std::chrono::milliseconds(200)) return;
    drawn_ = now, shown_ = true;
    const double spent = std::chrono::duration<double>(now - begun_).count();
    std::fprintf(stderr, "\r%s, %s left\033[K", what_.c_str(),
                 duration(left_ + std::max(0.0, current_ - spent)).c_str());
    std::fflush(stderr);
}

void ProgressLine::hide() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
    shown_ = false;
}

}  // namespace wobble::bench
