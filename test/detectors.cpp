// Detectors on series that are known: what they must find, what they must not, and that neither a NaN nor a
// resumption makes them blind.
#include "probes/detectors/detectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "kernels/error.h"
#include "probes/detectors/definitions.h"

namespace wobble {
namespace {

StepRow step_row(int64_t step, double loss, double grad_norm) {
    return {.step = step,
            .tokens = 1000 * step,
            .loss = loss,
            .lr = 1e-3,
            .grad_norm = grad_norm,
            .clip = 1,
            .update_norm = 1,
            .weight_norm = 1,
            .seconds = 1,
            .tokens_per_second = 1000,
            .applied = std::isfinite(loss),
            .finite = std::isfinite(loss)};
}

TensorRow tensor(const std::string& name, double grad_rms, double update_ratio, double rms_t) {
    TensorRow row{};
    row.name = name, row.grad_rms = grad_rms, row.update_ratio = update_ratio, row.rms_t = rms_t;
    return row;
}

HeadRow head(double abs_logit, double entropy, double saturated) {
    HeadRow row{};
    row.site = "h.0.attn", row.abs_logit = abs_logit, row.entropy = entropy, row.saturated = saturated;
    return row;
}

StreamRow stream(const std::string& site, double rms) {
    StreamRow row{};
    row.site = site, row.stream_rms = rms;
    return row;
}

/// A loss that falls from log 65 to 2, and a gradient norm, with the noise of small batches.
class Healthy {
  public:
    explicit Healthy(unsigned seed) : generator_(seed) {}
    StepRow next() {
        ++step_;
        const double loss = 2 + 2.17 * std::exp(-double(step_) / 60);
        return step_row(step_, loss * std::exp(0.03 * noise_(generator_)),
                        (1 + 4 * std::exp(-double(step_) / 20)) * std::exp(0.15 * noise_(generator_)));
    }

