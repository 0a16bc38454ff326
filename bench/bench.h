// ./train bench: what every kernel and whole training steps cost, bare and watched, as shares of what this
// machine shows that it can do in the same run.
#pragma once

#include <cstdint>
#include <string>

namespace wobble {

struct BenchOptions {
    std::string json;             // file for every number; empty: none
    std::string device = "auto";  // auto, cpu or cuda
    std::string kernels;          // shell patterns, comma-separated; empty: all
    int64_t threads = 0;          // 0: one per physical core
    bool steps_only = false, kernels_only = false;
    bool quick = false;  // a fifth of the time, and noisier
};

/// UserError when the options contradict each other, or name no kernel, or a file that cannot be written.
void check(const BenchOptions& options);

/// Measures, and prints a table to stdout; progress goes to stderr when that is a terminal. Options must have
/// passed `check`. UserError when the JSON file cannot be written after all.
void run_bench(const BenchOptions& options);

}  // namespace wobble
