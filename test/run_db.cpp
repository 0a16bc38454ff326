// run.db: what is written can be read, by others and at once; what a kill may take; what is refused.
#include "probes/run_db.h"

#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <limits>
#include <thread>

#include "test/run_db_file.h"

namespace wobble::test {
namespace {

using RunDbTest = RunDbFile;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST_F(RunDbTest, RowsComeBackWithEveryDigit) {
    {
        RunDb db(path_);
        StepRow row = step_row(1);
        row.loss = 0.1 + 0.2;
        row.lr = 5e-324;
        row.tokens = int64_t{1} << 53 | 1;
        row.applied = false;
        db.add_step(row, {{0, 0, 1, 22, int64_t{1} << 40}, {0, 1, 0, 3, 0}, {1, 0, 2, 5, 6}});
        db.add_eval({1, "val", 2.5, 4096, 0.5});
        db.add_eval({1, "other", 1e308, 1, 0.25});
    }
    const Reader query(path_);
    EXPECT_EQ(query("SELECT step, tokens, applied, finite FROM steps"), "1|9007199254740993|0|1");
    EXPECT_EQ(query.number("SELECT loss FROM steps"), 0.1 + 0.2);
    EXPECT_EQ(query.number("SELECT lr FROM steps"), 5e-324);
    EXPECT_EQ(
        query("SELECT grad_norm, clip, update_norm, weight_norm, seconds, tokens_per_second FROM steps"),
        "1.25|0.8|0.001|17.5|0.01|76800.0");
    EXPECT_EQ(query("SELECT step, micro, row, source, document, offset FROM batches ORDER BY micro, row"),
              "1|0|0|1|22|1099511627776\n1|0|1|0|3|0\n1|1|0|2|5|6");
    EXPECT_EQ(query("SELECT step, name, loss, tokens, seconds FROM evals ORDER BY name"),
              "1|other|1.0e+308|1|0.25\n1|val|2.5|4096|0.5");
}

TEST_F(RunDbTest, ValuesOfTheRunAreSetReplacedAndKept) {
    const std::string text("a 'quoted' line\nand \0 a zero", 28);
    {
        RunDb db(path_);
        EXPECT_FALSE(db.get("config"));
        db.set("config", "first");
        db.set("config", text);
        db.set("empty", "");
        EXPECT_EQ(db.get("config"), text);
    }
    RunDb db(path_);
    EXPECT_EQ(db.get("config"), text);
    EXPECT_EQ(db.get("empty"), "");
    EXPECT_FALSE(db.get("missing"));
}

TEST_F(RunDbTest, NonFiniteNumbersAreNullAndFlagged) {
    {
        RunDb db(path_);
        StepRow row = step_row(1);
        row.loss = kNaN;
        row.grad_norm = kInfinity;
        row.update_norm = -kInfinity;
        db.add_step(row, {});
        row = step_row(2);
        row.finite = false;
        db.add_step(row, {});
        row = step_row(3);
        row.tokens_per_second = kInfinity;  // says nothing about the training
        db.add_step(row, {});
        db.add_eval({3, "val", kNaN, 10, 1});
    }
    const Reader query(path_);
    EXPECT_EQ(query("SELECT loss, grad_norm, update_norm, weight_norm, finite FROM steps WHERE step = 1"),
              "NULL|NULL|NULL|17.5|0");
    EXPECT_EQ(query("SELECT loss, finite FROM steps WHERE step = 2"), "2.0|0");
    EXPECT_EQ(query("SELECT tokens_per_second, finite FROM steps WHERE step = 3"), "NULL|1");
    EXPECT_EQ(query("SELECT loss, tokens FROM evals"), "NULL|10");
}

TEST_F(RunDbTest, OthersReadWhileTheRunGoesOn) {
    RunDb db(path_);
    const Reader query(path_);
    EXPECT_EQ(query("PRAGMA journal_mode"), "wal");
    db.add_step(step_row(1), {});
    EXPECT_EQ(query("SELECT count(*) FROM steps"), "0") << "not committed yet, and no waiting for it";
    db.commit();
    EXPECT_EQ(query("SELECT count(*) FROM steps"), "1");
    db.add_step(step_row(2), {});
    db.add_eval({2, "val", 1, 1, 1});
    EXPECT_EQ(query("SELECT count(*) FROM steps"), "2")
        << "an evaluation is visible at once, with the steps before it";
    db.add_step(step_row(3), {});
    query("BEGIN");
    EXPECT_EQ(query("SELECT count(*) FROM steps"), "2");
    db.commit();
    EXPECT_EQ(query("SELECT count(*) FROM steps"), "2")
        << "a reader's view stays as it was, and nobody waits";
    query("COMMIT");
    EXPECT_EQ(query("SELECT count(*) FROM steps"), "3");
}

TEST_F(RunDbTest, AStepIsCommittedWhenASecondHasPassed) {
    RunDb db(path_);
    const Reader query(path_);
    db.add_step(step_row(1), {});
    std::this_thread::sleep_for(std::chrono::milliseconds(1001));
    db.add_step(step_row(2), {});
    EXPECT_EQ(query("SELECT count(*) FROM steps"), "2");
}

TEST_F(RunDbTest, AResumedRunForgetsTheStepsItRepeats) {
    RunDb db(path_);
    const Reader query(path_);
    query("CREATE TABLE later (step INTEGER, value REAL)");
    query("INSERT INTO later VALUES (1, 0), (2, 0), (3, 0)");
    for (int64_t step = 1; step <= 4; ++step) {
        db.add_step(step_row(step), {{0, 0, 0, step, 0}, {0, 1, 0, step, 64}});
        db.add_eval({step, "val", 1, 1, 1});
    }
    db.set("seed", "1");
    db.forget_after(2);
    EXPECT_EQ(query("SELECT group_concat(step) FROM steps"), "1,2");
    EXPECT_EQ(query("SELECT group_concat(step) FROM evals"), "1,2");
    EXPECT_EQ(query("SELECT group_concat(step) FROM batches"), "1,1,2,2");
    EXPECT_EQ(query("SELECT group_concat(step) FROM later"), "1,2")
        << "tables that come later are forgotten, too";
    EXPECT_EQ(db.get("seed"), "1");
    db.add_step(step_row(3), {{0, 0, 0, 33, 0}});
    db.commit();
    EXPECT_EQ(query("SELECT document FROM batches WHERE step = 3"), "33");
}

TEST_F(RunDbTest, AStepAddedTwiceIsAnErrorAndTheRestIsKept) {
    RunDb db(path_);
    db.add_step(step_row(1), {});
    const std::string error = error_of([&] { db.add_step(step_row(1), {}); });
    EXPECT_NE(error.find("cannot write " + path_ + ": UNIQUE constraint failed: steps.step"),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("another process"), std::string::npos) << error;
    db.add_step(step_row(2), {});
    db.add_eval({2, "val", 1, 1, 1});
    db.add_eval({2, "val", 3, 1, 1});
    const Reader query(path_);
    EXPECT_EQ(query("SELECT group_concat(step) FROM steps"), "1,2");
    EXPECT_EQ(query("SELECT loss FROM evals"), "3.0")
        << "an evaluation repeated after resuming replaces the first";
}

TEST_F(RunDbTest, MovingADatabaseKeepsWhatIsPending) {
    RunDb db(path_);
    db.add_step(step_row(1), {});
    RunDb moved = std::move(db);
    moved.add_step(step_row(2), {});
    moved = RunDb(directory_ + "/other.db");
    EXPECT_EQ(Reader(path_)("SELECT group_concat(step) FROM steps"), "1,2");
    moved.add_step(step_row(5), {});
    moved.commit();
    EXPECT_EQ(Reader(directory_ + "/other.db")("SELECT step FROM steps"), "5");
}

TEST_F(RunDbTest, AKilledRunLosesAtMostTheLastSecond) {
    using Clock = std::chrono::steady_clock;
    struct Report {
        int64_t step;
        Clock::duration begun;  // when the step was about to be added, since the start
    };
    constexpr Clock::duration second = std::chrono::seconds(1);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        RunDb db(path_);
        const auto start = Clock::now();
        for (int64_t step = 1;; ++step) {
            const Report report = {step, Clock::now() - start};
            db.add_step(step_row(step), {{0, 0, 0, step, 0}, {0, 1, 0, step, 64}});
            if (write(ends[1], &report, sizeof report) < 0) _exit(1);
            usleep(1000);
        }
    }
    close(ends[1]);
    std::vector<Report> reports;
    Report report = {};
    while (report.begun < second * 13 / 10 && read(ends[0], &report, sizeof report) == sizeof report)
        reports.push_back(report);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ends[0]);
    int64_t promised = 0;  // whatever was added before the last second
    for (const Report& r : reports)
        if (r.begun <= reports.back().begun - second) promised = r.step - 1;
    ASSERT_GT(promised, 0);
    {
        const Reader query(path_);
        EXPECT_EQ(query("PRAGMA integrity_check"), "ok");
        const double kept = query.number("SELECT max(step) FROM steps");
        EXPECT_GE(kept, static_cast<double>(promised));
        EXPECT_EQ(query.number("SELECT count(*) FROM steps"), kept);
        EXPECT_EQ(query.number("SELECT count(*) FROM batches"), 2 * kept)
            << "a step and its batches go together";
    }
    RunDb db(path_);
    db.forget_after(promised);
    db.add_step(step_row(promised + 1), {});
}

