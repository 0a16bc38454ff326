// ./train steps: training steps of any configuration, on request, for those who time them beside other
// programs.
#pragma once

#include "run/options.h"

namespace wobble {

/// Says on stdout what a step is, one line of JSON {"parameters", "tokens", "flops"}, and then answers each
/// line of stdin with another: a number with the seconds of so many steps and the most memory the process has
/// held, {"seconds": [...], "peak_bytes"}; `roof` with what the machine can do, {"float32", "bfloat16"} in
/// FLOP/s. Ends with its input. Nothing is written to disk. UserError as for training, and for a line that is
/// neither.
void serve_steps(const Options& options);

}  // namespace wobble
