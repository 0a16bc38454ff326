// Register tiles, and the panels that feed them: what the matrix product and attention on the CPU are made
// of.
//
// Operands are copied into panels, A in panels of MR rows and B in panels of NR columns, so that the
// innermost loop reads both forward: for each k it multiplies MR scalars of A with NR/width vectors of B into
// MR × NR sums that stay in registers.
//
// bfloat16 operands are packed by pairs of k, and each step multiplies pairs into float32 sums, by vdpbf16ps
// where the machine has it: (sum + odd product) + even product, rounded after each. That instruction takes
// subnormal numbers for zeros.
#pragma once

#include <algorithm>

#include "kernels/pack.h"
#include "kernels/rows.h"

namespace wobble {

/// The register tile and cache blocks of the product for storage type T on this machine.
template <class T>
struct Tile {
#if defined(__AVX512F__)
    static constexpr int bytes = 64, MR = 12;  // 24 of 32 registers hold sums
#elif defined(__AVX2__)
    static constexpr int bytes = 32, MR = 6;  // 12 of 16
#else
    static constexpr int bytes = 16, MR = 4;
#endif
    using Sum = Accumulator<T>;
    static constexpr int width = bytes / int(sizeof(Sum));  // sums of a vector
    static constexpr int NR = 2 * width;
    static constexpr int together = int(sizeof(Sum) / sizeof(T));  // k's of a step
    /// Deep blocks, so that C is seldom read back: a KC × NR panel of B is streamed from the second-level
    /// cache.
    static constexpr int64_t KC = 4096 / int64_t(sizeof(T));
    static constexpr int64_t most_rows = 2048 / MR * MR;  // rows and columns packed at a time: a few MiB
    static constexpr int64_t most_columns = 2048 / NR * NR;

    using Vector = Pack<Sum, width>;

