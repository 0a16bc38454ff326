// Helpers of the data tests: a directory that goes away, files in it, and what an epoch holds.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "kernels/error.h"

namespace wobble::test {

/// A fresh directory, removed with everything in it at the end of the test.
class Directory {
  public:
    Directory() {
        std::string pattern = (std::filesystem::temp_directory_path() / "wobble-data-XXXXXX").string();
        if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp failed");
        path_ = pattern;
    }
    ~Directory() { std::filesystem::remove_all(path_); }
    Directory(const Directory&) = delete;
    Directory& operator=(const Directory&) = delete;

    std::string operator/(const std::string& name) const { return path_ + "/" + name; }

    std::string write(const std::string& name, const std::string& content) const {
        std::ofstream(*this / name, std::ios::binary) << content;
        return *this / name;
    }

    template <class T>
    std::string write(const std::string& name, const std::vector<int32_t>& header,
                      const std::vector<T>& items) const {
        std::ofstream file(*this / name, std::ios::binary);
        file.write(reinterpret_cast<const char*>(header.data()),
                   static_cast<std::streamsize>(4 * header.size()));
        file.write(reinterpret_cast<const char*>(items.data()),
                   static_cast<std::streamsize>(sizeof(T) * items.size()));
        return *this / name;
    }

  private:
    std::string path_;
};

/// One sequence as read.
struct Sequence {
    std::vector<int32_t> inputs, targets;
    Provenance provenance;

    bool operator==(const Sequence&) const = default;
};

inline Sequence read(const Dataset& data, int64_t index) {
    const size_t T = static_cast<size_t>(data.context());
    Sequence sequence{std::vector<int32_t>(T, -7), std::vector<int32_t>(T, -7), {}};
    sequence.provenance = data.read(index, sequence.inputs.data(), sequence.targets.data());
    return sequence;
}

/// The message of the UserError that opening gives; empty where it opens.
inline std::string error_of(const std::string& spec, const DatasetOptions& options = {}) {
    try {
        Dataset::open(spec, options);
    } catch (const UserError& error) {
        return error.what();
    }
    return "";
}

/// Every message is one line of three or more clauses: found; expected; remedy.
inline void expect_error(const std::string& spec, const DatasetOptions& options,
                         const std::vector<std::string>& parts) {
    const std::string message = error_of(spec, options);
    for (const std::string& part : parts) {
        EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
    }
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    const size_t first = message.find("; ");
    EXPECT_NE(first, std::string::npos) << message;
    EXPECT_NE(message.find("; ", first + 1), std::string::npos) << message;
}

}  // namespace wobble::test
