#include "run/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace wobble {

Progress::Progress(int64_t first_step, int64_t last_step, int64_t log_every)
    : last_step_(last_step),
      every_(log_every > 0 ? log_every : std::max<int64_t>(1, (last_step - first_step) / 40)),
      live_(log_every == 0 && isatty(STDOUT_FILENO)) {}

void Progress::step(const StepRow& row) {
    seconds_per_step_ = seconds_per_step_ == 0 ? row.seconds : 0.95 * seconds_per_step_ + 0.05 * row.seconds;
    const bool last = row.step == last_step_;
    const auto now = Clock::now();
    if (live_ ? now - shown_ < std::chrono::milliseconds(100) && !last : row.step % every_ != 0 && !last)
        return;
    shown_ = now;

    char text[200];
    std::snprintf(text, sizeof text,
                  "step %*lld/%lld  loss %7.4f  lr %.2e  grad norm %8.3g  %9s tokens/s  %s left",
                  int(std::to_string(last_step_).size()), static_cast<long long>(row.step),
                  static_cast<long long>(last_step_), printable(row.loss), row.lr, printable(row.grad_norm),
                  with_commas(std::llround(row.tokens_per_second)).c_str(),
                  duration(seconds_per_step_ * double(last_step_ - row.step)).c_str());
    if (live_) {
        std::printf("\r%s\033[K", text);
        line_open_ = true;
    } else {
        std::printf("%s\n", text);
    }
    std::fflush(stdout);
}

void Progress::event(const Event& event) {
    if (event.severity == Severity::Note) return;
    say("step " + std::to_string(event.step) + ": " + severity_name(event.severity) + ": " + event.summary);
}

void Progress::say(const std::string& line) {
    if (line_open_) std::printf("\n");
    line_open_ = false;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

WorkProgress::WorkProgress(double work) : work_(work), live_(isatty(STDERR_FILENO)) {}

std::string WorkProgress::line() const {
    if (done_ <= 0) return part_;
    const double spent = std::chrono::duration<double>(Clock::now() - begun_).count();
    return part_ + ", " + duration(spent * (work_ - done_) / done_) + " left";
}

void WorkProgress::begin(const std::string& part) {
    part_ = part, drawn_ = {};
    if (live_) done(0);
    else std::fprintf(stderr, "%s\n", line().c_str());
}

void WorkProgress::done(double work) {
    done_ += work;
    const auto now = Clock::now();
    if (!live_ || now - drawn_ < std::chrono::milliseconds(100)) return;
    drawn_ = now, shown_ = true;
    std::fprintf(stderr, "\r%s\033[K", line().c_str());
    std::fflush(stderr);
}

void WorkProgress::hide() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
    shown_ = false;
}

double printable(double x) {
    return std::isnan(x) ? std::fabs(x) : x;
}

std::string duration(double seconds) {
    const long long s = std::llround(std::max(0.0, seconds));
    char text[32];
    if (s >= 3600) std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else std::snprintf(text, sizeof text, "%lld:%02lld", s / 60, s % 60);
    return text;
}

std::string with_commas(int64_t n) {
    const std::string digits = std::to_string(n);
    std::string out;
    for (size_t i = 0; i < digits.size(); ++i) {
        const size_t left = digits.size() - i;
        if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') out += ',';
        out += digits[i];
    }
    return out;
}

}  // namespace wobble