  private:
    int64_t step_ = 0;
    std::mt19937_64 generator_;
    std::normal_distribution<double> noise_;
};

std::vector<Event> severe(const std::vector<Event>& events) {
    std::vector<Event> found;
    for (const Event& e : events)
        if (e.severity != Severity::Note) found.push_back(e);
    return found;
}

const RunFacts facts{.vocab = 65, .floor = 0, .bf16 = false, .warmup = 10};

TEST(Detectors, FindNothingWrongWithNoise) {
    for (unsigned seed = 1; seed <= 20; ++seed) {
        Detectors detectors(facts);
        Healthy run(seed);
        for (int i = 0; i < 1000; ++i) {
            const StepRow row = run.next();
            for (const Event& e : severe(detectors.look(row, {})))
                ADD_FAILURE() << "seed " << seed << ", step " << row.step << ": " << e.summary;
        }
    }
}

TEST(Detectors, FindASpikeAtItsStep) {
    Detectors detectors(facts);
    Healthy run(1);
    for (int i = 1; i <= 300; ++i) {
        StepRow row = run.next();
        if (i == 250) row.loss *= 2, row.grad_norm *= 100;
        const std::vector<Event> found = severe(detectors.look(row, {}));
        ASSERT_EQ(found.size(), i == 250 ? 2u : 0u) << "step " << i;
        for (const Event& e : found) {
            EXPECT_EQ(e.severity, Severity::Alarm);
            EXPECT_EQ(e.step, 250);
        }
    }
}

TEST(Detectors, FindAnUpdateThatNoGradientExplains) {
    for (const double times : {12.0, 1e30, double(INFINITY)}) {
        Detectors detectors(facts);
        Healthy run(4);
        for (int i = 1; i <= 300; ++i) {
            StepRow row = run.next();
            // It follows the rate, up and down.
            row.lr = 1e-5 * (i < 100 ? i : 400 - i), row.update_norm = 30 * row.lr;
            if (i == 250) row.update_norm *= times;
            const std::vector<Event> found = severe(detectors.look(row, {}));
            ASSERT_EQ(found.size(), i == 250 ? 1u : 0u) << "step " << i;
            if (i != 250) continue;
            EXPECT_EQ(found[0].detector, "whole update");
            EXPECT_EQ(found[0].severity, times > 100 ? Severity::Alarm : Severity::Warning);
        }
    }
}

// A window that took the NaN in would have no mean any more; one that took a spike in would be too wide for
// the next.
TEST(Detectors, ANanBlindsNone) {
    Detectors detectors(facts);
    Healthy run(2);
    for (int i = 1; i <= 300; ++i) {
        StepRow row = run.next();
        if (i == 200) row = step_row(200, NAN, NAN);
        if (i == 255) row.loss *= 10, row.grad_norm *= 100;
        const std::vector<Event> found = severe(detectors.look(row, {}));
        EXPECT_EQ(found.size(), i == 200   ? 2u
                                : i == 255 ? 3u
                                           : 0u)
            << "step " << i;  // and above where it began
    }
}

TEST(Detectors, RememberWhatTheyHaveSeenWhenARunGoesOn) {
    Detectors whole(facts), first(facts);
    Healthy run(3);
    DetectorState saved;
    for (int i = 1; i <= 400; ++i) {
        StepRow row = run.next();
        if (i == 190 || i == 230) row.loss *= 1.6;
        if (i > 330) row.loss *= 1.3;
        Observation seen;
        seen.tensors.push_back(tensor("h.0.mlp.fc.weight", 1, i == 210 ? 1 : 1e-3, i == 205 ? 20.0 : 1.0));
        const std::vector<Event> expected = whole.look(row, seen), found = first.look(row, seen);
        ASSERT_EQ(found.size(), expected.size()) << "step " << i;
        for (size_t e = 0; e < found.size(); ++e) EXPECT_EQ(found[e].summary, expected[e].summary);
        if (i % 37 == 0) {
            saved = first.state();
            first.restore({});
            first.restore(saved);
        }
    }
    EXPECT_EQ(whole.state(), first.state());
}

TEST(Detectors, AgreeWithANewLevelAfterAWhile) {
    History history({.window = 64, .least = 20, .spreads = 8});
    int out = 0;
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(history.take(1 + 0.01 * (i % 7)).out);
    for (int i = 0; i < 100; ++i) out += history.take(3 + 0.01 * (i % 7)).out;
    EXPECT_EQ(out, 32);
}

TEST(Detectors, SeeALossThatStaysAway) {
    Detectors detectors(facts);
    Healthy run(4);
    int64_t first = 0;
    for (int i = 1; i <= 400; ++i) {
        StepRow row = run.next();
        if (i > 200) row.loss *= std::exp(0.01 * (i - 200));  // too slow for a spike
        for (const Event& e : severe(detectors.look(row, {})))
            if (e.detector == "divergence" && first == 0) first = e.step;
    }
    EXPECT_GT(first, 200);
    EXPECT_LT(first, 300);
}

TEST(Detectors, SeeALossThatDoesNotComeDown) {
    Detectors detectors(facts);
    std::vector<std::string> found;
    for (int i = 1; i <= 300; ++i) {
        for (const Event& e : severe(detectors.look(step_row(i, 4.17 + 0.01 * (i % 3), 1), {})))
            found.push_back(e.detector);
    }
    ASSERT_FALSE(found.empty());
    EXPECT_EQ(found[0], "stall");
}

// Each kind of trouble inside the model, on top of what is usual.
TEST(Detectors, SeeTroubleInsideTheModel) {
    const auto usual = [] {
        Observation o;
        o.heads = {head(3, 2, 0)};
        o.streams = {stream("h.0.attn.proj", 0.1), stream("h.0.mlp.proj", 0.2)};
        o.residuals.emplace_back();
        o.residuals[0].site = "h.0.ln_1", o.residuals[0].identity = "sum dx";
        o.residuals[0].value = 1e-7, o.residuals[0].scale = 1;
        o.channels.emplace_back();
        o.channels[0].site = "h.0.mlp.act", o.channels[0].phase = Phase::Forward, o.channels[0].dead = 0.1;
        o.tensors = {tensor("h.0.mlp.fc.weight", 1, 1e-3, 1), tensor("h.1.mlp.fc.weight", 1, 1e-3, 1)};
        o.largest_losses.emplace_back();
        o.largest_losses[0].loss = 9;
        o.records.push_back({"loss", -1, Phase::Forward, "classifier", "log_z", {}});
        Moments& log_z = o.records[0].statistics.moments;
        log_z.count = 10, log_z.mean = log_z.min = log_z.max = 4;
        return o;
    };

    const auto finds = [&](const std::string& detector, const std::function<void(Observation&)>& change) {
        Detectors detectors(facts);
        Healthy run(5);
        std::vector<Event> found;
        for (int i = 1; i <= 120; ++i) {
            Observation seen = usual();
            if (i > 100) change(seen);
            for (Event& e : severe(detectors.look(run.next(), seen))) found.push_back(std::move(e));
        }
        ASSERT_FALSE(found.empty()) << detector;
        for (const Event& e : found) {
            EXPECT_EQ(e.detector, detector) << e.summary;
            EXPECT_GT(e.step, 100);
        }
    };
    finds("attention logits", [](Observation& o) { o.heads[0].abs_logit = 300; });
    finds("entropy collapse", [](Observation& o) { o.heads[0].entropy = 0.01, o.heads[0].saturated = 1; });
    finds("log Z drift", [](Observation& o) { o.records[0].statistics.moments.mean = 80; });
    finds("residual growth", [](Observation& o) { o.streams[1].stream_rms = 50; });
    finds("dead units", [](Observation& o) { o.channels[0].dead = 0.95; });
    finds("range", [](Observation& o) { o.records[0].statistics.moments.subnormals = 9; });
    finds("range", [](Observation& o) { o.records[0].statistics.moments.min = -1e31; });
    finds("identity residuals", [](Observation& o) { o.residuals[0].value = 0.01; });
    finds("gradients by depth", [](Observation& o) { o.tensors[0].grad_rms = 1e-5; });
    finds("rms_t", [](Observation& o) { o.tensors[1].rms_t = 30; });
    finds("update norm", [](Observation& o) { o.tensors[1].update_ratio = 0.5; });
    finds("token loss", [](Observation& o) { o.largest_losses[0].loss = 60; });
}

// Series whose answers can be worked out by hand.
TEST(SpikeDefinitions, FindWhatTheirRulesSay) {
    std::vector<double> series;
    for (int i = 0; i < 300; ++i) series.push_back(i % 2 == 0 ? 0.9 : 1.1);  // mean 1, deviation 0.1
    series[200] = 1.65;                                                      // 6.5 deviations
    series[250] = NAN;
    series[280] = 2000;
    const auto found = [&](const char* name) { return spike_definition(name).spikes(series); };
    using Indices = std::vector<int64_t>;
    EXPECT_EQ(found("olmo2"), (Indices{250, 280}));
    EXPECT_EQ(found("olmo-core"), (Indices{200, 250, 280}));
    EXPECT_EQ(found("olmo-core-skip"), (Indices{200, 250, 280}));
    EXPECT_EQ(found("llm.c"), (Indices{200, 250, 280}));
    EXPECT_EQ(found("spam"), (Indices{250, 280}));
    EXPECT_EQ(found("megatron"), (Indices{250, 280}));
    EXPECT_EQ(found("zclip"), (Indices{200, 250, 280}));
    EXPECT_THROW(spike_definition("olmo"), UserError);
}

}  // namespace
}  // namespace wobble
