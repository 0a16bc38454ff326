#include "run/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/error.h"

namespace wobble {

namespace {

/// Whether a resumed run may change an option: `Fixed` ones decide what the steps before it did.
enum class OnResume { Fixed, Free };
using enum OnResume;

/// The table. `visit.group(title)` starts a group; `visit(name, value, on_resume, help)` is one option.
template <class O, class Visit>
void for_each_option(O& o, Visit&& visit) {
    visit.group("Data");
    visit(
        "data", o.data, Fixed,
        "What to train on: text:GLOB (bytes), tokens:GLOB (shards), synthetic:markov?order=K&vocab=V&seed=S, "
        "or a mixture 0.8*text:a.txt+0.2*text:b.txt");
    visit("val", o.val, Free, "NAME=SPEC of held-out data; may be given several times");
    visit("holdout", o.holdout, Fixed,
          "Without --val: the share of every source of --data kept for evaluation");
    visit("vocab", o.vocab, Fixed, "Vocabulary V of token shards; 0: 50257");

    visit.group("Model (GPT-2)");
    visit("context", o.context, Fixed, "Tokens in a sequence, T");
    visit("layers", o.layers, Fixed, "Layers, L");
    visit("heads", o.heads, Fixed, "Attention heads, H; must divide the channels");
    visit("channels", o.channels, Fixed, "Channels of the residual stream, C");
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
    visit("device", o.device, Free, "auto, cpu or cuda");
    visit("threads", o.threads, Free, "CPU threads; 0: one per physical core. Results do not depend on it");
}

/// Adds every option of the table to a command-line parser.
struct AddFlags {
    CLI::App& app;
    std::string title;

    void group(const char* name) { title = name; }
    template <class T>
    void operator()(const char* name, T& value, OnResume, const char* help) {
        app.add_option("--" + std::string(name), value, help)->group(title)->capture_default_str();
    }
    void operator()(const char* name, bool& value, OnResume, const char* help) {
        app.add_flag("--" + std::string(name) + ",!--no-" + name, value, help)->group(title);
    }
    void operator()(const char* name, std::vector<std::string>& value, OnResume, const char* help) {
        app.add_option("--" + std::string(name), value, help)->group(title)->take_all();
    }
};

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + "\"";
}

std::string toml_value(const std::string& v) {
    return quoted(v);
}
std::string toml_value(bool v) {
    return v ? "true" : "false";
}
std::string toml_value(int64_t v) {
    return std::to_string(v);
}
std::string toml_value(uint64_t v) {
    return std::to_string(v);
}
std::string toml_value(double v) {
    // The shortest text that reads back as the same number.
    char text[32];
    for (int digits = 1; digits <= 17; ++digits) {
        std::snprintf(text, sizeof text, "%.*g", digits, v);
        if (std::strtod(text, nullptr) == v) break;
    }
    return text;
}
std::string toml_value(const std::vector<std::string>& v) {
    std::string out = "[";
    for (size_t i = 0; i < v.size(); ++i) out += (i ? ", " : "") + quoted(v[i]);
    return out + "]";
}

struct WriteToml {
    std::ostringstream out;

    void group(const char* name) { out << "\n# " << name << "\n"; }
    template <class T>
    void operator()(const char* name, const T& value, OnResume, const char*) {
        out << name << " = " << toml_value(value) << "\n";
    }
};

/// The names and values of all options, in the order of the table.
struct ListValues {
    struct Item {
        std::string name, value;
        OnResume on_resume;
    };
    std::vector<Item> items;

    void group(const char*) {}
    template <class T>
    void operator()(const char* name, const T& value, OnResume on_resume, const char*) {
        items.push_back({name, toml_value(value), on_resume});
    }
};

std::vector<ListValues::Item> values_of(const Options& options) {
    ListValues list;
    for_each_option(options, list);
    return list.items;
}

/// Letters to insert, remove or change to turn a into b.
size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t above = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
            diagonal = above;
        }
    }
    return row[b.size()];
}

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
    std::string best;
    size_t least = 1 + word.size() / 3;
    for (const std::string& candidate : candidates) {
        const size_t distance = edit_distance(word, candidate);
        if (distance < least) least = distance, best = candidate;
    }
    return best;
}

