// Writes run.db on a thread of its own. The training loop hands rows over and goes on; they are committed
// half a second later at the latest (as long as the disk keeps up), so a killed process loses at most what it
// did in its last second. Between commits the database is not locked.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "probes/run_db.h"

namespace wobble {

/// For one thread, which calls everything here. An error (UserError: the disk is full, the database is locked
/// …) is thrown by the call after it happened, and by every later one; nothing is written after it, and what
/// had not been committed is given up whole.
class RunWriter {
  public:
    /// What may wait to be written: about 300 steps of 900 channels, or 25 of them with histograms.
    static constexpr size_t default_room = size_t{64} << 20;

    /// Opens or creates the database, as RunDb does. `room`: bytes of rows that may wait; when they are
    /// taken, handing over waits. `lock_timeout` is long, since nobody waits for a while.
    explicit RunWriter(const std::string& path,
                       std::chrono::milliseconds lock_timeout = std::chrono::seconds(60),
                       size_t room = default_room);
    RunWriter(const RunWriter&) = delete;
    RunWriter& operator=(const RunWriter&) = delete;
    /// Writes what was handed over. Does not tell of errors: flush() before.
    ~RunWriter();

    /// A step, where its batch came from, and what was observed in it: all of it is written, or nothing.
    void add_step(const StepRow&, std::vector<BatchRow>, Observation);
    void add_events(std::vector<Event>);
    void add_eval(EvalRow);
    void add_ring(RingDump);
    void add_tokens(int64_t step, std::vector<TokensRow>);

    /// Returns once everything handed over is committed.
    void flush();

    /// As RunDb's, after everything handed over before; they wait for it.
    void set(const std::string& key, const std::string& value);
    std::optional<std::string> get(const std::string& key);
    void forget_after(int64_t step);
    void set_config(int64_t step, const std::string& toml, uint64_t weights_hash);

  private:
    using Clock = std::chrono::steady_clock;
    using Job = std::function<void(RunDb&)>;
    struct Item {
        Job job;
        size_t bytes;
        Clock::time_point since;
    };

    /// The number of the item, counted from 1.
    int64_t hand_over(Job, size_t bytes);
    void run_and_wait(Job);
    void throw_error() const;
    void work();
    /// The error, when there was one.
    std::exception_ptr write(const std::deque<Item>& items);

    RunDb db_;  // touched by the thread alone while that runs
    const size_t room_;
    std::mutex mutex_;  // of what follows
    std::condition_variable arrived_, written_;
    std::deque<Item> queue_;
    size_t waiting_bytes_ = 0;                         // in the queue or being written
    int64_t handed_over_ = 0, done_ = 0, wanted_ = 0;  // items; up to `wanted_` somebody waits for them
    bool stop_ = false;
    std::exception_ptr error_;
    std::thread thread_;
};

}  // namespace wobble
