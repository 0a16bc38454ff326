// The thread that writes run.db: what is on disk and when, what a kill may take, who hears of an error, how
// much may wait.
#include "probes/run_writer.h"

#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "test/run_db_file.h"

namespace wobble::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

void hand_over(RunWriter& writer, int64_t step) {
    writer.add_step(step_row(step), {{0, 0, 0, step, 0}, {0, 1, 0, step, 64}}, observation_of(double(step)));
}

class RunWriterTest : public RunDbFile {
  protected:
    /// Steps 1 to `last` are there, each with all of its rows.
    static void expect_whole_steps(const Reader& query, int64_t last) {
        EXPECT_EQ(query("PRAGMA integrity_check"), "ok");
        EXPECT_EQ(query("SELECT count(*), max(step) FROM steps"),
                  std::to_string(last) + "|" + (last > 0 ? std::to_string(last) : "NULL"));
        const auto n = double(last);
        for (const char* table : {"stats", "histograms", "channels", "residuals", "streams", "embeddings",
                                  "largest_losses", "examples", "measures"})
            EXPECT_EQ(query.number(std::string("SELECT count(*) FROM ") + table), n) << table;
        for (const char* table : {"batches", "heads", "tensors", "losses"})
            EXPECT_EQ(query.number(std::string("SELECT count(*) FROM ") + table), 2 * n) << table;
    }

    /// Waits until the query gives the text, for a minute at most.
    static bool comes_true(const Reader& query, const std::string& sql, const std::string& text) {
        const auto until = Clock::now() + 60s;
        while (query(sql) != text) {
            if (Clock::now() > until) return false;
            std::this_thread::sleep_for(5ms);
        }
        return true;
    }
};

TEST_F(RunWriterTest, RowsAreCommittedWithoutAnotherCall) {
    RunWriter writer(path_);
    const Reader query(path_);
    hand_over(writer, 1);
    const auto start = Clock::now();
    EXPECT_TRUE(comes_true(query, "SELECT count(*) FROM steps", "1"));
    // Half a second by design; twice the promise leaves room for a busy machine.
    EXPECT_LT(Clock::now() - start, 2s);
    expect_whole_steps(query, 1);
}

TEST_F(RunWriterTest, FlushReturnsWhenEverythingIsCommitted) {
    RunWriter writer(path_);
    const Reader query(path_);
    for (int64_t step = 1; step <= 50; ++step) hand_over(writer, step);
    writer.add_eval({50, "val", 2, 10, 1});
    writer.flush();
    expect_whole_steps(query, 50);
    EXPECT_EQ(query("SELECT loss FROM evals"), "2.0");
    writer.flush();
}

TEST_F(RunWriterTest, DestructionWritesWhatWasHandedOver) {
    {
        RunWriter writer(path_);
        for (int64_t step = 1; step <= 5; ++step) hand_over(writer, step);
    }
    expect_whole_steps(Reader(path_), 5);
    { RunWriter idle(path_); }
}

TEST_F(RunWriterTest, ValuesAndForgettingComeAfterWhatWasHandedOver) {
    RunWriter writer(path_);
    EXPECT_FALSE(writer.get("seed"));
    for (int64_t step = 1; step <= 4; ++step) hand_over(writer, step);
    writer.forget_after(2);
    writer.set("seed", "7");
    hand_over(writer, 3);
    EXPECT_EQ(writer.get("seed"), "7");
    expect_whole_steps(Reader(path_), 3);
}

TEST_F(RunWriterTest, ARunKilledASecondAndAHalfLaterHasLostNothing) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        RunWriter writer(path_);
        for (int64_t step = 1; step <= 20; ++step) hand_over(writer, step);
        if (write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    char x;
    ASSERT_EQ(read(ends[0], &x, 1), 1);
    std::this_thread::sleep_for(1500ms);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ends[0]), close(ends[1]);
    expect_whole_steps(Reader(path_), 20);
}

