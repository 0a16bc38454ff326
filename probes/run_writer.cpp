// The queue between the loop that trains and the thread that writes.
#include "probes/run_writer.h"

#include <csignal>
#include <memory>
#include <utility>

namespace wobble {
namespace {

// Rows gather for so long, so that there are few commits. It leaves half a second of the promised one for
// writing them.
constexpr std::chrono::milliseconds gathering(500);

/// About what rows take in memory. Names longer than 15 letters stand beside them.
template <class Row>
size_t bytes_of(const std::vector<Row>& rows) {
    return rows.size() * (sizeof(Row) + 32);
}

size_t bytes_of(const Observation& o) {
    size_t histograms = 0;
    for (const Record& r : o.records) histograms += r.statistics.histogram ? sizeof(Histogram) : 0;
    return histograms + bytes_of(o.records) + bytes_of(o.heads) + bytes_of(o.residuals) +
           bytes_of(o.tensors) + bytes_of(o.embeddings) + bytes_of(o.streams) + bytes_of(o.channels) +
           bytes_of(o.losses) + bytes_of(o.largest_losses) + bytes_of(o.examples) + bytes_of(o.measures);
}

size_t bytes_of(const RingDump& ring) {
    size_t bytes = 0;
    for (const RingDump::Step& s : ring.steps)
        bytes += s.moments.size() * (sizeof(Moments) + sizeof(int32_t));
    return bytes;
}

/// Signals that a program handles. Blocked in the calling thread while this lives, and so in threads that it
/// starts.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t set;
        sigemptyset(&set);
        for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
        pthread_sigmask(SIG_BLOCK, &set, &before_);
    }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};

}  // namespace

RunWriter::RunWriter(const std::string& path, std::chrono::milliseconds lock_timeout, size_t room)
    : db_(path, lock_timeout), room_(room) {
    const SignalsBlocked for_the_thread;  // the thread that trains receives them
    thread_ = std::thread([this] { work(); });
}

RunWriter::~RunWriter() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    arrived_.notify_one();
    thread_.join();
}

void RunWriter::throw_error() const {
    if (error_) std::rethrow_exception(error_);
}

int64_t RunWriter::hand_over(Job job, size_t bytes) {
    std::unique_lock lock(mutex_);
    // An item may be larger than the room: then it waits alone.
    const auto fits = [&] { return error_ || waiting_bytes_ == 0 || waiting_bytes_ + bytes <= room_; };
    if (!fits()) {
        wanted_ = handed_over_;
        arrived_.notify_one();
        written_.wait(lock, fits);
    }
    throw_error();
    queue_.push_back({std::move(job), bytes, Clock::now()});
    waiting_bytes_ += bytes;
    arrived_.notify_one();
    return ++handed_over_;
}

void RunWriter::run_and_wait(Job job) {
    const int64_t number = hand_over(std::move(job), 0);
    std::unique_lock lock(mutex_);
    wanted_ = number;
    arrived_.notify_one();
    written_.wait(lock, [&] { return done_ >= number; });
    throw_error();
}

void RunWriter::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        arrived_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        arrived_.wait_until(lock, queue_.front().since + gathering,
                            [&] { return stop_ || wanted_ > done_ || waiting_bytes_ > room_ / 2; });
        std::deque<Item> items = std::exchange(queue_, {});
        size_t bytes = 0;
        for (const Item& item : items) bytes += item.bytes;
        const auto count = int64_t(items.size());
        const bool failed = error_ != nullptr;

        lock.unlock();
        const std::exception_ptr error = failed ? nullptr : write(items);
        items.clear();
        lock.lock();

        if (error) error_ = error;
        waiting_bytes_ -= bytes;
        done_ += count;
        written_.notify_one();
    }
}

std::exception_ptr RunWriter::write(const std::deque<Item>& items) {
    try {
        Clock::time_point committed = Clock::now();
        for (const Item& item : items) {
            item.job(db_);
            if (Clock::now() - committed > gathering) db_.commit(), committed = Clock::now();
        }
        db_.commit();
        return nullptr;
    } catch (...) {
        db_.rollback();  // a step is never torn
        return std::current_exception();
    }
}

// Jobs can be copied, and observations cannot: a job holds its rows by a shared pointer.

void RunWriter::add_step(const StepRow& row, std::vector<BatchRow> batches, Observation observation) {
    const size_t bytes = sizeof(StepRow) + bytes_of(batches) + bytes_of(observation);
    auto seen = std::make_shared<const Observation>(std::move(observation));
    hand_over(
        [row, rows = std::move(batches), seen = std::move(seen)](RunDb& db) {
            db.add_step(row, rows);
            db.add_observation(row.step, *seen);
        },
        bytes);
}

void RunWriter::add_events(std::vector<Event> events) {
    if (events.empty()) return;
    const size_t bytes = bytes_of(events);
    hand_over([events = std::move(events)](RunDb& db) { db.add_events(events); }, bytes);
}

void RunWriter::add_eval(EvalRow row) {
    hand_over([row = std::move(row)](RunDb& db) { db.add_eval(row); }, sizeof(EvalRow));
}

void RunWriter::add_ring(RingDump ring) {
    const size_t bytes = bytes_of(ring);
    hand_over([ring = std::make_shared<const RingDump>(std::move(ring))](RunDb& db) { db.add_ring(*ring); },
              bytes);
}

void RunWriter::add_tokens(int64_t step, std::vector<TokensRow> rows) {
    size_t bytes = bytes_of(rows);
    for (const TokensRow& r : rows) bytes += (r.inputs.size() + r.targets.size()) * sizeof(int32_t);
    hand_over([step, rows = std::move(rows)](RunDb& db) { db.add_tokens(step, rows); }, bytes);
}

void RunWriter::flush() {
    run_and_wait([](RunDb& db) { db.commit(); });
}

void RunWriter::set(const std::string& key, const std::string& value) {
    run_and_wait([&](RunDb& db) { db.set(key, value); });
}

std::optional<std::string> RunWriter::get(const std::string& key) {
    std::optional<std::string> value;
    run_and_wait([&](RunDb& db) { value = db.get(key); });
    return value;
}

void RunWriter::forget_after(int64_t step) {
    run_and_wait([&](RunDb& db) { db.forget_after(step); });
}

void RunWriter::set_config(int64_t step, const std::string& toml, uint64_t weights_hash) {
    run_and_wait([&](RunDb& db) { db.set_config(step, toml, weights_hash); });
}

}  // namespace wobble
