// wobble: a GPT trainer that you can see inside. The program: its commands, and the training loop.

#include <csignal>
#include <cstdio>
#include <exception>

#include "bench/bench.h"
#include "bench/step_server.h"
#include "kernels/error.h"
#include "probes/run_writer.h"
#include "report/report.h"
#include "run/command_line.h"
#include "run/config_file.h"
#include "run/coordcheck.h"
#include "run/evaluate.h"
#include "run/events.h"
#include "run/flight_recorder.h"
#include "run/locate.h"
#include "run/machine.h"
#include "run/params.h"
#include "run/progress.h"
#include "run/replay.h"
#include "run/run_directory.h"
#include "run/trainer.h"

namespace wobble {

namespace {

constexpr const char* version = "0.1";

enum ExitStatus { Done = 0, InternalError = 1, BadInput = 2, NotFinite = 3, Differs = 4, Signalled = 128 };

volatile std::sig_atomic_t caught_signal = 0, ring_wanted = 0;

/// The first Ctrl-C lets the step finish and be saved; the second has its usual effect.
void on_signal(int signal) {
    caught_signal = signal;
    std::signal(signal, SIG_DFL);
}

/// SIGUSR1 asks for the moments of the last steps.
void on_request(int) {
    ring_wanted = 1;
}

void describe_run(RunWriter& db, const Trainer& trainer, const Options& options) {
    db.set("version", version);
    db.set("build", build_description());
    db.set("parameters", std::to_string(trainer.parameter_count()));
    db.set("vocab", std::to_string(trainer.data().vocab()));
    db.set("data", options.data);
    db.set("config", to_toml(options));
    db.set("device", trainer.device() == Device::Cuda ? "cuda" : "cpu");
    if (trainer.data().loss_floor()) db.set("loss_floor", std::to_string(*trainer.data().loss_floor()));
}

int train(Command command) {
    Options& options = command.options;
    Trainer trainer(options);
    const RunDirectory run = command.resume ? RunDirectory::open(options.run) : RunDirectory::create(options);
    std::vector<std::string> warnings;
    if (command.resume) {
        warnings = trainer.resume(run.path());
        if (trainer.steps_done() > options.steps) {
            throw UserError("--steps " + std::to_string(options.steps) +
                            " is behind the run, which has done " + std::to_string(trainer.steps_done()) +
                            "; choose at least as many");
        }
        run.write_config(options);
    }
    RunWriter db(run.database());
    db.forget_after(trainer.steps_done());
    describe_run(db, trainer, options);
    db.set_config(trainer.steps_done(), to_toml(options), trainer.weights_hash());
    FlightRecorder flight(options, run.path());

    const int64_t last = options.stop_after > 0 ? std::min(options.stop_after, options.steps) : options.steps;
    Progress progress(trainer.steps_done(), last, options.log_every);
    for (const std::string& warning : warnings) progress.say("warning: " + warning);
    progress.say(trainer.describe() + "run     " + run.path() +
                 (trainer.steps_done() > 0 ? ", from step " + std::to_string(trainer.steps_done()) : ""));
    const auto evaluate = [&] {
        for (const EvalRow& row : trainer.evaluate()) {
            db.add_eval(row);
            char text[160];
            std::snprintf(text, sizeof text, "step %lld: %s loss %.4f (%s tokens, %.1f s)",
                          static_cast<long long>(row.step), row.name.c_str(), printable(row.loss),
                          with_commas(row.tokens).c_str(), row.seconds);
            progress.say(text);
        }
    };
    const auto save = [&] {
        db.flush();
        if (!trainer.weights_are_finite()) return;  // the last good one stays in use
        trainer.write_checkpoint(run.path(), int(options.keep));
    };
    std::signal(SIGINT, on_signal);
    std::signal(SIGTERM, on_signal);
    std::signal(SIGUSR1, on_request);

    int64_t saved = trainer.steps_done(), evaluated = -1;
    while (trainer.steps_done() < last && !caught_signal) {
        flight.before_step(trainer);
        const StepRow row = trainer.step();
        db.add_step(row, trainer.batch_rows(), trainer.take_observation());
        db.add_events(trainer.events());
        progress.step(row);
        for (const Event& event : trainer.events()) progress.event(event);
        if (const std::string kept = flight.after_step(trainer, db, row.step); !kept.empty())
            progress.say(kept);
        if (ring_wanted) ring_wanted = 0, db.add_ring(trainer.take_ring());
        if (!row.finite && options.on_nonfinite == "stop") break;
        const int64_t step = trainer.steps_done();
        if (options.eval_every > 0 && step % options.eval_every == 0 && step < last)
            evaluate(), evaluated = step;
        if (options.checkpoint_every > 0 && step % options.checkpoint_every == 0) save(), saved = step;
    }

    db.add_ring(trainer.take_ring());
    const bool complete = trainer.steps_done() == last && trainer.weights_are_finite();
    if (saved < trainer.steps_done()) save();
    if (complete && evaluated != last) evaluate();
    db.flush();
    progress.say("run     " + run.path() + " holds step " + std::to_string(trainer.steps_done()) + " of " +
                 std::to_string(options.steps) +
                 (trainer.steps_done() < options.steps ? "; go on with ./train --resume " + run.path() : ""));
    if (complete) return Done;
    return caught_signal ? Signalled + caught_signal : NotFinite;
}

int run(int argc, char** argv) {
    const Command command = parse_command(argc, argv);
    switch (command.kind) {
        case Command::Kind::Train:
            return train(command);
        case Command::Kind::Params:
            print_parameters(command.options);
            return Done;
        case Command::Kind::Plan:
            print_plan(command.options);
            return Done;
        case Command::Kind::Sample:
            run_sampling(command);
            return Done;
        case Command::Kind::Eval:
            run_evaluation(command);
            return Done;
        case Command::Kind::Events:
            list_events(command);
            return Done;
        case Command::Kind::Replay:
            return run_replay(command) ? Done : Differs;
        case Command::Kind::Locate:
            run_locate(command);
            return Done;
        case Command::Kind::Report:
            make_report(command.report);
            return Done;
        case Command::Kind::Bench:
            run_bench(command.bench);
            return Done;
        case Command::Kind::Steps:
            serve_steps(command.options);
            return Done;
        case Command::Kind::CoordCheck:
            run_coordcheck(command);
            return Done;
        case Command::Kind::Help:
            std::fputs(command.help.c_str(), stdout);
            return Done;
        case Command::Kind::Version:
            std::printf("wobble %s (%s)\n", version, build_description());
            return Done;
    }
    return Done;
}

}  // namespace

}  // namespace wobble

int main(int argc, char** argv) {
    wobble::sleep_while_waiting(argv);
    try {
        return wobble::run(argc, argv);
    } catch (const wobble::UserError& error) {
        std::fprintf(stderr, "train: %s\n", error.what());
        return wobble::BadInput;
    } catch (const std::bad_alloc&) {
        std::fprintf(stderr, "train: not enough memory; choose a smaller --batch, --context or model\n");
        return wobble::BadInput;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "train: %s\n", error.what());
        return wobble::InternalError;
    }
}
