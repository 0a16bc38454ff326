#include "run/output_file.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "kernels/error.h"

namespace wobble {

void check_output_file(const std::string& flag, const std::string& path) {
    if (path.empty()) return;
    const std::filesystem::path file = path;
    const std::filesystem::path directory = file.has_parent_path() ? file.parent_path() : ".";
    if (!std::filesystem::is_directory(directory)) {
        throw UserError(flag + " " + path + ": there is no directory " + directory.string() +
                        "; make it, or choose another");
    }
    if (std::filesystem::is_directory(file) || access(directory.c_str(), W_OK) != 0) {
        throw UserError(flag + " " + path + " cannot be written; choose another file");
    }
}

void write_output_file(const std::string& flag, const std::string& path, const std::string& text) {
    const std::string temporary = path + ".partial";
    std::ofstream out(temporary);
    out << text;
    out.close();
    if (!out || std::rename(temporary.c_str(), path.c_str()) != 0) {
        std::remove(temporary.c_str());
        throw UserError(flag + " " + path + " cannot be written; choose another file");
    }
}

}  // namespace wobble
