#include "kernels/attention_blocks.h"
#include "kernels/attention_cuda.h"
#include "probes/launch.h"

namespace wobble {

ATTENTION_LAUNCHES(, double)

}  // namespace wobble
