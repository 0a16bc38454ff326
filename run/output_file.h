// Files that a command was asked to write: refused before the work begins, and whole once they are there.
#pragma once

#include <string>

namespace wobble {

/// UserError when `path`, the value of `flag`, cannot be a file to write. Empty: none is wanted.
void check_output_file(const std::string& flag, const std::string& path);

/// Written beside the file and then renamed, so that what stands there is whole. UserError when it cannot be.
void write_output_file(const std::string& flag, const std::string& path, const std::string& text);

}  // namespace wobble
