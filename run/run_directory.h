// A run on disk: RUN/config.toml, RUN/run.db, RUN/checkpoints/. One process at a time may write to it.
#pragma once

#include <string>

#include "run/options.h"

namespace wobble {

class RunDirectory {
  public:
    /// Makes the directory of a new run, with its config.toml, in one move: it is there whole or not at all.
    /// Sets options.run when it was empty. UserError when the directory exists or cannot be made.
    static RunDirectory create(Options& options);

    /// Opens the run in `path` for writing. UserError when another process is writing to it.
    static RunDirectory open(const std::string& path);

    RunDirectory(RunDirectory&& other) noexcept : path_(std::move(other.path_)), lock_(other.lock_) {
        other.lock_ = -1;
    }
    RunDirectory& operator=(RunDirectory&&) = delete;
    ~RunDirectory();

    const std::string& path() const { return path_; }
    std::string database() const { return path_ + "/run.db"; }

    /// Replaces config.toml in one move, for a resumed run whose plan was changed.
    void write_config(const Options& options) const;

  private:
    RunDirectory(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

    std::string path_;
    int lock_;  // a file descriptor whose lock ends with the process
};

}  // namespace wobble
