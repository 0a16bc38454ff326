// Every choice of the family, alone and together with every other: the gradient of a tiny model against
// finite differences in float64, identities, token by token as all at once, three steps that stay finite, and
// the same weights whoever looks. The list is the table of choices, so a new one is covered by being there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include "kernels/error.h"
#include "model/family.h"
#include "model/gpt.h"
#include "model/presets.h"
#include "optim/optimizer.h"
#include "probes/recorder.h"

namespace wobble::test {
namespace {

/// One value besides the default, with what it needs.
struct Choice {
    std::string name, value;
    std::vector<std::pair<std::string, std::string>> settings;

    std::string text() const { return name + "=" + value; }
    void apply(ModelConfig& config) const {
        for (const auto& [key, to] : settings) set_choice(config, key, to);
    }
};

struct ListChoices {
    std::vector<Choice> all;

    void group(const char*) {}
    template <class T>
    void operator()(const char* name, T&, const char*, const char*, const Others& others) {
        for (const std::string& other : others) {
            std::istringstream words(other);
            Choice choice{name, "", {}};
            words >> choice.value;
            choice.settings = {{name, choice.value}};
            for (std::string more; words >> more;) {
                const size_t equals = more.find('=');
                choice.settings.emplace_back(more.substr(0, equals), more.substr(equals + 1));
            }
            all.push_back(std::move(choice));
        }
    }
};

std::vector<Choice> choices() {
    ModelConfig config;
    ListChoices list;
    for_each_choice(config, list);
    return list.all;
}

ModelConfig tiny() {
    return {.vocab = 7, .context = 5, .layers = 2, .heads = 2, .channels = 8};
}
constexpr int64_t batch = 2, length = 5;
const std::vector<int32_t> tokens = {3, 0, 6, 1, 3, 2, 5, 3, 4, 0}, targets = {0, 6, 1, -1, 2, 5, 3, 4, 0, 1};
constexpr double loss_weight = 1.0 / 9;  // of each of the nine targets

/// The model of a choice or of two; nothing when the two contradict each other, which must be said in one
/// line.
std::optional<ModelConfig> model_of(const std::vector<const Choice*>& chosen) {
    ModelConfig config = tiny();
    for (const Choice* c : chosen) c->apply(config);
    try {
        check(config);
    } catch (const UserError& error) {
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
        return {};
    }
    return config;
}

/// f(config, name) for the default, for every choice alone, and for every pair.
template <class F>
void for_each_model(bool pairs, F f) {
    const std::vector<Choice> all = choices();
    const char* only = std::getenv("WOBBLE_CHOICE");  // "name=value": models of this choice alone
    int used = 0, refused = 0;
    const auto use = [&](const std::vector<const Choice*>& chosen) {
        std::string name = "GPT-2";
        bool wanted = !only;
        for (const Choice* c : chosen) name += " " + c->text(), wanted |= only && c->text() == only;
        if (!wanted) return;
        ++used;
        SCOPED_TRACE(name);
        if (const auto config = model_of(chosen)) f(*config);
        else ++refused;
    };
    if (!pairs) use({});
    for (size_t i = 0; i < all.size(); ++i) {
        if (!pairs) use({&all[i]});
        for (size_t j = i + 1; pairs && j < all.size(); ++j)
            if (all[i].name != all[j].name) use({&all[i], &all[j]});
    }
    EXPECT_GT(used, 0) << "no choice is " << only;
    // Few choices exclude each other, and none by itself.
    EXPECT_LE(refused, pairs ? int(all.size()) : 0);
}

/// A model in float64 away from every special point: nothing is zero, gains are not one.
struct Probed {
    Gpt<double> model;
    Context context{1};

