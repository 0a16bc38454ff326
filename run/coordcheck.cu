#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>

#include "data/batch.h"
#include "kernels/error.h"
#include "model/family.h"
#include "probes/recorder.h"
#include "run/command_line.h"
#include "run/output_file.h"
#include "run/progress.h"
#include "run/scaling.h"
#include "run/trainer.h"

namespace wobble {

namespace {

/// "64,128,256" as numbers. UserError unless they are at least 1 and ascend.
std::vector<int64_t> parse_sizes(const std::string& flag, const std::string& text) {
    const auto refuse = [&](const std::string& what) -> UserError {
        return UserError(flag + " " + (text.empty() ? "''" : text) + " " + what +
                         "; expected ascending whole numbers, for example " + flag +
                         (flag == "--widths" ? " 64,128,256" : " 2,4,8"));
    };
    std::vector<int64_t> sizes;
    std::istringstream items(text);
    for (std::string item; std::getline(items, item, ',');) {
        const bool number =
            !item.empty() && item.size() <= 9 &&
            std::all_of(item.begin(), item.end(), [](char c) { return c >= '0' && c <= '9'; });
        if (!number || std::stoll(item) < 1) throw refuse("holds '" + item + "'");
        if (!sizes.empty() && std::stoll(item) <= sizes.back()) throw refuse("does not ascend");
        sizes.push_back(std::stoll(item));
    }
    if (sizes.empty()) throw refuse("is empty");
    if (text.back() == ',') throw refuse("ends in a comma");
    return sizes;
}

}  // namespace

std::vector<int64_t> CoordCheckOptions::width_list() const {
    return parse_sizes("--widths", widths);
}
std::vector<int64_t> CoordCheckOptions::depth_list() const {
    return parse_sizes("--depths", depths);
}

Options coordcheck_defaults() {
    Options o;
    // What a parametrization promises holds for wide models. At a finite width, sums that training does not
    // align add 1 / sqrt(width) to it, the more the narrower the models and the fewer the steps.
    o.steps = 10, o.lr = 2e-3, o.schedule = "constant", o.warmup = 0, o.clip = 0;
    o.batch = 4, o.model.context = 32;
    return o;
}

Options coordcheck_defaults(const Options& file) {
    const Options own = coordcheck_defaults();
    Options o = file;
    o.steps = own.steps, o.schedule = own.schedule, o.warmup = own.warmup, o.clip = own.clip;
    return o;
}

ModelConfig model_of_size(const CoordCheckOptions& how, const Options& options, int64_t vocab, int64_t width,
                          int64_t depth) {
    ModelConfig config = model_config(options, vocab);
    config.channels = width, config.layers = depth, config.heads = width / how.head_size;
    return config;
}

void check(const CoordCheckOptions& how, const Options& options) {
    const std::vector<int64_t> widths = how.width_list(), depths = how.depth_list();
    if (widths.size() < 2 && depths.size() < 2) {
        throw UserError("--widths " + how.widths + " and --depths " + how.depths +
                        " hold one size each; a slope needs two; give more widths or more depths");
    }
    if (how.head_size < 1) {
        throw UserError("--head-size is " + std::to_string(how.head_size) + "; expected at least 1");
    }
    if (how.seeds < 1 || how.seeds > most_seeds) {
        throw UserError("--seeds is " + std::to_string(how.seeds) + "; expected 1 to " +
                        std::to_string(most_seeds));
    }
    for (int64_t width : widths) {
        if (width % how.head_size == 0) continue;
        throw UserError("--widths holds " + std::to_string(width) + ", which --head-size " +
                        std::to_string(how.head_size) +
                        " does not divide; heads keep their size and grow in number; choose multiples of it");
    }
    if (widths.size() > 1 && options.model.mlp_width > 0) {
        throw UserError(
            "--mlp-width is " + std::to_string(options.model.mlp_width) +
            " at every one of the --widths; the network has to widen with the stream; leave it out "
            "for 4C");
    }
    for (int64_t width : widths) check(model_of_size(how, options, 1, width, depths[0]));
    for (int64_t depth : depths) check(model_of_size(how, options, 1, widths[0], depth));
    ParameterTable{model_of_size(how, options, 1, widths[0], depths[0])};
    check_output_file("--json", how.json);
    check_output_file("--out", how.out);
}

namespace {

double rms(const std::vector<float>& x) {
    double squares = 0;
    for (float v : x) squares += double(v) * double(v);
    return std::sqrt(squares / double(x.size()));
}

/// A model that takes a few steps on one batch, and the sizes that probes see in it.
class Subject {
  public:
    Subject(Context& context, const Options& options, const ModelConfig& config, uint64_t seed,
            const Batch& batch)
        : context_(context),
          options_(options),
          batch_(batch),
          sequences_(int64_t(batch.provenance.size())),
          model_(make_model(config, options.precision, sequences_, true, context.device)),
          optimizer_(model_->table(), adamw_settings(options), context.device),
          schedule_(schedule(options)) {
        draw_weights(context_, *model_, seed);
    }

