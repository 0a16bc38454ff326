// The command line.
#pragma once

#include "bench/bench.h"
#include "report/report.h"
#include "run/coordcheck.h"
#include "run/options.h"

namespace wobble {

/// Which steps of a run to repeat, and how closely to look.
struct ReplayOptions {
    int64_t step = 0, until = 0;  // until 0: the step alone
    std::string probes = "full", out, device;
};

/// What was asked for on the command line.
struct Command {
    enum class Kind {
        Train,
        Params,
        Plan,
        Sample,
        Eval,
        Events,
        Replay,
        Locate,
        Report,
        Bench,
        CoordCheck,
        Steps,
        Help,
        Version
    } kind = Kind::Train;
    std::string help;  // for Help: the text to print

    Options options;
    bool resume = false;

    // sample, eval and events
    std::string run;
    int64_t checkpoint = -1;  // the newest
    // sample
    std::string prompt = "\n";
    int64_t tokens = 500, top_k = 0;
    double temperature = 0.8;
    uint64_t seed = 1;
    bool json = false;
    std::string definition;  // events: of a spike; empty: list those of the run's own detectors
    ReplayOptions replay;
    int64_t event = 0;  // locate
    ReportOptions report;
    BenchOptions bench;
    CoordCheckOptions coordcheck;
};

/// Reads the command line. With --config, and with --resume, the file's values come first and the flags given
/// change them; a resumed run refuses to change what its past depends on. UserError for anything it cannot
/// accept.
Command parse_command(int argc, const char* const* argv);

/// The options stored in a run's config.toml.
Options read_config(const std::string& path);

}  // namespace wobble
