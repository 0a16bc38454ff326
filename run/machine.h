// What this process may use of the machine.
#pragma once

namespace wobble {

/// Physical cores this process may run on, within the quota of its control group. At least 1.
int usable_cores();

/// Compiler, CUDA or not, instruction set: one line for --version and run.db.
const char* build_description();

}  // namespace wobble