    /// The sites of a forward, in its order: of the last block alone, or as the mean over blocks.
    std::vector<SiteSize> look(bool last_block) {
        // Full, for the sampled rows: a change is the difference of values and no function of moments.
        Recorder recorder(ProbePlan("full"), "*");
        context_.recorder = &recorder;
        forward(0);
        context_.recorder = nullptr;
        std::vector<std::pair<std::string, std::vector<float>>> samples;
        for (Record& r : recorder.observation().records) {
            // Nobody asks for the channels' rows, which a sample's spectrum would make long work of.
            r.statistics.columns.reset();
            std::unique_ptr<SampledRows> sample = std::move(r.statistics.sample);
            samples.emplace_back(r.site, sample ? std::move(sample->values) : std::vector<float>());
        }
        const Observation seen = recorder.take();
        Layers layers;
        bool in_blocks = false;
        for (size_t i = 0; i < seen.records.size(); ++i) {
            const Record& r = seen.records[i];
            if (r.channel != std::string("output")) continue;
            if (in_blocks && r.layer < 0) add_stream(layers);
            in_blocks = r.layer >= 0;
            if (last_block && in_blocks && r.layer + 1 < model_->config().layers) continue;
            add(layers, r, samples[i].second, seen, last_block ? "h.last" : "h.*");
        }
        return layers.means();
    }

    /// UserError when loss or gradient is not finite.
    void step() {
        const double loss = forward(1 / double(batch_.valid_targets));
        model_->backward(context_);
        const double lr = schedule_.at(steps_);
        ++steps_;
        const bool finite =
            std::isfinite(loss) &&
            optimizer_.step(context_, model_->weights(), model_->gradients(), lr, steps_, OnNonfinite::Stop)
                .applied;
        if (finite) {
            model_->weights_changed(context_);
        } else {
            const ModelConfig& c = model_->config();
            throw UserError("width " + std::to_string(c.channels) + ", depth " + std::to_string(c.layers) +
                            ": step " + std::to_string(steps_) +
                            " is not finite; there are no sizes to compare; choose a smaller --lr");
        }
    }

  private:
    /// Sums over the layers of each site's logarithms.
    struct Layers {
        std::vector<SiteSize> sums;
        std::vector<int64_t> counts;
        std::map<std::string, size_t> place;

        void add(const std::string& site, double size, double change) {
            const auto [at, is_new] = place.try_emplace(site, sums.size());
            if (is_new) sums.push_back({site, 0, 0}), counts.push_back(0);
            sums[at->second].log_size += std::log(size), sums[at->second].log_change += std::log(change);
            ++counts[at->second];
        }
        std::vector<SiteSize> means() {
            for (size_t i = 0; i < sums.size(); ++i)
                sums[i].log_size /= double(counts[i]), sums[i].log_change /= double(counts[i]);
            return std::move(sums);
        }
    };

    double forward(double scale) {
        model_->forward(context_, batch_.inputs.data(), batch_.targets.data(), sequences_,
                        model_->config().context, scale);
        return model_->loss();
    }

    /// RMS of the difference from the first look; NaN in it, and where there is nothing to compare.
    double change(const std::string& site, const std::vector<float>& values) {
        if (values.empty()) return NAN;
        const auto [start, is_first] = start_.try_emplace(site, values);
        if (is_first) return NAN;
        std::vector<float> difference(values.size());
        for (size_t i = 0; i < values.size(); ++i) difference[i] = values[i] - start->second[i];
        return rms(difference);
    }

    void add(Layers& layers, const Record& r, const std::vector<float>& sample, const Observation& seen,
             const std::string& block) {
        std::string name = r.site;
        if (r.layer >= 0) name = block + name.substr(name.find('.', 2));
        // A sum with the stream says little of a branch: what it wrote does.
        for (const StreamRow& s : seen.streams) {
            if (s.site != r.site) continue;
            layers.add(name.substr(0, name.rfind('.')) + " writes", s.write_rms, NAN);
            return;
        }
        layers.add(name, r.moments().rms(), change(r.site, sample));
        for (const HeadRow& head : seen.heads)
            if (head.site == r.site) layers.add(name + " largest logit", head.abs_logit, NAN);
    }
    void add_stream(Layers& layers) {
        const std::vector<float> stream = model_->stream();
        layers.add("stream", rms(stream), change("stream", stream));
    }

    Context& context_;
    const Options& options_;
    const Batch& batch_;
    int64_t sequences_, steps_ = 0;
    std::unique_ptr<Model<float>> model_;
    Optimizer<float> optimizer_;
    Schedule schedule_;
    std::map<std::string, std::vector<float>> start_;  // by site
};

/// All models of the command, one after the other.
class CoordCheck {
  public:
    explicit CoordCheck(const Command& command)
        : how_(command.coordcheck),
          options_(command.options),
          data_(open_training_data(options_)),
          context_(make_context(options_)),
          progress_(planned()) {}