    explicit Probed(const ModelConfig& config) : model(config, batch, true) {
        std::mt19937_64 generator(7);
        std::normal_distribution<double> normal;
        for (const Parameter& p : model.table().parameters) {
            for (int64_t i = 0; i < p.size; ++i)
                model.weights()[p.offset + i] = (p.role == Role::Gain ? p.init_mean : 0) +
                                                (p.role == Role::Matrix ? 0.4 : 0.3) * normal(generator);
        }
    }
    double objective() {
        model.forward(context, tokens.data(), targets.data(), batch, length, 0);
        return loss_weight * model.objective();
    }
    void gradient() {
        model.forward(context, tokens.data(), targets.data(), batch, length, loss_weight);
        model.backward(context);
    }
    /// The step of differences: small where a kink of the activation might lie in between.
    double step() const {
        const Activation a = model.config().activation;
        return a == Activation::Relu || a == Activation::ReluSquared ? 1e-6 : 1e-3;
    }
    /// The derivative of the objective along `direction` in one tensor, by differences at steps h and h/2
    /// extrapolated (Richardson), and how far the two are apart.
    std::pair<double, double> slope(const Parameter& p, const std::vector<double>& direction) {
        const double h = step();
        double* w = model.weights() + p.offset;
        const std::vector<double> kept(w, w + p.size);
        const auto at = [&](double step) {
            for (int64_t i = 0; i < p.size; ++i) w[i] = kept[size_t(i)] + step * direction[size_t(i)];
            const double value = objective();
            std::copy(kept.begin(), kept.end(), w);
            return value;
        };
        const double coarse = (at(h) - at(-h)) / (2 * h), fine = (at(h / 2) - at(-h / 2)) / h;
        return {(4 * fine - coarse) / 3, std::abs(fine - coarse)};
    }
};

void expect_gradient(const ModelConfig& config, bool by_element) {
    Probed probed(config);
    probed.gradient();
    for (const Parameter& p : probed.model.table().parameters) {
        const double* gradient = probed.model.gradients() + p.offset;
        const double largest = std::abs(*std::max_element(
            gradient, gradient + p.size, [](double a, double b) { return std::abs(a) < std::abs(b); }));
        const auto expect = [&](const std::vector<double>& direction, double expected, double size) {
            const auto [slope, truncation] = probed.slope(p, direction);
            // Differences lose what the objective is rounded by, over h; half the gap bounds what is left of
            // the truncation.
            EXPECT_NEAR(slope, expected, 1e-8 * size + 0.5 * truncation + 1e-14 / probed.step()) << p.name;
        };
        if (by_element) {
            std::vector<double> direction(size_t(p.size), 0.0);
            for (int64_t i = 0; i < p.size; ++i) {
                direction[size_t(i)] = 1;
                expect(direction, gradient[i], largest);
                direction[size_t(i)] = 0;
            }
        } else {
            std::mt19937_64 generator(11);
            std::vector<double> direction(size_t(p.size), 0.0);
            double expected = 0, size = 0;
            for (int64_t i = 0; i < p.size; ++i) {
                direction[size_t(i)] = generator() & 1 ? 1 : -1;
                expected += direction[size_t(i)] * gradient[i], size += std::abs(gradient[i]);
            }
            expect(direction, expected, size);
        }
    }
}

TEST(Family, GradientOfEveryChoiceAgreesWithFiniteDifferences) {
    for_each_model(false, [](const ModelConfig& config) { expect_gradient(config, true); });
}

TEST(Family, GradientOfEveryPairOfChoicesAgreesWithFiniteDifferences) {
    for_each_model(true, [](const ModelConfig& config) { expect_gradient(config, false); });
}

/// What exact arithmetic would make zero is no more than rounding, wherever a recorder looks.
void expect_identities(const ModelConfig& config) {
    Probed probed(config);
    Recorder recorder{ProbePlan("full")};
    probed.context.recorder = &recorder;
    probed.gradient();
    probed.model.weight_identities(probed.context);
    const Observation seen = recorder.take();
    EXPECT_FALSE(seen.residuals.empty());
    for (const ResidualRow& row : seen.residuals) {
        EXPECT_LE(row.value, 1e-12 * row.scale) << row.site << " " << row.identity;
        EXPECT_LE(row.worst, 1e-12) << row.site << " " << row.identity;
    }
}

TEST(Family, IdentitiesHoldForEveryChoiceAndPair) {
    for (bool pairs : {false, true}) for_each_model(pairs, expect_identities);
}

/// Appending the first sequence token by token gives each position the loss that the whole sequence gives it.
void expect_append_is_forward(const ModelConfig& config) {
    Probed probed(config);
    std::vector<double> losses;
    for (int64_t t = 0; t < length; ++t) {
        const double* z = probed.model.append(probed.context, tokens[size_t(t)], t);
        const double largest = *std::max_element(z, z + config.vocab);
        double sum = 0;
        for (int64_t v = 0; v < config.vocab; ++v) sum += std::exp(z[v] - largest);
        const int32_t target = targets[size_t(t)];
        losses.push_back(target < 0 ? 0 : largest + std::log(sum) - z[target]);
    }
    probed.model.forward(probed.context, tokens.data(), targets.data(), 1, length, 0);
    for (int64_t t = 0; t < length; ++t)
        EXPECT_NEAR(probed.model.losses()[t], losses[size_t(t)], 1e-12 * (1 + losses[size_t(t)])) << t;
}

TEST(Family, TokenByTokenIsAsAllAtOnceForEveryChoiceAndPair) {
    for (bool pairs : {false, true}) for_each_model(pairs, expect_append_is_forward);
}

TEST(Family, ChoicesThatWouldChangeNothingAreRefused) {
    const auto refused = [](std::initializer_list<std::pair<const char*, const char*>> settings) {
        ModelConfig config = tiny();
        for (const auto& [name, value] : settings) set_choice(config, name, value);
        try {
            check(config);
        } catch (const UserError&) {
            return true;
        }
        return false;
    };
    EXPECT_TRUE(refused({{"norm-depth-scaling", "true"}, {"norm-placement", "post"}}));
    EXPECT_TRUE(refused({{"norm-depth-scaling", "true"}, {"norm", "none"}}));
    EXPECT_TRUE(refused({{"zero-centred-gain", "true"}, {"norm-gain", "false"}}));
    EXPECT_TRUE(refused({{"zero-head", "true"}}));
    EXPECT_TRUE(refused({{"rotary-fraction", "0.1"}, {"position", "rotary"}}));
    EXPECT_FALSE(refused({{"norm-depth-scaling", "true"}, {"norm-placement", "peri"}}));
    ModelConfig config;
    EXPECT_THROW(set_choice(config, "norm", "batchnorm"), UserError);
    EXPECT_THROW(set_choice(config, "bias", "maybe"), UserError);
    EXPECT_THROW(set_choice(config, "window", "2x"), UserError);
    EXPECT_THROW(set_choice(config, "normal", "true"), UserError);
}

TEST(Family, FlagsNameWhatDiffersFromGpt2) {
    ModelConfig config = tiny();
    EXPECT_EQ(flags_of(config), "");
    config.norm = NormKind::RMSNorm, config.bias = false, config.residual_scale = 0.5;
    EXPECT_EQ(flags_of(config), "--norm rmsnorm --residual-scale 0.5 --bias=false");
}

/// README.md's section on the family names each choice, and each of its words.
struct LookUp {
    const std::string& text;

