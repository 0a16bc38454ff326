// The model that trains in bfloat16, with float32 master weights.
#include "model/invariances.h"
#include "model/layers.h"

namespace wobble {
template class Gpt<bf16>;
}
