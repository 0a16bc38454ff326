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
    double holdout = -1;           // negative: 0.05 without --val, 0 with it
    int64_t vocab = 0;
    ModelConfig model;  // but for its vocabulary, which the data decides
    // Optimizer
    int64_t steps = 1000, batch = 12, accum = 1;
    double lr = 1e-3, final_lr = 0.1;
    std::string schedule = "cosine";
    int64_t warmup = 100, cooldown = 200;
    double weight_decay = 0.1;
    bool decay_everything = false;
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, clip = 1.0;
    std::string on_nonfinite = "stop";
    // Precision
    Precision precision = Precision::Float32;
    // Seeds
    uint64_t init_seed = 1, data_seed = 1;
    // Run
    std::string run;
    int64_t eval_every = 250, eval_sequences = 500;
    int64_t checkpoint_every = 500, keep = 2, stop_after = 0, log_every = 0;
    std::string probes = "off";
    int64_t probe_every = 10, ring = 256;
    std::string spectra;
    bool distance_from_init = false, noise_scale = false, example_norms = false;
    int64_t sharpness_every = 0, hessian_every = 0;
    int64_t snapshot_every = 100, snapshots = 2;
    std::string snapshot_to = "memory";
    std::vector<std::string> inject;
    std::string device = "auto", matmul_precision = "fp32";
    bool cuda_graph = false;
    int64_t threads = 0;
};

/// Throws UserError when the options contradict each other or themselves.
void check(const Options& options);

/// Whether a resumed run may change an option: `Fixed` ones decide what the steps before it did.
enum class OnResume { Fixed, Free };

struct OptionValue {
    std::string name, value;  // value as in TOML
    OnResume on_resume;
};
/// All options, in the order of the table.
std::vector<OptionValue> values_of(const Options& options);

/// The share of --data that is kept for evaluation.
double holdout_share(const Options& options);

/// Parts of the options as the modules take them.
ModelConfig model_config(const Options& options, int64_t vocab);
AdamWSettings adamw_settings(const Options& options);
Schedule schedule(const Options& options);
OnNonfinite on_nonfinite(const Options& options);
MatmulPrecision matmul_precision(const Options& options);

}  // namespace wobble
