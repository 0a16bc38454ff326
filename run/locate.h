// ./train locate RUN --event N: the step is replayed with a probe at every site, and the first kernel, in the
// order in which they run, is named whose output is not finite, or far outside what the steps before it
// showed there, while everything that ran before it was in order.
#pragma once

#include "run/command_line.h"

namespace wobble {

void run_locate(const Command& command);

}  // namespace wobble
