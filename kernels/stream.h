// The one CUDA stream that everything is launched in.
#pragma once

#include "kernels/cuda.h"

#ifdef WOBBLE_CUDA

namespace wobble {

cudaStream_t cuda_stream();
/// Throws where a call of CUDA failed; `what`: what it was to do.
void check_cuda(cudaError_t error, const char* what);

}  // namespace wobble

#endif
