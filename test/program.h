// Runs ./train as a person would, in an empty directory of its own.
#pragma once

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace wobble::test {

struct Outcome {
    int status;  // exit status, or 128 + signal
    std::string out, err;
};

/// A fresh directory, removed at the end of the test, in which the program runs.
class Program : public ::testing::Test {
  protected:
    void SetUp() override;
    void TearDown() override;

    /// Runs `./train ARGUMENTS` by the shell, so quotes are needed as on a command line. `before` are shell
    /// commands in the same shell.
    Outcome train(const std::string& arguments, const std::string& before = "");
    /// Starts it, sends `signal` after `milliseconds`, and waits.
    Outcome train_and_signal(const std::string& arguments, int signal, int milliseconds);
    /// Starts it, sends `signal` once run `run` has recorded `steps` steps (or after ten seconds), and waits.
    Outcome train_and_signal_after(const std::string& arguments, int signal, const std::string& run,
                                   int steps);

    std::filesystem::path path(const std::string& name) const { return directory_ / name; }
    std::string read(const std::string& name) const;
    void write(const std::string& name, const std::string& text) const;
    /// The bytes of a run's newest checkpoint, both files.
    std::string checkpoint(const std::string& run) const;
    /// One number that an SQL query of RUN/run.db gives.
    double query(const std::string& run, const std::string& sql) const;
    /// One text.
    std::string text(const std::string& run, const std::string& sql) const;

  private:
    Outcome finish(int pid) const;
    int start(const std::string& command) const;
    void ask(const std::string& run, const std::string& sql,
             const std::function<void(sqlite3_stmt*)>& take) const;

    std::filesystem::path directory_;
};

}  // namespace wobble::test
