// Checkpoints: whole or absent, whatever interrupts their writing; damaged ones are noticed and passed over.
#include "model/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "kernels/error.h"

namespace {

using namespace wobble;
namespace fs = std::filesystem;

class CheckpointTest : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "wobble-checkpoint-XXXXXX").string();
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        run_ = pattern;
    }
    void TearDown() override { fs::remove_all(run_); }

    /// A checkpoint whose every element tells its step and, by `salt`, which of two writings it is.
    void write(int64_t step, int keep = 0, int64_t salt = 0) const {
        const std::vector<float> weights(5000, static_cast<float>(step + salt));
        const std::vector<float> moments(7000, static_cast<float>(-step - salt));
        write_checkpoint(run_, step, {{"w", DType::F32, {50, 100}, weights.data()}},
                         {{"m.w", DType::F32, {70, 100}, moments.data()}, {"step", DType::I64, {}, &step}},
                         keep);
    }

    /// Whether every element of the opened checkpoint is of one writing of one step.
    static bool consistent(const CheckpointFiles& files) {
        std::vector<float> weights(5000), moments(7000);
        int64_t step = -1;
        read_tensor(files.model, {"w", DType::F32, {50, 100}, nullptr}, weights.data());
        read_tensor(files.state, {"m.w", DType::F32, {70, 100}, nullptr}, moments.data());
        read_tensor(files.state, {"step", DType::I64, {}, nullptr}, &step);
        return step == files.step && std::set<float>(weights.begin(), weights.end()).size() == 1 &&
               std::set<float>(moments.begin(), moments.end()).size() == 1 && weights[0] == -moments[0];
    }

    fs::path directory() const { return fs::path(run_) / "checkpoints"; }
    fs::path file(const std::string& step, const std::string& name) const {
        return directory() / ("step-" + step) / (name + ".safetensors");
    }

    std::set<std::string> names() const {
        std::set<std::string> found;
        for (const auto& item : fs::directory_iterator(directory()))
            found.insert(item.path().filename().string());
        return found;
    }

    static void flip_last_byte(const fs::path& path) {
        std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekg(-1, std::ios::end);
        const char last = static_cast<char>(stream.get());
        stream.seekp(-1, std::ios::end);
        stream.put(static_cast<char>(last ^ 1));
    }

    /// The message of the UserError that `action` throws; "no error" when it throws none.
    template <class Action>
    static std::string error_of(Action action) {
        try {
            action();
            return "no error";
        } catch (const UserError& error) {
            EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
            return error.what();
        }
    }

    std::string run_;
};

using Names = std::set<std::string>;

TEST_F(CheckpointTest, RoundTripKeepsEveryBitOfModelAndState) {
    const std::vector<float> weights = {1.0f, -0.0f, 1e-45f, 3e38f};
    const uint64_t counter = ~0ull;
    write_checkpoint(run_, 500, {{"w", DType::F32, {2, 2}, weights.data()}},
                     {{"counter", DType::U64, {1}, &counter}}, 0);
    EXPECT_EQ(names(), Names{"step-00000500"});
    const auto files = open_latest_checkpoint(run_, nullptr);
    ASSERT_TRUE(files);
    EXPECT_EQ(files->step, 500);
    std::vector<float> read_weights(4);
    uint64_t read_counter = 0;
    read_tensor(files->model, {"w", DType::F32, {2, 2}, nullptr}, read_weights.data());
    read_tensor(files->state, {"counter", DType::U64, {1}, nullptr}, &read_counter);
    EXPECT_EQ(std::memcmp(read_weights.data(), weights.data(), 16), 0);
    EXPECT_EQ(read_counter, counter);
}

