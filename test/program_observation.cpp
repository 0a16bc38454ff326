// What a run records of itself when it is asked to look: the tables of run.db agree with each other and with
// the steps, and none of it changes a bit of the weights.

#include <signal.h>

#include <algorithm>
#include <cmath>

#include "test/program.h"

namespace wobble::test {

namespace {

// A small model on data that needs no file.
const std::string small =
    " --data 'synthetic:markov?order=1&vocab=32&seed=3' --layers 2 --heads 2 --channels 32 --context 16 "
    "--batch 4 --accum 2 --warmup 5 --eval-sequences 8 --log-every 1000 ";
const std::string everything =
    " --probes full --spectra '*' --distance-from-init --noise-scale --example-norms --sharpness-every 7 "
    "--hessian-every 20 ";

class Observation : public Program {
  protected:
    /// Whether a number of run `r` is another one, to a relative error of float32 sums.
    void expect_same(const std::string& a, const std::string& b) const {
        const double x = query("r", a), y = query("r", b);
        EXPECT_NEAR(x, y, 1e-5 * std::abs(y)) << a << "\n" << b;
    }
};

TEST_F(Observation, ChangesNoBitOfTheWeightsAfterFiftySteps) {
    ASSERT_EQ(train("--run off --steps 50 --threads 1" + small).status, 0);
    for (const char* threads : {"1", "2"}) {
        for (const std::string& probes : {std::string(" --probes moments"), std::string(" --probes full"),
                                          std::string(" --probes 'full:h.1.*,moments:*.qkv*'"), everything}) {
            const Outcome o =
                train("--run r --steps 50 --probe-every 1 --threads " + (threads + small) + probes);
            ASSERT_EQ(o.status, 0) << o.err;
            EXPECT_EQ(checkpoint("off"), checkpoint("r")) << probes << ", " << threads << " threads";
            std::filesystem::remove_all(path("r"));
        }
    }
}

TEST_F(Observation, RecordsEverySiteAsOftenAsAsked) {
    ASSERT_EQ(train("--run r --steps 21 --ring 0 --probes 'full:h.0.attn*,moments' --probe-every 10" + small)
                  .status,
              0);
    EXPECT_EQ(query("r", "select count(distinct step) from stats"), 3);
    EXPECT_EQ(query("r", "select sum(step) from (select distinct step from stats)"), 1 + 11 + 21);
    EXPECT_EQ(query("r", "select count(*) from stats"),
              3 * query("r", "select count(distinct site) from stats"));
    // The mean of the losses that the probe saw is the loss of the step.
    EXPECT_NEAR(query("r",
                      "select mean from stats join sites using (site) where name = 'loss' and channel = "
                      "'loss' and step = 11"),
                query("r", "select loss from steps where step = 11"), 1e-5);
    EXPECT_EQ(
        query("r", "select count(*) from histograms join sites using (site) where name not like 'h.0.attn%'"),
        0);
    EXPECT_GT(query("r", "select count(*) from histograms"), 0);
}

TEST_F(Observation, AgreesWithTheStepsThatItIsAbout) {
    ASSERT_EQ(train("--run r --steps 21 --probe-every 10" + small + everything).status, 0);
    for (const char* table : {"heads", "residuals", "tensors", "embeddings", "streams", "channels", "losses",
                              "largest_losses", "examples", "measures", "histograms"}) {
        EXPECT_GE(query("r", std::string("select count(distinct step) from ") + table +
                                 " where step in (1, 11, 21)"),
                  3)
            << table;
    }
    const std::string n =
        "(select count from stats s join sites i using (site) where i.phase = 'update' and i.channel = "
        "'value' and i.name = t.name and s.step = t.step)";
    const auto norm = [&](const char* column) {
        return "select sqrt(sum(" + std::string(column) + " * " + column + " * " + n +
               ")) from tensors t where step = 11";
    };
    expect_same(norm("grad_rms"), "select grad_norm from steps where step = 11");
    expect_same(norm("update_rms"), "select update_norm from steps where step = 11");
    expect_same(norm("weight_rms"), "select weight_norm from steps where step = 11");
    // After the first update the way from the start is that update, but for the rounding of the weights.
    EXPECT_EQ(query("r",
                    "select count(*) from tensors where step = 1 and abs(distance_rms - update_rms) > 1e-5 * "
                    "update_rms + 6e-8 * weight_rms"),
              0);

    EXPECT_EQ(query("r", "select count(*) from heads where step = 11"), 2 * 2);
    EXPECT_EQ(query("r", "select count(*) from streams where step = 11"), 2 * 2);
    EXPECT_EQ(query("r", "select count(*) from examples where step = 11"), 8);
    for (const char* kind : {"frequency", "position"}) {
        expect_same("select sum(loss * tokens) / sum(tokens) from losses where step = 11 and kind = '" +
                        std::string(kind) + "'",
                    "select loss from steps where step = 11");
    }
    EXPECT_EQ(query("r", "select loss from losses where step = 11 and kind = 'percentile' and key = 100"),
              query("r", "select loss from largest_losses where step = 11 and rank = 0"));
    EXPECT_EQ(query("r", "select sum(rows) from embeddings where step = 11"), 32);
    // A stream is what the branch before it left behind: its RMS is that of the output there.
    expect_same(
        "select stream_rms from streams join sites using (site) where step = 11 and name = 'h.0.mlp.proj'",
        "select rms from stats join sites using (site) where step = 11 and name = 'h.0.attn.proj' and phase "
        "= "
        "'forward'");
    EXPECT_GT(query("r", "select value from measures where step = 15 and name = 'sharpness.critical'"), 0);
    EXPECT_GT(query("r", "select value from measures where step = 21 and name = 'hessian.largest'"), 0);
    EXPECT_EQ(query("r", "select count(*) from residuals where value > 1e-5 * scale"), 0);
    EXPECT_EQ(query("r", "select count(*) from channels where effective_rank > 1"),
              query("r", "select count(*) from channels where sampled_rows > 0"));
}

TEST_F(Observation, KeepsTheLastStepsInARingUntilTheEnd) {
    ASSERT_EQ(train("--run r --steps 23 --probes moments --probe-every 10 --ring 4" + small).status, 0);
    EXPECT_EQ(
        query("r",
              "select group_concat(step) = '1,11,20,21,22,23' from (select distinct step from stats order by "
              "step)"),
        1);
    // Those of the ring have moments alone.
    EXPECT_EQ(query("r", "select count(*) from tensors where step = 23"), 0);
    ASSERT_EQ(train("--run s --steps 23 --probes moments --probe-every 10 --ring 0" + small).status, 0);
    EXPECT_EQ(query("s", "select count(distinct step) from stats"), 3);
    EXPECT_EQ(checkpoint("r"), checkpoint("s"));
}

TEST_F(Observation, WritesTheRingWhenSomethingIsNotFinite) {
    const Outcome o = train(
        "--run r --probes moments --probe-every 1000 --ring 3 --steps 50 --lr 1e5 --clip 0 "
        "--weight-decay 1000 --warmup 0" +
        small.substr(0, small.find("--warmup")));
    ASSERT_EQ(o.status, 3) << o.out << o.err;
    EXPECT_EQ(
        query("r", "select count(distinct step) from stats where step > (select max(step) from steps) - 3"),
        3);
    EXPECT_GT(query("r", "select sum(nans + infs) from stats where step = (select max(step) from steps)"), 0);
}

TEST_F(Observation, WritesTheRingOnASignalAndGoesOn) {
    const Outcome o = train_and_signal_after(
        "--run r --probes moments --probe-every 100000 --ring 8 --steps 1500" + small, SIGUSR1, "r", 20);
    ASSERT_EQ(o.status, 0) << o.err;
    EXPECT_EQ(query("r", "select max(step) from steps"), 1500);
    // Step 1, the eight before the signal, and the eight before the end.
    EXPECT_EQ(query("r", "select count(distinct step) from stats"), 1 + 8 + 8);
}

TEST_F(Observation, IsRefusedWhereItCannotBeMade) {
    const std::pair<const char*, const char*> cases[] = {
        {"--noise-scale --accum 1", "micro-batches"},  {"--ring -1", "--ring"},
        {"--sharpness-every -2", "--sharpness-every"}, {"--hessian-every x", "--hessian-every"},
        {"--probe-every 0", "--probe-every"},
    };
    for (const auto& [arguments, expected] : cases) {
        const Outcome o = train(std::string("--run r --steps 2 ") + arguments);
        EXPECT_EQ(o.status, 2) << arguments;
        EXPECT_NE(o.err.find(expected), std::string::npos) << o.err;
        EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
        EXPECT_FALSE(std::filesystem::exists(path("r"))) << arguments;
    }
}

}  // namespace

}  // namespace wobble::test
