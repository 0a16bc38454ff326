// The table of options: name, place in Options, whether a resumed run may change it, what it means. Command
// line, help, config.toml and the check on resume are visitors of it.
#pragma once

#include "model/family.h"
#include "run/options.h"

namespace wobble {

namespace detail {

/// A choice of the model as one of the program's options.
template <class Visit>
struct VisitChoice {
    Visit& visit;

    void group(const char* title) { visit.group(title); }
    template <class T>
    void operator()(const char* name, T& value, const char* what, const char* source, const Others&) {
        const std::string help = std::string(what) + (*source ? std::string(" [") + source + "]" : "");
        visit(name, value, OnResume::Fixed, help.c_str());
    }
};

}  // namespace detail

/// The table. `visit.group(title)` starts a group; `visit(name, value, on_resume, help)` is one option.
template <class O, class Visit>
void for_each_option(O& o, Visit&& visit) {
    using enum OnResume;
    visit.group("Data");
    visit(
        "data", o.data, Fixed,
        "What to train on: text:GLOB (bytes), tokens:GLOB (shards), synthetic:markov?order=K&vocab=V&seed=S, "
        "or a mixture 0.8*text:a.txt+0.2*text:b.txt");
    visit("val", o.val, Free, "NAME=SPEC of held-out data; may be given several times");
    visit("holdout", o.holdout, Fixed,
          "Share of every source of --data kept for evaluation; -1: 0.05 without --val, 0 with it");
    visit("vocab", o.vocab, Fixed, "Vocabulary V of token shards; 0: 50257");

    for_each_choice(o.model, detail::VisitChoice<std::remove_reference_t<Visit>>{visit});

    visit.group("Precision");
    visit("precision", o.precision, Fixed,
          "What weights and activations are stored in: fp32, or bf16 beside float32 master weights, "
          "which are rounded to nearest, or in bf16-stochastic to either side");

    visit.group("Seeds");
    visit("init-seed", o.init_seed, Fixed, "Seed of the initial weights");
    visit("data-seed", o.data_seed, Fixed, "Seed of the order of the data");

    visit.group("Optimizer (AdamW)");
    visit("steps", o.steps, Free, "Steps of the whole plan; the schedule ends there");
    visit("batch", o.batch, Fixed, "Sequences in a micro-batch, B");
    visit("accum", o.accum, Fixed, "Micro-batches whose gradients make one step");
    visit("lr", o.lr, Free, "Highest learning rate");
    visit("final-lr", o.final_lr, Free, "Learning rate at the end of the schedule, as a share of --lr");
    visit("schedule", o.schedule, Free, "constant, linear, cosine, wsd or inverse_sqrt");
    visit("warmup", o.warmup, Free, "Steps of linear warm-up");
    visit("cooldown", o.cooldown, Free, "Last steps in which the wsd schedule falls");
    visit("weight-decay", o.weight_decay, Free, "Decoupled weight decay, on matrices and embeddings");
    visit("decay-everything", o.decay_everything, Free, "Decay gains and biases too");
    visit("beta1", o.beta1, Free, "Decay of the first moment");
    visit("beta2", o.beta2, Free, "Decay of the second moment");
    visit("epsilon", o.epsilon, Free, "Added to the root of the second moment");
    visit("clip", o.clip, Free, "Largest gradient norm; 0: no clipping");
    visit("on-nonfinite", o.on_nonfinite, Free,
          "When loss or gradient is not finite: stop, skip the update, or continue");

    visit.group("Run");
    visit("run", o.run, Fixed, "Directory of the run; empty: runs/NNNN, the next free number");
    visit("eval-every", o.eval_every, Free, "Steps between evaluations; 0: only at the end");
    visit("eval-sequences", o.eval_sequences, Free, "Sequences of held-out data in each evaluation; 0: all");
    visit("checkpoint-every", o.checkpoint_every, Free, "Steps between checkpoints; 0: only at the end");
    visit("keep", o.keep, Free, "Checkpoints kept; 0: all");
    visit("stop-after", o.stop_after, Free, "Leave cleanly after this step of a longer plan; 0: at the end");
    visit("log-every", o.log_every, Free,
          "Print a line every so many steps; 0: a live line on a terminal, some forty lines elsewhere");

    visit.group("Observation");
    visit("probes", o.probes, Free,
          "Statistics in run.db: off, moments or full (with histograms), for all sites or by pattern: "
          "full:h.*.attn.*,moments:*");
    visit("probe-every", o.probe_every, Free, "Steps between recorded ones; step 1 is recorded");
    visit("ring", o.ring, Free,
          "Last steps whose moments are kept in memory, every one, where --probes looks; written to run.db "
          "when "
          "something is not finite, on SIGUSR1 and at the end; 0: none");
    visit("spectra", o.spectra, Free,
          "Sites, by pattern, whose sampled activations get an effective rank where they are watched at tier "
          "full");
    visit("distance-from-init", o.distance_from_init, Free,
          "Record how far each tensor is from where it started");
    visit(
        "noise-scale", o.noise_scale, Free,
        "Record the gradient noise scale, from the micro-batches of recorded steps; needs --accum 2 or more");
    visit("example-norms", o.example_norms, Free,
          "Record the gradient norm of each sequence with respect to the norms' gains and biases");
    visit("sharpness-every", o.sharpness_every, Free,
          "Steps between measurements of the critical sharpness, some 6 forward passes each; 0: none");
    visit("hessian-every", o.hessian_every, Free,
          "Steps between measurements of the Hessian's largest eigenvalues, up to 120 passes each; 0: none");
    visit("snapshot-every", o.snapshot_every, Free,
          "Steps between snapshots of weights and moments, which an alarm keeps in RUN/snapshots for replay; "
          "0: "
          "none");
    visit("snapshots", o.snapshots, Free,
          "The newest snapshots held; each takes three times the weights; 0: none");
    visit("snapshot-to", o.snapshot_to, Free,
          "memory, or disk: slower, but still there for replay when the process was killed");
    visit("inject", o.inject, Free,
          "A fault, to try alarms on: 'nan@step=50,site=h.2.mlp.fc,row=3'; or inf, bitflip, scale=X; with "
          "phase=forward, backward or update; several may be given");

    visit.group("Machine");
    visit("recompute", o.model.recompute, Free,
          "Make activations again for backward rather than keep them: less memory, up to a third more work, "
          "the same bits");
    visit("device", o.device, Free, "auto (a GPU where there is one), cpu or cuda");
    visit("matmul-precision", o.matmul_precision, Free,
          "What factors of float32 products are rounded to on CUDA: fp32, tf32 or bf16");
    visit("cuda-graph", o.cuda_graph, Free,
          "Launch each step as one CUDA graph on a GPU, which takes the host less time; the same bits");
    visit("threads", o.threads, Free, "CPU threads; 0: one per physical core. Results do not depend on it");
}

}  // namespace wobble
