#include "kernels/attention_blocks.h"
#include "kernels/attention_cuda.h"
#include "probes/launch.h"

namespace wobble {

ATTENTION_LAUNCHES(, bf16)

}  // namespace wobble
