// A value that is not finite, put in the place of any one that a kernel computes in a step, is reported there
// first; and a fault that is ordered where nothing is computed changes no bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "kernels/rows.h"
#include "model/gpt.h"
#include "optim/optimizer.h"
#include "probes/recorder.h"

namespace wobble {

// For messages.
void PrintTo(Phase phase, std::ostream* out) {
    *out << phase_name(phase);
}

namespace {

constexpr int64_t V = 50, heads = 2, layers = 2;

struct Shape {
    int64_t B, T, C;
};
/// Cheap enough to be run with every fault.
constexpr Shape small{3, 8, 32};
/// With more rows than chunks, more queries than a block of attention, more than one row of every flat
/// kernel, and no size that is a multiple of a pack.
constexpr Shape large{2, 50, 66};

/// Where the values of a channel stand: n of them in rows of `columns`, the last row ragged.
struct Extent {
    int64_t n, columns;

    int64_t count_rows() const { return ceil_div(n, columns); }
};

/// A step of a two-layer model, the optimizer's included, always from the same weights.
class Step {
  public:
    Step(const Shape& shape, int threads, ModelConfig choices = {})
        : shape_(shape),
          context_(threads),
          model_(sized(choices, shape), shape.B, true),
          optimizer_(model_.table(), {}),
          examples_(size_t(shape.B)) {
        context_.least_parallel = 0;
        initialise(model_.table(), 1, model_.weights());
        const float* weights = model_.weights();
        initial_.assign(weights, weights + size());
        for (int64_t i = 0; i < rows(); ++i) {
            tokens_.push_back(int32_t(i * i * 7 % V));
            targets_.push_back(int32_t((i + 1) * (i + 1) * 7 % V));
        }
    }

    void run(Recorder* recorder) {
        std::copy(initial_.begin(), initial_.end(), model_.weights());
        std::fill_n(optimizer_.m(), size(), 0.0f);
        std::fill_n(optimizer_.v(), size(), 0.0f);
        std::fill(examples_.begin(), examples_.end(), 0.0);
        context_.recorder = recorder;
        model_.forward(context_, tokens_.data(), targets_.data(), shape_.B, shape_.T, 1.0 / double(rows()));
        loss_ = model_.loss();
        model_.backward(context_);
        model_.weight_identities(context_);
        report_ = optimizer_.step(context_, model_.weights(), model_.gradients(), 1e-3, 1, OnNonfinite::Stop);
        context_.recorder = nullptr;
    }

    double* examples() { return examples_.data(); }
    double example_squares() const { return std::accumulate(examples_.begin(), examples_.end(), 0.0); }
    const StepReport& report() const { return report_; }

    /// Whether the loss and all gradients, then all weights, are finite.
    bool finite() {
        double sum = loss_;
        for (const float* x :
             {static_cast<const float*>(model_.gradients()), static_cast<const float*>(model_.weights())})
            for (int64_t i = 0; i < size(); ++i) sum += double(x[i]) - double(x[i]);
        return std::isfinite(sum);
    }

    /// Every bit that the step leaves behind.
    std::vector<char> bits() {
        std::vector<char> all(sizeof loss_ + 4 * size_t(size()) * sizeof(float));
        char* to = all.data();
        std::memcpy(to, &loss_, sizeof loss_);
        to += sizeof loss_;
        for (const float* from :
             {static_cast<const float*>(model_.weights()), static_cast<const float*>(model_.gradients()),
              static_cast<const float*>(optimizer_.m()), static_cast<const float*>(optimizer_.v())}) {
            std::memcpy(to, from, size_t(size()) * sizeof(float));
            to += size_t(size()) * sizeof(float);
        }
        return all;
    }

