#include "test/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace wobble::test {

namespace fs = std::filesystem;

void Program::SetUp() {
    ASSERT_NE(std::getenv("WOBBLE_TRAIN"), nullptr) << "set WOBBLE_TRAIN to the program; `make test` does";
    std::string name = (fs::temp_directory_path() / "wobble-program-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
}

void Program::TearDown() {
    fs::remove_all(directory_);
}

int Program::start(const std::string& command) const {
    const int pid = fork();
    if (pid == 0) {
        const int out = open(path("stdout").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
        const int err = open(path("stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(out, 1), dup2(err, 2);
        if (chdir(directory_.c_str()) != 0) _exit(99);
        execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
        _exit(99);
    }
    return pid;
}

Outcome Program::finish(int pid) const {
    int status = 0;
    waitpid(pid, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read("stdout"), read("stderr")};
}

Outcome Program::train(const std::string& arguments, const std::string& before) {
    return finish(start(before + "exec \"$WOBBLE_TRAIN\" " + arguments));
}

Outcome Program::train_and_signal_after(const std::string& arguments, int signal, const std::string& run,
                                        int steps) {
    const int pid = start("exec \"$WOBBLE_TRAIN\" " + arguments);
    for (int wait = 0; wait < 500; ++wait) {
        usleep(20'000);
        if (query(run, "select count(*) from steps") >= steps) break;  // NaN as long as there is no database
    }
    kill(pid, signal);
    return finish(pid);
}

Outcome Program::train_and_signal(const std::string& arguments, int signal, int milliseconds) {
    const int pid = start("exec \"$WOBBLE_TRAIN\" " + arguments);
    usleep(useconds_t(milliseconds) * 1000);
    kill(pid, signal);
    return finish(pid);
}

std::string Program::read(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

void Program::write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
}

std::string Program::checkpoint(const std::string& run) const {
    std::vector<std::string> steps;
    for (const auto& entry : fs::directory_iterator(path(run + "/checkpoints"))) {
        if (entry.path().filename().string()[0] != '.') steps.push_back(entry.path().filename().string());
    }
    const std::string newest = run + "/checkpoints/" + *std::max_element(steps.begin(), steps.end());
    return read(newest + "/model.safetensors") + read(newest + "/state.safetensors");
}

void Program::ask(const std::string& run, const std::string& sql,
                  const std::function<void(sqlite3_stmt*)>& take) const {
    sqlite3* db = nullptr;
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_open_v2(path(run + "/run.db").c_str(), &db, SQLITE_OPEN_READONLY, nullptr) == SQLITE_OK &&
        sqlite3_prepare_v2(db, sql.c_str(), -1, &statement, nullptr) == SQLITE_OK &&
        sqlite3_step(statement) == SQLITE_ROW) {
        take(statement);
    }
    sqlite3_finalize(statement);
    sqlite3_close(db);
}

double Program::query(const std::string& run, const std::string& sql) const {
    double value = NAN;
    ask(run, sql, [&](sqlite3_stmt* row) { value = sqlite3_column_double(row, 0); });
    return value;
}

std::string Program::text(const std::string& run, const std::string& sql) const {
    std::string value = "no answer";
    ask(run, sql,
        [&](sqlite3_stmt* row) { value = reinterpret_cast<const char*>(sqlite3_column_text(row, 0)); });
    return value;
}

}  // namespace wobble::test
