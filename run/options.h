// The flags of the program, in one table: command line, help, config.toml and what a resumed run may change
// all follow from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

namespace wobble {

struct Options {
    // Data
    std::string data = "synthetic:markov?order=1&vocab=64&seed=1";
    std::vector<std::string> val;  // NAME=SPEC
    double holdout = 0.05;
    int64_t vocab = 0;
    // Model
    int64_t context = 64, layers = 4, heads = 4, channels = 128;
    // Optimizer
    int64_t steps = 1000, batch = 12, accum = 1;
    double lr = 1e-3, final_lr = 0.1;
    std::string schedule = "cosine";
    int64_t warmup = 100, cooldown = 200;
    double weight_decay = 0.1;
    bool decay_everything = false;
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, clip = 1.0;
    std::string on_nonfinite = "stop";
    // Seeds
    uint64_t init_seed = 1, data_seed = 1;
    // Run
    std::string run;
    int64_t eval_every = 250, eval_sequences = 500;
    int64_t checkpoint_every = 500, keep = 2, stop_after = 0, log_every = 0;
    std::string device = "auto";
    int64_t threads = 0;
};

/// What was asked for on the command line.
struct Command {
    enum class Kind { Train, Sample, Eval, Help, Version } kind = Kind::Train;
    std::string help;  // for Help: the text to print

    Options options;
    bool resume = false;

    // sample and eval
    std::string run;
    int64_t checkpoint = -1;  // the newest
    // sample
    std::string prompt = "\n";
    int64_t tokens = 500, top_k = 0;
    double temperature = 0.8;
    uint64_t seed = 1;
    bool json = false;
};

/// Reads the command line. With --config, and with --resume, the file's values come first and the flags given
/// change them; a resumed run refuses to change what its past depends on. UserError for anything it cannot
/// accept.
Command parse_command(int argc, const char* const* argv);

/// The options stored in a run's config.toml.
Options read_config(const std::string& path);

/// All options as TOML, grouped and commented: `./train --config` on it repeats the run.
std::string to_toml(const Options& options);

/// Parts of the options as the modules take them.
ModelConfig model_config(const Options& options, int64_t vocab);
AdamWSettings adamw_settings(const Options& options);
Schedule schedule(const Options& options);
OnNonfinite on_nonfinite(const Options& options);

}  // namespace wobble