TEST_F(RunWriterTest, ARunKilledInTheMiddleLosesAtMostTheLastSecondAndTearsNothing) {
    struct Report {
        int64_t step;
        Clock::duration done;  // when it had been handed over, since the start
    };
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const auto start = Clock::now();
        RunWriter writer(path_);
        for (int64_t step = 1;; ++step) {
            hand_over(writer, step);
            const Report report = {step, Clock::now() - start};
            if (write(ends[1], &report, sizeof report) < 0) _exit(1);
            usleep(2000);
        }
    }
    close(ends[1]);
    std::vector<Report> reports;
    Report report = {};
    while (report.done < 1700ms && read(ends[0], &report, sizeof report) == sizeof report)
        reports.push_back(report);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ends[0]);
    int64_t promised = 0;
    for (const Report& r : reports)
        if (r.done <= reports.back().done - 1s) promised = r.step;
    ASSERT_GT(promised, 0);
    const Reader query(path_);
    const auto kept = int64_t(query.number("SELECT max(step) FROM steps"));
    EXPECT_GE(kept, promised);
    expect_whole_steps(query, kept);
}

TEST_F(RunWriterTest, AnErrorIsThrownByTheCallsAfterItAndNothingMoreIsWritten) {
    {
        RunWriter writer(path_);
        hand_over(writer, 1);
        writer.flush();
        Observation twice = observation_of(2);
        twice.measures.push_back(twice.measures.front());
        hand_over(writer, 2);
        writer.add_step(step_row(3), {}, std::move(twice));
        hand_over(writer, 4);
        const std::string error = error_of([&] { writer.flush(); });
        EXPECT_NE(error.find("cannot write " + path_ + ": UNIQUE constraint failed: measures"),
                  std::string::npos)
            << error;
        for (const auto& call : std::vector<std::function<void()>>{
                 [&] { hand_over(writer, 5); },
                 [&] {
                     writer.add_eval({5, "val", 1, 1, 1});
                 },
                 [&] { writer.add_ring({}); }, [&] { writer.flush(); }, [&] { writer.set("a", "b"); },
                 [&] { writer.get("a"); }, [&] { writer.forget_after(0); }})
            EXPECT_EQ(error_of(call), error);
    }
    const Reader query(path_);
    expect_whole_steps(query, 1);  // what was not committed is given up whole
    RunDb(path_).add_step(step_row(2), {});
}

TEST_F(RunWriterTest, AnErrorReachesACallerThatOnlyHandsOver) {
    RunWriter writer(path_);
    hand_over(writer, 1);
    hand_over(writer, 1);
    std::string error = "no error";
    const auto until = Clock::now() + 60s;
    for (int64_t step = 2; error == "no error" && Clock::now() < until; ++step) {
        error = error_of([&] { hand_over(writer, step); });
        std::this_thread::sleep_for(10ms);
    }
    EXPECT_NE(error.find("another process"), std::string::npos) << error;
}

TEST_F(RunWriterTest, ALockedDatabaseHoldsNobodyUpUntilTheRoomIsTaken) {
    RunWriter writer(path_);
    const Reader other(path_);
    other("BEGIN IMMEDIATE");
    for (int64_t step = 1; step <= 1000; ++step) hand_over(writer, step);
    std::this_thread::sleep_for(700ms);  // the writer has met the lock by now
    hand_over(writer, 1001);
    EXPECT_EQ(other("SELECT count(*) FROM steps"), "0") << "the lock still held when all was handed over";
    other("ROLLBACK");
    writer.flush();
    expect_whole_steps(other, 1001);
}

TEST_F(RunWriterTest, ADatabaseLockedForTooLongIsAnError) {
    RunWriter writer(path_, 20ms);
    const Reader other(path_);
    other("BEGIN IMMEDIATE");
    hand_over(writer, 1);
    const std::string error = error_of([&] { writer.flush(); });
    EXPECT_NE(error.find("cannot write " + path_ + ": database is locked"), std::string::npos) << error;
    other("ROLLBACK");
    expect_whole_steps(other, 0);
}

