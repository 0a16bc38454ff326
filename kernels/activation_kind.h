// The activations there are, apart from their kernels for those who only name them.
#pragma once

namespace wobble {

enum class Activation { Gelu, GeluExact, Relu, ReluSquared, Silu };

}  // namespace wobble