TEST_F(CheckpointTest, TheSameStateGivesTheSameBytes) {
    const auto bytes = [&](const char* name) {
        std::ifstream stream(file("00000003", name), std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(stream), {});
    };
    write(3);
    const std::string model = bytes("model"), state = bytes("state");
    write(3);
    EXPECT_EQ(bytes("model"), model);
    EXPECT_EQ(bytes("state"), state);
    EXPECT_GT(state.size(), 28'000u);
}

TEST_F(CheckpointTest, ATensorOfAnotherKindIsRefused) {
    write(1);
    const CheckpointFiles files = open_checkpoint(run_, 1);
    std::vector<double> space(5000);
    const auto error = [&](const TensorView& expected) {
        return error_of([&] { read_tensor(files.model, expected, space.data()); });
    };
    EXPECT_NE(error({"w", DType::F32, {100, 50}, nullptr})
                  .find("found F32 [50, 100] for \"w\"; expected F32 [100, 50]"),
              std::string::npos);
    EXPECT_NE(error({"w", DType::I32, {50, 100}, nullptr}).find("expected I32 [50, 100]"), std::string::npos);
    EXPECT_NE(error({"v", DType::F32, {50, 100}, nullptr}).find("found no tensor for \"v\""),
              std::string::npos);
    EXPECT_EQ(space, std::vector<double>(5000)) << "nothing is copied";
}

TEST_F(CheckpointTest, ARunWithoutCheckpointsHasNone) {
    EXPECT_FALSE(open_latest_checkpoint(run_, nullptr));
    fs::create_directory(directory());
    EXPECT_FALSE(open_latest_checkpoint(run_, nullptr));
    for (const char* name :
         {"step-12", "step-0000000x", "step-", "step--0000001", ".writing-step-00000012", "notes"})
        fs::create_directory(directory() / name);
    EXPECT_FALSE(open_latest_checkpoint(run_, nullptr)) << "these are no checkpoints";
}

TEST_F(CheckpointTest, TheNewestIsTheLargestStep) {
    for (const int64_t step : {99'999'999, 9, 100'000'000, 10}) write(step);
    std::vector<std::string> warnings;
    EXPECT_EQ(open_latest_checkpoint(run_, &warnings)->step, 100'000'000);
    EXPECT_TRUE(warnings.empty());
}

TEST_F(CheckpointTest, OldOnesBeyondKeepAreRemovedAndLaterOnesStay) {
    for (const int64_t step : {10, 20, 30, 40}) write(step, 0);
    EXPECT_EQ(names().size(), 4u) << "0 keeps all";
    write(30, 2);
    EXPECT_EQ(names(), (Names{"step-00000020", "step-00000030", "step-00000040"}));
    write(50, 1);
    EXPECT_EQ(names(), Names{"step-00000050"});
}

TEST_F(CheckpointTest, AStepWrittenAgainIsReplaced) {
    write(7, 1, 0);
    write(7, 1, 1000);
    EXPECT_EQ(names(), Names{"step-00000007"});
    float weights[5000];
    read_tensor(open_checkpoint(run_, 7).model, {"w", DType::F32, {50, 100}, nullptr}, weights);
    EXPECT_EQ(weights[0], 1007.0f);
}

TEST_F(CheckpointTest, ADamagedNewestIsPassedOverWithAWarning) {
    write(1);
    write(2);
    write(3);
    flip_last_byte(file("00000003", "model"));
    fs::resize_file(file("00000002", "state"), 100);
    std::vector<std::string> warnings;
    const auto files = open_latest_checkpoint(run_, &warnings);
    ASSERT_TRUE(files);
    EXPECT_EQ(files->step, 1);
    EXPECT_TRUE(consistent(*files));
    ASSERT_EQ(warnings.size(), 2u);
    EXPECT_NE(warnings[0].find("checkpoint 3 was passed over"), std::string::npos) << warnings[0];
    EXPECT_NE(warnings[0].find(file("00000003", "model").string()), std::string::npos) << warnings[0];
    EXPECT_NE(warnings[0].find("checksum"), std::string::npos) << warnings[0];
    EXPECT_NE(warnings[1].find(file("00000002", "state").string()), std::string::npos) << warnings[1];
    EXPECT_NE(error_of([&] { open_checkpoint(run_, 3); }).find("checksum"), std::string::npos);
}

TEST_F(CheckpointTest, ARunWithDamagedCheckpointsOnlyIsAnError) {
    write(1);
    write(2);
    fs::remove(file("00000001", "state"));
    fs::remove_all(directory() / "step-00000002");
    fs::create_directory(directory() / "step-00000002");
    const std::string error = error_of([&] { open_latest_checkpoint(run_, nullptr); });
    EXPECT_NE(error.find("of steps 1, 2; the newest: cannot open " + file("00000002", "model").string()),
              std::string::npos)
        << error;
}

TEST_F(CheckpointTest, FilesOfTwoCheckpointsAreNotMixed) {
    write(1);
    write(2);
    fs::copy_file(file("00000001", "state"), file("00000002", "state"), fs::copy_options::overwrite_existing);
    const std::string error = error_of([&] { open_checkpoint(run_, 2); });
    EXPECT_NE(error.find("found step 1 in its metadata; expected 2"), std::string::npos) << error;
}

TEST_F(CheckpointTest, AMissingStepIsAnErrorThatListsTheOthers) {
    const auto error = [&] { return error_of([&] { open_checkpoint(run_, 7); }); };
    EXPECT_NE(error().find("no checkpoint of step 7 in " + directory().string()), std::string::npos)
        << error();
    EXPECT_NE(error().find("has none"), std::string::npos) << error();
    for (const int64_t step : {100, 20, 3}) write(step);
    EXPECT_NE(error().find("one of the steps 3, 20, 100"), std::string::npos) << error();
    for (int64_t step = 1; step <= 6; ++step) write(step);
    for (int64_t step = 10; step <= 15; ++step) write(step);
    EXPECT_NE(error().find("one of the steps ..., 5, 6, 10, 11, 12, 13, 14, 15, 20, 100"), std::string::npos)
        << error();
}

TEST_F(CheckpointTest, LeftoversOfAKilledProcessAreRemoved) {
    fs::create_directories(directory() / ".writing-step-00000003");
    fs::create_directories(directory() / ".removing-step-00000001" / "deeper");
    std::ofstream(directory() / ".writing-step-00000003" / "model.safetensors.writing") << "half";
    std::ofstream(directory() / "notes.txt") << "mine";
    write(4);
    EXPECT_EQ(names(), (Names{"notes.txt", "step-00000004"}));
}

TEST_F(CheckpointTest, AKilledWriterAlwaysLeavesAnOpenableNewestCheckpoint) {
    std::mt19937 random(1);
    std::uniform_int_distribution<useconds_t> delay(0, 3000);  // a few times what one checkpoint takes
    write(1);
    int64_t newest = 1;
    for (int round = 0; round < 20; ++round) {
        int ends[2];
        ASSERT_EQ(pipe(ends), 0);
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {  // writes each step twice, so replacing is interrupted as well
            for (int64_t step = newest + 1;; ++step) {
                for (const int64_t salt : {0, 1'000'000}) write(step, 2, salt);
                if (::write(ends[1], &step, sizeof step) < 0) _exit(1);
            }
        }
        close(ends[1]);
        int64_t written = 0;
        EXPECT_EQ(read(ends[0], &written, sizeof written), static_cast<ssize_t>(sizeof written));
        usleep(delay(random));
        kill(child, SIGKILL);
        int status = 0;
        waitpid(child, &status, 0);
        close(ends[0]);
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the writer failed by itself";
        std::vector<std::string> warnings;
        const auto files = open_latest_checkpoint(run_, &warnings);
        ASSERT_TRUE(files);
        EXPECT_TRUE(warnings.empty()) << warnings[0];
        EXPECT_TRUE(consistent(*files)) << files->step;
        ASSERT_GE(files->step, written);
        newest = files->step;
        for (const std::string& name : names()) {  // the older ones are whole, too
            if (!name.starts_with("step-")) continue;
            EXPECT_TRUE(consistent(open_checkpoint(run_, std::stoll(name.substr(5))))) << name;
        }
    }
    write(newest + 1, 2);
    EXPECT_EQ(names().size(), 2u) << "no leftovers";
}

TEST_F(CheckpointTest, WholeCheckpointsAreThereAfterEachSystemCallOfAWriter) {
    write(1);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {  // adds a checkpoint and removes the first, then replaces the one it added
        if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(77);
        raise(SIGSTOP);
        write(2, 1, 0);
        write(2, 1, 1'000'000);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "processes may not be traced here";
    int64_t newest = 1;
    std::set<Names> seen;
    for (int stop = 0; WIFSTOPPED(status); ++stop) {  // a call stops twice, before and after
        if (seen.insert(names()).second || stop % 2 == 0) {
            // What is on disk now is what a kill at this moment would leave.
            std::vector<std::string> warnings;
            const auto files = open_latest_checkpoint(run_, &warnings);
            EXPECT_TRUE(files && consistent(*files)) << "at stop " << stop;
            EXPECT_TRUE(warnings.empty()) << warnings[0];
            EXPECT_GE(files ? files->step : 0, newest) << "at stop " << stop;
            newest = files ? files->step : 0;
            if (fs::exists(directory() / "step-00000001")) {
                EXPECT_TRUE(consistent(open_checkpoint(run_, 1))) << "at stop " << stop;
            }
        }
        ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
        waitpid(child, &status, 0);
    }
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(newest, 2);
    const Names replacing = {".replaced-step-00000002", ".writing-step-00000002"},
                removing = {".removing-step-00000001", "step-00000002"};
    EXPECT_TRUE(seen.count(replacing) && seen.count(removing))
        << "the moments that matter were not looked at";
    EXPECT_EQ(names(), Names{"step-00000002"});
}

TEST_F(CheckpointTest, ACheckpointWhoseReplacementWasInterruptedIsKept) {
    write(1);
    write(2);
    fs::rename(directory() / "step-00000002", directory() / ".replaced-step-00000002");
    EXPECT_EQ(open_latest_checkpoint(run_, nullptr)->step, 2);
    write(3, 2);
    EXPECT_EQ(names(), (Names{"step-00000002", "step-00000003"}));
    EXPECT_TRUE(consistent(open_checkpoint(run_, 2)));
}

TEST_F(CheckpointTest, AFullDiskKeepsTheEarlierCheckpointAndLeavesNothing) {
    write(1);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child ==
        0) {  // a limit on the size of files acts as a disk that fills up: the model fits, the state does not
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit = {24'000, 24'000};
        setrlimit(RLIMIT_FSIZE, &limit);
        const std::string message = error_of([&] { write(2, 1); });
        _exit(::write(ends[1], message.data(), message.size()) > 0 ? 0 : 1);
    }
    close(ends[1]);
    char text[1000];
    const ssize_t size = read(ends[0], text, sizeof text);
    close(ends[0]);
    waitpid(child, nullptr, 0);
    const std::string message(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
    EXPECT_NE(message.find("state.safetensors: File too large; expected room for"), std::string::npos)
        << message;
    EXPECT_EQ(names(), Names{"step-00000001"});
    EXPECT_TRUE(consistent(*open_latest_checkpoint(run_, nullptr)));
}

TEST_F(CheckpointTest, ARunThatCannotBeWrittenIsAnError) {
    std::ofstream(directory()) << "a file in the way";
    EXPECT_NE(error_of([&] { write(1); }).find(directory().string()), std::string::npos);
    EXPECT_NE(error_of([&] { open_latest_checkpoint(run_, nullptr); }).find(directory().string()),
              std::string::npos);
}

}  // namespace
