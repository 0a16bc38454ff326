// What a plan looks at, what a recorder keeps, and what of it run.db tells.
#include "probes/recorder.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "kernels/error.h"
#include "probes/run_db.h"

namespace wobble {
namespace {

TEST(ProbePlan, ChoosesByTheFirstPatternThatMatches) {
    EXPECT_FALSE(ProbePlan().looks());
    EXPECT_EQ(ProbePlan().tier("logits"), Tier::Off);
    EXPECT_FALSE(ProbePlan("off").looks());
    EXPECT_EQ(ProbePlan("off").tier("logits"), Tier::Off);
    EXPECT_TRUE(ProbePlan("moments").looks());
    EXPECT_EQ(ProbePlan("moments").tier("h.11.mlp.fc"), Tier::Moments);

    const ProbePlan plan("full:h.*.attn.*,moments:*");
    EXPECT_TRUE(plan.looks());
    EXPECT_EQ(plan.tier("h.0.attn.qkv"), Tier::Full);
    EXPECT_EQ(plan.tier("h.10.attn.qkv.weight"), Tier::Full);
    EXPECT_EQ(plan.tier("h.0.mlp.fc"), Tier::Moments);
    EXPECT_EQ(plan.tier("wte"), Tier::Moments);

    const ProbePlan first("off:h.0.*,moments:h.?.*,full:h.0.attn");
    EXPECT_TRUE(first.looks());
    EXPECT_EQ(first.tier("h.0.attn"), Tier::Off);
    EXPECT_EQ(first.tier("h.1.attn"), Tier::Moments);
    EXPECT_EQ(first.tier("h.12.attn"), Tier::Off);
}

TEST(ProbePlan, RefusesWhatIsNoListOfTiersInOneLine) {
    const std::pair<const char*, const char*> cases[] = {
        {"", "'' is not a tier"},
        {"everything", "'everything' is not a tier"},
        {"Full", "'Full' is not a tier"},
        {"h.0.*", "'h.0.*' is not a tier"},
        {":h.0.*", "'' is not a tier"},
        {"moments,", "'' is not a tier"},
        {"full:h.0.*,fast:*", "'fast' is not a tier"},
        {"full:", "a tier has no site"},
        {"moments:,full:*", "a tier has no site"},
    };
    for (const auto& [text, expected] : cases) {
        try {
            ProbePlan plan{std::string(text)};
            ADD_FAILURE() << text << " was taken";
        } catch (const UserError& error) {
            const std::string message = error.what();
            EXPECT_NE(message.find(expected), std::string::npos) << message;
            EXPECT_NE(message.find("expected"), std::string::npos) << message;
            EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        }
    }
}

Statistics statistics(const std::vector<double>& values, bool histogram = false) {
    Statistics s;
    add_block(Region<double>{values.data(), 0, 2, 0, 1, int64_t(values.size())}, s.moments);
    if (histogram) {
        s.histogram = std::make_unique<Histogram>();
        add_block(values.data(), int(values.size()), *s.histogram);
    }
    return s;
}

/// A kernel that exists to be observed.
struct Example {
    using Element = double;
    static constexpr const char* name = "example";
    static constexpr const char* channels[] = {"output", "aside", "unused"};
    static constexpr const char* sums[2] = {"first", "second"};
    static constexpr const char* identities[2] = {"left", "right"};
    using ObservesPair = void;
    using ObservesHeads = void;
};
struct Plain {
    using Element = double;
    static constexpr const char* name = "plain";
    static constexpr const char* channels[] = {"output"};
};

TEST(Recorder, NamesSites) {
    EXPECT_EQ((Site{"attn.qkv", 3}).full_name(), "h.3.attn.qkv");
    EXPECT_EQ((Site{"wte"}).full_name(), "wte");
    EXPECT_EQ((Site{"attn.qkv", 0, Phase::Backward}).of(".weight").full_name(), "h.0.attn.qkv.weight");
    const Recorder recorder{ProbePlan("full:h.3.*")};
    EXPECT_EQ(recorder.tier({"attn.qkv", 3}), Tier::Full);
    EXPECT_EQ(recorder.tier({"attn.qkv", 4}), Tier::Off);
}

TEST(Recorder, MergesLaunchesOfOneSiteAndKeepsOthersApartInOrder) {
    Recorder recorder{ProbePlan("full")};
    const Site site{"mlp.fc", 1};
    for (double offset : {0.0, 10.0}) {  // two micro-batches
        recorder.record(site, "product", "output", statistics({offset, offset + 1}, true));
        recorder.record(site, "product", "input", statistics({1}));
        recorder.record(site, "gelu", "output", statistics({2}));
        recorder.record({"mlp.fc", 2}, "product", "output", statistics({3}));
        recorder.record({"mlp.fc", 1, Phase::Backward}, "product", "output", statistics({4}));
    }
    const auto& records = recorder.records();
    ASSERT_EQ(records.size(), 5u);
    EXPECT_EQ(records[0].moments().count, 4);
    EXPECT_EQ(records[0].moments().mean, 5.5);
    ASSERT_NE(records[0].statistics.histogram, nullptr);
    EXPECT_EQ(records[0].statistics.histogram->by_exponent[size_t(3 - Histogram::lowest)], 2u);  // 10 and 11
    EXPECT_EQ(records[0].site, "h.1.mlp.fc");
    EXPECT_EQ(records[0].layer, 1);
    EXPECT_STREQ(records[1].channel, "input");
    EXPECT_STREQ(records[2].kernel, "gelu");
    EXPECT_EQ(records[3].site, "h.2.mlp.fc");
    EXPECT_EQ(records[4].phase, Phase::Backward);
    for (size_t i = 1; i < 5; ++i) EXPECT_EQ(records[i].moments().count, 2) << i;

    recorder.clear();
    EXPECT_TRUE(recorder.records().empty());
    recorder.record(site, "product", "output", statistics({7}));
    ASSERT_EQ(recorder.records().size(), 1u);
    EXPECT_EQ(recorder.records()[0].moments().mean, 7);
}

TEST(Recorder, TellsTheFirstNonFiniteValueInTime) {
    Recorder recorder{ProbePlan("moments")};
    const Site a{"a"}, b{"b"}, c{"c"};
    for (const Site& site : {a, b, c}) recorder.record(site, "k", "x", statistics({1, 2}));
    EXPECT_EQ(recorder.first_nonfinite(), nullptr);
    recorder.record(c, "k", "x", statistics({1, NAN}));  // of the second micro-batch
    recorder.record(a, "k", "x", statistics({INFINITY}));
    ASSERT_NE(recorder.first_nonfinite(), nullptr);
    EXPECT_EQ(recorder.first_nonfinite()->site, "c");
    EXPECT_EQ(recorder.first_nonfinite()->moments().first_column, 1);
    recorder.clear();
    EXPECT_EQ(recorder.first_nonfinite(), nullptr);
    recorder.record({"new"}, "k", "x", statistics({-INFINITY}));
    ASSERT_NE(recorder.first_nonfinite(), nullptr);
    EXPECT_EQ(recorder.first_nonfinite()->site, "new");
}

TEST(Recorder, LooksNoCloserThanTheLimit) {
    Recorder recorder{ProbePlan("full:a,moments:b")};
    const Site a{"a"}, b{"b"}, c{"c"};
    const auto tiers = [&] { return std::vector{recorder.tier(a), recorder.tier(b), recorder.tier(c)}; };
    EXPECT_EQ(tiers(), (std::vector{Tier::Full, Tier::Moments, Tier::Off}));
    recorder.limit(Tier::Moments);
    EXPECT_EQ(tiers(), (std::vector{Tier::Moments, Tier::Moments, Tier::Off}));
    EXPECT_EQ(recorder.look<Plain>(a, 3, 4).tier, Tier::Moments);
    recorder.limit(Tier::Off);
    EXPECT_EQ(tiers(), (std::vector{Tier::Off, Tier::Off, Tier::Off}));
    EXPECT_EQ(recorder.look<Plain>(a, 3, 4).tier, Tier::Off);
    recorder.clear();
    EXPECT_EQ(recorder.tier(a), Tier::Off);
    recorder.limit(Tier::Full);
    EXPECT_EQ(tiers(), (std::vector{Tier::Full, Tier::Moments, Tier::Off}));
}

TEST(Recorder, SamplesAtMost128RowsOfMatricesOfTheSitesThatWereNamed) {
    const Recorder recorder{ProbePlan("moments:quiet,full:*"), "h.*.mlp.fc,quiet"};
    const Site fc{"mlp.fc", 2};
    const auto step = [&](const Site& site, int64_t rows, int64_t columns) {
        const Look look = recorder.look<Plain>(site, rows, columns);
        EXPECT_EQ(look.rows, rows);
        EXPECT_EQ(look.columns, columns);
        return look.row_step;
    };
    for (const auto& [rows, expected] : {std::pair<int64_t, int64_t>{1, 1}, {128, 1}, {129, 2}, {1000, 8}})
        EXPECT_EQ(step(fc, rows, 5), expected);
    EXPECT_EQ(step(fc, 100, 0), 0);                              // no matrix
    EXPECT_EQ(step({"mlp.fc"}, 100, 5), 0);                      // not named
    EXPECT_EQ(step({"quiet"}, 100, 5), 0);                       // not at full
    EXPECT_EQ(step({"mlp.fc", 2, Phase::Backward}, 100, 5), 0);  // not of the forward phase
    const Recorder nobody{ProbePlan("full")};
    EXPECT_EQ(nobody.look<Plain>(fc, 100, 5).row_step, 0);
}

TEST(Recorder, OrdersAFaultOfTheOneChannelThatWasNamed) {
    Recorder recorder{ProbePlan("off")};
    const Site site{"mlp.fc", 2, Phase::Backward};
    const auto channel = [&](const Site& at) { return recorder.look<Example>(at, 1, 1).fault.channel; };
    EXPECT_EQ(channel(site), -1);
    recorder.inject({"h.2.mlp.fc", Phase::Backward, "example", "aside", 5, 7, 1.5});
    recorder.clear();
    recorder.take();
    const Fault fault = recorder.look<Example>(site, 1, 1).fault;
    EXPECT_EQ(fault.channel, 1);
    EXPECT_EQ(fault.row, 5);
    EXPECT_EQ(fault.column, 7);
    EXPECT_EQ(fault.change.of(2.0f), 1.5f);
    EXPECT_EQ(channel({"mlp.fc", 1, Phase::Backward}), -1);
    EXPECT_EQ(channel({"mlp.fc", 2}), -1);
    EXPECT_EQ(channel(site.of(".weight")), -1);
    EXPECT_EQ(recorder.look<Plain>(site, 1, 1).fault.channel, -1);
    recorder.inject({"h.2.mlp.fc", Phase::Backward, "example", "nothing", 5, 7, 1.5});
    EXPECT_EQ(channel(site), -1);
}

TEST(Recorder, KeepsWhatALaunchShowedOfItsChannels) {
    Recorder recorder{ProbePlan("moments")};
    const Site site{"mlp.fc", 2};
    Seen<Example> seen;
    seen.channels[0] = statistics({1, 3});
    seen.channels[1] = statistics({NAN});
    seen.sums[0] = 5, seen.sums[1] = 6;
    recorder.record(site, std::move(seen));
    ASSERT_EQ(recorder.records().size(), 2u);  // the third channel saw nothing
    EXPECT_STREQ(recorder.records()[0].channel, "output");
    EXPECT_EQ(recorder.records()[0].moments().mean, 2);
    EXPECT_STREQ(recorder.records()[1].channel, "aside");
    EXPECT_EQ(recorder.records()[1].moments().nans, 1);
    EXPECT_EQ(recorder.first_nonfinite(), &recorder.records()[1]);

    ASSERT_NE(recorder.find(site, "example"), nullptr);
    EXPECT_STREQ(recorder.find(site, "example")->channel, "output");
    EXPECT_EQ(recorder.find(site, "plain"), nullptr);
    EXPECT_EQ(recorder.find({"mlp.fc", 1}, "example"), nullptr);
    EXPECT_EQ(recorder.find({"mlp.fc", 2, Phase::Update}, "example"), nullptr);

    ASSERT_NE(recorder.sums(site), nullptr);
    EXPECT_EQ(recorder.sums(site)[1], 6);
    EXPECT_EQ(recorder.sums({"mlp.fc", 2, Phase::Backward}), nullptr);
    EXPECT_EQ(recorder.sums({"mlp.fc", 3}), nullptr);
}

TEST(Recorder, KeepsTheSumsOfTheLastLaunchOfASite) {
    Recorder recorder{ProbePlan("moments")};
    const Site a{"a"}, b{"b"};
    for (double micro : {1.0, 2.0}) {
        for (const Site& site : {a, b}) {
            Seen<Example> seen;
            seen.sums[0] = micro, seen.sums[1] = site.name[0];
            recorder.record(site, std::move(seen));
            recorder.record(site, Seen<Plain>());  // has no sums and takes none away
        }
    }
    EXPECT_EQ(recorder.sums(a)[0], 2);
    EXPECT_EQ(recorder.sums(a)[1], 'a');
    EXPECT_EQ(recorder.sums(b)[1], 'b');
    recorder.clear();
    EXPECT_EQ(recorder.sums(a), nullptr);
}

TEST(Recorder, HandsOverEverythingOnceAndStartsAfresh) {
    Recorder recorder{ProbePlan("full")};
    const Site site{"a"};
    for (double offset : {0.0, 100.0}) {
        Seen<Example> seen;
        seen.channels[0] = statistics({offset + 1, NAN}, true);
        const double value = offset + 2;
        seen.channels[0].columns = std::make_unique<Columns>();
        seen.channels[0].columns->add(0, &value, 1);
        seen.head(0).add({1, offset, offset, 1, 0, 1, 1}, 1);
        seen.residuals[1].add(3, offset + 3, 1);
        seen.pair.merge({true, 1, 1, 1});
        recorder.record(site, std::move(seen));
        recorder.observation().measures.push_back({"of another", offset});
        ASSERT_NE(recorder.first_nonfinite(), nullptr);

        const Observation all = recorder.take();
        ASSERT_EQ(all.records.size(), 1u);
        EXPECT_EQ(all.records[0].moments().mean, offset + 1);
        ASSERT_EQ(all.heads.size(), 1u);
        EXPECT_EQ(all.heads[0].max_logit, offset);
        ASSERT_EQ(all.residuals.size(), 1u);
        EXPECT_EQ(all.residuals[0].value, offset + 3);
        ASSERT_EQ(all.streams.size(), 1u);
        EXPECT_EQ(all.streams[0].write_rms, std::sqrt(0.5));
        ASSERT_EQ(all.channels.size(), 1u);
        ASSERT_EQ(all.measures.size(), 1u);
        EXPECT_EQ(all.measures[0].value, offset);

        EXPECT_TRUE(recorder.records().empty());
        EXPECT_EQ(recorder.first_nonfinite(), nullptr);
        EXPECT_EQ(recorder.sums(site), nullptr);
        EXPECT_EQ(recorder.find(site, "example"), nullptr);
    }
    const Observation nothing = recorder.take();
    EXPECT_TRUE(nothing.records.empty() && nothing.heads.empty() && nothing.residuals.empty());
    EXPECT_TRUE(nothing.streams.empty() && nothing.channels.empty() && nothing.measures.empty());
}

/// A run.db in a directory of its own.
class StatisticsInRunDb : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = (std::filesystem::temp_directory_path() / "wobble-stats-XXXXXX").string();
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        directory_ = pattern;
        path_ = directory_ + "/run.db";
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }

    /// Rows as text, columns joined by '|', rows by a line break.
    std::string query(const char* sql) const {
        sqlite3* database = nullptr;
        sqlite3_open_v2(path_.c_str(), &database, SQLITE_OPEN_READWRITE, nullptr);
        std::string text, error;
        const auto row = [](void* to, int n, char** values, char**) {
            auto& out = *static_cast<std::string*>(to);
            if (!out.empty()) out += '\n';
            for (int i = 0; i < n; ++i) out.append(i ? "|" : "").append(values[i] ? values[i] : "NULL");
            return 0;
        };
        if (sqlite3_exec(database, sql, row, &text, nullptr) != SQLITE_OK) text = sqlite3_errmsg(database);
        sqlite3_close(database);
        return text;
    }

    std::string directory_, path_;
};

constexpr const char* all_stats =
    "SELECT name, layer, phase, kernel, channel, count, mean, rms, min, max, absmax, skew, kurtosis, zeros, "
    "subnormals, nans, infs, first_row, first_column FROM stats JOIN sites USING (site) ORDER BY step, site";

TEST_F(StatisticsInRunDb, ComeBackWithTheirSites) {
    Recorder recorder{ProbePlan("full")};
    recorder.record({"attn.qkv", 3}, "product", "output", statistics({0, 0, 2, 2}));
    Statistics bad = statistics({0.25, NAN, -INFINITY, INFINITY});
    bad.moments.subnormals = 1;
    recorder.record({"wte", -1, Phase::Backward}, "embedding", "input", std::move(bad));
    recorder.record({"lnf"}, "layernorm", "rstd", statistics({NAN}));
    recorder.record({"lnf", -1, Phase::Update}, "adamw", "update", statistics({5, 5}));
    recorder.record({"empty"}, "k", "x", statistics({}));  // has no row
    RunDb db(path_);
    db.add_observation(1, recorder.observation());
    db.commit();
    EXPECT_EQ(
        query(all_stats),
        "h.3.attn.qkv|3|forward|product|output|4|1.0|1.41421353816986|0.0|2.0|2.0|0.0|1.0|2|0|0|0|NULL|NULL\n"
        "wte|-1|backward|embedding|input|1|0.25|0.25|0.25|0.25|0.25|NULL|NULL|0|1|1|2|2|1\n"
        "lnf|-1|forward|layernorm|rstd|0|NULL|NULL|NULL|NULL|NULL|NULL|NULL|0|0|1|0|2|0\n"
        "lnf|-1|update|adamw|update|2|5.0|5.0|5.0|5.0|5.0|NULL|NULL|0|0|0|0|NULL|NULL");
    EXPECT_EQ(query("SELECT count(*) FROM histograms"), "0");
}

