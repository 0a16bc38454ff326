#include "report/report.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "kernels/error.h"
#include "report/history.h"
#include "report/live.h"
#include "report/page.h"
#include "run/output_file.h"

namespace wobble {

void make_report(const ReportOptions& options) {
    if (options.runs.empty())
        throw UserError(
            "report was given no run; expected one or more run directories; ./train report runs/0001");
    if (!options.live) {
        if (options.output.empty())
            throw UserError("-o is empty; expected a file to write, such as report.html");
        check_output_file("-o", options.output);
    }
    std::vector<History> runs;
    for (const std::string& run : options.runs) runs.emplace_back(run);
    if (options.live) {
        serve_report(runs, options.port);
        return;
    }
    const auto begun = std::chrono::steady_clock::now();
    const bool terminal = isatty(STDERR_FILENO) != 0;
    const auto say = [&](const std::string& what) {
        if (terminal) std::fprintf(stderr, "\r%s\033[K", what.c_str()), std::fflush(stderr);
    };
    const std::string page = report_page(report_title(runs), report_data(runs, false, say));
    say("");
    write_output_file("-o", options.output, page);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    std::printf("report  %s (%.1f MB, made in %.1f s) opens in any browser\n",
                std::filesystem::absolute(options.output).lexically_normal().c_str(),
                double(page.size()) / 1e6, seconds);
}

}  // namespace wobble
