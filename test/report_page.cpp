// The page of a run: made from a small run.db, also where that holds little, and whatever it is called.
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "report/page.h"
#include "test/run_db_file.h"

namespace wobble::test {
namespace {

class ReportPage : public RunDbFile {
  protected:
    std::string page_text;

    /// The data of the page of this run; `page_text` is the page.
    nlohmann::json data_of(const std::string& run) {
        std::vector<History> runs;
        runs.emplace_back(run);
        page_text = report_page(report_title(runs), report_data(runs, false, [](const std::string&) {}));
        const std::string open = "<script type=\"application/json\" id=\"data\">";
        const size_t begin = page_text.find(open) + open.size();
        return nlohmann::json::parse(page_text.substr(begin, page_text.find("</script>", begin) - begin));
    }
};

TEST_F(ReportPage, HoldsWhatTheRunRecorded) {
    {
        RunDb db(path_);
        for (int64_t step = 1; step <= 40; ++step) {
            db.add_step(step_row(step), {{0, 0, 0, step, 0}, {0, 1, 0, step, 64}});
            if (step % 4 == 1) db.add_observation(step, observation_of(1 + 0.01 * double(step % 3)));
        }
        db.add_events(
            {{37, "loss spike", 1, Severity::Alarm, "loss", 1, NAN, "loss is not finite", "{\"window\":5}"}});
        db.add_eval({40, "held_out", 2.5, 100, 0.1});
        db.set("data", "text:a.txt");
        db.set("config", "# A run\n\n# Data\ndata = \"text:a.txt\"\n\n# Optimizer\nlr = 0.001\n");
    }
    const nlohmann::json run = data_of(directory_).at("runs").at(0);
    EXPECT_EQ(run.at("curves").at("count"), 40);
    EXPECT_EQ(run.at("summary").at("steps"), 40);
    EXPECT_EQ(run.at("evals").at(0), nlohmann::json::array({40, "held_out", 2.5, 100}));
    EXPECT_EQ(run.at("config").at(1), nlohmann::json::array({"Optimizer", "lr", "0.001"}));
    const nlohmann::json event = run.at("events").at(0);
    EXPECT_EQ(event.at("summary"), "loss is not finite");
    EXPECT_TRUE(event.at("seen").is_null());
    const nlohmann::json evidence = run.at("evidence").at("37");
    EXPECT_EQ(evidence.at("batches").at("total"), 6);
    EXPECT_EQ(evidence.at("batches").at("rows").at(3), nlohmann::json::array({37, 0, 1, 0, 37, 64}));
    EXPECT_EQ(evidence.at("losses").at("rows").at(0).at(4), 50256);
    EXPECT_GT(evidence.at("movers").at("series"), 3);
    std::string maps;
    for (const auto& map : run.at("maps").at("maps"))
        maps += std::string(map.at("quantity")) + "/" + std::string(map.at("axis")) + " ";
    for (const char* wanted :
         {"RMS/forward", "absmax/forward", "non-finite values/forward", "update ratio/tensors",
          "RMS_t/tensors", "entropy/heads", "maximum logit/heads",
          "share flushed to zero in fp16/cast forward", "share beyond e2m1/cast forward"})
        EXPECT_NE(maps.find(wanted), std::string::npos) << wanted << " in " << maps;
    EXPECT_EQ(run.at("exponents").at("sites").size(), 1u);
    EXPECT_EQ(run.at("exponents").at("sites").at(0).at("low"), 0);
    // One step in four was recorded, and all took the same time.
    EXPECT_NE(std::string(run.at("cost").at("sentence")).find("0.0 %"), std::string::npos) << run.at("cost");
}

// A run keeps the tokens of batches around alarms.
TEST_F(ReportPage, ShowsWhatTheSequencesBeganWith) {
    {
        RunDb db(path_);
        db.add_step(step_row(1), {});
        db.add_events({{1, "loss spike", 1, Severity::Alarm, "loss", 1, 9, "loss jumps", "{}"}});
    }
    const Reader sql(path_);
    sql("CREATE TABLE IF NOT EXISTS tokens (step INTEGER, micro INTEGER, row INTEGER, inputs BLOB, targets "
        "BLOB)");
    sql("INSERT INTO tokens VALUES (1, 0, 2, x'410000004200000000010000', NULL)");
    const nlohmann::json tokens = data_of(directory_).at("runs").at(0).at("evidence").at("1").at("tokens");
    EXPECT_EQ(tokens, nlohmann::json::parse("[[0, 2, [65, 66, 256]]]"));
}

TEST_F(ReportPage, NeedsNoNetworkAndNamesTheLicenceOfDygraphs) {
    RunDb(path_).add_step(step_row(1), {});
    data_of(directory_);
    for (const char* wanted : {"Dygraph", "Permission is hereby granted", "viridis"})
        EXPECT_NE(page_text.find(wanted), std::string::npos) << wanted;
    for (const char* refused :
         {"{{title", "{{data", "{{style", "src=\"http", "href=\"http", "sourceMappingURL", "@import"})
        EXPECT_EQ(page_text.find(refused), std::string::npos) << refused;
}

TEST_F(ReportPage, IsMadeOfRunsThatHoldLittle) {
    { RunDb empty(path_); }
    EXPECT_EQ(data_of(directory_).at("runs").at(0).at("curves").at("count"), 0);
    {
        RunDb db(path_);
        StepRow row = step_row(1);
        row.loss = row.grad_norm = NAN;
        db.add_step(row, {});
    }
    const nlohmann::json run = data_of(directory_).at("runs").at(0);
    EXPECT_EQ(run.at("curves").at("count"), 1);
    EXPECT_TRUE(run.at("summary").at("last_loss").is_null());
    EXPECT_TRUE(run.at("summary").at("best_loss").is_null());
    EXPECT_EQ(run.at("summary").at("not_finite"), 1);
    EXPECT_TRUE(run.at("events").empty());
    EXPECT_TRUE(run.at("maps").at("maps").empty());
    EXPECT_NE(std::string(run.at("cost").at("sentence")).find("No step was recorded"), std::string::npos);
}

TEST_F(ReportPage, IsMadeWhileTheRunIsWrittenTo) {
    RunDb writer(path_);
    writer.add_step(step_row(1), {}), writer.commit();
    writer.add_step(step_row(2), {});  // in a transaction that is open
    EXPECT_EQ(data_of(directory_).at("runs").at(0).at("curves").at("count"), 1);
    writer.commit();
    EXPECT_EQ(data_of(directory_).at("runs").at(0).at("curves").at("count"), 2);
}

TEST_F(ReportPage, TakesARunOfTheVersionBeforeEvents) {
    RunDb(path_).add_step(step_row(1), {});
    const Reader sql(path_);
    sql("DROP TABLE events"), sql("PRAGMA user_version = 2");
    EXPECT_TRUE(data_of(directory_).at("runs").at(0).at("events").empty());
    sql("PRAGMA user_version = 1");
    EXPECT_NE(error_of([&] { History{directory_}; }).find("older program"), std::string::npos);
}

TEST_F(ReportPage, ShowsNamesAndTextsAsTheyAre) {
    const std::string name = directory_ + "/<b>&\"</script><script>alert(1)";
    fs::create_directories(name);
    {
        RunDb db(name + "/run.db");
        db.add_step(step_row(1), {});
        db.add_events({{1, "d", 1, Severity::Note, "</script>", 1, 2, "\u2028 <!-- \xff", "{}"}});
    }
    const nlohmann::json run = data_of(name).at("runs").at(0);
    EXPECT_EQ(run.at("name"), "script><script>alert(1)") << "the last part of the path";
    EXPECT_EQ(run.at("events").at(0).at("site"), "</script>");
    EXPECT_EQ(page_text.find("alert(1)</title>"), std::string::npos);
    EXPECT_EQ(page_text.find("<script>alert"), std::string::npos);
    EXPECT_EQ(page_text.find("\u2028"), std::string::npos);
    EXPECT_NE(page_text.find("<title>script&gt;&lt;script&gt;alert(1)"), std::string::npos);
}

TEST_F(ReportPage, TellsRunsOfTheSameNameApart) {
    std::vector<History> runs;
    for (const char* parent : {"/x/same", "/y/same", "/other"}) {
        fs::create_directories(directory_ + parent);
        RunDb(directory_ + parent + std::string("/run.db")).add_step(step_row(1), {});
        runs.emplace_back(directory_ + parent + std::string("/"));
    }
    EXPECT_EQ(report_title(runs), directory_ + "/x/same, " + directory_ + "/y/same, other");
}

TEST_F(ReportPage, ChoosesRecordedStepsByThemselves) {
    {
        RunDb db(path_);
        for (int64_t step = 1; step <= 2000; ++step) {
            db.add_step(step_row(step), {});
            if (step % 5 == 1) db.add_observation(step, observation_of(double(step)));
        }
    }
    History history(directory_);
    const std::vector<int64_t> all = history.recorded_steps("stats_packed", 1000),
                               some = history.recorded_steps("stats_packed", 50, {777});
    EXPECT_EQ(all.size(), 400u);
    EXPECT_LE(some.size(), 52u);
    EXPECT_GE(some.size(), 50u);
    EXPECT_EQ(some.front(), 1);
    EXPECT_EQ(some.back(), 1996);
    EXPECT_NE(std::find(some.begin(), some.end(), 776), some.end());
    for (const int64_t step : some) EXPECT_EQ(step % 5, 1);
    EXPECT_EQ(history.recorded_before("stats_packed", 12, 2), (std::vector<int64_t>{6, 11}));
    EXPECT_TRUE(history.recorded_before("stats_packed", 0, 2).empty());
    EXPECT_TRUE(history.recorded_steps("no such table", 5).empty());
}

}  // namespace
}  // namespace wobble::test