    /// Where the values of a record's channel stand, from the shapes of the model alone.
    Extent extent(const Record& r) const {
        const std::string kernel = r.kernel, channel = r.channel;
        const auto [B, T, C] = shape_;
        const int64_t F = 4 * C, R = rows();
        if (r.phase == Phase::Update) {
            const Parameter& p = model_.table().at(r.site);
            return {p.size, p.role == Role::Embedding ? p.shape[1] : flat_row};
        }
        std::string place = r.layer < 0 ? r.site : r.site.substr(r.site.find('.', 2) + 1), part;
        for (const char* parameter : {".weight", ".bias", ".examples"}) {
            const size_t at = place.rfind(parameter);
            if (at != std::string::npos) part = place.substr(at), place = place.substr(0, at);
        }
        // What goes into and comes out of a linear layer.
        const auto [in, out] = place == "attn.qkv"    ? std::pair(C, 3 * C)
                               : place == "attn.proj" ? std::pair(C, C)
                               : place == "mlp.fc"    ? std::pair(C, F)
                               : place == "mlp.proj"  ? std::pair(F, C)
                               : place == "head"      ? std::pair(C, V)
                                                      : std::pair(C, C);
        if (kernel == "product") {
            if (part == ".weight") return place == "head" ? Extent{V * C, C} : Extent{in * out, out};
            const int64_t width = r.phase == Phase::Forward ? out : in;
            return {R * width, width};
        }
        if (kernel == "column_sum") return {chunk_count(R) * out, out};
        if (kernel == "sum_chunks") return {out, out};
        if (kernel == "attention_backward") return {R * 3 * C, 3 * C};
        if (kernel == "activation_backward") return {R * F, flat_row};
        if (kernel == "softmax_cross_entropy") return channel == "gradient" ? Extent{R * V, V} : Extent{R, 1};
        if (kernel == "logit_softcap") return {R * V, V};
        if (kernel == "position_embedding_backward") return {T * C, C};
        if (kernel == "token_embedding_backward") return {int64_t(tokens_seen().size()) * C, C};
        if (kernel == "column_totals") return {C, C};
        if (kernel == "layernorm_examples") return {B, 1};
        if (kernel == "block_dots") return {part == ".bias" || place == "attn.qkv" ? 3 * heads : heads, 1};
        return channel == "output" ? Extent{R * C, C} : Extent{R, 1};
    }
    /// The row that a kernel knows as the i-th of those it works on.
    int64_t row_number(const Record& r, int64_t i) const {
        if (std::string(r.kernel) != "token_embedding_backward") return i;
        const auto seen = tokens_seen();  // others have no row
        return *std::next(seen.begin(), i);
    }

  private:
    static ModelConfig sized(ModelConfig config, const Shape& shape) {
        config.vocab = V, config.context = shape.T, config.layers = layers, config.heads = heads;
        config.channels = shape.C;
        return config;
    }
    int64_t rows() const { return shape_.B * shape_.T; }
    int64_t size() const { return model_.table().buffer_size; }
    std::set<int64_t> tokens_seen() const { return {tokens_.begin(), tokens_.end()}; }

