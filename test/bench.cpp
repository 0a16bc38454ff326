// The bench: how it measures, that it knows every kernel, what it writes, and what it refuses.

#include "bench/bench.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "bench/measure.h"
#include "bench/peers.h"
#include "bench/report.h"
#include "bench/timings.h"
#include "kernels/error.h"
#include "test/program.h"

namespace wobble::test {

namespace {

using namespace bench;
using nlohmann::json;

// ------------------------------------------------------------------------------------------------
// measurement
TEST(Bench, MeasuresInTurnsAndEachBeginsARound) {
    std::string order;
    int rounds_announced = 0;
    const Effort effort{.seconds = 0, .least_rounds = 3, .sample_seconds = 0, .before_round = [&] {
                            order += '|', ++rounds_announced;
                        }};
    const Turns turns =
        measure_in_turns({[&] { order += 'a'; }, [&] { order += 'b'; }, [&] { order += 'c'; }}, effort);
    EXPECT_EQ(order, "|abc|abc|bca|cab");  // once beforehand, then three rounds
    EXPECT_EQ(turns.calls, 1);
    ASSERT_EQ(turns.variants.size(), 3u);
    for (const Rounds& variant : turns.variants) {
        EXPECT_EQ(variant.wall.size(), 3u);
        EXPECT_EQ(variant.processor.size(), 3u);
        for (const double seconds : variant.wall) EXPECT_GE(seconds, 0);
    }
}

TEST(Bench, RepeatsWhatIsShortUntilAClockCanTell) {
    int64_t calls = 0;
    const Turns turns =
        measure_in_turns({[&] { ++calls; }}, {.seconds = 0, .least_rounds = 2, .sample_seconds = 1e-3});
    EXPECT_GT(turns.calls, 10);
    EXPECT_EQ(calls, 1 + turns.calls + 2 * turns.calls);  // beforehand, to find out how many, and two rounds
}

TEST(Bench, TakesMediansAndQuartiles) {
    const Middle odd = middle({5, 1, 4, 2, 3});
    EXPECT_EQ(odd.median, 3);
    EXPECT_EQ(odd.low_quartile, 2);
    EXPECT_EQ(odd.high_quartile, 4);
    EXPECT_EQ(middle({1, 2}).median, 1.5);
    EXPECT_EQ(middle({7}).high_quartile, 7);
    EXPECT_TRUE(std::isnan(middle({}).median));
}

TEST(Bench, ComparesRoundByRound) {
    // Twice as slow in the second round, both of them: the overhead is the same.
    const Rounds off{{1, 2}, {2, 2}}, moments{{1.5, 3}, {2, 3}};
    EXPECT_EQ(paired_overheads(moments.wall, off.wall), (std::vector<double>{0.5, 0.5}));
    const Timing t = timing("moments", false, moments, off);
    EXPECT_EQ(t.overhead.median, 0.5);
    EXPECT_EQ(t.processor_overhead.median, 0.25);
    EXPECT_EQ(t.seconds.median, 2.25);
    EXPECT_EQ(t.least_seconds, 1.5);
    EXPECT_EQ(t.rounds, 2);
}

// ------------------------------------------------------------------------------------------------- the table
/// The names that the headers in kernels/ give to their kernels.
std::set<std::string> kernels_in_sources() {
    std::set<std::string> names;
    const std::regex declaration("static constexpr const char\\* name = \"([a-z0-9_]+)\"");
    for (const auto& entry : std::filesystem::directory_iterator("kernels")) {
        std::ifstream file(entry.path());
        std::stringstream text;
        text << file.rdbuf();
        const std::string source = text.str();
        for (std::sregex_iterator match(source.begin(), source.end(), declaration), end; match != end;
             ++match)
            names.insert((*match)[1]);
    }
    return names;
}

TEST(Bench, HasACaseOfEveryKernel) {
    std::set<std::string> sources = kernels_in_sources();
    ASSERT_TRUE(sources.contains("layernorm_forward")) << "tests run where the sources are";
    // They add up what little others leave.
    for (const char* helper : {"total", "totals", "prepare_update"}) ASSERT_TRUE(sources.erase(helper));
    ASSERT_TRUE(sources.erase("fingerprint"));  // there is nothing to see in it, and so nothing to compare
    std::set<std::string> table;
    for (const KernelCase& c : kernel_cases()) table.insert(c.kernel);
    EXPECT_EQ(table, sources);
}

TEST(Bench, NamesEachCaseOnceAndSaysWhatItMustDo) {
    std::set<std::string> names;
    for (const KernelCase& c : kernel_cases()) {
        EXPECT_TRUE(names.insert(c.name() + c.precision).second) << c.name();
        EXPECT_GT(c.cost.bytes + c.cost.flops, 0) << c.name();
        EXPECT_FALSE(c.shape.empty()) << c.name();
    }
}

TEST(Bench, FindsCasesByKernelRoleAndList) {
    const auto count = [](const char* patterns) { return matching_cases(patterns).size(); };
    EXPECT_EQ(count(""), kernel_cases().size());
    EXPECT_EQ(count("*"), kernel_cases().size());
    EXPECT_EQ(count("layernorm_forward"), 2u) << "float32 and bfloat16";
    EXPECT_EQ(count("product/mlp.proj"), 2u);
    EXPECT_GT(count("product"), 5u);
    EXPECT_EQ(count("product,layernorm*"), count("product") + count("layernorm*"));
    EXPECT_EQ(count("layernorm"), 0u);
}

// --------------------------------------------------------------------------------------------------- the
// peer
class Peer : public Program {
  protected:
    void SetUp() override {
        Program::SetUp();
        if (const char* set = std::getenv("PYTHON")) before_ = set;
    }
    void TearDown() override {
        if (before_.empty()) unsetenv("PYTHON");
        else setenv("PYTHON", before_.c_str(), 1);
        Program::TearDown();
    }
    /// What comes of an interpreter that is this shell script.
    json with_interpreter(const std::string& script) {
        write("python", "#!/bin/sh\n" + script + "\n");
        std::filesystem::permissions(path("python"), std::filesystem::perms::owner_all);
        setenv("PYTHON", path("python").c_str(), 1);
        return time_pytorch_hooks({step_models(Device::Cpu)[1]}, 3, 0.5);
    }