    void group(const char*) {}
    template <class T>
    void operator()(const char* name, T&, const char*, const char*, const Others&) {
        size_t flag = std::string::npos;
        for (const char* before : {"`--", "`--no-"}) {
            for (const char* after : {" ", "`"})
                flag = std::min(flag, text.find(before + std::string(name) + after));
        }
        ASSERT_NE(flag, std::string::npos) << "--" << name;
        if constexpr (std::is_enum_v<T>) {
            const std::string words_there = text.substr(flag, text.find("`", flag + 1) - flag) + " ";
            const auto& all = words<T>();
            for (const std::string& word : all)
                EXPECT_NE(words_there.find(" " + word + " "), std::string::npos)
                    << "--" << name << " " << word;
        }
    }
};

TEST(Family, ReadmeNamesEveryChoice) {
    std::ifstream file("README.md");
    std::stringstream stream;
    stream << file.rdbuf();
    const std::string readme = stream.str();
    const size_t begin = readme.find("## The model family"), end = readme.find("\n## ", begin + 1);
    ASSERT_NE(begin, std::string::npos) << "tests run where the sources are";
    const std::string section = readme.substr(begin, end - begin);
    ModelConfig config;
    for_each_choice(config, LookUp{section});
}

TEST(Family, PresetsAreTheFlagsThatTheyName) {
    for (const Preset& p : presets()) {
        SCOPED_TRACE(p.name);
        ModelConfig config = tiny();
        apply(p, config);
        check(config);
        EXPECT_EQ(flags_of(config), p.flags);
        expect_gradient(config, true);
        expect_identities(config);
        expect_append_is_forward(config);
    }
    EXPECT_THROW(preset("gpt3"), UserError);
}

/// In bfloat16, at weights that it holds exactly, the gradient is float64's but for rounding, and so are the
/// identities. A dozen roundings of 2^-8 lie one after the other, and differences of logits make them larger.
TEST(Family, Bfloat16IsNearFloat64ForEveryChoice) {
    double worst = 0;
    for_each_model(false, [&](const ModelConfig& config) {
        Probed exact(config);
        Gpt<bf16> narrow(config, batch, true);
        double* w = exact.model.weights();
        for (int64_t i = 0; i < narrow.table().buffer_size; ++i)
            w[i] = double(float(bf16(float(w[i])))), narrow.weights()[i] = float(w[i]);
        exact.gradient();
        Context context(1);
        Recorder recorder{ProbePlan("full")};
        context.recorder = &recorder;
        narrow.weights_changed(context);
        narrow.forward(context, tokens.data(), targets.data(), batch, length, loss_weight);
        narrow.backward(context);
        narrow.weight_identities(context);
        exact.model.forward(exact.context, tokens.data(), targets.data(), batch, length, 0);
        EXPECT_NEAR(narrow.loss(), exact.model.loss(), 0.03 * exact.model.loss());
        double all = 0, off = 0;
        for (const Parameter& p : narrow.table().parameters) {
            for (int64_t i = p.offset; i < p.offset + p.size; ++i) {
                const double g = exact.model.gradients()[i], d = double(narrow.gradients()[i]) - g;
                all += g * g, off += d * d;
            }
        }
        worst = std::max(worst, std::sqrt(off / all));
        EXPECT_LE(std::sqrt(off / all), 0.05);
        for (const ResidualRow& row : recorder.take().residuals)
            EXPECT_LE(row.value, 1e-2 * row.scale) << row.site << " " << row.identity;
    });
    RecordProperty("largest_relative_error", std::to_string(worst));
}

/// The weights after three steps, with these probes.
template <class T>
std::vector<float> trained(const ModelConfig& config, const char* probes, int threads) {
    Context context(threads);
    if (threads > 1) context.least_parallel = 0;
    Gpt<T> model(config, batch, true);
    Optimizer<float> optimizer(model.table(), {});
    initialise(model.table(), 1, model.weights());
    model.weights_changed(context);
    Recorder recorder{ProbePlan(probes)};
    if (std::string(probes) != "off") context.recorder = &recorder;
    for (int64_t step = 1; step <= 3; ++step) {
        recorder.clear();
        model.forward(context, tokens.data(), targets.data(), batch, length, loss_weight);
        EXPECT_TRUE(std::isfinite(model.loss()));
        model.backward(context);
        model.weight_identities(context);
        EXPECT_TRUE(optimizer.step(context, model.weights(), model.gradients(), 1e-2, step, OnNonfinite::Stop)
                        .applied);
        model.weights_changed(context);
    }
    return {model.weights(), model.weights() + model.table().buffer_size};
}

TEST(Family, EveryChoiceAndPairTrainsToTheSameWeightsWhoeverLooks) {
    for (bool pairs : {false, true}) {
        for_each_model(pairs, [&](const ModelConfig& config) {
            const std::vector<float> bare = trained<float>(config, "off", 1);
            EXPECT_TRUE(bare == trained<float>(config, "full", 1));
            if (!pairs) {
                EXPECT_TRUE(bare == trained<float>(config, "full", 2));
                EXPECT_TRUE(trained<bf16>(config, "off", 1) == trained<bf16>(config, "full", 2));
            }
        });
    }
}

TEST(Family, RecomputingTakesLessMemoryAndChangesNoWeightOfAnyChoice) {
    for_each_model(false, [&](const ModelConfig& config) {
        ModelConfig kept = config;
        kept.layers = 4;
        ModelConfig again = kept;
        again.recompute = true;
        if (config.value_residual > 0) {
            EXPECT_THROW(check(again), UserError);
            return;
        }
        EXPECT_LT(Gpt<float>(again, batch, true).bytes(), Gpt<float>(kept, batch, true).bytes());
        EXPECT_TRUE(trained<float>(again, "full", 2) == trained<float>(kept, "off", 1));
        EXPECT_TRUE(trained<bf16>(again, "off", 1) == trained<bf16>(kept, "off", 1));
    });
}

TEST(Family, EveryTensorOfEveryChoiceMoves) {
    for_each_model(false, [](const ModelConfig& config) {
        const std::vector<float> after = trained<float>(config, "off", 1);
        Gpt<float> model(config, batch, true);
        initialise(model.table(), 1, model.weights());
        for (const Parameter& p : model.table().parameters) {
            EXPECT_FALSE(std::equal(model.weights() + p.offset, model.weights() + p.offset + p.size,
                                    after.begin() + p.offset))
                << p.name;
        }
    });
}

}  // namespace
}  // namespace wobble::test
