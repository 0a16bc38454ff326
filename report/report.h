// `./train report RUN...`: what happened in runs, as one HTML file that opens anywhere, or live.
#pragma once

#include <string>
#include <vector>

namespace wobble {

struct ReportOptions {
    std::vector<std::string> runs;  // directories
    std::string output = "report.html";
    bool live = false;
    int port = 0;  // 0: 8080, or the next that is free
};

/// Writes the report, or serves it until Ctrl-C. Prints where it is. UserError where a run or the output
/// cannot be used; then nothing is written.
void make_report(const ReportOptions& options);

}  // namespace wobble