    Shape shape_;
    Context context_;
    Gpt<float> model_;
    Optimizer<float> optimizer_;
    std::vector<float> initial_;
    std::vector<int32_t> tokens_, targets_;
    std::vector<double> examples_;
    double loss_ = 0;
    StepReport report_;
};

// Under the sanitizers a step takes a hundred times as long: the same paths, for every ninth channel.
#ifdef __SANITIZE_ADDRESS__
constexpr int every = 9;
#else
constexpr int every = 1;
#endif

/// What a step shows to a recorder: every channel of every kernel at every site.
std::vector<Record> records_of(Step& step, const char* plan) {
    Recorder recorder{ProbePlan(plan)};
    recorder.measure_examples(recorder.tier({"wte"}) == Tier::Full ? step.examples() : nullptr);
    step.run(&recorder);
    EXPECT_EQ(recorder.first_nonfinite(), nullptr);
    return recorder.take().records;
}

/// Those of tier moments, or every so many of them.
std::vector<Record> some_records_of(Step& step) {
    std::vector<Record> all = records_of(step, "moments"), some;
    for (size_t i = 0; i < all.size(); i += every) some.push_back(std::move(all[i]));
    return some;
}

/// The corners of what a channel observes, and its middle.
std::set<std::pair<int64_t, int64_t>> places(const Step& step, const Record& r) {
    const Extent e = step.extent(r);
    std::set<std::pair<int64_t, int64_t>> places;
    for (int64_t i :
         {int64_t(0), std::min(e.columns, e.n) - 1, e.n / 2, (e.count_rows() - 1) * e.columns, e.n - 1}) {
        places.insert({step.row_number(r, i / e.columns), i % e.columns});
    }
    return places;
}

/// One that is no corner.
std::set<std::pair<int64_t, int64_t>> place_inside(const Step& step, const Record& r) {
    const Extent e = step.extent(r);
    const int64_t i = e.n * 63 / 64;
    return {{step.row_number(r, i / e.columns), i % e.columns}};
}

/// Observations that no later computation reads.
bool is_kept(const Record& r) {
    static const std::set<std::string> aside = {"kurtosis",   "log_z",           "max_logit",
                                                "mean_logit", "top_probability", "objective"};
    return !aside.count(r.channel);
}

std::string name_of(const Record& r) {
    return r.site + ", " + phase_name(r.phase) + ", " + r.kernel + ", " + r.channel;
}

void expect_reported(Step& step, const char* plan, const Record& r, int64_t row, int64_t column,
                     double value) {
    SCOPED_TRACE(testing::Message() << name_of(r) << ": " << value << " at " << row << ", " << column);
    Recorder recorder{ProbePlan(plan)};
    recorder.measure_examples(recorder.tier({"wte"}) == Tier::Full ? step.examples() : nullptr);
    recorder.inject({r.site, r.phase, r.kernel, r.channel, row, column, value});
    step.run(&recorder);
    const Record* first = recorder.first_nonfinite();
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(name_of(*first), name_of(r));
    EXPECT_EQ(first->layer, r.layer);
    EXPECT_EQ(first->moments().first_row, row);
    EXPECT_EQ(first->moments().first_column, column);
    EXPECT_EQ(first->moments().nans, std::isnan(value));
    EXPECT_EQ(first->moments().positive_infinities, std::isinf(value));
    EXPECT_EQ(first->moments().negative_infinities, 0);
}

class InjectionInPhase : public testing::TestWithParam<Phase> {};

/// At the last of the places an infinity too: it takes the same way.
void expect_reported_everywhere(Step& step, Phase phase,
                                std::set<std::pair<int64_t, int64_t>> (*places)(const Step&, const Record&)) {
    for (const Record& r : some_records_of(step)) {
        if (r.phase != phase) continue;
        ASSERT_EQ(r.moments().count, step.extent(r).n) << name_of(r);
        const auto all = places(step, r);
        for (const auto& [row, column] : all) {
            for (double value : {double(NAN), double(INFINITY)}) {
                if (std::isinf(value) && std::pair(row, column) != *all.rbegin()) continue;
                expect_reported(step, "moments", r, row, column, value);
                if (std::string(r.kernel) == "squared_sum") {
                    EXPECT_EQ(step.report().nonfinite, r.site);
                    EXPECT_FALSE(step.report().applied);
                    EXPECT_TRUE(step.finite()) << "the update was to be stopped";
                } else {
                    EXPECT_EQ(step.finite(), !is_kept(r)) << name_of(r);
                }
            }
        }
    }
}

TEST_P(InjectionInPhase, OfWhatIsNotFiniteIsReportedThereFirst) {
    for (int threads : {1, 2}) {
        SCOPED_TRACE(testing::Message() << threads << " threads");
        Step step(small, threads);
        expect_reported_everywhere(step, GetParam(), places);
    }
}

TEST_P(InjectionInPhase, IsReportedInALargeModelToo) {
    Step step(large, 2);
    expect_reported_everywhere(step, GetParam(), place_inside);
}

INSTANTIATE_TEST_SUITE_P(Every, InjectionInPhase,
                         testing::Values(Phase::Forward, Phase::Backward, Phase::Update),
                         [](const auto& phase) { return std::string(phase_name(phase.param)); });

// The cap and the classifier of a model that minimises more than its loss.
TEST(Injection, IntoCappedLogitsAndTheObjectiveIsReportedThereFirst) {
    Step step(small, 2, {.logit_softcap = 5, .z_loss = 1e-2, .label_smoothing = 0.1});
    std::set<std::string> channels;
    for (const Record& r : records_of(step, "moments")) {
        if (r.kernel != std::string("logit_softcap") && r.site != "loss") continue;
        channels.insert(r.channel);
        ASSERT_EQ(r.moments().count, step.extent(r).n) << name_of(r);
        for (const auto& [row, column] : places(step, r)) {
            expect_reported(step, "moments", r, row, column, NAN);
            EXPECT_EQ(step.finite(), !is_kept(r)) << name_of(r);
        }
    }
    EXPECT_EQ(channels.size(), 8u);
}

// What only tier full computes, or a recorder asks for: nothing of the step depends on it.
TEST(Injection, IntoWhatOnlyTierFullComputesIsReportedThereAlone) {
    Step step(small, 2);
    std::set<std::string> kernels;
    for (const Record& r : records_of(step, "moments")) kernels.insert(r.kernel);
    std::set<std::string> more;
    for (const Record& r : records_of(step, "full")) {
        if (kernels.count(r.kernel)) continue;
        more.insert(r.kernel);
        const Extent e = step.extent(r);
        ASSERT_EQ(r.moments().count, e.n) << name_of(r);
        for (const auto& [row, column] : places(step, r)) {
            expect_reported(step, "full", r, row, column, NAN);
            EXPECT_TRUE(step.finite()) << name_of(r);
            EXPECT_EQ(std::isnan(step.example_squares()), std::string(r.kernel) == "layernorm_examples");
        }
    }
    EXPECT_EQ(more, (std::set<std::string>{"block_dots", "column_totals", "layernorm_examples"}));
}

TEST(Injection, ReachesEveryKernelOfTheStep) {
    Step step(small, 1);
    std::map<Phase, std::set<std::string>> kernels;
    std::set<std::string> forward_sites;
    for (const Record& r : records_of(step, "moments")) {
        kernels[r.phase].insert(r.kernel);
        if (r.phase == Phase::Forward) forward_sites.insert(r.site);
    }
    EXPECT_EQ(kernels[Phase::Forward],
              (std::set<std::string>{"embedding_forward", "layernorm_forward", "product", "attention_forward",
                                     "softmax_cross_entropy"}));
    EXPECT_EQ(kernels[Phase::Backward],
              (std::set<std::string>{"layernorm_backward", "product", "attention_backward", "column_sum",
                                     "sum_chunks", "activation_backward", "position_embedding_backward",
                                     "token_embedding_backward"}));
    EXPECT_EQ(kernels[Phase::Update], (std::set<std::string>{"squared_sum", "adamw"}));
    EXPECT_EQ(forward_sites.size(), 2u * 7 + 4);  // per layer, and embedding, ln_f, head, loss
}

TEST(Injection, NeedsNobodyToLook) {
    for (int threads : {1, 2}) {
        Step step(small, threads);
        for (const Record& r : some_records_of(step)) {
            if (!is_kept(r)) continue;
            SCOPED_TRACE(name_of(r));
            Recorder recorder{ProbePlan("off")};
            recorder.inject({r.site, r.phase, r.kernel, r.channel, step.row_number(r, 0), 0, NAN});
            step.run(&recorder);
            EXPECT_TRUE(!step.finite() || step.report().nonfinite == r.site);
            EXPECT_TRUE(recorder.records().empty());
        }
    }
}

TEST(Injection, OutsideOfEverythingChangesNoBit) {
    for (int threads : {1, 2}) {
        SCOPED_TRACE(testing::Message() << threads << " threads");
        Step step(small, threads);
        step.run(nullptr);
        const auto bits = step.bits();
        int64_t turn = 0;  // each channel gets two of the places, one for each plan
        for (const Record& r : some_records_of(step)) {
            const Extent e = step.extent(r);
            const int64_t last = e.count_rows() - 1, width = e.n - last * e.columns;
            // Below the matrix, right of its last row, left of it, above.
            const std::pair<int64_t, int64_t> outside[] = {
                {1 << 20, 0}, {step.row_number(r, last), width}, {0, -1}, {-1, 0}};
            for (const char* plan : {"off", "moments"}) {
                SCOPED_TRACE(testing::Message() << plan << ", " << name_of(r));
                const auto [row, column] = outside[turn++ % 4];
                Recorder recorder{ProbePlan(plan)};
                recorder.inject({r.site, r.phase, r.kernel, r.channel, row, column, NAN});
                step.run(&recorder);
                EXPECT_EQ(step.bits(), bits);
                EXPECT_EQ(recorder.first_nonfinite(), nullptr);
            }
        }
    }
}

// Neither another name nor the absence of a fault does anything; nor does what an injection left in buffers.
TEST(Injection, IsOverWithItsRecorder) {
    for (int threads : {1, 2}) {
        Step step(small, threads);
        step.run(nullptr);
        const auto bits = step.bits();
        const auto records = some_records_of(step);
        for (const char* plan : {"off", "moments", "full"}) {
            Recorder recorder{ProbePlan(plan)};
            step.run(&recorder);
            EXPECT_EQ(step.bits(), bits) << plan;
            recorder.inject({"h.0.attn.kqv", Phase::Forward, "product", "output", 0, 0, NAN});
            step.run(&recorder);
            EXPECT_EQ(step.bits(), bits) << plan;
        }
        for (const Record& r : records) {
            Recorder recorder{ProbePlan("off")};
            recorder.inject({r.site, r.phase, r.kernel, r.channel, step.row_number(r, 0), 0, NAN});
            step.run(&recorder);
            step.run(nullptr);
            EXPECT_EQ(step.bits(), bits) << name_of(r);
        }
    }
}

}  // namespace
}  // namespace wobble
