// ./train coordcheck: slopes of series that are known, and whole small commands.

#include <cmath>
#include <nlohmann/json.hpp>

#include "run/scaling.h"
#include "test/program.h"

namespace wobble::test {

namespace {

TEST(Scaling, SlopeIsThePowerOfAPowerLaw) {
    std::vector<double> x, y;
    for (double width : {64.0, 128.0, 256.0, 512.0})
        x.push_back(std::log(width)), y.push_back(std::log(3 * std::pow(width, 0.7)));
    EXPECT_NEAR(slope(x, y), 0.7, 1e-12);
    // By hand: least squares of 0, 2, 1 on 0, 1, 2.
    EXPECT_NEAR(slope({0, 1, 2}, {0, 2, 1}), 0.5, 1e-15);
    EXPECT_TRUE(std::isnan(slope({0, 1, 2}, {0, -INFINITY, 1})));
    EXPECT_TRUE(std::isnan(slope({0, 1, 2}, {0, NAN, 1})));
}

TEST(Scaling, IntervalIsStudents) {
    EXPECT_TRUE(std::isnan(estimate({2}).half_width));
    const Estimate e = estimate({1, 2, 3});  // deviation 1, t = 4.303 for two degrees of freedom
    EXPECT_DOUBLE_EQ(e.mean, 2);
    EXPECT_NEAR(e.half_width, 4.303 / std::sqrt(3.0), 1e-12);
    EXPECT_NEAR(estimate(std::vector<double>(30, 1.0)).half_width, 0, 1e-12);
}

TEST(Scaling, OfModelsIsOfTheSitesThatAllHave) {
    // Before the step sizes are the same; after it size and change grow with powers 1 and 2, in the second
    // seed with 1.5 and 2.
    const auto model = [](double width, double power, bool more) {
        const double log_width = std::log(width);
        Trajectory t = {{{"a", 0.5, NAN}}, {{"a", power * log_width, 2 * log_width}}};
        if (more)
            for (auto& forward : t) forward.insert(forward.begin(), {"b", 0, 0});
        return t;
    };
    const Scaling s = scaling("width", {8, 16, 32}, "depth 2",
                              {{model(8, 1, true), model(16, 1, false), model(32, 1, true)},
                               {model(8, 1.5, true), model(16, 1.5, true), model(32, 1.5, true)}});
    ASSERT_EQ(s.sites.size(), 1u);
    EXPECT_EQ(s.sites[0].site, "a");
    EXPECT_EQ(s.steps(), 1);
    EXPECT_NEAR(s.sites[0].at_start.mean, 0, 1e-12);
    EXPECT_NEAR(s.sites[0].after.mean, 1.25, 1e-12);
    EXPECT_NEAR(s.sites[0].after.half_width, 12.706 * 0.25, 1e-9);
    EXPECT_NEAR(s.sites[0].change.mean, 2, 1e-12);
    EXPECT_NEAR(s.sites[0].log_size[1][2], 1.25 * std::log(32), 1e-12);
    const std::string text = to_text(s);
    EXPECT_NE(text.find("1.25 (3.18)"), std::string::npos) << text;
    EXPECT_NE(text.find("flat (|slope| < 0.1) at 0 of 1 sites; steepest: a, 2.00"), std::string::npos)
        << text;
}

class CoordCheck : public Program {
  protected:
    /// The mean of a slope of a site, from the file.
    double mean(const nlohmann::json& check, const std::string& site, const char* slope) const {
        for (const auto& s : check["sites"])
            if (s["site"] == site) return s[slope]["mean"].is_null() ? NAN : double(s[slope]["mean"]);
        ADD_FAILURE() << "no site " << site;
        return NAN;
    }
    nlohmann::json checks(const std::string& flags) {
        const Outcome o = train("coordcheck --json c.json --threads 1 " + flags);
        EXPECT_EQ(o.status, 0) << o.err;
        return o.status == 0 ? nlohmann::json::parse(read("c.json"))["checks"] : nlohmann::json();
    }
};

TEST_F(CoordCheck, TellsStandardFromMup) {
    const std::string flags = " --widths 32,64,128 --depths 2 --head-size 16 --steps 4 --base-channels 32 ";
    const nlohmann::json standard = checks(flags)[0];
    EXPECT_EQ(standard["axis"], "width");
    EXPECT_EQ(standard["sizes"], nlohmann::json({32, 64, 128}));
    EXPECT_GT(mean(standard, "head", "slope_of_change"), 0.3);
    EXPECT_GT(mean(standard, "h.*.attn", "slope_after"), 0.3);
    // N(0, 0.02²) of C inputs of size 1.
    EXPECT_NEAR(mean(standard, "h.*.attn.qkv", "slope_at_start"), 0.5, 0.05);
    const nlohmann::json mup = checks(flags + "--parametrization mup")[0];
    EXPECT_NEAR(mean(mup, "h.*.attn.qkv", "slope_at_start"), 0, 0.05);
    EXPECT_LT(std::abs(mean(mup, "h.*.attn", "slope_of_change")), 0.15);
    EXPECT_LT(std::abs(mean(mup, "head", "slope_of_change")), 0.25);
    EXPECT_TRUE(std::isnan(mean(mup, "h.*.attn writes", "slope_of_change")));
}

TEST_F(CoordCheck, TellsStandardFromCompletePInDepth) {
    const std::string flags =
        " --widths 32 --depths 2,4,8 --head-size 16 --base-channels 32 --base-layers 2 ";
    const nlohmann::json standard = checks(flags);
    ASSERT_EQ(standard.size(), 1u);
    EXPECT_EQ(standard[0]["axis"], "depth");
    EXPECT_GT(mean(standard[0], "stream", "slope_of_change"), 0.3);
    EXPECT_LT(std::abs(mean(checks(flags + "--parametrization completep")[0], "stream", "slope_of_change")),
              0.2);
}

TEST_F(CoordCheck, WritesWhatItPrintsAndRepeats) {
    const std::string flags =
        "coordcheck --widths 16,32 --depths 1,2 --head-size 8 --steps 2 --batch 2 --context 8 --seeds 2 ";
    const Outcome o = train(flags + "--json a.json --out a.svg");
    ASSERT_EQ(o.status, 0) << o.err;
    EXPECT_NE(o.out.find("width 16, 32 at depth 1"), std::string::npos) << o.out;
    EXPECT_NE(o.out.find("depth 1, 2 at width 16"), std::string::npos) << o.out;
    EXPECT_NE(o.out.find("h.last.attn"), std::string::npos) << o.out;
    EXPECT_NE(o.err.find("seed 2 of 2"), std::string::npos) << o.err;
    EXPECT_NE(o.err.find(" left"), std::string::npos) << o.err;
    const std::string picture = read("a.svg");
    EXPECT_EQ(picture.rfind("<svg ", 0), 0u);
    EXPECT_NE(picture.find("</svg>"), std::string::npos);
    EXPECT_EQ(picture.find("nan"), std::string::npos);
    EXPECT_EQ(picture.find("inf"), std::string::npos);
    ASSERT_EQ(train(flags + "--json b.json --out b.svg --threads 3").status, 0);
    EXPECT_EQ(read("a.json"), read("b.json"));
    EXPECT_EQ(picture, read("b.svg"));
    EXPECT_FALSE(std::filesystem::exists(path("runs")));
    // A head of zeros has no size at the start, but a change.
    const nlohmann::json zero = checks(
        "--widths 16,32 --depths 1 --head-size 8 --steps 2 --batch 2 --context 8 --no-tied --zero-head --out "
        "''");
    EXPECT_TRUE(std::isnan(mean(zero[0], "head", "slope_at_start")));
    EXPECT_TRUE(std::isfinite(mean(zero[0], "head", "slope_of_change")));
    EXPECT_FALSE(std::filesystem::exists(path("coordcheck.svg")));
}

TEST_F(CoordCheck, TakesModelAndDataOfARun) {
    ASSERT_EQ(
        train("--run r --steps 1 --layers 1 --channels 16 --heads 2 --context 8 --batch 2 --norm rmsnorm "
              "--eval-sequences 2")
            .status,
        0);
    const Outcome o =
        train("coordcheck --config r/config.toml --widths 16,32 --depths 1 --head-size 8 --steps 2");
    ASSERT_EQ(o.status, 0) << o.err;
    EXPECT_NE(o.out.find("GPT-2 with --norm rmsnorm, T8 V64"), std::string::npos) << o.out;
    EXPECT_NE(o.out.find("2 steps on 2 sequences"), std::string::npos) << o.out;
}

}  // namespace

}  // namespace wobble::test
