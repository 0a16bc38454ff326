// Going back into real runs: every step comes out again bit for bit, whatever way it was computed; a fault
// that was put in is told apart from one that follows from the numbers; evidence is kept when an alarm goes
// off.
#include <fstream>
#include <random>
#include <regex>

#include "test/program.h"

namespace wobble::test {
namespace {

const std::string tiny =
    " --data 'synthetic:markov?order=1&vocab=32&seed=1' --layers 4 --heads 2 --channels 16 --context 8 "
    "--batch 2 "
    "--eval-every 0 --eval-sequences 2 --log-every 100000 --threads 1 ";

class Replay : public Program {
  protected:
    struct Place {
        std::string site, phase;
    };
    /// Every place of a step where a fault can be put.
    std::vector<Place> places() {
        train("--run sites --steps 1 --probes moments" + tiny);
        std::vector<Place> all;
        std::string list =
            text("sites",
                 "select group_concat(name || ' ' || phase, ';') from (select distinct name, phase "
                 "from sites where kernel <> '' and channel <> 'residuals' order by site)");
        for (const std::regex one("([^ ;]+) ([a-z]+)"); const auto& match : matches(list, one))
            all.push_back({match[1], match[2]});
        return all;
    }
    struct Faulty {
        Outcome outcome;
        int64_t row, column;
    };
    /// Run r of the tiny model with such a fault in a number of the site that later ones depend on: of a
    /// token that is not the first of its sequence, where there are tokens.
    Faulty train_with(const std::string& kind, int step, const Place& place, const std::string& flags) {
        std::vector<std::pair<int64_t, int64_t>> candidates = {{3, 0}, {0, 200}, {0, 0}};  // flat: 64 a token
        if (place.site.ends_with(".weight") || place.site.ends_with(".bias")) candidates = {{0, 0}};
        for (int64_t token = 1; token < 32; ++token)
            candidates.push_back({token, 0});  // rows of an embedding
        const std::string begin = kind.find('@') == std::string::npos ? kind + "@" : kind;
        for (const auto& [row, column] : candidates) {
            std::filesystem::remove_all(path("r"));
            const std::string fault = begin + "step=" + std::to_string(step) + ",site=" + place.site +
                                      ",phase=" + place.phase + ",row=" + std::to_string(row) +
                                      ",column=" + std::to_string(column);
            Outcome o = train("--run r --inject '" + fault + "' " + flags + tiny);
            if (o.status != 2) return {std::move(o), row, column};
            EXPECT_NE(o.err.find("is not there"), std::string::npos) << o.err;
        }
        return {{2, "", "no place was there"}, -1, -1};
    }
    int64_t alarms(const std::string& run, const std::string& where) const {
        return int64_t(query(run, "select count(*) from events where severity = 'alarm' and " + where));
    }

