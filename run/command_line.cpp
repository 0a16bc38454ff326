#include "run/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "kernels/error.h"
#include "model/presets.h"
#include "run/config_file.h"
#include "run/nearest.h"
#include "run/option_table.h"

namespace wobble {

namespace {

/// Adds every option of the table to a command-line parser.
struct AddFlags {
    CLI::App& app;
    std::string title;

    void group(const char* name) { title = name; }
    template <class T>
    void operator()(const char* name, T& value, OnResume, const char* help) {
        app.add_option("--" + std::string(name), value, help)
            ->group(title)
            ->capture_default_str()
            ->take_last();
    }
    template <class Choice>
    requires std::is_enum_v<Choice>
    void operator()(const char* name, Choice& value, OnResume, const char* help) {
        const auto set = [&value, flag = "--" + std::string(name)](const std::string& word) {
            value = choice_of<Choice>(flag, word);
        };
        app.add_option_function<std::string>("--" + std::string(name), set, help)
            ->group(title)
            ->default_str(words<Choice>()[size_t(value)])
            ->take_last();
    }
    void operator()(const char* name, bool& value, OnResume, const char* help) {
        app.add_flag("--" + std::string(name) + ",!--no-" + name, value, help)->group(title);
    }
    void operator()(const char* name, std::vector<std::string>& value, OnResume, const char* help) {
        app.add_option("--" + std::string(name), value, help)->group(title)->take_all();
    }
};

/// CLI11's complaint as one line with a remedy.
[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& error,
                         const std::vector<std::string>& arguments, const std::string& where) {
    if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
        std::vector<std::string> names;
        for (const CLI::Option* option : app.get_options()) {
            for (const std::string& name : option->get_lnames()) names.push_back(name);
        }
        for (const std::string& argument : arguments) {
            if (argument.rfind("--", 0) != 0) continue;
            const std::string name = argument.substr(2, argument.find('=') - 2);
            if (std::find(names.begin(), names.end(), name) != names.end()) continue;
            const std::string close = nearest(name, names);
            throw UserError(where + "--" + name + " is not a flag" +
                            (close.empty() ? "; --help lists the flags" : "; did you mean --" + close + "?"));
        }
    }
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    throw UserError(where + message + "; --help lists the flags");
}

std::string preset_names() {
    std::vector<std::string> names;
    for (const Preset& p : presets()) names.push_back(p.name);
    return listed(names);
}

/// The flags of training, with those that are not part of the configuration.
struct TrainFlags {
    std::string preset, config, resume;
    int64_t seed = -1;
    bool plan = false;
    CoordCheckOptions* coordcheck = nullptr;  // its flags besides, and the sizes that they vary left out