TEST_F(RunWriterTest, WhenTheRoomIsTakenHandingOverWaits) {
    RunWriter writer(path_, 60s, 100'000);
    const Reader other(path_);
    other("BEGIN IMMEDIATE");
    std::atomic<int64_t> handed_over = 0;
    std::thread caller([&] {
        for (int64_t step = 1; step <= 500; ++step) hand_over(writer, step), handed_over = step;
    });
    // It stands still somewhere, and not at the end.
    int64_t before = -1;
    while (handed_over == 0 || handed_over != before) {
        before = handed_over;
        std::this_thread::sleep_for(200ms);
    }
    EXPECT_LT(handed_over, 500);
    other("ROLLBACK");
    caller.join();
    EXPECT_EQ(handed_over, 500);
    writer.flush();
    expect_whole_steps(other, 500);
}

TEST_F(RunWriterTest, ACallerThatWaitsForRoomHearsOfTheError) {
    RunWriter writer(path_, 300ms, 10'000);
    const Reader other(path_);
    other("BEGIN IMMEDIATE");
    const std::string error = error_of([&] {
        for (int64_t step = 1; step <= 500; ++step) hand_over(writer, step);
    });
    EXPECT_NE(error.find("database is locked"), std::string::npos) << error;
}

TEST_F(RunWriterTest, AStepLargerThanTheRoomIsWrittenAllTheSame) {
    RunWriter writer(path_, 60s, 1);
    for (int64_t step = 1; step <= 5; ++step) hand_over(writer, step);
    writer.flush();
    expect_whole_steps(Reader(path_), 5);
}

TEST_F(RunWriterTest, OthersMayWriteBetweenCommits) {
    RunWriter writer(path_);
    const Reader other(path_);
    other("CREATE TABLE notes (step INTEGER)");
    for (int64_t step = 1; step <= 100; ++step) {
        hand_over(writer, step);
        std::this_thread::sleep_for(2ms);
    }
    other("PRAGMA busy_timeout = 100");
    EXPECT_EQ(other("INSERT INTO notes VALUES (1) RETURNING step"), "1");
}

TEST_F(RunWriterTest, AFullDiskIsAnErrorThatLeavesWholeSteps) {
    const auto limit_files = [] {  // acts as a disk that fills up
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit = {1'000'000, 1'000'000};
        return setrlimit(RLIMIT_FSIZE, &limit) == 0;
    };
    const std::string message = error_of_child(limit_files, [&] {
        RunWriter writer(path_);
        for (int64_t step = 1; step < 100'000; ++step) {
            hand_over(writer, step);
            if (step % 100 == 0) writer.flush();
        }
    });
    EXPECT_NE(message.find("cannot write " + path_ + ": "), std::string::npos) << message;
    EXPECT_NE(message.find("free"), std::string::npos) << message;
    const Reader query(path_);
    const auto kept = int64_t(query.number("SELECT max(step) FROM steps"));
    EXPECT_GE(kept, 100);
    expect_whole_steps(query, kept);
}

volatile std::sig_atomic_t signals_seen = 0;

TEST_F(RunWriterTest, SignalsAreLeftToTheThreadThatTrains) {
    // In a process of its own, which has no other threads.
    const std::string answer =
        error_of_child([] { return true; },
                       [&] {
                           RunWriter writer(path_);
                           std::string seen;
                           for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
                               signals_seen = 0;
                               std::signal(signal, [](int) { signals_seen = signals_seen + 1; });
                               sigset_t set;
                               sigemptyset(&set), sigaddset(&set, signal);
                               pthread_sigmask(SIG_BLOCK, &set, nullptr);
                               kill(getpid(), signal);
                               hand_over(writer, signal);
                               writer.flush();  // the writer's thread runs, and would have been interrupted
                               seen += std::to_string(signals_seen);
                               pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
                               seen += std::to_string(signals_seen);
                           }
                           throw UserError(seen);
                       });
    EXPECT_EQ(answer, "010101");
}

}  // namespace
}  // namespace wobble::test
