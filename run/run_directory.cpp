#include "run/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "kernels/error.h"
#include "run/config_file.h"

namespace wobble {

namespace fs = std::filesystem;

namespace {

std::string next_free_name() {
    for (int n = 1;; ++n) {
        char name[32];
        std::snprintf(name, sizeof name, "runs/%04d", n);
        if (!fs::exists(name)) return name;
    }
}

[[noreturn]] void cannot_write(const std::string& path, const std::string& why) {
    throw UserError("cannot write " + path + ": " + why +
                    "; choose a --run directory that can be written to");
}

void write_file(const std::string& path, const std::string& text) {
    std::ofstream out(path, std::ios::binary);
    out << text;
    out.close();
    if (!out) cannot_write(path, std::strerror(errno));
}

int take_lock(const std::string& run) {
    const std::string file = run + "/.lock";
    const int lock = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock < 0) cannot_write(file, std::strerror(errno));
    if (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
        ::close(lock);
        throw UserError(
            run + " is being written to by another process; wait for it to end, or choose another --run");
    }
    return lock;
}

}  // namespace

RunDirectory RunDirectory::create(Options& options) {
    if (options.run.empty()) options.run = next_free_name();
    while (options.run.size() > 1 && options.run.back() == '/') options.run.pop_back();
    const fs::path path = options.run;
    if (fs::exists(path)) {
        const bool is_run = fs::exists(path / "config.toml");
        throw UserError("--run " + options.run + " exists already; expected a new directory; " +
                        (is_run ? "--resume " + options.run + " continues it" : "choose another name"));
    }
    const fs::path hidden =
        path.parent_path() / ("." + path.filename().string() + ".new-" + std::to_string(::getpid()));
    std::error_code error;
    fs::create_directories(hidden, error);
    if (error) cannot_write(options.run, error.message());
    try {
        write_file((hidden / "config.toml").string(), to_toml(options));
        fs::rename(hidden, path, error);
        if (error) cannot_write(options.run, error.message());
    } catch (...) {
        fs::remove_all(hidden, error);
        throw;
    }
    return RunDirectory(options.run, take_lock(options.run));
}

RunDirectory RunDirectory::open(const std::string& path) {
    return RunDirectory(path, take_lock(path));
}

RunDirectory::~RunDirectory() {
    if (lock_ >= 0) ::close(lock_);
}

void RunDirectory::write_config(const Options& options) const {
    const std::string file = path_ + "/config.toml", hidden = path_ + "/.config.toml.new";
    write_file(hidden, to_toml(options));
    std::error_code error;
    fs::rename(hidden, file, error);
    if (error) cannot_write(file, error.message());
}

}  // namespace wobble
