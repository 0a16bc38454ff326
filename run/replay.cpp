#include "run/replay.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "probes/run_writer.h"
#include "run/config_file.h"
#include "run/machine.h"
#include "run/output_file.h"
#include "run/progress.h"

namespace wobble {

namespace fs = std::filesystem;

Replay::Replay(const std::string& run, int64_t step, std::function<void(Options&)> change)
    : run_(run), change_(std::move(change)), looks_from_(step) {
    const int64_t last = run_.last_step();
    if (step < 1 || step > last)
        throw UserError("--step " + std::to_string(step) + ": " + run + " has done " + std::to_string(last) +
                        " steps; expected one of them, the first is 1");
    begin(step - 1);
}

std::unique_ptr<Trainer> Replay::make_trainer(int64_t step) {
    Options options = run_.options(step);
    // A fault that was ordered is not repeated: what differs without it is what it did.
    options.inject.clear();
    options.snapshots = 0;
    options.sharpness_every = options.hessian_every = 0;
    options.holdout = holdout_share(options);  // which depends on whether there is a --val
    options.val.clear();
    options.device = run_.about("device").empty() ? options.device : run_.about("device");
    change_(options);
    changes_at_ = run_.next_configuration(step);
    stops_ = options.on_nonfinite == "stop";
    auto trainer = std::make_unique<Trainer>(options);
    trainer->observe_from(looks_from_);
    return trainer;
}

/// Takes the newest state of at most `steps` steps which the run vouches for.
void Replay::begin(int64_t steps) {
    for (const RecordedRun::Start& start : run_.starts(steps)) {
        const std::string name = start.folder + "/" + checkpoint_name(start.step);
        try {
            auto trainer = make_trainer(start.step + 1);
            trainer->restore(read_snapshot(open_checkpoint(run_.path(), start.step, start.folder.c_str()),
                                           trainer->table()));
            const auto recorded = run_.hashes(start.step).weights;
            if (recorded && *recorded != trainer->weights_hash()) {
                warnings_.push_back(
                    name + " was passed over: its weights are not those that the run had after step " +
                    std::to_string(start.step));
                continue;
            }
            trainer_ = std::move(trainer);
            start_ = name;
            first_step_ = start.step + 1;
            return;
        } catch (const UserError& error) {
            warnings_.push_back(name + " was passed over: " + error.what());
        }
    }
    trainer_ = make_trainer(1);
    start_ = "the initial weights";
    const auto recorded = run_.hashes(0).weights;
    if (recorded && *recorded != trainer_->weights_hash())
        throw UserError(run_.path() +
                        " began with other weights than this program draws from its seed; expected the "
                        "same build on the same kind of machine, or a checkpoint before the step");
}

Replay::Step Replay::step() {
    if (trainer_->steps_done() + 1 >= changes_at_) {  // a resumed run may have gone on otherwise
        Snapshot now;
        trainer_->take_snapshot(now);
        trainer_ = make_trainer(now.at.step + 1);
        trainer_->restore(now);
    }
    const StepRow row = trainer_->step();
    const RecordedRun::Hashes recorded = run_.hashes(row.step);
    Step step{.row = row, .checked = recorded.weights.has_value()};
    if (recorded.batch) step.same_batch = *recorded.batch == row.batch_hash;
    if (recorded.weights) step.same_numbers = *recorded.weights == row.weights_hash;
    if (const auto then = run_.numbers(row.step)) {
        const auto same = [](double a, double b) {
            return a == b || (!std::isfinite(a) && !std::isfinite(b));
        };
        step.same_numbers &= then->finite == row.finite && then->applied == row.applied &&
                             same(then->loss, row.loss) && same(then->grad_norm, row.grad_norm);
    }
    checked_ += step.checked;
    ended_ = !row.finite && stops_;
    return step;
}

std::string explain_difference(Replay& replay, const Replay::Step& step, std::optional<bool> again) {
    const std::string number = std::to_string(step.row.step);
    if (!step.same_batch)
        return "step " + number +
               " reads other tokens than it did in the run: the data have changed since; put them back as "
               "they were";
    std::string text = "step " + number + " begins with the same weights and tokens, and comes out otherwise";
    if (const auto then = replay.run().numbers(step.row.step)) {
        char losses[80];
        std::snprintf(losses, sizeof losses, " (loss %.6g then, %.6g now)", printable(then->loss),
                      printable(step.row.loss));
        text += losses;
    }
    const std::string build = replay.run().about("build");
    const Options recorded = replay.run().options(step.row.step);
    if (!build.empty() && build != build_description())
        return text + ": the run was made by another build (" + build + "; this is " + build_description() +
               "), which may round otherwise; replay it with that one";
    for (const std::string& fault : recorded.inject)
        if (parse_injection(fault).step == step.row.step)
            return text + ": there the run was given a fault, --inject '" + fault +
                   "', which a replay leaves out; it is no consequence of the numbers";
    if (again && !*again)
        return text +
               ", and a second replay differs from the first: this machine does not compute reliably now; "
               "test its memory and processor";
    return text + (again ? ", and a second replay gives what the first gave" : "") +
           ": what the run saw there is no consequence of its numbers, but a fault of the processor or the "
           "memory, "
           "or of this program; the same step on another machine decides";
}

namespace {

/// A directory for what the replay sees, in place of an earlier one of the same steps.
class Output {
  public:
    explicit Output(const std::string& path) : path_(path), hidden_(path + ".new") {
        std::error_code error;
        fs::remove_all(hidden_, error);
        fs::create_directories(hidden_, error);
        if (error)
            throw UserError("cannot write " + path_ + ": " + error.message() +
                            "; choose a directory that can be written to by --out");
    }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;
    ~Output() {
        std::error_code ignored;
        if (!kept_) fs::remove_all(hidden_, ignored);
    }
    std::string working() const { return hidden_; }
    void keep() {
        std::error_code error;
        fs::remove_all(path_, error);
        fs::rename(hidden_, path_, error);
        if (error)
            throw UserError("cannot write " + path_ + ": " + error.message() +
                            "; choose a directory that can be written to by --out");
        kept_ = true;
    }