    std::vector<Scaling> run() {
        std::vector<Scaling> checks;
        for (const Plan& plan : plans()) {
            std::vector<std::vector<Trajectory>> trajectories(size_t(how_.seeds));
            for (int64_t seed = 0; seed < how_.seeds; ++seed) {
                // Each seed has its own weights and its own batch, which all sizes share.
                const int64_t sequences = options_.batch * options_.accum;
                const Batch batch = read_batch(data_, seed * sequences, int(sequences));
                for (const ModelConfig& config : plan.models)
                    trajectories[size_t(seed)].push_back(train(config, seed, batch, plan.axis == "depth"));
            }
            checks.push_back(scaling(plan.axis, plan.sizes, plan.at, trajectories));
        }
        progress_.hide();
        return checks;
    }

    void note_where() const { wobble::note_where(options_, context_); }

    /// What the models have in common.
    std::string describe() const {
        const std::string flags = flags_of(options_.model);
        char text[300];
        std::snprintf(
            text, sizeof text, ", T%lld V%d, %lld channels a head; lr %g, %lld %s on %lld sequences",
            static_cast<long long>(options_.model.context), data_.vocab(),
            static_cast<long long>(how_.head_size), options_.lr, static_cast<long long>(options_.steps),
            options_.steps == 1 ? "step" : "steps", static_cast<long long>(options_.batch * options_.accum));
        return "GPT-2" + (flags.empty() ? "" : " with " + flags) + text + ", " +
               (how_.seeds == 1 ? "1 seed" : std::to_string(how_.seeds) + " seeds");
    }

  private:
    struct Plan {
        std::string axis;
        std::vector<int64_t> sizes;
        std::string at;
        std::vector<ModelConfig> models;
    };

    std::vector<Plan> plans() const {
        const std::vector<int64_t> widths = how_.width_list(), depths = how_.depth_list();
        std::vector<Plan> all;
        if (widths.size() > 1) {
            all.push_back({"width", widths, "depth " + std::to_string(depths[0]), {}});
            for (int64_t width : widths) all.back().models.push_back(model(width, depths[0]));
        }
        if (depths.size() > 1) {
            all.push_back({"depth", depths, "width " + std::to_string(widths[0]), {}});
            for (int64_t depth : depths) all.back().models.push_back(model(widths[0], depth));
        }
        return all;
    }
    ModelConfig model(int64_t width, int64_t depth) const {
        return model_of_size(how_, options_, data_.vocab(), width, depth);
    }

    /// What a step costs, roughly: products, which follow the number of weights, and values that are looked
    /// at.
    static double work(const ModelConfig& c) {
        return double(ParameterTable(c).count()) + 2000.0 * double(c.layers) * double(c.channels);
    }
    double planned() const {
        double all = 0;
        for (const Plan& plan : plans())
            for (const ModelConfig& config : plan.models)
                all += work(config) * double(how_.seeds) * double(options_.steps + 1);
        return all;
    }

    /// In a check of depth the last blocks are compared: a mean over blocks would hold ever less of the
    /// first, which differs from the others in that nothing stands before it.
    Trajectory train(const ModelConfig& config, int64_t seed, const Batch& batch, bool last_block) {
        std::string part =
            "width " + std::to_string(config.channels) + ", depth " + std::to_string(config.layers);
        if (how_.seeds > 1)
            part += ", seed " + std::to_string(seed + 1) + " of " + std::to_string(how_.seeds);
        progress_.begin(part);
        Subject subject(context_, options_, config, options_.init_seed + uint64_t(seed), batch);
        Trajectory trajectory = {subject.look(last_block)};
        progress_.done(work(config));
        for (int64_t step = 0; step < options_.steps; ++step) {
            subject.step();
            trajectory.push_back(subject.look(last_block));
            progress_.done(work(config));
        }
        return trajectory;
    }

    const CoordCheckOptions& how_;
    const Options& options_;
    Dataset data_;
    Context context_;
    WorkProgress progress_;
};

}  // namespace

void run_coordcheck(const Command& command) {
    CoordCheck check(command);
    check.note_where();
    const std::string title = check.describe();
    const std::vector<Scaling> scalings = check.run();
    std::printf("model   %s\n", title.c_str());
    for (const Scaling& s : scalings) std::printf("\n%s", to_text(s).c_str());
    const CoordCheckOptions& how = command.coordcheck;
    if (!how.out.empty()) {
        write_output_file("--out", how.out, to_svg(title, scalings));
        std::printf("\npicture %s\n", how.out.c_str());
    }
    if (how.json.empty()) return;
    nlohmann::json json = {{"model", title}, {"seeds", how.seeds}, {"lr", command.options.lr}};
    for (const Scaling& s : scalings) json["checks"].push_back(to_json(s));
    write_output_file("--json", how.json, json.dump(1) + "\n");
}

}  // namespace wobble