    void add(CLI::App& app, Options& options) {
        for_each_option(options, AddFlags{app, ""});
        app.add_option("--seed", seed, "Sets --init-seed and --data-seed")->group("Run");
        app.add_option("--preset", preset,
                       "Choices of the model by name, before the other flags: " + preset_names())
            ->group("Run");
        app.add_option("--config", config, "A config.toml whose values come before the other flags")
            ->group("Run");
        if (coordcheck) {
            add_coordcheck(app);
            return;
        }
        app.add_option("--resume", resume, "Continue the run in this directory from its newest checkpoint")
            ->group("Run");
        app.add_flag("--plan", plan, "Only print what memory training would take, without taking it")
            ->group("Run");
    }
    void add_coordcheck(CLI::App& app) const {
        for (const char* varied : {"--channels", "--layers", "--heads"})
            app.remove_option(app.get_option(varied));
        CoordCheckOptions& c = *coordcheck;
        const auto flag = [&](const char* name, auto& value, const char* help) {
            app.add_option(name, value, help)->group("Coordinate check")->capture_default_str()->take_last();
        };
        flag("--widths", c.widths,
             "Channels of the models: two or more, ascending, compared at the first depth");
        flag("--depths", c.depths,
             "Layers of the models: two or more, ascending, compared at the first width");
        flag("--head-size", c.head_size, "Channels of a head, at every width");
        flag("--seeds", c.seeds, "Repetitions with other initial weights and another batch, for an interval");
        flag("--json", c.json, "File for every number");
        flag("--out", c.out, "SVG file for the picture; empty: none");
    }
};

/// Of training, or of what takes its flags.
Command parse_train(CLI::App& root, const std::vector<std::string>& arguments, Command::Kind kind) {
    Command command;
    command.kind = kind;
    const bool coordcheck = kind == Command::Kind::CoordCheck;
    // First what the command line says by itself, then the file it names, then the command line over the
    // file.
    Options given;
    TrainFlags flags;
    if (coordcheck) flags.coordcheck = &command.coordcheck;
    CLI::App first("", "train");
    flags.add(first, given);
    const auto parse = [&](CLI::App& app) {
        std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
        try {
            app.parse(reversed);
        } catch (const CLI::ParseError& error) {
            refuse(root, error, arguments, "");
        }
    };
    first.set_help_flag();
    parse(first);
    if (!flags.resume.empty() && !flags.config.empty()) {
        throw UserError(
            "--resume and --config were both given; a resumed run has its own configuration; leave --config "
            "out");
    }

    if (kind == Command::Kind::Steps && !flags.resume.empty()) {
        throw UserError(
            "steps takes no --resume, since its steps are thrown away; a configuration is read by "
            "--config " +
            flags.resume + "/config.toml");
    }

    Options& options = command.options;
    if (coordcheck) options = coordcheck_defaults();
    const std::string file = flags.resume.empty() ? flags.config : flags.resume + "/config.toml";
    if (!flags.resume.empty() && !std::filesystem::exists(file)) {
        throw UserError("--resume " + flags.resume +
                        " holds no run (no config.toml); expected the directory of a run; "
                        "without --resume a new run is started");
    }
    if (!file.empty()) options = coordcheck ? coordcheck_defaults(read_config(file)) : read_config(file);
    const Options stored = options;
    if (!flags.preset.empty()) apply(preset(flags.preset), options.model);
    CLI::App second("", "train");
    second.set_help_flag();
    flags.add(second, options);
    if (second.get_option("--val")->count() == 0 && first.get_option("--val")->count() > 0)
        options.val.clear();
    if (first.get_option("--inject")->count() > 0) options.inject.clear();
    parse(second);
    if (flags.seed >= 0) options.init_seed = options.data_seed = uint64_t(flags.seed);
    if (!flags.resume.empty()) {
        command.resume = true;
        options.run = stored.run;
        const auto before = values_of(stored), after = values_of(options);
        for (size_t i = 0; i < before.size(); ++i) {
            if (before[i].on_resume == OnResume::Fixed && before[i].value != after[i].value) {
                throw UserError("--" + before[i].name + " is " + after[i].value +
                                " but the run was started with " + before[i].value +
                                "; a resumed run keeps it; start a new run to change it");
            }
        }
        options.run = flags.resume;
        // --stop-after is a wish for one sitting, not part of the plan.
        if (first.get_option("--stop-after")->count() == 0) options.stop_after = 0;
        // A fault that was ordered has been seen.
        if (first.get_option("--inject")->count() == 0) options.inject.clear();
    }
    check(options);
    if (coordcheck) check(command.coordcheck, options);
    if (flags.plan) command.kind = Command::Kind::Plan;
    return command;
}

}  // namespace