  private:
    std::string path_, hidden_;
    bool kept_ = false;
};

/// Whether the steps up to and with `last` come out the same once more.
bool repeats(const Command& command, int64_t step, int64_t last, uint64_t weights_hash,
             const std::function<void(Options&)>& change) {
    Replay again(command.run, step, change);
    Replay::Step s{};
    do s = again.step();
    while (s.row.step < last && !again.ended());
    return s.row.weights_hash == weights_hash;
}

}  // namespace

bool run_replay(const Command& command) {
    const ReplayOptions& o = command.replay;
    const int64_t until = o.until > 0 ? o.until : o.step;
    if (until < o.step)
        throw UserError("--until " + std::to_string(until) + " is before --step " + std::to_string(o.step) +
                        "; expected a later step, or none");
    ProbePlan{o.probes};
    Options as_on_the_command_line;
    if (!o.device.empty()) as_on_the_command_line.device = o.device;
    check(as_on_the_command_line);
    std::string out = o.out;
    if (out.empty()) {
        out = command.run + "/replays/step-" + std::to_string(o.step);
        if (until > o.step) out += "-" + std::to_string(until);
    } else if (fs::exists(out)) {
        throw UserError("--out " + out + " exists already; expected a new directory; choose another name");
    }
    const auto quiet = [&](Options& options) {
        options.probes = "off";
        options.threads = command.options.threads;
        if (!o.device.empty()) options.device = o.device;
    };
    const auto watched = [&](Options& options) {
        quiet(options);
        options.probes = o.probes, options.probe_every = 1, options.ring = 0;
    };
    Replay replay(command.run, o.step, watched);
    if (until > replay.run().last_step())
        throw UserError("--until " + std::to_string(until) + ": " + command.run + " has done " +
                        std::to_string(replay.run().last_step()) + " steps; expected one of them");
    Output output(out);
    RunWriter db(output.working() + "/run.db");
    for (const char* key : {"version", "build", "parameters", "vocab", "data", "device", "loss_floor"})
        if (const std::string value = replay.run().about(key); !value.empty()) db.set(key, value);
    const std::string config = to_toml(replay.run().options(o.step));
    db.set("config", config);
    db.set("replay_of", fs::absolute(command.run).string());

    const int64_t first = replay.first_step();
    std::optional<Replay::Step> different;
    {
        WorkProgress progress(double(until - first + 1));
        progress.begin("replaying steps " + std::to_string(first) + " to " + std::to_string(until));
        for (bool going = true; going;) {
            const Replay::Step step = replay.step();
            if (step.row.step >= o.step) {
                db.add_step(step.row, replay.trainer().batch_rows(), replay.trainer().take_observation());
                db.add_events(replay.trainer().events());
            }
            if (!step.same() && !different) different = step;
            progress.done(1);
            // What comes after a difference is another run.
            going = step.row.step < until && !replay.ended() && (!different || step.row.step < o.step);
        }
    }
    for (const std::string& warning : replay.warnings()) std::fprintf(stderr, "note: %s\n", warning.c_str());
    db.flush();
    std::string verdict;
    if (different) {
        std::optional<bool> again;
        if (different->same_batch)
            again = repeats(command, o.step, different->row.step, different->row.weights_hash, quiet);
        verdict = explain_difference(replay, *different, again);
    } else {
        const int64_t steps = replay.trainer().steps_done() - first + 1;
        verdict = replay.checked() == 0
                      ? "the run left no hashes of these steps: nothing proves that they are the same"
                      : "steps " + std::to_string(first) + " to " + std::to_string(until) +
                            " are bit for bit what the run did (" + std::to_string(replay.checked()) +
                            " of " + std::to_string(std::max(steps, replay.checked())) +
                            " held against its hashes)";
    }
    db.set("replay_verdict", verdict);
    db.flush();
    write_output_file("--out", output.working() + "/config.toml", config);
    output.keep();
    if (command.json) {
        nlohmann::ordered_json json = {{"run", command.run},
                                       {"start", replay.start()},
                                       {"first", first},
                                       {"step", o.step},
                                       {"until", until},
                                       {"same", !different},
                                       {"checked", replay.checked()},
                                       {"verdict", verdict},
                                       {"out", out}};
        if (different) json["differs_at"] = different->row.step;
        std::printf("%s\n", json.dump(2).c_str());
    } else {
        std::printf("from %s: %s\n", replay.start().c_str(), verdict.c_str());
        std::printf("what the probes saw is in %s/run.db\n", out.c_str());
    }
    return !different;
}

}  // namespace wobble