  private:
    std::string before_;
};

TEST_F(Peer, ThatCannotRunSaysWhyInOneLine) {
    const auto reason = [](const json& result) {
        const std::string text = pytorch_to_text(result);
        EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
        EXPECT_NE(text.find("did not run"), std::string::npos) << text;
        return result.value("did_not_run", "");
    };
    EXPECT_EQ(reason(with_interpreter("echo 'did not run: no PyTorch'")), "no PyTorch");
    EXPECT_NE(reason(with_interpreter("exit 3")).find("status 3"), std::string::npos);
    EXPECT_NE(reason(with_interpreter("echo nonsense")).find("status 0"), std::string::npos);
    EXPECT_NE(reason(with_interpreter("kill -9 $$")).find("status 137"), std::string::npos);
    setenv("PYTHON", "/nowhere/python's", 1);
    EXPECT_NE(reason(time_pytorch_hooks({}, 1, 1)).find("/nowhere/python's cannot be started"),
              std::string::npos);
}

// This program is real, PyTorch a script that says it is not there, and then one that answers.
TEST_F(Peer, IsComparedInTurns) {
    if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "python3 is missing";
    const std::string model = "L2_H2_C32_T16_V256_B2",
                      compare = "python3 '" + std::filesystem::absolute("bench/peers/compare.py").string() +
                                "' --train \"$WOBBLE_TRAIN\" --rounds 2 "
                                "--threads 1 --model " +
                                model + " --python '" + path("python").string() + "' ";
    const auto rows_of = [&](const std::string& script) {
        write("python", "#!/bin/sh\n" + script + "\n");
        std::filesystem::permissions(path("python"), std::filesystem::perms::owner_all);
        const std::string command = compare + "--json '" + path("rows.json").string() + "' > '" +
                                    path("table").string() + "' 2> '" + path("errors").string() + "'";
        EXPECT_EQ(std::system(command.c_str()), 0) << read("errors");
        return json::parse(read("rows.json"));
    };
    const json without = rows_of("echo 'did not run: no PyTorch'");
    ASSERT_EQ(without.size(), 6u);  // three programs in two precisions
    for (const json& row : without) {
        if (row["contender"] != "wobble") {
            EXPECT_EQ(row["did_not_run"], "no PyTorch");
            continue;
        }
        EXPECT_GT(row["tokens_per_second"].get<double>(), 0);
        EXPECT_EQ(row["time_ratio"], 1);
        EXPECT_GT(row["share_of_roof"].get<double>(), 0);
        EXPECT_LT(row["share_of_roof"].get<double>(), 1);
        EXPECT_GT(row["peak_bytes"].get<double>(), 1e6);
    }
    EXPECT_NE(read("table").find("did not run: no PyTorch"), std::string::npos);
    const json with = rows_of(
        "echo '{\"parameters\": 34176}'; while read n; do echo '{\"seconds\": [1], \"peak_bytes\": "
        "5000000}'; done");
    for (const json& row : with) {
        if (row["contender"] == "wobble") continue;
        EXPECT_EQ(row["tokens_per_second"], 32);
        EXPECT_EQ(row["peak_bytes"], 5000000);
        EXPECT_GT(row["time_ratio"].get<double>(), 1);
    }
    EXPECT_NE(std::system((compare + "--train /nowhere 2>/dev/null").c_str()), 0);
}

TEST_F(Peer, IsGivenModelThreadsAndTimeAndItsNumbersAreShown) {
    const json result = with_interpreter(
        "echo \"$@\" > " + path("arguments").string() +
        "\necho '{\"version\": \"9.9\", \"models\": [{\"name\": \"M\", \"rounds\": 4, \"rows\": ["
        "{\"hooks\": \"none\", \"tensors\": 0, \"seconds\": 0.5, \"tokens_per_second\": 2000, "
        "\"overhead\": 0, \"overhead_quartiles\": [0, 0]}, {\"hooks\": \"leaf modules\", \"tensors\": 124, "
        "\"seconds\": 1, \"tokens_per_second\": 1000, \"overhead\": 1.25, \"overhead_quartiles\": [1, "
        "2]}]}]}'");
    const std::string arguments = read("arguments");
    for (const char* word :
         {"pytorch_hooks.py", "--threads 3", "--seconds 0.5", "--model L4_H4_C128_T64_V256_B12"})
        EXPECT_NE(arguments.find(word), std::string::npos) << word << " in: " << arguments;
    const std::string text = pytorch_to_text(result);
    for (const char* word : {"PyTorch 9.9", "leaf modules", "1000.00", "+125.00%", "124"})
        EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
}

TEST(Report, GenerationIsTokensAndBytesASecond) {
    Roofs roofs;
    roofs.copy = 40e9;
    const GenerationTimings timings{
        {{.layers = 2}, 1, wobble::Precision::Bfloat16}, 9, 250e6, {0.0125, 0.012, 0.013}};
    const std::string text = to_text(timings, roofs);
    for (const char* words :
         {"L2_H4_C128_T64_V256_B1_bfloat16: 12.50 ms a token", "80 tokens/s", "20.0 GB/s", "50% of copying"})
        EXPECT_NE(text.find(words), std::string::npos) << words << " in: " << text;
    const json row = to_json(timings, roofs);
    EXPECT_EQ(row["tokens_per_second"], 80);
    EXPECT_EQ(row["share_of_copying"], 0.5);
}

TEST(Steps, TokensAreTimedInBothPrecisionsBeyondTheContext) {
    const ModelConfig config{.vocab = 11, .context = 3, .layers = 1, .heads = 1, .channels = 8};
    const auto timings = time_generation(config, 1, {.seconds = 0, .least_rounds = 5, .sample_seconds = 0});
    ASSERT_EQ(timings.size(), 2u);
    // wte 88; 12 C² + 13 C in the block, 2 C in the last norm.
    EXPECT_EQ(timings[0].bytes, (88 + 12 * 64 + 13 * 8 + 16) * 4.0);
    EXPECT_EQ(timings[1].bytes, timings[0].bytes / 2);
    for (const GenerationTimings& t : timings) {
        EXPECT_EQ(t.rounds, 5);
        EXPECT_GT(t.seconds.median, 0);
    }
}

// ------------------------------------------------------------------------------------------------ the
// command
class BenchCommand : public Program {};

TEST_F(BenchCommand, WritesARowForEachTier) {
    const Outcome o =
        train("bench --quick --kernels-only --kernels 'layernorm*' --threads 1 --json out.json");
    ASSERT_EQ(o.status, 0) << o.err;
    EXPECT_EQ(o.err, "");  // progress is for terminals
    const json all = json::parse(read("out.json"));
    EXPECT_EQ(all["machine"]["threads"], 1);
    EXPECT_GT(all["roofs"]["multiply_add_flops_per_second"], 0);
    EXPECT_GT(all["roofs"]["copy_bytes_per_second"], 0);
    EXPECT_TRUE(all["steps"].empty());
    EXPECT_TRUE(all["generation"].empty());
    EXPECT_GE(all["others"]["kernels"], 0);
    EXPECT_LE(all["others"]["kernels"], 1);

    std::set<std::string> seen;
    for (const json& row : all["kernels"]) {
        seen.insert(row["kernel"].get<std::string>() + " " + row["precision"].get<std::string>() + " " +
                    row["probes"].get<std::string>());
        EXPECT_EQ(row["roof"], "copy");
        EXPECT_GE(row["rounds"], 3);
        for (const char* positive : {"seconds", "bytes_per_second", "share_of_roof", "launches_per_round"})
            EXPECT_GT(row[positive].get<double>(), 0) << positive;
        if (row["probes"] == "off") {
            EXPECT_EQ(row["overhead"], 0);
        } else {
            EXPECT_GT(row["overhead"], -1);
        }
        EXPECT_NE(o.out.find("\n" + row["kernel"].get<std::string>() + " "), std::string::npos) << o.out;
    }
    std::set<std::string> expected;
    for (const KernelCase& c : matching_cases("layernorm*")) {
        for (const char* tier : {"off", "moments", "full"})
            expected.insert(c.kernel + " " + c.precision + " " + tier);
    }
    EXPECT_GE(expected.size(), 12u);
    EXPECT_EQ(seen, expected);
    EXPECT_EQ(all["kernels"].size(), seen.size());
    EXPECT_FALSE(std::filesystem::exists(path("out.json.partial")));
}

TEST_F(BenchCommand, RefusesWhatItCannotDoInOneLine) {
    std::filesystem::create_directory(path("directory"));
    const auto refuses = [&](const std::string& arguments, std::initializer_list<const char*> words) {
        const Outcome o = train("bench " + arguments);
        EXPECT_EQ(o.status, 2) << arguments << "\n" << o.out << o.err;
        EXPECT_EQ(o.out, "") << arguments;
        EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
        for (const char* word : words)
            EXPECT_NE(o.err.find(word), std::string::npos) << word << " in: " << o.err;
    };
    refuses("--kernels 'zebra*'", {"--kernels zebra*", "layernorm"});
    refuses("--threads -1", {"--threads is -1"});
    refuses("--threads two", {"--threads", "two"});
    refuses("--steps-only --kernels-only", {"--steps-only", "--kernels-only"});
    refuses("--steps-only --kernels product", {"--steps-only", "--kernels"});
    refuses("--json nowhere/out.json", {"--json nowhere/out.json", "no directory nowhere"});
    refuses("--json directory", {"--json directory"});
    refuses("--quik", {"--quik is not a flag", "did you mean --quick?"});
}

}  // namespace

}  // namespace wobble::test
