// `./train events RUN`: what detectors found in a run, or what other people's definitions of a spike find in
// it.
#pragma once

#include "run/command_line.h"

namespace wobble {

void list_events(const Command& command);

}  // namespace wobble
