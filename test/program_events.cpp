// Detectors in real runs: alarms where something goes wrong, at the step where the loss shows it or before;
// none where nothing does; and the same ones whether a run was interrupted or not.
#include <cmath>
#include <random>

#include "test/program.h"

namespace wobble::test {
namespace {

const std::string small =
    " --data 'synthetic:markov?order=1&vocab=64&seed=1' --layers 2 --heads 2 --channels 64 --context 32 "
    "--batch 8 "
    "--eval-sequences 8 --log-every 100000 ";

class Events : public Program {
  protected:
    /// The first step of a run with an event at least that severe; 0: none.
    int64_t first(const std::string& run, const std::string& where) const {
        return int64_t(query(run, "select ifnull(min(step), 0) from events where " + where));
    }
    /// The first step whose loss is that many times the least before it.
    int64_t shown(const std::string& run, double times) const {
        return int64_t(
            query(run,
                  "select ifnull(min(step), 0) from (select step, loss, min(loss) over (order by "
                  "step rows unbounded preceding) as least from steps) where loss is null or loss > " +
                      std::to_string(times) + " * least"));
    }
    std::string words(size_t bytes) const {
        static const char* const some[] = {"the ",  "sea ",  "was ",    "grey ",   "and ",
                                           "a ",    "ship ", "sailed ", "slowly ", "home ",
                                           "with ", "its ",  "cargo ",  "of ",     "salt.\n"};
        std::mt19937_64 generator(4);
        std::string text;
        while (text.size() < bytes) text += some[generator() % 15];
        return text.substr(0, bytes);
    }
};

TEST_F(Events, OfALearningRateThatIsFarTooHigh) {
    train("--run r --steps 200 --warmup 60 --lr 3 --clip 0 --schedule constant" + small);
    const int64_t loss = shown("r", 1.5), alarm = first("r", "severity = 'alarm'");
    ASSERT_GT(loss, 0);
    ASSERT_GT(alarm, 0);
    EXPECT_LE(alarm, loss);
}

// Batches of one sequence; one of them is noise, and nothing else is raised.
TEST_F(Events, OfAPoisonedBatch) {
    std::mt19937_64 generator(9);
    std::string poison(64, ' ');
    for (char& c : poison) c = char(128 + generator() % 100);
    write("text", words(40000) + poison + words(40000));
    const Outcome o = train(
        "--run r --data text:text --data-seed 4 --holdout 0 --layers 1 --heads 2 --channels 32 --context 64 "
        "--batch 1 --steps 1200 --lr 3e-3 --log-every 100000");
    ASSERT_EQ(o.status, 0) << o.err;
    const int64_t poisoned = int64_t(query("r", "select step from batches where offset = 40000"));
    ASSERT_GT(poisoned, 100) << "choose another seed";
    EXPECT_EQ(first("r", "severity = 'alarm' and detector = 'loss spike'"), poisoned);
    EXPECT_EQ(first("r", "severity <> 'note'"), poisoned);
    EXPECT_NE(o.out.find("step " + std::to_string(poisoned) + ": alarm: loss jumps to"), std::string::npos)
        << o.out;
}

TEST_F(Events, OfBadInitialWeights) {
    train("--run loss --steps 3 --init-scale 'wte=100'" + small);
    EXPECT_EQ(first("loss", "severity = 'alarm' and detector = 'first loss'"), 1);
    train("--run logits --steps 6 --probes moments --probe-every 1 --init-scale 'h.1.attn.qkv=300'" + small);
    EXPECT_GT(
        first("logits", "severity = 'alarm' and detector = 'attention logits' and site like 'h.1.attn%'"), 0);
    train("--run stream --steps 6 --probes moments --probe-every 1 --init-scale 'h.0.mlp.*=300'" + small);
    EXPECT_GT(first("stream", "severity <> 'note' and detector = 'residual growth'"), 0);
}

/// Of another kind than words: lines of sums, right ones.
std::string sums(size_t bytes) {
    std::mt19937_64 generator(6);
    std::string text;
    while (text.size() < bytes) {
        const int a = int(generator() % 100), b = int(generator() % 100);
        text += std::to_string(a) + "+" + std::to_string(b) + "=" + std::to_string(a + b) + "\n";
    }
    return text;
}

TEST_F(Events, AreNoWarningsInHealthyRuns) {
    write("text", words(60000));
    write("sums", sums(60000));
    const std::string runs[] = {
        "--data 'synthetic:markov?order=1&vocab=64&seed=1' --channels 64 --context 32 --batch 8 --steps 600",
        "--data 'synthetic:markov?order=2&vocab=16&seed=2' --channels 48 --context 32 --batch 8 --steps 400 "
        "--precision bf16",
        "--data 'synthetic:markov?order=0&vocab=100&seed=3' --channels 32 --context 32 --batch 4 --steps 300",
        "--data text:text --channels 64 --context 64 --batch 4 --accum 2 --steps 300 --clip 0 --schedule "
        "constant",
        "--data text:text --channels 64 --context 64 --batch 1 --steps 600 --lr 1e-3",
        "--data text:text --channels 64 --context 64 --batch 4 --steps 300 --precision bf16-stochastic "
        "--qk-norm "
        "rmsnorm --z-loss 1e-4 --activation silu --norm rmsnorm",
        "--data text:sums --channels 64 --context 32 --batch 8 --steps 400 --lr 5e-4 --schedule wsd "
        "--cooldown 100",
        "--data text:sums --channels 32 --context 48 --batch 4 --steps 1000 --beta1 0.8 --beta2 0.99 "
        "--epsilon 1e-6",
        "--data text:sums --channels 64 --context 32 --batch 8 --steps 300 --precision bf16 --weight-decay 0 "
        "--norm-placement peri",
        "--data '0.5*text:text+0.5*text:sums' --channels 64 --context 32 --batch 8 --steps 400 --gated "
        "--position rotary",
        "--data 'synthetic:markov?order=1&vocab=256&seed=5' --channels 64 --context 32 --batch 8 --steps 300 "
        "--beta2 0.999 "
        "--schedule linear --parametrization mup",
        "--data 'synthetic:markov?order=1&vocab=64&seed=7' --layers 6 --channels 32 --context 16 --batch 16 "
        "--steps 300 "
        "--schedule inverse_sqrt --accum 2 --clip 0.5",
    };
    for (const std::string& run : runs) {
        const Outcome o = train(
            "--run r --layers 2 --heads 2 --probes full --probe-every 2 --eval-sequences 8 "
            "--log-every 100000 " +
            run);
        ASSERT_EQ(o.status, 0) << o.err;
        EXPECT_EQ(
            text("r",
                 "select ifnull(group_concat(step || ': ' || summary, '; '), '') from events where severity "
                 "<> 'note'"),
            "")
            << run;
        std::filesystem::remove_all(path("r"));
    }
}

TEST_F(Events, AreTheSameOfARunThatWasInterrupted) {
    const std::string flags =
        " --steps 120 --lr 0.3 --warmup 40 --clip 0 --probes moments --probe-every 3 --ring 0" + small;
    train("--run whole" + flags);
    train("--run parts --stop-after 47" + flags);
    train("--resume parts --stop-after 90");
    train("--resume parts");
    const std::string all =
        "select ifnull(group_concat(step || detector || severity || site || summary, ';'), '') from (select "
        "* from "
        "events order by step, detector, site)";
    EXPECT_GT(query("whole", "select count(*) from events"), 0);
    EXPECT_EQ(text("whole", all), text("parts", all));
}

TEST_F(Events, AreListedAndOtherPeoplesDefinitionsApplied) {
    train("--run r --steps 300 --lr 1 --warmup 100 --clip 0" + small);
    const Outcome listed = train("events r"), json = train("events r --json"),
                  all = train("events r --definition all");
    EXPECT_EQ(listed.status, 0);
    EXPECT_NE(listed.out.find("alarm"), std::string::npos) << listed.out;
    EXPECT_NE(json.out.find("\"severity\": \"alarm\""), std::string::npos) << json.out;
    for (const char* name : {"olmo2", "olmo-core", "llm.c", "zclip", "spam", "megatron", "grad_norm"})
        EXPECT_NE(all.out.find(name), std::string::npos) << name;
    const Outcome unknown = train("events r --definition olmo"), nowhere = train("events nowhere");
    EXPECT_EQ(unknown.status, 2);
    EXPECT_NE(unknown.err.find("olmo2"), std::string::npos) << unknown.err;
    EXPECT_EQ(nowhere.status, 2);
    EXPECT_NE(nowhere.err.find("holds no run"), std::string::npos) << nowhere.err;
}

}  // namespace
}  // namespace wobble::test
