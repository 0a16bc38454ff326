// The model that trains.
#include "model/invariances.h"
#include "model/layers.h"

namespace wobble {
template class Gpt<float>;
}
