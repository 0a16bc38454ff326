// Files that a pattern names, read whole or mapped into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace wobble {

/// The regular files that match a glob, sorted by name; a pattern that is itself the name of a file means
/// that file, and a leading ~ the home directory. Throws UserError, naming the source, where there is none or
/// one is a directory.
std::vector<std::string> match_files(const std::string& pattern, const std::string& source_name);

/// The bytes of a file, mapped read-only: it may be larger than memory. The file must not be shortened
/// meanwhile.
class MappedFile {
  public:
    /// Throws UserError where the file cannot be read or is empty.
    explicit MappedFile(const std::string& path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    MappedFile& operator=(MappedFile&&) = delete;
    ~MappedFile();

    const std::byte* data() const { return data_; }
    int64_t size() const { return size_; }

  private:
    const std::byte* data_ = nullptr;
    int64_t size_ = 0;
};

}  // namespace wobble
