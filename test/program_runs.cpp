// What ./train promises about whole runs: the same command gives the same bits, also when it is interrupted,
// killed and resumed, on any number of threads.

#include <signal.h>

#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "test/program.h"

namespace wobble::test {

namespace {

// A small model on data that needs no file.
const std::string small =
    " --data 'synthetic:markov?order=1&vocab=32&seed=3' --layers 2 --heads 2 --channels 32 --context 16 "
    "--batch 4"
    " --warmup 5 --eval-sequences 8 --log-every 1000 ";

using Runs = Program;

TEST_F(Runs, LeaveConfigurationDatabaseAndCheckpoint) {
    const Outcome o = train("--run r --steps 12 --eval-every 5" + small);
    ASSERT_EQ(o.status, 0) << o.err;
    EXPECT_NE(read("r/config.toml").find("layers = 2"), std::string::npos);
    EXPECT_EQ(query("r", "select count(*) from steps"), 12);
    EXPECT_EQ(query("r", "select sum(applied and finite) from steps"), 12);
    EXPECT_EQ(query("r", "select count(*) from batches"), 12 * 4);
    EXPECT_EQ(query("r", "select count(*) from evals"), 3);  // after 5, 10 and 12
    EXPECT_TRUE(std::filesystem::exists(path("r/checkpoints/step-00000012/model.safetensors")));
}

TEST_F(Runs, StoppedAndResumedGiveTheBitsOfOneRun) {
    ASSERT_EQ(train("--run whole --steps 40 --threads 1" + small).status, 0);
    ASSERT_EQ(train("--run parts --steps 40 --stop-after 20 --threads 2" + small).status, 0);
    EXPECT_EQ(query("parts", "select max(step) from steps"), 20);
    ASSERT_EQ(train("--resume parts").status, 0);
    EXPECT_EQ(query("parts", "select count(*) from steps"), 40);
    EXPECT_EQ(checkpoint("whole"), checkpoint("parts"));
    EXPECT_EQ(query("whole", "select sum(loss) from steps"), query("parts", "select sum(loss) from steps"));
    EXPECT_EQ(query("whole", "select sum(offset * row) from batches"),
              query("parts", "select sum(offset * row) from batches"));
}

// Tensors, activations and the cache of a model with few parts of a GPT-2.
TEST_F(Runs, OfAnotherMemberOfTheFamilyKeepThePromisesToo) {
    const std::string family =
        small +
        "--norm rmsnorm --norm-placement peri --position rotary --qk-norm rmsnorm --window 9 "
        "--attention-softcap 20 --kv-heads 1 --sink --value-residual 0.3 --gated --activation silu --no-bias "
        "--no-tied "
        "--parametrization completep --base-channels 16 --base-layers 1";
    ASSERT_EQ(train("--run whole --steps 20 --threads 1 " + family).status, 0);
    const Outcome watched =
        train("--run parts --steps 20 --stop-after 11 --threads 2 --probes full " + family);
    ASSERT_EQ(watched.status, 0) << watched.err;
    EXPECT_NE(watched.out.find("GPT-2 with --norm rmsnorm"), std::string::npos) << watched.out;
    ASSERT_EQ(train("--resume parts").status, 0);
    EXPECT_EQ(checkpoint("whole"), checkpoint("parts"));
    EXPECT_GT(
        query("parts", "select count(*) from stats join sites using (site) where name = 'h.1.attn.q_norm'"),
        0);
    ASSERT_EQ(train("--config whole/config.toml --run again").status, 0);
    EXPECT_EQ(checkpoint("whole"), checkpoint("again"));
    const Outcome evaluated = train("eval whole --json");
    EXPECT_EQ(evaluated.status, 0) << evaluated.err;
    const Outcome refused = train("--resume whole --steps 30 --norm layernorm");
    EXPECT_EQ(refused.status, 2);
    EXPECT_NE(refused.err.find("--norm is \"layernorm\" but the run was started with \"rmsnorm\""),
              std::string::npos)
        << refused.err;
}

TEST_F(Runs, RecomputingChangesNoBit) {
    for (const std::string flags :
         {"", "--precision bf16 --probes moments ", "--norm-placement post --norm rmsnorm "}) {
        std::filesystem::remove_all(path("kept")), std::filesystem::remove_all(path("again"));
        ASSERT_EQ(train("--run kept --steps 4 --layers 3 " + small + flags).status, 0);
        const Outcome o = train("--run again --steps 4 --layers 3 --recompute " + small + flags);
        ASSERT_EQ(o.status, 0) << o.err;
        EXPECT_EQ(checkpoint("kept"), checkpoint("again")) << flags;
    }
    const Outcome refused = train("--recompute --value-residual 0.5 " + small);
    EXPECT_EQ(refused.status, 2);
    EXPECT_NE(refused.err.find("leave one of them out"), std::string::npos) << refused.err;
}

TEST_F(Runs, RoundingStochasticallyKeepThePromisesToo) {
    const std::string narrow = small + "--precision bf16-stochastic ";
    ASSERT_EQ(train("--run whole --steps 12 --threads 1 " + narrow).status, 0);
    ASSERT_EQ(train("--run parts --steps 12 --stop-after 7 --threads 2 --probes full " + narrow).status, 0);
    ASSERT_EQ(train("--resume parts").status, 0);
    EXPECT_EQ(checkpoint("whole"), checkpoint("parts"));
    ASSERT_EQ(train("--run nearest --steps 12 --precision bf16 " + small).status, 0);
    EXPECT_NE(checkpoint("whole"), checkpoint("nearest"));
}

TEST_F(Runs, InBfloat16KeepThePromisesToo) {
    const std::string narrow = small + "--precision bf16 ";
    ASSERT_EQ(train("--run whole --steps 20 --threads 1 " + narrow).status, 0);
    const Outcome first = train("--run parts --steps 20 --stop-after 11 --threads 2 --probes full " + narrow);
    ASSERT_EQ(first.status, 0) << first.err;
    EXPECT_NE(first.out.find("in bf16"), std::string::npos) << first.out;
    ASSERT_EQ(train("--resume parts").status, 0);
    EXPECT_EQ(checkpoint("whole"), checkpoint("parts"));
    // Half a percent of the loss is what three digits of a weight make.
    ASSERT_EQ(train("--run exact --steps 20 " + small).status, 0);
    const std::string last = "select loss from steps where step = 20";
    EXPECT_NE(query("whole", last), query("exact", last));
    EXPECT_NEAR(query("whole", last), query("exact", last), 5e-3 * query("exact", last));
    EXPECT_EQ(train("eval whole --json").status, 0);
    EXPECT_EQ(train("sample whole --prompt 1 --tokens 5").status, 0);
    const Outcome refused = train("--resume whole --steps 30 --precision fp32");
    EXPECT_EQ(refused.status, 2);
    EXPECT_NE(refused.err.find("--precision is \"fp32\" but the run was started with \"bf16\""),
              std::string::npos)
        << refused.err;
}

TEST_F(Runs, StoreWhatAPresetStandsFor) {
    const Outcome o = train("--run new --steps 2 " + small + "--preset olmo2 --norm-placement peri");
    ASSERT_EQ(o.status, 0) << o.err;
    EXPECT_NE(o.out.find("GPT-2 with --norm rmsnorm --norm-placement peri"), std::string::npos) << o.out;
    const std::string config = read("new/config.toml");
    EXPECT_NE(config.find("qk-norm = \"rmsnorm\""), std::string::npos) << config;
    EXPECT_NE(config.find("norm-placement = \"peri\""), std::string::npos) << config;
    EXPECT_EQ(config.find("preset"), std::string::npos) << config;
    ASSERT_EQ(train("--config new/config.toml --run again").status, 0);
    EXPECT_EQ(checkpoint("new"), checkpoint("again"));
}

TEST_F(Runs, ShowTheirTensorsBeforehand) {
    const Outcome o = train("params --layers 2 --channels 64 --parametrization mup --base-channels 16");
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_NE(o.out.find("h.1.mlp.fc.weight"), std::string::npos);
    EXPECT_NE(o.out.find("64 x 256"), std::string::npos);
    EXPECT_NE(o.out.find("N(0, 0.01^2)"), std::string::npos);
    EXPECT_NE(o.out.find("0.25"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path("runs")));
    const Outcome bad = train("params --init-scale h.9.attn.qkv=2");
    EXPECT_EQ(bad.status, 2);
    EXPECT_NE(bad.err.find("--init-scale names h.9.attn.qkv, but no tensor has such a name"),
              std::string::npos)
        << bad.err;
}

TEST_F(Runs, SayWhatMemoryTheyWouldTakeOnAnyDevice) {
    for (const char* device : {"cpu", "cuda"}) {
        const Outcome o = train("--run planned --plan --device " + std::string(device) + small);
        EXPECT_EQ(o.status, 0) << o.err;
        for (const char* section :
             {"parameters ", "gradients ", "activations ", "logits ", "optimizer ", "in all "})
            EXPECT_NE(o.out.find(section), std::string::npos) << section << "in: " << o.out;
        EXPECT_EQ(o.out.find("cuBLASLt") != std::string::npos, device == std::string("cuda")) << o.out;
        EXPECT_FALSE(std::filesystem::exists(path("planned")));
    }
}

TEST_F(Runs, DoNotDependOnTheNumberOfThreads) {
    std::string first;
    for (const char* threads : {"1", "2", "3", "7"}) {
        const std::string run = std::string("r") + threads;
        ASSERT_EQ(train("--run " + run + " --accum 2 --steps 6 --threads " + threads + small).status, 0);
        if (first.empty()) first = checkpoint(run);
        EXPECT_EQ(checkpoint(run), first) << threads << " threads";
    }
}

TEST_F(Runs, RepeatFromTheirOwnConfiguration) {
    ASSERT_EQ(train("--run first --steps 8 --seed 42 --lr 0.003" + small).status, 0);
    ASSERT_EQ(train("--config first/config.toml --run second").status, 0);
    EXPECT_EQ(checkpoint("first"), checkpoint("second"));
}

TEST_F(Runs, DifferWithTheSeeds) {
    ASSERT_EQ(train("--run a --steps 3" + small).status, 0);
    ASSERT_EQ(train("--run b --steps 3 --init-seed 2" + small).status, 0);
    ASSERT_EQ(train("--run c --steps 3 --data-seed 2" + small).status, 0);
    EXPECT_NE(checkpoint("a"), checkpoint("b"));
    EXPECT_NE(checkpoint("a"), checkpoint("c"));
}

TEST_F(Runs, FinishTheStepAndSaveItOnInterrupt) {
    ASSERT_EQ(train("--run whole --steps 1500 --checkpoint-every 0" + small).status, 0);
    const Outcome o = train_and_signal("--run cut --steps 1500 --checkpoint-every 0" + small, SIGINT, 150);
    ASSERT_EQ(o.status, 130) << o.out << o.err;
    const double reached = query("cut", "select max(step) from steps");
    EXPECT_LT(reached, 1500);
    EXPECT_NE(o.out.find("go on with ./train --resume cut"), std::string::npos) << o.out;
    ASSERT_EQ(train("--resume cut").status, 0);
    EXPECT_EQ(checkpoint("whole"), checkpoint("cut"));
}

TEST_F(Runs, SurviveBeingKilledAtAnyMoment) {
    const std::string plan = " --steps 3000 --checkpoint-every 5 --keep 1" + small;
    ASSERT_EQ(train("--run whole" + plan).status, 0);
    std::mt19937 random(7);
    int kills = 0;
    bool begun = false;
    for (int attempt = 0; attempt < 20; ++attempt) {
        begun = begun || std::filesystem::exists(path("killed/config.toml"));
        const Outcome o =
            train_and_signal(begun ? "--resume killed" : "--run killed" + plan, SIGKILL, int(random() % 100));
        if (o.status == 0) break;
        ASSERT_EQ(o.status, 128 + SIGKILL) << o.err;
        ++kills;
    }
    EXPECT_EQ(kills, 20) << "the run was over too soon";
    ASSERT_EQ(train("--resume killed").status, 0);
    EXPECT_EQ(checkpoint("whole"), checkpoint("killed"));
    EXPECT_EQ(query("killed", "select count(*) from steps"), 3000);
    EXPECT_EQ(query("whole", "select sum(loss) from steps"), query("killed", "select sum(loss) from steps"));
}

TEST_F(Runs, KeepAsManyCheckpointsAsAsked) {
    ASSERT_EQ(train("--run r --steps 10 --checkpoint-every 2 --keep 3" + small).status, 0);
    std::vector<std::string> names;
    for (const auto& e : std::filesystem::directory_iterator(path("r/checkpoints")))
        names.push_back(e.path().filename());
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, (std::vector<std::string>{"step-00000006", "step-00000008", "step-00000010"}));
}

TEST_F(Runs, StopBeforeANonFiniteUpdateAndSayWhereItBegan) {
    // A learning rate beyond reason drives the weights out of float32 within a few steps.
    const std::string plan = " --steps 50 --lr 1e5 --warmup 0 --clip 0 --weight-decay 1000" + small;
    const Outcome o = train("--run r" + plan);
    ASSERT_EQ(o.status, 3) << o.out << o.err;
    EXPECT_NE(o.out.find("is not finite, first at "), std::string::npos) << o.out;
    EXPECT_NE(o.out.find("the update was not applied"), std::string::npos) << o.out;
    EXPECT_EQ(query("r", "select count(*) from steps where not finite and not applied"), 1);
    EXPECT_EQ(query("r", "select loss is null or grad_norm is null from steps where not finite"), 1);
    EXPECT_EQ(train("sample r --prompt 1 --tokens 3").status, 0)
        << "the last good weights must still be usable";

    const Outcome skipped = train("--run s --on-nonfinite skip" + plan);
    EXPECT_EQ(skipped.status, 0) << skipped.err;
    EXPECT_EQ(query("s", "select count(*) from steps"), 50);
}

TEST_F(Runs, TakeStepsOnRequest) {
    const Outcome o =
        train("steps " + small + "--precision bf16 < asked", "printf '2\\nroof\\n3\\n' > asked; ");
    ASSERT_EQ(o.status, 0) << o.err;
    std::istringstream lines(o.out);
    std::vector<nlohmann::json> answers;
    for (std::string line; std::getline(lines, line);) answers.push_back(nlohmann::json::parse(line));
    ASSERT_EQ(answers.size(), 4u) << o.out;
    EXPECT_GT(answers[0]["flops"].get<double>(), 6.0 * answers[0]["tokens"].get<double>());
    EXPECT_EQ(answers[1]["seconds"].size(), 2u);
    EXPECT_GT(answers[1]["peak_bytes"].get<double>(), 1e6);
    EXPECT_GE(answers[2]["bfloat16"].get<double>(), 0.5 * answers[2]["float32"].get<double>());
    EXPECT_EQ(answers[3]["seconds"].size(), 3u);
    EXPECT_FALSE(std::filesystem::exists(path("runs")));
    EXPECT_NE(train("steps --resume r").err.find("--config r/config.toml"), std::string::npos);
    const Outcome refused = train("steps " + small + "< asked", "printf 'many\\n' > asked; ");
    EXPECT_EQ(refused.status, 2);
    EXPECT_NE(refused.err.find("'many' on standard input; expected a number of steps, or roof"),
              std::string::npos)
        << refused.err;
}

TEST_F(Runs, SampleTheSameTextFromTheSameSeed) {
    ASSERT_EQ(train("--run r --steps 5" + small).status, 0);
    // More tokens than the context is long.
    const std::string sample = "sample r --prompt '1 2 3' --tokens 40 ";
    const Outcome a = train(sample), b = train(sample + "--threads 1"), c = train(sample + "--seed 2");
    ASSERT_EQ(a.status, 0) << a.err;
    EXPECT_EQ(a.out, b.out);
    EXPECT_NE(a.out, c.out);
    EXPECT_EQ(train(sample + "--temperature 0").out, train(sample + "--top-k 1 --seed 9").out);
}

TEST_F(Runs, AreEvaluatedToTheLossThatTrainingRecorded) {
    ASSERT_EQ(train("--run r --steps 5" + small).status, 0);
    const Outcome o = train("eval r --eval-sequences 8 --json");
    ASSERT_EQ(o.status, 0) << o.err;
    const size_t at = o.out.find("\"loss\": ");
    ASSERT_NE(at, std::string::npos) << o.out;
    // Another batch size only regroups the float64 sum of the rows.
    EXPECT_NEAR(std::stod(o.out.substr(at + 8)), query("r", "select loss from evals"), 1e-6);
}

}  // namespace

}  // namespace wobble::test