TEST_F(StatisticsInRunDb, HaveHistogramsAsJson) {
    std::vector<double> values = {0, -0.0, NAN, INFINITY, 1, -1.5, 2, 1e6, 0x1p-149};
    Recorder recorder{ProbePlan("full")};
    recorder.record({"a"}, "k", "x", statistics(values, true));
    recorder.record({"b"}, "k", "x", statistics({0}, true));
    RunDb db(path_);
    db.add_observation(1, recorder.observation());
    db.commit();
    EXPECT_EQ(
        query("SELECT key, value FROM histograms JOIN sites USING (site), json_each(bins) WHERE name = 'a'"),
        "-149|1\n0|2\n1|1\n19|1");
    EXPECT_EQ(
        query("SELECT name, sum(value) = count - zeros FROM histograms JOIN stats USING (step, site) JOIN "
              "sites USING (site), json_each(bins) GROUP BY site"),
        "a|1");
    EXPECT_EQ(query("SELECT key, value FROM histograms, json_each(flushed) ORDER BY key"),
              "bf16|1\ne2m1|1\ne4m3|1\ne5m2|1\nfp16|1");
    EXPECT_EQ(query("SELECT key, value FROM histograms, json_each(overflowed) ORDER BY key"),
              "e2m1|1\ne4m3|1\ne5m2|1\nfp16|1");
    EXPECT_EQ(
        query("SELECT bins, flushed, overflowed FROM histograms JOIN sites USING (site) WHERE name = 'b'"),
        "{}|{}|{}");
}

