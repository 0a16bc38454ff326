// run.db through SQLite: write-ahead log, prepared statements, one transaction a second.
#include "probes/run_db.h"

#include <sqlite3.h>

#include <cmath>
#include <cstring>

#include "kernels/error.h"
#include "probes/run_db_tables.h"

namespace wobble {
namespace {

// Raised whenever a reader of the older form would go wrong.
constexpr int64_t newest_version = 1;

int bind(sqlite3_stmt* statement, int index, int64_t value) {
    return sqlite3_bind_int64(statement, index, value);
}
int bind(sqlite3_stmt* statement, int index, int value) {
    return sqlite3_bind_int64(statement, index, value);
}
int bind(sqlite3_stmt* statement, int index, bool value) {
    return sqlite3_bind_int(statement, index, value ? 1 : 0);
}
int bind(sqlite3_stmt* statement, int index, double value) {
    return std::isfinite(value) ? sqlite3_bind_double(statement, index, value)
                                : sqlite3_bind_null(statement, index);
}
int bind(sqlite3_stmt* statement, int index, const std::string& value) {
    return sqlite3_bind_text64(statement, index, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
}

int bind(sqlite3_stmt* statement, int index, std::optional<int64_t> value) {
    return value ? bind(statement, index, *value) : sqlite3_bind_null(statement, index);
}

/// {"name": count, …} of the counts that are not zero.
class CountsAsJson {
  public:
    void add(const std::string& name, uint64_t count) {
        if (count == 0) return;
        text_ += (text_.size() > 1 ? ", \"" : "\"") + name + "\": " + std::to_string(count);
    }
    std::string text() const { return text_ + "}"; }

  private:
    std::string text_ = "{";
};

const char* remedy(int code) {
    switch (code & 0xff) {  // the primary code of an extended one
        case SQLITE_BUSY:
        case SQLITE_LOCKED:
            return "expected a database that no other program writes to; end that program";
        case SQLITE_FULL:
            return "expected room on the disk; free some space or choose another run directory";
        case SQLITE_NOTADB:
        case SQLITE_CORRUPT:
            return "expected the database of a run; move the file away or choose another run directory";
        case SQLITE_CONSTRAINT:
            return "expected a new step; is another process training into this run?";
        default:
            return "expected a file that can be written to; check its directory, permissions and free space";
    }
}

}  // namespace

void RunDb::Close::operator()(sqlite3* database) const {
    // A failed commit cannot be reported from here; commit() beforehand can.
    if (!sqlite3_get_autocommit(database)) sqlite3_exec(database, "COMMIT", nullptr, nullptr, nullptr);
    sqlite3_close_v2(database);
}

void RunDb::Finalize::operator()(sqlite3_stmt* statement) const {
    sqlite3_finalize(statement);
}

void RunDb::check(int code, const char* what) {
    if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE) return;
    std::string message = std::string("cannot ") + what + " " + path_ + ": ";
    const bool detailed = database_ && sqlite3_errcode(database_.get()) != SQLITE_OK;
    message += detailed ? sqlite3_errmsg(database_.get()) : sqlite3_errstr(code);
    // For a full disk and the like the system says more than SQLite's "disk I/O error".
    const int error = database_ ? sqlite3_system_errno(database_.get()) : 0;
    if (error != 0 && ((code & 0xff) == SQLITE_IOERR || (code & 0xff) == SQLITE_CANTOPEN))
        message += std::string(" (") + std::strerror(error) + ")";
    throw UserError(message + "; " + remedy(code));
}

RunDb::Statement RunDb::prepare(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    check(sqlite3_prepare_v3(database_.get(), sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr),
          "use");
    return Statement(statement);
}

void RunDb::execute(const char* sql) {
    check(sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr), "write");
}

int64_t RunDb::query(const char* sql) {
    const Statement statement = prepare(sql);
    check(sqlite3_step(statement.get()), "read");
    return sqlite3_column_int64(statement.get(), 0);
}

template <class... Values>
void RunDb::run(Statement& statement, const Values&... values) {
    int index = 0;
    (check(bind(statement.get(), ++index, values), "write"), ...);
    sqlite3_step(statement.get());
    check(sqlite3_reset(statement.get()), "write");  // it tells again how the step went
}

