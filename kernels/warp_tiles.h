// What a warp does with small tiles in shared memory: rows that are fetched in the background, and products
// of sixteen of them with a tile. bfloat16 goes through the tensor cores, mma.m16n8k16 with operands from
// ldmatrix (PTX ISA 8.x, sections 9.7.13 and 9.7.14); float32 is multiplied in full, in the same layout.
//
// In that layout lane 4g + t of a warp holds, of sixteen rows and each eight columns of a result, columns 2t
// and 2t + 1 of rows g and g + 8, in this order: four numbers to eight columns. The four lanes that share
// their rows are a quad.
#pragma once

#include "kernels/pack.h"

#ifdef WOBBLE_CUDA

namespace wobble {

#ifdef WOBBLE_SIMT
template <class T>
using Shared = simt::SharedArray<T>;
#else
template <class T>
using Shared = T*;
#endif

/// Sixteen bytes: what shared memory, ldmatrix and copies in the background deal in.
struct alignas(16) Chunk {
    uint32_t words[4];

    __device__ float number(int i) const {
        float x;
        memcpy(&x, &words[i], sizeof x);
        return x;
    }
};

// --------------------------------------------------------------------------------- instructions
#ifdef WOBBLE_SIMT
using simt::copy_later;
using simt::load_matrices;
using simt::multiply_add;
using simt::wait_for_copies;
#else
__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return uint32_t(__cvta_generic_to_shared(p));
}
/// Begins to copy sixteen bytes to a chunk of shared memory, or zeros where `there` is false.
__device__ __forceinline__ void copy_later(Shared<Chunk> chunks, int index, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(chunks + index)),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
/// Until all that this thread began is there. What others began needs a barrier of the block besides.
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
/// Four 8 × 8 matrices of two-byte numbers, whose rows are the chunks that lanes 8i to 8i + 7 name. Lane 4g +
/// t gets numbers 2t and 2t + 1 of row g of each, or of column g.
template <bool transposed>
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], Shared<Chunk> chunks, int index) {
    if constexpr (transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(chunks + index))
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(shared_address(chunks + index))
                     : "memory");
    }
}
/// c [16, 8] += a [16, 16] · b [16, 8]
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

/// Two numbers rounded to bfloat16, the first in the lower half.
__device__ __forceinline__ uint32_t packed(float low, float high) {
#ifdef __CUDA_ARCH__
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
#else
    return uint32_t(bf16(low).bits) | uint32_t(bf16(high).bits) << 16;
#endif
}

/// e^x as 2^(x log2 e), for what bfloat16 will hold in the end: the power is within 2^-22 of its value (PTX
/// ISA, ex2.approx), its exponent rounded to float32. float32 keeps the digits of `exponential`.
template <class T>
__device__ __forceinline__ float quick_exponential(float x) {
    if constexpr (!std::is_same_v<T, bf16>) return exponential(x);
    const float y = x * 1.44269504088896341f;
#ifdef __CUDA_ARCH__
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
    return r;
#else
    return std::exp2(y);
#endif
}

// ----------------------------------------------------------------------------------------- tiles
/// Rows of D numbers in shared memory, from chunk `first` on. A chunk between rows keeps eight of them that
/// are read at once in different banks.
template <class T, int D>
struct SharedTile {
    static constexpr int numbers = 16 / int(sizeof(T));            // in a chunk
    static constexpr int width = D / numbers, stride = width + 1;  // chunks
    HD static constexpr int chunks(int rows) { return rows * stride; }

    Shared<Chunk> memory;
    int first;

    __device__ int at(int row, int chunk) const { return first + row * stride + chunk; }

    /// The threads of the block begin to copy `rows` rows of `columns` numbers, row r from x + r ·
    /// row_stride. Rows from `present` on, and columns beyond, become zeros.
    __device__ void fetch(const T* x, int64_t row_stride, int rows, int present, int64_t columns) const {
        for (int i = int(threadIdx.x); i < rows * width; i += int(blockDim.x)) {
            const int row = i / width, chunk = i % width;
            const bool there = row < present && chunk * numbers < columns;
            copy_later(memory, at(row, chunk), there ? x + row * row_stride + chunk * numbers : x, there);
        }
    }
};