TEST_F(StatisticsInRunDb, KeepTheNumbersOfSitesAndForgetLaterSteps) {
    Recorder recorder{ProbePlan("full")};
    recorder.record({"a"}, "k", "x", statistics({1}, true));
    recorder.record({"a"}, "k", "y", statistics({2}, true));
    {
        RunDb db(path_);
        for (int64_t step : {1, 2, 3}) db.add_observation(step, recorder.observation());
    }
    recorder.clear();
    for (const char* name : {"new", "a"})
        for (const char* channel : {"y", "x"}) recorder.record({name}, "k", channel, statistics({3}, true));
    RunDb db(path_);
    db.forget_after(1);
    EXPECT_EQ(query("SELECT count(*), max(step) FROM stats"), "2|1");
    EXPECT_EQ(query("SELECT count(*), max(step) FROM histograms"), "2|1");
    db.add_observation(2, recorder.observation());
    db.commit();
    EXPECT_EQ(query("SELECT site, name, channel FROM sites ORDER BY site"), "1|a|x\n2|a|y\n3|new|y\n4|new|x");
    EXPECT_EQ(query("SELECT step, site, mean FROM stats ORDER BY step, site"),
              "1|1|1.0\n1|2|2.0\n2|1|3.0\n2|2|3.0\n2|3|3.0\n2|4|3.0");
    EXPECT_EQ(query("SELECT count(*), max(step) FROM histograms"), "6|2");
}

}  // namespace
}  // namespace wobble
