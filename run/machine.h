// What this process may use of the machine.
#pragma once

namespace wobble {

/// Physical cores this process may run on, within the quota of its control group. At least 1.
int usable_cores();

/// Makes OpenMP threads that wait for each other sleep soon instead of spinning: with other work on the
/// machine, a spinning thread holds the core that the one it waits for needs, and a step takes ten times as
/// long. libgomp reads this from the environment when it is loaded, so the program is started over, once.
/// What the user has set is kept.
void sleep_while_waiting(char** argv);

/// Compiler, CUDA or not, instruction set: one line for --version and run.db.
const char* build_description();
/// Whether this build has CUDA kernels.
bool built_for_cuda();

}  // namespace wobble