  private:
    static std::vector<std::smatch> matches(const std::string& text, const std::regex& pattern) {
        std::vector<std::smatch> all;
        for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match)
            all.push_back(*match);
        return all;
    }
};

TEST_F(Replay, IsTheSameBitForBitHoweverTheRunWasComputed) {
    const std::string runs[] = {
        "--precision fp32 --threads 1 --val 'other=synthetic:markov?order=1&vocab=32&seed=2'",
        "--precision fp32 --accum 3 --threads 2",
        "--precision bf16 --threads 2",
        "--precision bf16-stochastic --accum 2 --threads 1",
        "--precision fp32 --threads 2 --qk-norm rmsnorm --norm rmsnorm --gated --activation silu --z-loss "
        "1e-4 --clip 0",
    };
    std::mt19937 generator(11);
    for (const std::string& run : runs) {
        const Outcome o = train("--run r --steps 60 --checkpoint-every 17 --keep 0" + tiny + run);
        ASSERT_EQ(o.status, 0) << o.err;
        for (int i = 0; i < 10; ++i) {
            const int step = 1 + int(generator() % 60), threads = 1 + int(generator() % 3);
            const char* const probes = i % 3 == 0 ? "off" : i % 3 == 1 ? "moments" : "full";
            const std::string command = "replay r --step " + std::to_string(step) + " --probes " + probes +
                                        " --threads " + std::to_string(threads);
            const Outcome again = train(command);
            EXPECT_EQ(again.status, 0) << run << ", " << command << ": " << again.out << again.err;
            EXPECT_NE(again.out.find("bit for bit what the run did"), std::string::npos) << again.out;
            const std::string replay = "r/replays/step-" + std::to_string(step),
                              loss = "select printf('%.17g', loss) from steps where step = " +
                                     std::to_string(step);
            EXPECT_EQ(text(replay, loss), text("r", loss));
            EXPECT_EQ(query(replay, "select count(*) > 0 from stats"), i % 3 != 0);
        }
        std::filesystem::remove_all(path("r"));
    }
}

TEST_F(Replay, GoesOverStepsThatWereDoneWithOtherOptions) {
    train("--run r --steps 60 --stop-after 30 --checkpoint-every 20 --keep 0" + tiny);
    train("--resume r --lr 3e-3 --clip 0.1");
    const Outcome o = train("replay r --step 25 --until 45 --probes moments --json");
    EXPECT_EQ(o.status, 0) << o.out << o.err;
    EXPECT_NE(o.out.find("\"checked\": 25"), std::string::npos) << o.out;  // from checkpoint 20 on
    EXPECT_EQ(query("r/replays/step-25-45", "select count(*) from steps"), 21);
    EXPECT_EQ(query("r/replays/step-25-45", "select count(distinct step) from stats"), 21);
}

TEST_F(Replay, WorksWhenTheProcessWasKilled) {
    const Outcome killed = train_and_signal_after(
        "--run r --steps 100000 --checkpoint-every 0 --snapshot-every 50 --snapshot-to disk --schedule "
        "constant" +
            tiny,
        9, "r", 170);
    ASSERT_EQ(killed.status, 128 + 9);
    const auto last = int64_t(query("r", "select max(step) from steps"));
    ASSERT_GE(last, 170);
    const Outcome o = train("replay r --step " + std::to_string(last) + " --probes off");
    EXPECT_EQ(o.status, 0) << o.out << o.err;
    EXPECT_NE(o.out.find("from snapshots/last/step-"), std::string::npos) << o.out;
    // Without them it begins at the first step.
    std::filesystem::remove_all(path("r/snapshots"));
    const Outcome from_start = train("replay r --step 60 --probes off");
    EXPECT_EQ(from_start.status, 0) << from_start.out << from_start.err;
    EXPECT_NE(from_start.out.find("from the initial weights"), std::string::npos) << from_start.out;
}

TEST_F(Replay, SaysThatTheDataHaveChanged) {
    const auto letters = [](char most) {
        std::string text;
        std::mt19937 generator(5);
        while (text.size() < 4000) text += char('a' + int(generator() % unsigned(most - 'a')));
        return text;
    };
    write("text", letters('n'));
    train(
        "--run r --steps 20 --data text:text --layers 1 --heads 2 --channels 16 --context 8 --batch 2 "
        "--eval-every 0 --holdout 0 --log-every 100000");
    write("text", letters('t'));
    const Outcome o = train("replay r --step 20");
    EXPECT_EQ(o.status, 4) << o.out << o.err;
    EXPECT_NE(o.out.find("the data have changed since"), std::string::npos) << o.out;
}

TEST_F(Replay, OfARunThatDivergedFindsTheSameNumbers) {
    train("--run r --steps 200 --warmup 60 --lr 10 --clip 0 --schedule constant" + tiny);
    ASSERT_GT(alarms("r", "1"), 0);
    const auto step = int64_t(query("r", "select min(step) from events where severity = 'alarm'"));
    const Outcome o = train("replay r --step " + std::to_string(step));
    EXPECT_EQ(o.status, 0) << o.out << o.err;
    const Outcome located =
        train("locate r --event " +
              text("r", "select id from events where severity = 'alarm' order by step limit 1"));
    EXPECT_EQ(located.status, 0) << located.err;
    EXPECT_NE(located.out.find("bit for bit what the run did"), std::string::npos) << located.out;
}

TEST_F(Replay, FaultsAreLocatedWhereverTheyStrike) {
    const std::vector<Place> all = places();
    ASSERT_GT(all.size(), 100u);
    for (const Place& p : all) {
        SCOPED_TRACE(p.site + ", " + p.phase);
        const auto [o, row, column] = train_with("nan", 3, p, "--steps 5");
        EXPECT_EQ(o.status, 3) << o.out << o.err;
        const std::string detail =
            text("r", "select detail from events where detector = 'not finite' and step = 3");
        EXPECT_NE(detail.find("\"site\":\"" + p.site + "\",\"phase\":\"" + p.phase + "\""), std::string::npos)
            << detail;
        EXPECT_NE(detail.find("\"row\":" + std::to_string(row) + ",\"column\":" + std::to_string(column)),
                  std::string::npos)
            << detail;
        if (p.phase == "forward") {
            EXPECT_NE(detail.find("\"sequence\":0,\"position\":3"), std::string::npos) << detail;
        }
    }
}

TEST_F(Replay, TellsAFlippedBitFromTheRunsOwnNumbers) {
    const std::string plan = "--steps 64 --schedule constant --probes moments --probe-every 1 ";
    train("--run clean " + plan + tiny);
    EXPECT_EQ(alarms("clean", "1"), 0);
    for (const Place& p : places()) {
        SCOPED_TRACE(p.site + ", " + p.phase);
        // A number of 2 or more has the exponent's highest bit already, and grows by the next.
        const std::string kind = p.site == "loss" ? "bitflip@bit=29," : "bitflip@";
        const Outcome o = train_with(kind, 61, p, plan).outcome;
        EXPECT_TRUE(o.status == 0 || o.status == 3) << o.out << o.err;
        EXPECT_GT(alarms("r", "step >= 61"), 0) << o.out;
        const Outcome again = train("replay r --step 61 --probes off");
        EXPECT_EQ(again.status, 4) << again.out << again.err;
        EXPECT_NE(again.out.find("it is no consequence of the numbers"), std::string::npos) << again.out;
    }
}

// What the run saw of the step, held against its replay, shows where the bit was flipped.
TEST_F(Replay, NamesThePlaceOfAFlippedBitWhereTheStepWasWatched) {
    train(
        "--run r --steps 64 --schedule constant --probes moments --inject "
        "'bitflip@step=61,site=h.2.mlp.fc,row=5,column=7'" +
        tiny);
    const std::string event =
        text("r", "select id from events where severity = 'alarm' and step = 61 limit 1");
    const Outcome o = train("locate r --event " + event);
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_NE(o.out.find("the first that differs: h.2.mlp.fc (forward, output of product)"),
              std::string::npos)
        << o.out;
}

TEST_F(Replay, LocatesTheTokenOfAPoisonedBatch) {
    std::mt19937_64 generator(9);
    std::string words, poison(64, ' ');
    while (words.size() < 40000) words += generator() % 2 ? "the grey sea " : "was a ship ";
    for (char& c : poison) c = char(128 + generator() % 100);
    write("text", words.substr(0, 39936) + poison + words);
    const Outcome o = train(
        "--run r --data text:text --data-seed 4 --holdout 0 --layers 1 --heads 2 --channels 32 --context 64 "
        "--batch 1 --steps 1250 --lr 3e-3 --log-every 100000");
    ASSERT_EQ(o.status, 0) << o.err;
    const auto poisoned = int64_t(query("r", "select step from batches where offset = 39936"));
    const std::string event =
        text("r", "select ifnull(min(id), 0) from events where severity = 'alarm' and step = " +
                      std::to_string(poisoned));
    ASSERT_NE(event, "0") << "choose another seed: the poison is read at step " << poisoned;
    const Outcome located = train("locate r --event " + event + " --json");
    EXPECT_EQ(located.status, 0) << located.err;
    EXPECT_NE(located.out.find("\"replay_is_same\": true"), std::string::npos) << located.out;
    std::smatch offset;
    ASSERT_TRUE(std::regex_search(located.out, offset, std::regex("\"offset\": ([0-9]+)"))) << located.out;
    EXPECT_GE(std::stoi(offset[1]), 39936 - 1);
    EXPECT_LT(std::stoi(offset[1]), 39936 + 64);
}

TEST_F(Replay, FindsWhatAnAlarmKept) {
    for (const std::string where : {"memory", "disk"}) {
        train(
            "--run r --steps 150 --schedule constant --probes moments --probe-every 50 --checkpoint-every 0 "
            "--snapshot-every 20 --snapshots 2 --inject 'scale=20@step=90,site=loss' --snapshot-to " +
            where + tiny);
        EXPECT_GT(alarms("r", "step = 90"), 0);
        EXPECT_TRUE(std::filesystem::exists(path("r/snapshots/step-00000080")));
        EXPECT_TRUE(std::filesystem::exists(path("r/snapshots/step-00000060")));
        EXPECT_EQ(
            text("r", "select group_concat(step) from (select distinct step from tokens order by step)"),
            "83,84,85,86,87,88,89,90,91,92");
        EXPECT_EQ(query("r", "select length(inputs) = 4 * 8 and length(targets) = 4 * 8 from tokens limit 1"),
                  1);
        EXPECT_EQ(query("r", "select count(distinct step) from stats where step between 70 and 90"), 21);
        const Outcome o = train("replay r --step 85 --until 89");
        EXPECT_EQ(o.status, 0) << o.out << o.err;
        EXPECT_NE(o.out.find("from snapshots/step-00000080"), std::string::npos) << o.out;
        std::filesystem::remove_all(path("r"));
    }
}

// A NaN at step 60 enters no window: a loss of ten times the usual is found 55 steps later, also in a run
// that was interrupted in between.
TEST_F(Replay, ANaNBlindsNoDetector) {
    const std::string faults =
        " --inject 'nan@step=60,site=h.1.mlp.fc' --inject 'scale=10@step=115,site=loss' --inject "
        "'scale=10@step=135,site=head,phase=backward' --on-nonfinite skip ";
    train("--run whole --steps 160 --schedule constant" + faults + tiny);
    train("--run parts --steps 160 --stop-after 80 --schedule constant" + faults + tiny);
    train("--resume parts" + faults);
    for (const std::string run : {"whole", "parts"}) {
        SCOPED_TRACE(run);
        EXPECT_EQ(alarms(run, "step = 60 and detector = 'not finite'"), 1);
        EXPECT_EQ(alarms(run, "step = 60 and detector = 'loss spike'"), 1);
        EXPECT_EQ(alarms(run, "step = 115 and detector = 'loss spike'"), 1);
        EXPECT_EQ(
            query(run, "select count(*) > 0 from events where step = 135 and detector like 'gradient%'"), 1);
    }
    const std::string all = "select group_concat(step || detector || severity || summary, ';') from events";
    EXPECT_EQ(text("whole", all), text("parts", all));
}

TEST_F(Replay, RefusesWhatIsNotThereInOneLine) {
    train("--run r --steps 12" + tiny);
    const std::pair<std::string, std::string> cases[] = {
        {"replay nowhere --step 3", "holds no run"},
        {"replay r", "--step is required"},
        {"replay r --step 0", "the first is 1"},
        {"replay r --step 13", "has done 12 steps"},
        {"replay r --step 5 --until 4", "is before --step 5"},
        {"replay r --step 5 --until 40", "has done 12 steps"},
        {"replay r --step 5 --probes some", "is not a tier"},
        {"replay r --step 5 --out r", "exists already"},
        {"replay r --step 5 --device tpu", "expected auto, cpu or cuda"},
        {"locate r --event 99", "./train events r lists them"},
        {"locate r", "--event is required"},
        {"--run s --inject nan" + tiny, "found no '@'"},
        {"--run s --inject 'zero@step=1,site=head'" + tiny, "is no fault"},
        {"--run s --inject 'nan@site=head'" + tiny, "found no step"},
        {"--run s --inject 'nan@step=x,site=head'" + tiny, "is no such number"},
        {"--run s --inject 'nan@step=1'" + tiny, "found no site"},
        {"--run s --inject 'nan@step=1,site=h.2.mpl.fc'" + tiny, "did you mean h.2.mlp.fc?"},
        {"--run s --inject 'nan@step=1,site=head,column=32'" + tiny, "is not there"},
        {"--run s --inject 'nan@step=1,site=head,micro=1'" + tiny, "micro"},
        {"--run s --inject 'nan@step=1,site=head,phase=sideways'" + tiny,
         "expected forward, backward or update"},
        {"--run s --inject 'scale=@step=1,site=head'" + tiny, "is no number"},
        {"--run s --inject 'nan@step=1,site=head,colour=3'" + tiny, "is not understood"},
        {"--run s --snapshot-to tape" + tiny, "expected memory or disk"},
    };
    for (const auto& [command, expected] : cases) {
        const Outcome o = train(command);
        EXPECT_EQ(o.status, 2) << command << o.out << o.err;
        EXPECT_NE(o.err.find(expected), std::string::npos) << command << ": " << o.err;
        EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
        EXPECT_FALSE(std::filesystem::exists(path("s"))) << command;
    }
}

}  // namespace
}  // namespace wobble::test