TEST_F(RunDbTest, WhatIsNotTheDatabaseOfARunIsRefused) {
    std::ofstream(path_) << std::string(5000, 'x');
    EXPECT_NE(open_error().find(path_ + ": file is not a database"), std::string::npos) << open_error();
    fs::remove(path_);

    sqlite3* other = nullptr;
    sqlite3_open(path_.c_str(), &other);
    sqlite3_exec(other, "CREATE TABLE steps (x)", nullptr, nullptr, nullptr);
    EXPECT_NE(open_error().find("database of another program"), std::string::npos) << open_error();
    sqlite3_exec(other, "PRAGMA user_version = 1000000", nullptr, nullptr, nullptr);
    EXPECT_EQ(open_error(), "cannot use " + path_ +
                                ": found version 1000000; expected version 4; use the newer program that "
                                "wrote it");
    sqlite3_exec(other, "PRAGMA user_version = 1", nullptr, nullptr, nullptr);
    EXPECT_EQ(open_error(), "cannot use " + path_ +
                                ": found the run of an older program, version 1; expected version 4; start a "
                                "new run");
    EXPECT_EQ(Reader(path_)("SELECT name FROM sqlite_schema"), "steps") << "nothing is changed";
    sqlite3_close(other);
}

TEST_F(RunDbTest, EventsAreKeptUntilTheirStepIsRepeated) {
    {
        RunDb db(path_);
        for (int64_t step : {1, 2}) {
            db.add_step(step_row(step), {});
            db.add_events({{step, "loss spike", 1, Severity::Alarm, "loss", 2.5, kNaN, "it's NaN", "{}"}});
        }
        db.forget_after(1);
    }
    EXPECT_EQ(
        Reader(path_)("SELECT id, step, detector, version, severity, site, expected, seen IS NULL, summary, "
                      "detail FROM events"),
        "1|1|loss spike|1|alarm|loss|2.5|1|it's NaN|{}");
}

