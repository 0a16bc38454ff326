#include "run/options.h"

#include "kernels/error.h"
#include "probes/recorder.h"
#include "run/config_file.h"
#include "run/injection.h"
#include "run/option_table.h"

namespace wobble {

namespace {

struct ListValues {
    std::vector<OptionValue> items;

    void group(const char*) {}
    template <class T>
    void operator()(const char* name, const T& value, OnResume on_resume, const char*) {
        items.push_back({name, toml_value(value), on_resume});
    }
};

}  // namespace

void check(const Options& o) {
    const auto refuse_if = [](bool bad, const std::string& message) {
        if (bad) throw UserError(message);
    };
    const auto at_least = [&](int64_t value, int64_t least, const std::string& flag) {
        refuse_if(value < least,
                  flag + " is " + std::to_string(value) + "; expected at least " + std::to_string(least));
    };
    const auto within = [&](double value, double low, double high, const std::string& flag) {
        refuse_if(!(value >= low && value < high), flag + " is " + toml_value(value) +
                                                       "; expected at least " + toml_value(low) +
                                                       " and less than " + toml_value(high));
    };
    at_least(o.steps, 1, "--steps"), at_least(o.batch, 1, "--batch"), at_least(o.accum, 1, "--accum");
    at_least(o.warmup, 0, "--warmup"), at_least(o.cooldown, 0, "--cooldown"), at_least(o.vocab, 0, "--vocab");
    at_least(o.eval_every, 0, "--eval-every"), at_least(o.eval_sequences, 0, "--eval-sequences");
    at_least(o.checkpoint_every, 0, "--checkpoint-every"), at_least(o.keep, 0, "--keep");
    at_least(o.stop_after, 0, "--stop-after"), at_least(o.log_every, 0, "--log-every");
    at_least(o.threads, 0, "--threads"), at_least(o.probe_every, 1, "--probe-every");
    at_least(o.ring, 0, "--ring"), at_least(o.sharpness_every, 0, "--sharpness-every");
    at_least(o.hessian_every, 0, "--hessian-every");
    at_least(o.snapshot_every, 0, "--snapshot-every"), at_least(o.snapshots, 0, "--snapshots");
    refuse_if(o.snapshot_to != "memory" && o.snapshot_to != "disk",
              "--snapshot-to " + o.snapshot_to + " is unknown; expected memory or disk");
    for (const std::string& fault : o.inject) {
        const int64_t micro = parse_injection(fault).injection.micro;
        refuse_if(micro >= o.accum, "--inject '" + fault + "': a step has " + std::to_string(o.accum) +
                                        " micro-batches; expected micro below that");
    }
    ProbePlan{o.probes};
    within(o.lr, 0, 1e6, "--lr"), within(o.final_lr, 0, 1.0001, "--final-lr"),
        within(holdout_share(o), 0, 1, "--holdout");
    within(o.beta1, 0, 1, "--beta1"), within(o.beta2, 0, 1, "--beta2"), within(o.epsilon, 0, 1, "--epsilon");
    within(o.weight_decay, 0, 1e6, "--weight-decay"), within(o.clip, 0, 1e30, "--clip");
    check(model_config(o, 1));
    ParameterTable{model_config(o, 1)};
    const bool looks_around = o.sharpness_every > 0 || o.hessian_every > 0;
    refuse_if(
        looks_around && o.precision != Precision::Float32,
        std::string(o.hessian_every > 0 ? "--hessian-every" : "--sharpness-every") +
            " takes differences of weights, which bf16 would round away; choose --precision fp32 or leave it "
            "out");
    schedule_shape(o.schedule);
    on_nonfinite(o), matmul_precision(o);
    refuse_if(o.device != "auto" && o.device != "cpu" && o.device != "cuda",
              "--device " + o.device + " is unknown; expected auto, cpu or cuda");
    for (const std::string& v : o.val) {
        const size_t equals = v.find('='), colon = v.find(':');
        refuse_if(equals == 0 || equals == std::string::npos || colon < equals,
                  "--val " + v + " has no name; expected NAME=SPEC, for example held_out=text:FILE");
    }
}

double holdout_share(const Options& o) {
    return o.holdout >= 0 ? o.holdout : o.val.empty() ? 0.05 : 0;
}

ModelConfig model_config(const Options& o, int64_t vocab) {
    ModelConfig config = o.model;
    config.vocab = vocab;
    return config;
}

AdamWSettings adamw_settings(const Options& o) {
    return {.beta1 = o.beta1,
            .beta2 = o.beta2,
            .epsilon = o.epsilon,
            .weight_decay = o.weight_decay,
            .decay_everything = o.decay_everything,
            .clip = o.clip};
}

Schedule schedule(const Options& o) {
    return {.shape = schedule_shape(o.schedule),
            .lr = o.lr,
            .minimum = o.lr * o.final_lr,
            .steps = o.steps,
            .warmup = o.warmup,
            .cooldown = o.cooldown};
}

OnNonfinite on_nonfinite(const Options& o) {
    if (o.on_nonfinite == "stop") return OnNonfinite::Stop;
    if (o.on_nonfinite == "skip") return OnNonfinite::Skip;
    if (o.on_nonfinite == "continue") return OnNonfinite::Continue;
    throw UserError("--on-nonfinite " + o.on_nonfinite + " is unknown; expected stop, skip or continue");
}

MatmulPrecision matmul_precision(const Options& o) {
    if (o.matmul_precision == "fp32") return MatmulPrecision::Float32;
    if (o.matmul_precision == "tf32") return MatmulPrecision::Tf32;
    if (o.matmul_precision == "bf16") return MatmulPrecision::Bfloat16;
    throw UserError("--matmul-precision " + o.matmul_precision + " is unknown; expected fp32, tf32 or bf16");
}

std::vector<OptionValue> values_of(const Options& options) {
    ListValues list;
    for_each_option(options, list);
    return list.items;
}

}  // namespace wobble