/// A lane's part of a result of sixteen rows and N columns.
template <int N>
struct LaneTile {
    float of[N / 8][4] = {};
};

/// f(numbers, half, column) for each pair of adjacent numbers of a lane: of row g + 8 · half, from `column`
/// on.
template <int N, class F>
__device__ __forceinline__ void each_pair(LaneTile<N>& tile, F&& f) {
    const int column = int(threadIdx.x) % 4 * 2;
    UNROLL for (int j = 0; j < N / 8; ++j) {
        UNROLL for (int half = 0; half < 2; ++half) f(&tile.of[j][2 * half], half, 8 * j + column);
    }
}
template <int N, class F>
__device__ __forceinline__ void each_number(LaneTile<N>& tile, F&& f) {
    each_pair(tile, [&](float* pair, int half, int column) INLINED {
        f(pair[0], half, column);
        f(pair[1], half, column + 1);
    });
}

/// What the lanes of a quad have, combined; each gets it.
template <class V, class F>
__device__ __forceinline__ V over_quad(V value, F combine) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return combine(value, __shfl_xor_sync(0xffffffffu, value, 2));
}
template <class V>
__device__ __forceinline__ V over_quad(V value) {
    return over_quad(value, [](V a, V b) { return a + b; });
}

/// Sixteen rows of a tile as a left operand, held in registers if `Kept`.
template <class T, int D, bool Kept>
struct LeftRows;

template <int D, bool Kept>
struct LeftRows<bf16, D, Kept> {
    SharedTile<bf16, D> tile;
    int row;
    uint32_t kept[Kept ? D / 16 : 1][4];

    __device__ LeftRows(SharedTile<bf16, D> from, int first_row) : tile(from), row(first_row) {
        if constexpr (Kept) {
            UNROLL for (int k = 0; k < D / 16; ++k) load(k, kept[k]);
        }
    }
    /// Sixteen columns, from 16k on.
    __device__ void load(int k, uint32_t (&a)[4]) const {
        const int lane = int(threadIdx.x) & 31;
        load_matrices<false>(a, tile.memory, tile.at(row + lane % 16, 2 * k + lane / 16));
    }
};

