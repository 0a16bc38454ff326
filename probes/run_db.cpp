// run.db through SQLite: write-ahead log, prepared statements, one transaction a second.
#include "probes/run_db.h"

#include <sqlite3.h>

#include <cmath>
#include <cstring>

#include "kernels/error.h"

namespace wobble {
namespace {

// Raised whenever a reader of the older form would go wrong.
constexpr int64_t kVersion = 1;

// The comments stay in the database: `sqlite3 run.db .schema` shows them.
constexpr const char* kTables = R"(
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE steps (
    step INTEGER PRIMARY KEY,  -- optimizer steps done, this one included
    tokens INTEGER,            -- seen since the start of the run
    loss REAL,                 -- nats per token, mean over the batch; this and all other reals: NULL when not finite
    lr REAL,
    grad_norm REAL,            -- before clipping
    clip REAL,                 -- factor applied to the gradient, 1 when not clipped
    update_norm REAL,
    weight_norm REAL,
    seconds REAL,
    tokens_per_second REAL,
    applied INTEGER,           -- 0: the update was not applied
    finite INTEGER             -- 0: something was NaN or infinite
);
CREATE TABLE evals (
    step INTEGER,
    name TEXT,
    loss REAL,                 -- nats per token; NULL when not finite
    tokens INTEGER,
    seconds REAL,
    PRIMARY KEY (step, name)
) WITHOUT ROWID;
CREATE TABLE batches (
    step INTEGER,
    micro INTEGER,             -- micro-batch of the step
    row INTEGER,               -- sequence of the micro-batch
    source INTEGER,
    document INTEGER,          -- in the source
    offset INTEGER,            -- of the sequence in the document
    PRIMARY KEY (step, micro, row)
) WITHOUT ROWID;
)";

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
}

void RunDb::create_tables() {
    begin();  // so that no other process creates them at the same time
    const int64_t version = query("PRAGMA user_version");
    if (version > kVersion)
        throw UserError("cannot use " + path_ + ": found version " + std::to_string(version) +
                        "; expected at most " + std::to_string(kVersion) +
                        "; use the newer program that wrote it");
    if (version == 0) {
        if (query("SELECT count(*) FROM sqlite_schema") != 0)
            throw UserError("cannot use " + path_ +
                            ": found the database of another program; expected that of a run; "
                            "move it away or choose another run directory");
        execute(kTables);
        execute(("PRAGMA user_version = " + std::to_string(kVersion)).c_str());
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

void RunDb::add_eval(const EvalRow& e) {
    begin();
    Statement statement = prepare("REPLACE INTO evals VALUES (?, ?, ?, ?, ?)");
    run(statement, e.step, e.name, e.loss, e.tokens, e.seconds);
    commit();
}

}  // namespace wobble
