// The model that trains.
#include "model/layers.h"

namespace wobble {
template class Gpt<float>;
}
