// run.db in a directory of its own, read as another program would read it.
#pragma once

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "kernels/error.h"
#include "probes/run_db.h"

namespace wobble::test {

inline StepRow step_row(int64_t step) {
    const auto s = static_cast<double>(step);
    return {step, 768 * step, 4.0 / s, 3e-4, 1.25, 0.8, 1e-3, 17.5, 0.01, 76800.0, true, true};
}

/// Statistics of the values at a site of the forward phase.
inline Record record_of(const std::string& site, const std::vector<double>& values,
                        const char* channel = "output") {
    Record record{site, -1, Phase::Forward, "kernel", channel, {}};
    for (size_t i = 0; i < values.size(); ++i)
        record.statistics.moments.add(values[i], 0, int64_t(i), 0x1p-126);
    return record;
}

/// Rows for every table; their numbers are x and those after it, exact in float32.
inline Observation observation_of(double x) {
    Observation o;
    o.records.push_back(record_of("wte", {x, x, x + 2, x + 2}));
    o.records.back().statistics.histogram = std::make_unique<Histogram>();
    o.records.back().statistics.histogram->by_exponent[size_t(-Histogram::lowest)] = 4;
    o.heads.push_back({"h.1.attn", 1, 0, x, x + 1, x + 2, x + 3, x + 4, x + 5, x + 6});
    o.heads.push_back({"h.1.attn", 1, 1, -x, x, x, x, x, x, x});
    o.residuals.push_back({"h.0.ln_1", 0, Phase::Backward, "layernorm", "dx", 12, x, x + 1, x + 2, x + 3, 7});
    o.tensors.push_back({"h.11.mlp.fc.weight", x, x + 1, x + 2, x + 3, x + 4, x + 5, x + 6, x + 7, x + 8,
                         x + 9, x + 10, x + 11, x + 12});
    o.tensors.push_back({"wte.weight", x, x, x, x, x, x, x, x, x, x, x, x, x});
    o.embeddings.push_back({"wte", 9, 5, x, x + 1, x + 2});
    o.streams.push_back({"h.0.mlp.proj", 0, x, x + 1, x + 2, x + 3});
    o.channels.push_back({"h.0.mlp.fc", 0, Phase::Forward, "product", "output", 64, x, x + 1, x + 2, 63,
                          x + 3, x + 4, x + 5, 32});
    o.losses.push_back({"percentile", 95, x, 100});
    o.losses.push_back({"position", 0, x + 1, 32});
    o.largest_losses.push_back({0, 1, 2, 3, 50256, x, 4, int64_t{1} << 40, 6});
    o.examples.push_back({0, 1, x});
    o.measures.push_back({"noise.scale", x});
    return o;
}

/// Another connection, as another program would open one.
class Reader {
  public:
    explicit Reader(const std::string& path) {
        sqlite3_open_v2(path.c_str(), &database_, SQLITE_OPEN_READWRITE, nullptr);
    }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    ~Reader() { sqlite3_close(database_); }

    /// Rows as text: columns joined by '|', rows by a line break, NULL as such; reals with all their digits.
    std::string operator()(const std::string& sql) const {
        std::string text;
        sqlite3_stmt* statement = nullptr;
        if (sqlite3_prepare_v2(database_, sql.c_str(), -1, &statement, nullptr) != SQLITE_OK)
            return sqlite3_errmsg(database_);
        while (sqlite3_step(statement) == SQLITE_ROW) {
            if (!text.empty()) text += '\n';
            for (int i = 0; i < sqlite3_column_count(statement); ++i) {
                const auto* value = reinterpret_cast<const char*>(sqlite3_column_text(statement, i));
                text.append(i ? "|" : "").append(value ? value : "NULL");
            }
        }
        sqlite3_finalize(statement);
        return text;
    }

    double number(const std::string& sql) const {
        sqlite3_stmt* statement = nullptr;
        sqlite3_prepare_v2(database_, sql.c_str(), -1, &statement, nullptr);
        sqlite3_step(statement);
        const double value = sqlite3_column_double(statement, 0);
        sqlite3_finalize(statement);
        return value;
    }

  private:
    sqlite3* database_ = nullptr;
};

namespace fs = std::filesystem;

/// A fresh directory for a run.db, removed at the end of the test.
class RunDbFile : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "wobble-run_db-XXXXXX").string();
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        directory_ = pattern;
        path_ = directory_ + "/run.db";
    }
    void TearDown() override { fs::remove_all(directory_); }

    /// The message of the UserError that `action` throws; "no error" when it throws none.
    template <class Action>
    static std::string error_of(Action action) {
        try {
            action();
            return "no error";
        } catch (const UserError& error) {
            EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
            return error.what();
        }
    }

    /// The same of a process of its own, where `prepare` may do what cannot be undone.
    template <class Prepare, class Action>
    static std::string error_of_child(Prepare prepare, Action action) {
        int ends[2];
        if (pipe(ends) != 0) return "no pipe";
        const pid_t child = fork();
        if (child == 0) {
            const std::string message = prepare() ? error_of(action) : "not prepared";
            _exit(write(ends[1], message.data(), message.size()) > 0 ? 0 : 1);
        }
        close(ends[1]);
        char text[1000];
        const ssize_t size = read(ends[0], text, sizeof text);
        close(ends[0]);
        waitpid(child, nullptr, 0);
        return std::string(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
    }

    std::string open_error() const {
        return error_of([&] { RunDb db(path_); });
    }

    std::string directory_, path_;
};

}  // namespace wobble::test
