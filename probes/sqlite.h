// A thin layer over SQLite: a connection whose errors are UserErrors that name the file, and statements that
// values are bound to.
#pragma once

#include <sqlite3.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace wobble {

/// Bound as the four bytes of the nearest float32, as an integer, where SQLite's own reals take eight. Zero
/// is 0; what float32 has no normal number for is bound as a real. NaN and infinities are NULL, as
/// everywhere.
struct Float32 {
    double value;
};

/// For one thread at a time.
class Sqlite {
  public:
    struct Finalize {
        void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
    };
    using Statement = std::unique_ptr<sqlite3_stmt, Finalize>;

    /// Opens or creates a database for writing; waits for a lock of another connection at most so long. Every
    /// function here throws UserError when the file cannot be used. Destruction commits.
    Sqlite(const std::string& path, std::chrono::milliseconds lock_timeout);

    const std::string& path() const { return path_; }

    Statement prepare(const std::string& sql);
    /// Runs one or more statements without results.
    void execute(const std::string& sql);
    /// The first column of the first row.
    int64_t number(const std::string& sql);

    /// Begins a transaction for writing where there is none. True when it is a new one.
    bool begin();
    void commit();
    /// Gives up what was not committed. Never throws: what cannot be rolled back is not committed either.
    void rollback() noexcept;

    /// Binds the values to the statement's parameters in order and runs it.
    template <class... Values>
    void run(Statement& statement, const Values&... values) {
        bind(statement, values...);
        sqlite3_step(statement.get());
        check(sqlite3_reset(statement.get()), "write");  // it tells again how the step went
    }

    template <class... Values>
    void bind(Statement& statement, const Values&... values) {
        int index = 0;
        (check(bind_one(statement.get(), ++index, values), "write"), ...);
    }
    /// Goes to the next row of the statement's result; false when there is none.
    bool next(Statement& statement);
    static int64_t integer(const Statement& statement, int column) {
        return sqlite3_column_int64(statement.get(), column);
    }
    /// NaN for NULL, which stands for what is not finite.
    static double real(const Statement& statement, int column) {
        return sqlite3_column_type(statement.get(), column) == SQLITE_NULL
                   ? NAN
                   : sqlite3_column_double(statement.get(), column);
    }
    static std::string text(const Statement& statement, int column);

  private:
    struct Close {
        void operator()(sqlite3*) const;
    };

    static int bind_one(sqlite3_stmt* s, int index, int64_t value) {
        return sqlite3_bind_int64(s, index, value);
    }
    static int bind_one(sqlite3_stmt* s, int index, int value) { return sqlite3_bind_int64(s, index, value); }
    static int bind_one(sqlite3_stmt* s, int index, bool value) {
        return sqlite3_bind_int(s, index, value ? 1 : 0);
    }
    static int bind_one(sqlite3_stmt* s, int index, double value) {
        return std::isfinite(value) ? sqlite3_bind_double(s, index, value) : sqlite3_bind_null(s, index);
    }
    static int bind_one(sqlite3_stmt* s, int index, Float32 real) {
        if (real.value == 0) return sqlite3_bind_int(s, index, 0);  // -0.0, too
        const auto nearest = static_cast<float>(real.value);
        return std::isnormal(nearest) ? sqlite3_bind_int(s, index, std::bit_cast<int32_t>(nearest))
                                      : bind_one(s, index, real.value);
    }
    static int bind_one(sqlite3_stmt* s, int index, std::string_view value) {
        // Never a null pointer, which would be NULL.
        return sqlite3_bind_text64(s, index, value.empty() ? "" : value.data(), value.size(),
                                   SQLITE_TRANSIENT, SQLITE_UTF8);
    }
    static int bind_one(sqlite3_stmt* s, int index, const std::string& value) {
        return bind_one(s, index, std::string_view(value));
    }
    static int bind_one(sqlite3_stmt* s, int index, const char* value) {
        return bind_one(s, index, std::string_view(value));
    }
    static int bind_one(sqlite3_stmt* s, int index, std::span<const int32_t> numbers) {
        return sqlite3_bind_blob64(s, index, numbers.empty() ? "" : static_cast<const void*>(numbers.data()),
                                   numbers.size_bytes(), SQLITE_TRANSIENT);
    }
    static int bind_one(sqlite3_stmt* s, int index, std::optional<int64_t> value) {
        return value ? bind_one(s, index, *value) : sqlite3_bind_null(s, index);
    }

    void check(int code, const char* what);

    std::string path_;
    std::unique_ptr<sqlite3, Close> connection_;
};

}  // namespace wobble
