// Where a part of the model finds its tensors.
#pragma once

#include "kernels/pack.h"
#include "model/parameters.h"
#include "probes/recorder.h"

namespace wobble {

/// Weights and gradients, laid out by the table. A tensor that the table lacks, since the configuration goes
/// without it, is null, and parts do without what is null.
template <class T>
struct Tensors {
    const ParameterTable& table;
    T* weights;
    Accumulator<T>* gradients;  // null where nothing trains

    struct Tensor {
        T* weight = nullptr;
        Accumulator<T>* gradient = nullptr;
        explicit operator bool() const { return weight != nullptr; }
    };
    Tensor at(const std::string& name) const {
        const Parameter* p = table.find(name);
        if (!p) return {};
        return {weights + p->offset, gradients ? gradients + p->offset : nullptr};
    }
};

/// What the parts share while gradients flow back.
template <class T>
struct Workspace {
    T* stream = nullptr;                       // [B·T, C], the gradient of the residual stream
    T *branch = nullptr, *channels = nullptr;  // [B·T, C]
    T* wide = nullptr;                         // [B·T, the widest layer]
    T* first_values = nullptr;                 // [B·T, K D]: what later layers ask of the first one's values
    Accumulator<T>*chunks_a = nullptr, *chunks_b = nullptr;  // [chunks, the widest layer]
    Accumulator<T>* chunks_alpha = nullptr;                  // [chunks]
    Accumulator<T>* examples = nullptr;                      // [B, 2, C], for gradients of single sequences
    Accumulator<T>* delta = nullptr;                         // [B, H, T], attention's on CUDA
    int64_t rows = 0, sequence = 0;                          // of the last forward: B·T, T
    bool accumulate = false;                                 // gradients of parameters are added to
};

}  // namespace wobble