/// c [16, N] += rows · bᵀ, b being the first N rows of a tile.
template <int N, int D, bool Kept>
__device__ __forceinline__ void multiply_rows(LaneTile<N>& c, const LeftRows<bf16, D, Kept>& rows,
                                              SharedTile<bf16, D> b) {
    const int lane = int(threadIdx.x) & 31;
    UNROLL for (int k = 0; k < D / 16; ++k) {
        uint32_t loaded[4] = {};
        if constexpr (!Kept) rows.load(k, loaded);
        UNROLL for (int j = 0; j < N / 8; j += 2) {
            // Columns 16k and 16k + 8 of rows 8j, then the same of the next eight rows.
            uint32_t right[4];
            load_matrices<false>(right, b.memory,
                                 b.at(8 * j + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
            const uint32_t(&left)[4] = *(Kept ? &rows.kept[Kept ? k : 0] : &loaded);
            multiply_add(c.of[j], left, right[0], right[1]);
            multiply_add(c.of[j + 1], left, right[2], right[3]);
        }
    }
}

/// c [16, D] += weights [16, N] · b, b being the first N rows of a tile; weights are rounded to bfloat16.
template <int N, int D>
__device__ __forceinline__ void multiply_weights(LaneTile<D>& c, const LaneTile<N>& weights,
                                                 SharedTile<bf16, D> b) {
    const int lane = int(threadIdx.x) & 31;
    UNROLL for (int k = 0; k < N / 16; ++k) {
        const auto &low = weights.of[2 * k], &high = weights.of[2 * k + 1];
        const uint32_t left[4] = {packed(low[0], low[1]), packed(low[2], low[3]), packed(high[0], high[1]),
                                  packed(high[2], high[3])};
        UNROLL for (int j = 0; j < D / 8; j += 2) {
            // Rows 16k and 16k + 8 of columns 8j, then the same of the next eight columns.
            uint32_t right[4];
            load_matrices<true>(right, b.memory, b.at(16 * k + lane % 16, j + lane / 16));
            multiply_add(c.of[j], left, right[0], right[1]);
            multiply_add(c.of[j + 1], left, right[2], right[3]);
        }
    }
}

// ------------------------------------------------------------------------------- the same in float32
#ifdef __CUDA_ARCH__
#define ONE_BY_ONE _Pragma("unroll 1")
#else
#define ONE_BY_ONE
#endif

/// The first or second two numbers of a chunk.
struct alignas(8) Half {
    float of[2];
};
__device__ __forceinline__ Half half_of(Shared<Chunk> memory, int index, int which) {
#ifdef WOBBLE_SIMT
    const Chunk all = memory[index];
    return {all.number(2 * which), all.number(2 * which + 1)};
#else
    return reinterpret_cast<const Half*>(memory + index)[which];
#endif
}

template <int D, bool Kept>
struct LeftRows<float, D, Kept> {
    SharedTile<float, D> tile;
    int row;

    __device__ LeftRows(SharedTile<float, D> from, int first_row) : tile(from), row(first_row) {}
};

template <int N, int D, bool Kept>
__device__ __forceinline__ void multiply_rows(LaneTile<N>& c, const LeftRows<float, D, Kept>& rows,
                                              SharedTile<float, D> b) {
    const int lane = int(threadIdx.x) & 31, g = lane / 4, column = lane % 4 * 2;
    ONE_BY_ONE for (int k = 0; k < D / 4; ++k) {
        const Chunk left[2] = {rows.tile.memory[rows.tile.at(rows.row + g, k)],
                               rows.tile.memory[rows.tile.at(rows.row + g + 8, k)]};
        UNROLL for (int j = 0; j < N / 8; ++j) {
            UNROLL for (int e = 0; e < 4; ++e) {
                const Chunk right = b.memory[b.at(8 * j + column + e % 2, k)];
                UNROLL for (int i = 0; i < 4; ++i) c.of[j][e] =
                    std::fma(left[e / 2].number(i), right.number(i), c.of[j][e]);
            }
        }
    }
}

template <int N, int D>
__device__ __forceinline__ void multiply_weights(LaneTile<D>& c, const LaneTile<N>& weights,
                                                 SharedTile<float, D> b) {
    const int lane = int(threadIdx.x) & 31, t = lane % 4;
    // Eight rows of b at a time, and what remains of the weights moved to the front: all of them at once
    // would take more registers than there are.
    LaneTile<N> left = weights;
    ONE_BY_ONE for (int first = 0; first < N; first += 8) {
        ONE_BY_ONE for (int owner = 0; owner < 4; ++owner) {
            // Two rows' weights lie with one lane of the quad.
            UNROLL for (int i = 0; i < 2; ++i) {
                const float upper = __shfl_sync(0xffffffffu, left.of[0][i], lane - t + owner);
                const float lower = __shfl_sync(0xffffffffu, left.of[0][2 + i], lane - t + owner);
                UNROLL for (int j = 0; j < D / 8; ++j) {
                    const Half right = half_of(b.memory, b.at(first + 2 * owner + i, 2 * j + t / 2), t % 2);
                    UNROLL for (int e = 0; e < 2; ++e) {
                        c.of[j][e] = std::fma(upper, right.of[e], c.of[j][e]);
                        c.of[j][2 + e] = std::fma(lower, right.of[e], c.of[j][2 + e]);
                    }
                }
            }
        }
        UNROLL for (int j = 0; j + 1 < N / 8; ++j) {
            UNROLL for (int e = 0; e < 4; ++e) left.of[j][e] = left.of[j + 1][e];
        }
    }
}

}  // namespace wobble

#endif