TEST_F(RunDbTest, ARunOfAnOlderProgramGoesOn) {
    const std::pair<int, std::string> versions[] = {
        {2, "DROP TABLE hashes; DROP TABLE configs; DROP TABLE tokens; DROP TABLE events;"},
        {3, "DROP TABLE hashes; DROP TABLE configs; DROP TABLE tokens;"}};
    for (const auto& [version, without] : versions) {
        SCOPED_TRACE(version);
        fs::remove(path_);
        RunDb(path_).add_step(step_row(1), {});
        sqlite3* older = nullptr;
        sqlite3_open(path_.c_str(), &older);
        const std::string change = without + "PRAGMA user_version = " + std::to_string(version);
        ASSERT_EQ(sqlite3_exec(older, change.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
        sqlite3_close(older);
        RunDb db(path_);
        db.add_events({{2, "stall", 1, Severity::Note, "loss", 1, 2, "", "{}"}});
        db.add_tokens(2, {{0, 0, {1}, {2}}});
        db.set_config(1, "steps = 2", 5);
        db.commit();
        EXPECT_EQ(Reader(path_)("SELECT count(*) FROM steps") + Reader(path_)("SELECT count(*) FROM events") +
                      Reader(path_)("SELECT count(*) FROM tokens") +
                      Reader(path_)("SELECT count(*) FROM configs"),
                  "1111");
    }
}

TEST_F(RunDbTest, PlacesThatCannotBeWrittenAreAnError) {
    path_ = directory_ + "/missing/run.db";
    EXPECT_NE(open_error().find("cannot open " + path_), std::string::npos) << open_error();
    path_ = directory_;
    EXPECT_NE(open_error().find("cannot open " + path_), std::string::npos) << open_error();
}

TEST_F(RunDbTest, AFileThatMayOnlyBeReadIsAnError) {
    { RunDb db(path_); }
    fs::permissions(path_, fs::perms(0444));
    fs::permissions(directory_, fs::perms(0555));
    constexpr uid_t nobody = 65534;  // permissions do not bind root
    const std::string error =
        error_of_child([] { return geteuid() != 0 || setuid(nobody) == 0; }, [&] { RunDb db(path_); });
    fs::permissions(directory_, fs::perms(0755));
    if (error == "not prepared") GTEST_SKIP() << "root, and cannot become another user";
    EXPECT_NE(error.find("cannot write " + path_ + ": attempt to write a readonly database"),
              std::string::npos)
        << error;
}

TEST_F(RunDbTest, ALockedDatabaseIsAnErrorThatNamesIt) {
    RunDb db(path_, std::chrono::milliseconds(20));
    const Reader other(path_);
    other("BEGIN IMMEDIATE");
    const std::string error = error_of([&] { db.add_step(step_row(1), {}); });
    EXPECT_NE(error.find("cannot write " + path_ + ": database is locked"), std::string::npos) << error;
    EXPECT_NE(
        error_of([&] { RunDb second(path_, std::chrono::milliseconds(20)); }).find("database is locked"),
        std::string::npos);
    other("ROLLBACK");
    db.add_step(step_row(1), {});
    db.commit();
    EXPECT_EQ(other("SELECT count(*) FROM steps"), "1");
}

TEST_F(RunDbTest, AFullDiskIsAnErrorThatLeavesAWholeDatabase) {
    const auto limit_files = [] {  // acts as a disk that fills up
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit = {400'000, 400'000};
        return setrlimit(RLIMIT_FSIZE, &limit) == 0;
    };
    const std::string message = error_of_child(limit_files, [&] {
        RunDb db(path_);
        for (int64_t step = 1; step < 100'000; ++step) {
            db.add_step(step_row(step), {{0, 0, 0, step, 0}});
            if (step % 100 == 0) db.commit();
        }
    });
    EXPECT_NE(message.find("cannot write " + path_ + ": "), std::string::npos) << message;
    EXPECT_NE(message.find("free"), std::string::npos) << message;
    const Reader query(path_);
    EXPECT_EQ(query("PRAGMA integrity_check"), "ok");
    const double steps = query.number("SELECT count(*) FROM steps");
    EXPECT_GE(steps, 100);
    EXPECT_EQ(query.number("SELECT count(*) FROM batches"), steps);
}

}  // namespace
}  // namespace wobble::test
