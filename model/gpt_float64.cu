// The same model in float64, for checking gradients.
#include "model/invariances.h"
#include "model/layers.h"

namespace wobble {
template class Gpt<double>;
}
