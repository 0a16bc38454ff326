// Stands in for what a warp of CUDA's does as one with tiles: ldmatrix, mma and copies in the background.
#pragma once

#include "test/simt/simt.h"

namespace simt {

/// cp.async of an element's bytes; zeros where `there` is false.
template <class T>
void copy_later(const SharedArray<T>& array, int64_t index, const void* from, bool there) {
    array.copy_later(index, there ? from : nullptr);
}

/// What a lane brings to a load of matrices, and what it gets.
struct MatrixRow {
    uint16_t numbers[8];
    uint32_t result[4];
};
/// ldmatrix.x4, or its transposed form, done for all lanes.
void load_matrices(MatrixRow& mine, bool transposed, Place place);

template <bool transposed, class T>
void load_matrices(uint32_t (&r)[4], const SharedArray<T>& array, int64_t index,
                   Place place = Place::current()) {
    static_assert(sizeof(T) == 16);
    MatrixRow mine;
    const T row = array[index];
    std::memcpy(mine.numbers, &row, sizeof row);
    load_matrices(mine, transposed, place);
    std::memcpy(r, mine.result, sizeof r);
}

/// mma.m16n8k16 of bfloat16 factors with float32 sums.
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                  Place place = Place::current());

}  // namespace simt