    /// Panels' depth: the last step is filled up with zeros.
    static constexpr int64_t padded(int64_t depth) {
        return ceil_div(depth, together) * together;
    }
};

/// A matrix in memory, element (i, k) at data[i · row_stride + k · column_stride].
template <class T>
struct MatrixView {
    const T* data;
    int64_t row_stride, column_stride;
};

/// Copies `count` rows of `a`, `depth` deep from `k0` on, into panels of P rows, one after the other:
/// panels[(i / P) · P · depth + k · P + i % P]. The last panel is filled up with zeros. S may be
/// wider than T.
template <int P, class T, class S>
void pack_panels(MatrixView<T> a, int64_t i0, int64_t count, int64_t k0, int64_t depth,
                 S* __restrict panels) {
    const T* source = a.data + i0 * a.row_stride + k0 * a.column_stride;
    const int64_t whole = count / P;
    if (a.row_stride == 1) {
        // Rows lie side by side: for each k, all of them are read in one go.
        for (int64_t k = 0; k < depth; ++k) {
            for (int64_t p = 0; p < whole; ++p) {
                S* to = panels + (p * depth + k) * P;
                const T* from = source + k * a.column_stride + p * P;
                if constexpr (std::is_same_v<S, T>) std::memcpy(to, from, P * sizeof(T));
                else SIMD for (int i = 0; i < P; ++i) to[i] = S(from[i]);
            }
        }
    } else {
        // Rows lie along memory: a cache line of each is read at a time, since lines a power of two apart
        // would push each other out of the cache before they are used up.
        constexpr int line = 64 / int(sizeof(T));
        for (int64_t p = 0; p < whole; ++p) {
            const T* rows = source + p * P * a.row_stride;
            S* panel = panels + p * P * depth;
            int64_t k = 0;
            for (; k + line <= depth && a.column_stride == 1; k += line) {
                for (int64_t i = 0; i < P; ++i) {
                    for (int64_t j = 0; j < line; ++j)
                        panel[(k + j) * P + i] = S(rows[i * a.row_stride + k + j]);
                }
            }
            for (; k < depth; ++k) {
                for (int64_t i = 0; i < P; ++i) {
                    panel[k * P + i] = S(rows[i * a.row_stride + k * a.column_stride]);
                }
            }
        }
    }
    if (const int64_t rest = count - whole * P; rest > 0) {
        S* panel = panels + whole * P * depth;
        for (int64_t k = 0; k < depth; ++k) {
            for (int64_t i = 0; i < P; ++i) {
                panel[k * P + i] =
                    i < rest ? S(source[(whole * P + i) * a.row_stride + k * a.column_stride]) : S(0);
            }
        }
    }
}

/// The same for steps of two k's: panels[(i / P) · P · depth + (k / 2) · 2P + (i % P) · 2 + k % 2], depth
/// rounded up to an even number.
template <int P>
void pack_pairs(MatrixView<bf16> a, int64_t i0, int64_t count, int64_t k0, int64_t depth,
                bf16* __restrict panels) {
    const bf16* source = a.data + i0 * a.row_stride + k0 * a.column_stride;
    const int64_t pairs = ceil_div(depth, 2);
    const auto fill = [&](bf16* panel, const bf16* rows, int64_t height, int64_t from) {
        for (int64_t k = from; k < pairs; ++k) {
            for (int64_t i = 0; i < P; ++i) {
                for (int64_t j = 0; j < 2; ++j) {
                    const bool there = i < height && 2 * k + j < depth;
                    panel[k * 2 * P + 2 * i + j] =
                        there ? rows[i * a.row_stride + (2 * k + j) * a.column_stride] : bf16(0.0f);
                }
            }
        }
    };
    for (int64_t p = 0; p * P < count; ++p) {
        const bf16* rows = source + p * P * a.row_stride;
        bf16* panel = panels + p * P * 2 * pairs;
        const int64_t height = std::min<int64_t>(P, count - p * P);
        int64_t k = 0;
        if (height == P && a.row_stride == 1) {
            // Two lines of rows that lie side by side become one of pairs.
            for (; k < depth / 2; ++k) {
                const bf16 *even = rows + 2 * k * a.column_stride, *odd = even + a.column_stride;
                bf16* out = panel + k * 2 * P;
                SIMD for (int i = 0; i < P; ++i) out[2 * i] = even[i], out[2 * i + 1] = odd[i];
            }
        } else if (height == P && a.column_stride == 1) {
            // A cache line of each row at a time, as above; pairs stay together.
            constexpr int64_t line = 16;
            for (; (k + line) * 2 <= depth; k += line) {
                for (int64_t i = 0; i < P; ++i) {
                    for (int64_t j = 0; j < line; ++j)
                        std::memcpy(panel + (k + j) * 2 * P + 2 * i, rows + i * a.row_stride + 2 * (k + j),
                                    4);
                }
            }
        }
        fill(panel, rows, height, k);
    }
}

/// Packs as the tile of T wants it.
template <int P, class T>
void pack_for_tile(MatrixView<T> a, int64_t i0, int64_t count, int64_t k0, int64_t depth, T* panels) {
    if constexpr (Tile<T>::together == 2) pack_pairs<P>(a, i0, count, k0, depth, panels);
    else pack_panels<P>(a, i0, count, k0, depth, panels);
}

namespace detail {

/// s + a · b for pairs of bfloat16 in 32 bits.
template <int N, class Sums = typename HostVector<float, N>::type,
          class Pairs = typename HostVector<int32_t, N>::type>
HOST Sums with_pairs(Sums s, Pairs a, Pairs b) {
#if defined(__AVX512BF16__)
    asm("vdpbf16ps %2, %1, %0" : "+v"(s) : "v"(a), "v"(b));
    return s;
#else
    const Pairs even_a = a << 16, even_b = b << 16, odd_a = a & int32_t(0xffff0000),
                odd_b = b & int32_t(0xffff0000);
    Sums x[4];
    std::memcpy(x, &odd_a, sizeof s), std::memcpy(x + 1, &odd_b, sizeof s);
    std::memcpy(x + 2, &even_a, sizeof s), std::memcpy(x + 3, &even_b, sizeof s);
    return fused_vectors<float, N>(x[2], x[3], fused_vectors<float, N>(x[0], x[1], s));
#endif
}

}  // namespace detail

/// sums[i][v] = Σ_k a(i, k) · b[k][v] over packed panels of pairs.
HOST void multiply_panels(int64_t depth, const bf16* __restrict a, const bf16* __restrict b,
                          Pack<float, Tile<bf16>::width> (&sums)[Tile<bf16>::MR][2]) {
    constexpr int MR = Tile<bf16>::MR, width = Tile<bf16>::width;
    using Vector = typename detail::HostVector<float, width>::type;
    using Pairs = typename detail::HostVector<int32_t, width>::type;
    Vector s[MR][2];
    UNROLL for (int i = 0; i < MR; ++i) s[i][0] = s[i][1] = Vector{};
    for (int64_t k = 0; k < depth; k += 2) {
        Pairs low, high;
        std::memcpy(&low, b, sizeof low);
        std::memcpy(&high, b + 2 * width, sizeof high);
        UNROLL for (int i = 0; i < MR; ++i) {
            int32_t pair;
            std::memcpy(&pair, a + 2 * i, sizeof pair);
            const Pairs scalar = pair - Pairs{};
            s[i][0] = detail::with_pairs<width>(s[i][0], scalar, low);
            s[i][1] = detail::with_pairs<width>(s[i][1], scalar, high);
        }
        a += 2 * MR;
        b += 4 * width;
    }
    std::memcpy(&sums, &s, sizeof s);
}

/// sums[i][v] = Σ_k a(i, k) · b[k][v] over a panel of B. `a` may be packed (row_stride 1, column_stride MR)
/// or lie anywhere, as long as all MR rows can be read.
template <class T>
HOST void multiply_panels(int64_t depth, MatrixView<T> a, const T* __restrict b,
                          Pack<T, Tile<T>::width> (&sums)[Tile<T>::MR][2]) {
    constexpr int MR = Tile<T>::MR, width = Tile<T>::width;
    // Bare vectors, since GCC keeps those in registers where it spills structs.
    using Vector = typename detail::HostVector<T, width>::type;
    Vector s[MR][2];
    UNROLL for (int i = 0; i < MR; ++i) s[i][0] = s[i][1] = Vector{};
    const T* __restrict column = a.data;
    for (int64_t k = 0; k < depth; ++k) {
        Vector low, high;
        std::memcpy(&low, b, sizeof low);
        std::memcpy(&high, b + width, sizeof high);
        UNROLL for (int i = 0; i < MR; ++i) {
            const Vector scalar = column[i * a.row_stride] - Vector{};
            s[i][0] = detail::fused_vectors<T, width>(scalar, low, s[i][0]);
            s[i][1] = detail::fused_vectors<T, width>(scalar, high, s[i][1]);
        }
        column += a.column_stride;
        b += 2 * width;
    }
    std::memcpy(&sums, &s, sizeof s);
}

}  // namespace wobble
