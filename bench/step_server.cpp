#include "bench/step_server.h"

#include <sys/resource.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/roof.h"
#include "bench/timings.h"
#include "kernels/error.h"
#include "run/machine.h"
#include "run/trainer.h"

namespace wobble {

namespace {

void answer(const nlohmann::json& line) {
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
}

int64_t peak_bytes() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return int64_t(usage.ru_maxrss) * 1024;
}

int64_t step_count(const std::string& line) {
    size_t used = 0;
    long long count = 0;
    try {
        count = std::stoll(line, &used);
    } catch (const std::exception&) {
        used = 0;
    }
    if (used == 0 || used != line.size() || count < 1)
        throw UserError("'" + line + "' on standard input; expected a number of steps, or roof");
    return count;
}

}  // namespace

void serve_steps(const Options& options) {
    const int threads = options.threads > 0 ? int(options.threads) : usable_cores();
    Trainer trainer(options);
    const ModelConfig config = model_config(options, trainer.data().vocab());
    const ParameterTable table(config);
    const int64_t tokens = options.batch * options.accum * config.context;
    answer({{"parameters", table.count()},
            {"tokens", tokens},
            {"flops", bench::flops_per_token(config, table) * double(tokens)}});
    for (std::string line; std::getline(std::cin, line);) {
        if (line == "roof") {
            answer({{"float32", bench::multiply_add_peak(threads, Precision::Float32)},
                    {"bfloat16", bench::multiply_add_peak(threads, Precision::Bfloat16)}});
            continue;
        }
        std::vector<double> seconds;
        for (int64_t i = step_count(line); i > 0; --i) {
            seconds.push_back(trainer.step().seconds);
            trainer.take_observation();
        }
        answer({{"seconds", seconds}, {"peak_bytes", peak_bytes()}});
    }
}

}  // namespace wobble
