// Globbing and memory mapping, with messages in place of error codes.
#include "data/files.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/error.h"

namespace wobble {

std::vector<std::string> match_files(const std::string& pattern, const std::string& source_name) {
    std::vector<std::string> paths;
    struct stat status;
    if (stat(pattern.c_str(), &status) == 0) {
        paths.push_back(pattern);
    } else {
        glob_t found{};
        if (glob(pattern.c_str(), GLOB_TILDE, nullptr, &found) == 0) {
            paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
        }
        globfree(&found);
        std::sort(paths.begin(), paths.end());
    }
    if (paths.empty()) {
        throw UserError("data '" + source_name + "': no file matches '" + pattern +
                        "'; expected at least one; check the path");
    }
    for (const std::string& path : paths) {
        if (stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
            throw UserError("data '" + source_name + "': '" + path +
                            "' is a directory; expected files; to read those in it, write '" + path + "/*'");
        }
    }
    return paths;
}

MappedFile::MappedFile(const std::string& path) {
    const auto fail = [&](const char* what) {
        throw UserError(std::string("cannot ") + what + " '" + path + "': " + std::strerror(errno) +
                        "; expected a readable file; check its name and permissions");
    };
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) fail("open");
    struct stat status;
    void* memory = MAP_FAILED;
    if (fstat(file, &status) == 0 && status.st_size > 0) {
        memory = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, file, 0);
    }
    const int error = errno;
    close(file);
    errno = error;
    if (memory != MAP_FAILED) {
        data_ = static_cast<const std::byte*>(memory);
        size_ = status.st_size;
    } else if (status.st_size > 0) {
        fail("read");
    } else {
        throw UserError("file '" + path + "' is empty; expected data; fill it or leave it out");
    }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
    if (data_) munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

}  // namespace wobble
