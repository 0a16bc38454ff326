// What a person can put right: one line that says what was found, what was expected and the remedy.
#pragma once

#include <stdexcept>
#include <string>

namespace wobble {

/// Thrown wherever input (a flag, a file, a shape) cannot be used. `main` prints the message and exits with
/// status 2. The message is one line without a trailing full stop: "FOUND; EXPECTED; REMEDY".
struct UserError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace wobble