Command parse_command(int argc, const char* const* argv) {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    Command command;

    CLI::App app(
        "wobble: a GPT trainer that you can see inside.\n"
        "Usage: ./train [train] [flags] | ./train params [flags] | ./train sample RUN | ./train eval RUN | "
        "./train events RUN | ./train replay RUN --step N | ./train locate RUN --event N | ./train "
        "report RUN... | ./train coordcheck [flags] | ./train bench | ./train steps [flags]\n",
        "./train");
    app.set_version_flag("--version", std::string(""));
    Options unused;
    TrainFlags train_flags;
    train_flags.add(app, unused);
    CLI::App coordcheck("How sizes in the model follow width and depth, and what training makes of that.",
                        "./train coordcheck");
    Options few_steps = coordcheck_defaults();
    TrainFlags coordcheck_flags;
    coordcheck_flags.coordcheck = &command.coordcheck;
    coordcheck_flags.add(coordcheck, few_steps);

    CLI::App sample("Continue a prompt with a trained model.", "./train sample");
    sample.add_option("RUN", command.run, "Directory of the run")->required();
    sample.add_option("--prompt", command.prompt, "Text to continue");
    sample.add_option("--tokens", command.tokens, "Tokens to write")->capture_default_str();
    sample.add_option("--temperature", command.temperature, "Divides the logits; 0: always the likeliest")
        ->capture_default_str();
    sample.add_option("--top-k", command.top_k, "Choose among the k likeliest; 0: among all")
        ->capture_default_str();
    sample.add_option("--seed", command.seed, "Same seed, same text")->capture_default_str();
    CLI::App evaluate("Evaluate a trained model.", "./train eval");
    evaluate.add_option("RUN", command.run, "Directory of the run")->required();
    evaluate.add_option("--val", command.options.val, "NAME=SPEC; default: the held-out data of the run")
        ->take_all();
    evaluate.add_option("--eval-sequences", command.options.eval_sequences, "Sequences; 0: all")
        ->capture_default_str();
    evaluate.add_flag("--json", command.json, "Write JSON");
    CLI::App events("What detectors found in a run, or what a published definition of a spike finds in it.",
                    "./train events");
    events.add_option("RUN", command.run, "Directory of the run")->required();
    events.add_option("--definition", command.definition,
                      "Of a spike: olmo2, olmo-core, olmo-core-skip, llm.c, zclip, spam, megatron or all");
    events.add_flag("--json", command.json, "Write JSON");
    CLI::App replay("Repeat steps of a run bit for bit, with probes, and hold them against its hashes.",
                    "./train replay");
    replay.add_option("RUN", command.run, "Directory of the run")->required();
    replay.add_option("--step", command.replay.step, "The first step to look at")->required();
    replay.add_option("--until", command.replay.until, "The last one; 0: the first alone");
    replay.add_option("--probes", command.replay.probes, "off, moments or full, for all sites or by pattern")
        ->capture_default_str();
    replay.add_option("--out", command.replay.out, "Directory for what is seen; default: RUN/replays/step-N");
    replay.add_option("--device", command.replay.device, "auto, cpu or cuda; default: that of the run");
    CLI::App locate(
        "Where an event began: the first kernel whose output is out of bounds while its inputs are not.",
        "./train locate");
    locate.add_option("RUN", command.run, "Directory of the run")->required();
    locate.add_option("--event", command.event, "Its number, as ./train events lists it")->required();
    for (CLI::App* sub : {&replay, &locate}) {
        sub->add_option("--threads", command.options.threads, "CPU threads; 0: one per physical core")
            ->capture_default_str();
        sub->add_flag("--json", command.json, "Write JSON");
    }
    CLI::App report("What happened in runs: one HTML file that opens anywhere.", "./train report");
    report.add_option("RUN", command.report.runs, "Directories of one or more runs");
    report.add_option("-o,--output", command.report.output, "The file to write")->capture_default_str();
    report.add_flag("--live", command.report.live,
                    "Serve the report on this machine, renewed while runs go on, in place of writing it");
    report.add_option("--port", command.report.port, "Of --live; 0: 8080, or the next that is free")
        ->check(CLI::Range(0, 65535))
        ->capture_default_str();
    CLI::App bench("Time kernels and whole steps, bare and watched.", "./train bench");
    bench.add_option("--json", command.bench.json, "File for every number");
    bench.add_option("--kernels", command.bench.kernels,
                     "Which kernels, by pattern: 'layernorm*,product/mlp.*'; default: all");
    bench.add_option("--device", command.bench.device, "auto (a GPU where there is one), cpu or cuda")
        ->capture_default_str();
    bench.add_option("--threads", command.bench.threads, "CPU threads; 0: one per physical core")
        ->capture_default_str();
    bench.add_flag("--kernels-only", command.bench.kernels_only, "No whole steps");
    bench.add_flag("--steps-only", command.bench.steps_only, "No kernels");
    bench.add_flag("--quick", command.bench.quick, "A few seconds, without other programs; noisier");
    for (CLI::App* sub : {&sample, &evaluate}) {
        sub->add_option("--checkpoint", command.checkpoint, "Step of the checkpoint; -1: the newest")
            ->capture_default_str();
        sub->add_option("--threads", command.options.threads, "CPU threads; 0: one per physical core")
            ->capture_default_str();
    }

    const std::string word = arguments.empty() ? "" : arguments[0];
    const bool wants_help = std::any_of(arguments.begin(), arguments.end(),
                                        [](const std::string& a) { return a == "--help" || a == "-h"; });
    if (word == "--version") {
        command.kind = Command::Kind::Version;
        return command;
    }
    CLI::App* sub = word == "sample"   ? &sample
                    : word == "eval"   ? &evaluate
                    : word == "events" ? &events
                    : word == "replay" ? &replay
                    : word == "locate" ? &locate
                    : word == "report" ? &report
                    : word == "bench"  ? &bench
                                       : nullptr;
    const bool params = word == "params", checks = word == "coordcheck", steps = word == "steps";
    if (sub || params || checks || steps || word == "train") arguments.erase(arguments.begin());
    else if (!word.empty() && word[0] != '-') {
        throw UserError(
            "'" + word +
            "' is not a command; expected train, params, sample, eval, events, replay, locate, report, "
            "coordcheck, bench or steps; "
            "--help lists the flags");
    }
    if (wants_help) {
        command.kind = Command::Kind::Help;
        command.help = (sub ? sub : checks ? &coordcheck : &app)->help();
        return command;
    }
    if (!sub) {
        return parse_train(checks ? coordcheck : app, arguments,
                           params   ? Command::Kind::Params
                           : checks ? Command::Kind::CoordCheck
                           : steps  ? Command::Kind::Steps
                                    : Command::Kind::Train);
    }

    command.kind = sub == &sample     ? Command::Kind::Sample
                   : sub == &evaluate ? Command::Kind::Eval
                   : sub == &events   ? Command::Kind::Events
                   : sub == &replay   ? Command::Kind::Replay
                   : sub == &locate   ? Command::Kind::Locate
                   : sub == &report   ? Command::Kind::Report
                                      : Command::Kind::Bench;
    try {
        sub->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::ParseError& error) {
        refuse(*sub, error, arguments, "");
    }
    if (sub == &bench) check(command.bench);
    return command;
}

}  // namespace wobble