RunDb::RunDb(const std::string& path, std::chrono::milliseconds lock_timeout)
    : path_(path), committed_(std::chrono::steady_clock::now()) {
    sqlite3* database = nullptr;
    const int code =
        sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
    database_.reset(database);  // there is one even after most errors
    check(code, "open");
    sqlite3_extended_result_codes(database, 1);
    sqlite3_busy_timeout(database, static_cast<int>(lock_timeout.count()));
    // SQLite opens a file that it may not write to for reading alone.
    if (sqlite3_db_readonly(database, "main") == 1) check(SQLITE_READONLY, "write");
    create_tables();
    // With a write-ahead log readers and the writer do not wait for each other, and a commit needs no sync. A
    // power cut may take the newest commits; the database stays whole. File systems without shared memory
    // keep a rollback journal.
    execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;");
    insert_step_ = prepare("INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    insert_batch_ = prepare("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)");
    insert_stats_ = prepare("INSERT INTO stats VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    insert_histogram_ = prepare("INSERT INTO histograms VALUES (?, ?, ?, ?, ?)");
}

void RunDb::create_tables() {
    begin();  // so that no other process creates them at the same time
    const int64_t version = query("PRAGMA user_version");
    if (version > newest_version)
        throw UserError("cannot use " + path_ + ": found version " + std::to_string(version) +
                        "; expected at most " + std::to_string(newest_version) +
                        "; use the newer program that wrote it");
    if (version == 0) {
        if (query("SELECT count(*) FROM sqlite_schema") != 0)
            throw UserError("cannot use " + path_ +
                            ": found the database of another program; expected that of a run; "
                            "move it away or choose another run directory");
        execute(run_db_tables);
        execute(("PRAGMA user_version = " + std::to_string(newest_version)).c_str());
    }
    commit();
}

void RunDb::begin() {
    if (sqlite3_get_autocommit(database_.get())) execute("BEGIN IMMEDIATE");
}

void RunDb::commit() {
    if (!sqlite3_get_autocommit(database_.get())) execute("COMMIT");
    committed_ = std::chrono::steady_clock::now();
}

void RunDb::set(const std::string& key, const std::string& value) {
    begin();
    Statement statement = prepare("REPLACE INTO run VALUES (?, ?)");
    run(statement, key, value);
    commit();
}

std::optional<std::string> RunDb::get(const std::string& key) {
    const Statement statement = prepare("SELECT value FROM run WHERE key = ?");
    check(bind(statement.get(), 1, key), "read");
    const int code = sqlite3_step(statement.get());
    check(code, "read");
    if (code != SQLITE_ROW) return std::nullopt;
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement.get(), 0));
    return std::string(text ? text : "", static_cast<size_t>(sqlite3_column_bytes(statement.get(), 0)));
}

void RunDb::forget_after(int64_t step) {
    begin();
    // Asked of the database, so that no table that is added later is forgotten here.
    std::vector<std::string> tables;
    const Statement with_step = prepare(
        "SELECT t.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c WHERE t.type = 'table' AND "
        "c.name = 'step'");
    int code = SQLITE_OK;
    while ((code = sqlite3_step(with_step.get())) == SQLITE_ROW)
        tables.emplace_back(reinterpret_cast<const char*>(sqlite3_column_text(with_step.get(), 0)));
    check(code, "read");
    for (const std::string& table : tables) {
        Statement remove = prepare(("DELETE FROM \"" + table + "\" WHERE step > ?").c_str());
        run(remove, step);
    }
    commit();
}

void RunDb::add_step(const StepRow& s, const std::vector<BatchRow>& batches) {
    begin();
    const bool finite = s.finite && std::isfinite(s.loss) && std::isfinite(s.lr) &&
                        std::isfinite(s.grad_norm) && std::isfinite(s.clip) && std::isfinite(s.update_norm) &&
                        std::isfinite(s.weight_norm);
    run(insert_step_, s.step, s.tokens, s.loss, s.lr, s.grad_norm, s.clip, s.update_norm, s.weight_norm,
        s.seconds, s.tokens_per_second, s.applied, finite);
    for (const BatchRow& b : batches)
        run(insert_batch_, s.step, b.micro, b.row, b.source, b.document, b.offset);
    // Counted from the last commit, not from the first row since, so that a slow step does not wait for the
    // next one.
    if (std::chrono::steady_clock::now() - committed_ >= std::chrono::seconds(1)) commit();
}

int64_t RunDb::site_number(const Record& r) {
    const std::string key = r.site + '/' + phase_name(r.phase) + '/' + r.kernel + '/' + r.channel;
    if (const auto known = sites_.find(key); known != sites_.end()) return known->second;
    Statement insert = prepare(
        "INSERT INTO sites (name, layer, phase, channel, kernel) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET layer = layer RETURNING site");
    int index = 0;
    for (const std::string& text : {r.site, std::string(), std::string(phase_name(r.phase)),
                                    std::string(r.channel), std::string(r.kernel)}) {
        ++index;
        check(index == 2 ? bind(insert.get(), index, r.layer) : bind(insert.get(), index, text), "write");
    }
    check(sqlite3_step(insert.get()), "write");
    const int64_t number = sqlite3_column_int64(insert.get(), 0);
    check(sqlite3_step(insert.get()), "write");
    return sites_[key] = number;
}

void RunDb::add_statistics(int64_t step, const std::vector<Record>& records) {
    begin();
    for (const Record& r : records) {
        const int64_t site = site_number(r);
        const Moments& m = r.moments();
        const bool any = m.count > 0;
        const auto place = [](int64_t at) { return at < 0 ? std::nullopt : std::optional(at); };
        run(insert_stats_, step, site, m.count, any ? m.mean : NAN, m.rms(), any ? m.min : NAN,
            any ? m.max : NAN, m.absmax(), m.skew(), m.kurtosis(), m.zeros, m.subnormals, m.nans,
            m.positive_infinities + m.negative_infinities, place(m.first_row), place(m.first_column));
        if (const Histogram* h = r.statistics.histogram.get()) {
            CountsAsJson bins, flushed, overflowed;
            for (int i = 0; i < Histogram::bins; ++i) {
                bins.add(std::to_string(i + Histogram::lowest), h->by_exponent[size_t(i)]);
            }
            for (size_t f = 0; f < format_count; ++f) {
                flushed.add(formats[f].name, h->flushed[f]),
                    overflowed.add(formats[f].name, h->overflowed[f]);
            }
            run(insert_histogram_, step, site, bins.text(), flushed.text(), overflowed.text());
        }
    }
}

void RunDb::add_eval(const EvalRow& e) {
    begin();
    Statement statement = prepare("REPLACE INTO evals VALUES (?, ?, ?, ?, ?)");
    run(statement, e.step, e.name, e.loss, e.tokens, e.seconds);
    commit();
}

}  // namespace wobble