/// CLI11's complaint as one line with a remedy.
[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& error,
                         const std::vector<std::string>& arguments, const std::string& where) {
    if (error.get_name() == "ExtrasError" || error.get_name() == "ConfigError") {
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
    at_least(o.threads, 0, "--threads");
    within(o.lr, 0, 1e6, "--lr"), within(o.final_lr, 0, 1.0001, "--final-lr"),
        within(o.holdout, 0, 1, "--holdout");
    within(o.beta1, 0, 1, "--beta1"), within(o.beta2, 0, 1, "--beta2"), within(o.epsilon, 0, 1, "--epsilon");
    within(o.weight_decay, 0, 1e6, "--weight-decay"), within(o.clip, 0, 1e30, "--clip");
    refuse_if(o.warmup > o.steps, "--warmup " + std::to_string(o.warmup) + " is longer than --steps " +
                                      std::to_string(o.steps) + "; choose at most as many");
    check(model_config(o, 1));
    schedule_shape(o.schedule);
    on_nonfinite(o);
    refuse_if(o.device != "auto" && o.device != "cpu" && o.device != "cuda",
              "--device " + o.device + " is unknown; expected auto, cpu or cuda");
    for (const std::string& v : o.val) {
        const size_t equals = v.find('='), colon = v.find(':');
        refuse_if(equals == 0 || equals == std::string::npos || colon < equals,
                  "--val " + v + " has no name; expected NAME=SPEC, for example held_out=text:FILE");
    }
}

/// The flags of training, with those that are not part of the configuration.
struct TrainFlags {
    std::string config, resume;
    int64_t seed = -1;

    void add(CLI::App& app, Options& options) {
        for_each_option(options, AddFlags{app, ""});
        app.add_option("--seed", seed, "Sets --init-seed and --data-seed")->group("Run");
        app.add_option("--config", config, "A config.toml whose values come before the other flags")
            ->group("Run");
        app.add_option("--resume", resume, "Continue the run in this directory from its newest checkpoint")
            ->group("Run");
    }
};

Command parse_train(CLI::App& root, const std::vector<std::string>& arguments) {
    Command command;
    // First what the command line says by itself, then the file it names, then the command line over the
    // file.
    Options given;
    TrainFlags flags;
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

    Options& options = command.options;
    const std::string file = flags.resume.empty() ? flags.config : flags.resume + "/config.toml";
    if (!flags.resume.empty() && !std::filesystem::exists(file)) {
        throw UserError("--resume " + flags.resume +
                        " holds no run (no config.toml); expected the directory of a run; "
                        "without --resume a new run is started");
    }
    if (!file.empty()) options = read_config(file);
    const Options stored = options;
    CLI::App second("", "train");
    second.set_help_flag();
    flags.add(second, options);
    if (second.get_option("--val")->count() == 0 && first.get_option("--val")->count() > 0)
        options.val.clear();
    parse(second);
    if (flags.seed >= 0) options.init_seed = options.data_seed = uint64_t(flags.seed);
    if (!flags.resume.empty()) {
        command.resume = true;
        options.run = stored.run;
        const auto before = values_of(stored), after = values_of(options);
        for (size_t i = 0; i < before.size(); ++i) {
            if (before[i].on_resume == Fixed && before[i].value != after[i].value) {
                throw UserError("--" + before[i].name + " is " + after[i].value +
                                " but the run was started with " + before[i].value +
                                "; a resumed run keeps it; start a new run to change it");
            }
        }
        options.run = flags.resume;
        // --stop-after is a wish for one sitting, not part of the plan.
        if (first.get_option("--stop-after")->count() == 0) options.stop_after = 0;
    }
    check(options);
    return command;
}

}  // namespace

ModelConfig model_config(const Options& o, int64_t vocab) {
    return {
        .vocab = vocab, .context = o.context, .layers = o.layers, .heads = o.heads, .channels = o.channels};
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

std::string to_toml(const Options& options) {
    WriteToml toml;
    toml.out << "# A run of wobble. `./train --config` on this file, with another --run, repeats it.\n";
    for_each_option(options, toml);
    return toml.out.str();
}

Options read_config(const std::string& path) {
    std::ifstream in(path);
    if (!in) throw UserError("cannot read " + path + "; expected a config.toml that a run has written");
    Options options;
    CLI::App app("", "config");
    app.allow_config_extras(false);
    for_each_option(options, AddFlags{app, ""});
    try {
        app.parse_from_stream(in);
    } catch (const CLI::ParseError& error) {
        refuse(app, error, {}, path + ": ");
    }
    return options;
}

Command parse_command(int argc, const char* const* argv) {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    Command command;

    CLI::App app(
        "wobble: a GPT trainer that you can see inside.\n"
        "Usage: ./train [train] [flags] | ./train sample RUN | ./train eval RUN\n",
        "./train");
    app.set_version_flag("--version", std::string(""));
    Options unused;
    TrainFlags train_flags;
    train_flags.add(app, unused);

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
    CLI::App* sub = word == "sample" ? &sample : word == "eval" ? &evaluate : nullptr;
    if (sub || word == "train") arguments.erase(arguments.begin());
    else if (!word.empty() && word[0] != '-') {
        throw UserError("'" + word +
                        "' is not a command; expected train, sample or eval; --help lists the flags");
    }
    if (wants_help) {
        command.kind = Command::Kind::Help;
        command.help = (sub ? sub : &app)->help();
        return command;
    }
    if (!sub) return parse_train(app, arguments);

    command.kind = sub == &sample ? Command::Kind::Sample : Command::Kind::Eval;
    try {
        sub->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::ParseError& error) {
        refuse(*sub, error, arguments, "");
    }
    return command;
}

}  // namespace wobble
