// Connections to SQLite, and what their errors mean to a person.
#include "probes/sqlite.h"

#include <cstring>

#include "kernels/error.h"

namespace wobble {
namespace {

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

void Sqlite::Close::operator()(sqlite3* connection) const {
    // A failed commit cannot be reported from here; commit() beforehand can.
    if (!sqlite3_get_autocommit(connection)) sqlite3_exec(connection, "COMMIT", nullptr, nullptr, nullptr);
    sqlite3_close_v2(connection);
}

Sqlite::Sqlite(const std::string& path, std::chrono::milliseconds lock_timeout) : path_(path) {
    sqlite3* connection = nullptr;
    const int code = sqlite3_open_v2(
        path.c_str(), &connection, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
    connection_.reset(connection);  // there is one even after most errors
    check(code, "open");
    sqlite3_extended_result_codes(connection, 1);
    sqlite3_busy_timeout(connection, static_cast<int>(lock_timeout.count()));
    // SQLite opens a file that it may not write to for reading alone.
    if (sqlite3_db_readonly(connection, "main") == 1) check(SQLITE_READONLY, "write");
}

void Sqlite::check(int code, const char* what) {
    if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE) return;
    std::string message = std::string("cannot ") + what + " " + path_ + ": ";
    const bool detailed = connection_ && sqlite3_errcode(connection_.get()) != SQLITE_OK;
    message += detailed ? sqlite3_errmsg(connection_.get()) : sqlite3_errstr(code);
    // For a full disk and the like the system says more than SQLite's "disk I/O error".
    const int error = connection_ ? sqlite3_system_errno(connection_.get()) : 0;
    if (error != 0 && ((code & 0xff) == SQLITE_IOERR || (code & 0xff) == SQLITE_CANTOPEN))
        message += std::string(" (") + std::strerror(error) + ")";
    throw UserError(message + "; " + remedy(code));
}

Sqlite::Statement Sqlite::prepare(const std::string& sql) {
    sqlite3_stmt* statement = nullptr;
    check(sqlite3_prepare_v3(connection_.get(), sql.c_str(), -1, SQLITE_PREPARE_PERSISTENT, &statement,
                             nullptr),
          "use");
    return Statement(statement);
}

void Sqlite::execute(const std::string& sql) {
    check(sqlite3_exec(connection_.get(), sql.c_str(), nullptr, nullptr, nullptr), "write");
}

bool Sqlite::next(Statement& statement) {
    const int code = sqlite3_step(statement.get());
    check(code, "use");
    return code == SQLITE_ROW;
}

int64_t Sqlite::number(const std::string& sql) {
    Statement statement = prepare(sql);
    next(statement);
    return integer(statement, 0);
}

std::string Sqlite::text(const Statement& statement, int column) {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement.get(), column));
    return std::string(text ? text : "", static_cast<size_t>(sqlite3_column_bytes(statement.get(), column)));
}

bool Sqlite::begin() {
    if (!sqlite3_get_autocommit(connection_.get())) return false;
    execute("BEGIN IMMEDIATE");
    return true;
}

void Sqlite::commit() {
    if (!sqlite3_get_autocommit(connection_.get())) execute("COMMIT");
}

void Sqlite::rollback() noexcept {
    if (!sqlite3_get_autocommit(connection_.get()))
        sqlite3_exec(connection_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
}

}  // namespace wobble
