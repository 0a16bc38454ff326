// Register tiles, and the panels that feed them: what the matrix product and attention on the CPU are made
// of.
//
// Operands are copied into panels, A in panels of MR rows and B in panels of NR columns, so that the
// innermost loop reads both forward: for each k it multiplies MR scalars of A with NR/width vectors of B into
// MR × NR sums that stay in registers.
//
// Panels hold the accumulator's type, narrower operands widened as they are packed; but where the machine
// multiplies pairs of bfloat16 into float32 sums (vdpbf16ps), they hold those, and a step is two k's:
// (sum + odd product) + even product, rounded after each. That instruction takes subnormal numbers for zeros.
#pragma once

#include <algorithm>

#include "kernels/pack.h"
#include "kernels/rows.h"

namespace wobble {

/// What panels hold of operands stored as T.
template <class T>
struct PanelOf {
    using type = Accumulator<T>;
};
#if defined(__AVX512BF16__)
template <>
struct PanelOf<bf16> {
    using type = bf16;
};
#endif
template <class T>
using Panel = typename PanelOf<T>::type;

/// The register tile and cache blocks for panels of S on this machine.
template <class S>
struct Tile {
#if defined(__AVX512F__)
    static constexpr int bytes = 64, MR = 12;  // 24 of 32 registers hold sums
#elif defined(__AVX2__)
    static constexpr int bytes = 32, MR = 6;  // 12 of 16
#else
    static constexpr int bytes = 16, MR = 4;
#endif
    using Sum = Accumulator<S>;
    static constexpr int width = bytes / int(sizeof(Sum));  // sums of a vector
    static constexpr int NR = 2 * width;
    static constexpr int together = int(sizeof(Sum) / sizeof(S));  // k's of a step
    /// Deep blocks, so that C is seldom read back: a KC × NR panel of B is streamed from the second-level
    /// cache.
    static constexpr int64_t KC = 4096 / int64_t(sizeof(S));
    static constexpr int64_t most_columns = 2048 / NR * NR;  // packed at a time: a few MiB

    using Vector = Pack<Sum, width>;
    using Sums = Vector[MR][2];

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

namespace detail {

/// What a panel of S holds for one row and one step: a number, or two bfloat16 side by side.
template <class S>
struct Steps {
    using Step = S;
    template <int N>
    using Vector = typename HostVector<S, N>::type;

    /// N steps of one row, that lie one after the other.
    template <int N, class T>
    static HOST Vector<N> along(const T* row) {
        if constexpr (std::is_same_v<S, T>) return from_memory<Vector<N>>(row);
        else return widened<N>(row);
    }
    /// One step of N rows that lie side by side.
    template <int N, class T>
    static HOST Vector<N> across(const T* rows, int64_t) {
        return along<N>(rows);
    }
    /// One step of one row, of which `left` k's are there.
    template <class T>
    static HOST S one(const T* at, int64_t, int64_t) {
        return S(*at);
    }
    template <class V, class T>
    static HOST V from_memory(const T* p) {
        V v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
};
template <>
struct Steps<bf16> {
    using Step = uint32_t;
    template <int N>
    using Vector = typename HostVector<uint32_t, N>::type;

    template <int N>
    static HOST Vector<N> along(const bf16* row) {
        return Steps<uint32_t>::from_memory<Vector<N>>(row);
    }
    template <int N>
    static HOST Vector<N> across(const bf16* rows, int64_t column_stride) {
        using Half = typename HostVector<uint16_t, N>::type;
        const auto even = Steps<uint32_t>::from_memory<Half>(rows),
                   odd = Steps<uint32_t>::from_memory<Half>(rows + column_stride);
        return __builtin_convertvector(even, Vector<N>) | __builtin_convertvector(odd, Vector<N>) << 16;
    }
    static HOST uint32_t one(const bf16* at, int64_t column_stride, int64_t left) {
        const bf16 pair[2] = {*at, left > 1 ? at[column_stride] : bf16(0.0f)};
        return Steps<uint32_t>::from_memory<uint32_t>(pair);
    }
};

/// Four vectors of four, rows made columns.
template <class V>
HOST void transpose(V (&x)[4]) {
    using Mask = typename HostVector<std::conditional_t<sizeof(V) == 32, int64_t, int32_t>, 4>::type;
    constexpr Mask low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, left = {0, 1, 4, 5}, right = {2, 3, 6, 7};
    const V a = __builtin_shuffle(x[0], x[1], low), b = __builtin_shuffle(x[0], x[1], high);
    const V c = __builtin_shuffle(x[2], x[3], low), d = __builtin_shuffle(x[2], x[3], high);
    x[0] = __builtin_shuffle(a, c, left), x[1] = __builtin_shuffle(a, c, right);
    x[2] = __builtin_shuffle(b, d, left), x[3] = __builtin_shuffle(b, d, right);
}

}  // namespace detail

/// Copies `count` rows of `a`, `depth` deep from `k0` on, into panels of P rows, one after the other: step s
/// of row i is at panels[((i / P) · steps + s) · P + i % P], in units of a step. The last panel, and the last
/// step, are filled up with zeros.
template <int P, class T, class S>
void pack_panels(MatrixView<T> a, int64_t i0, int64_t count, int64_t k0, int64_t depth,
                 S* __restrict panels) {
    using Steps = detail::Steps<S>;
    using Step = typename Steps::Step;
    constexpr int together = Tile<S>::together, side_by_side = P % 16 == 0 ? 16 : P % 4 == 0 ? 4 : 2;
    const T* source = a.data + i0 * a.row_stride + k0 * a.column_stride;
    const int64_t steps = ceil_div(depth, together), full_steps = depth / together, full_panels = count / P;
    const auto to = [&](int64_t p, int64_t s, int64_t i) {
        return panels + ((p * steps + s) * P + i) * together;
    };
    const auto from = [&](int64_t i, int64_t s) {
        return source + i * a.row_stride + s * together * a.column_stride;
    };
    const auto one_by_one = [&](int64_t p, Range rows, int64_t first, int64_t end) {
        for (int64_t s = first; s < end; ++s) {
            const int64_t there = std::clamp(count - p * P, rows.begin, rows.end);
            for (int64_t i = rows.begin; i < there; ++i) {
                const Step step = Steps::one(from(p * P + i, s), a.column_stride, depth - s * together);
                std::memcpy(to(p, s, i), &step, sizeof step);
            }
            std::memset(to(p, s, there), 0, size_t(rows.end - there) * sizeof(Step));
        }
    };
    int64_t done = 0;  // steps of full panels
    if (a.row_stride == 1) {
        // Rows lie side by side: for each step, all of them are read in one go.
        done = full_steps;
        for (int64_t s = 0; s < done; ++s) {
            for (int64_t p = 0; p < full_panels; ++p) {
                // Steps may be far apart, where no prefetcher of the processor follows.
                for (int k = 0; k < together; ++k)
                    __builtin_prefetch(from(p * P, s + 8) + k * a.column_stride);
                for (int i = 0; i < P; i += side_by_side) {
                    const auto step =
                        Steps::template across<side_by_side>(from(p * P + i, s), a.column_stride);
                    std::memcpy(to(p, s, i), &step, sizeof step);
                }
            }
        }
    } else if (a.column_stride == 1) {
        // Rows lie along memory: a cache line of each is read at a time, since lines a power of two apart
        // would push each other out of the cache before they are used up.
        constexpr int64_t line = 64 / int64_t(sizeof(T)) / together;
        done = full_steps / 4 * 4;
        for (int64_t p = 0; p < full_panels; ++p) {
            for (int64_t begin = 0; begin < done; begin += line) {
                const int64_t end = std::min(begin + line, done);
                for (int i = 0; i < P; ++i) __builtin_prefetch(from((p + 1) * P + i, begin), 0, 2);
                for (int i = 0; i + 4 <= P; i += 4) {
                    for (int64_t s = begin; s < end; s += 4) {
                        typename Steps::template Vector<4> x[4];
                        UNROLL for (int r = 0; r < 4; ++r) x[r] =
                            Steps::template along<4>(from(p * P + i + r, s));
                        detail::transpose(x);
                        UNROLL for (int r = 0; r < 4; ++r) std::memcpy(to(p, s + r, i), &x[r], sizeof x[r]);
                    }
                }
                one_by_one(p, {P / 4 * 4, P}, begin, end);
            }
        }
    }
    for (int64_t p = 0; p * P < count; ++p) one_by_one(p, {0, P}, p < full_panels ? done : 0, steps);
}

/// The panel of MR rows at `data`.
template <class S>
HOST MatrixView<S> packed_rows(const S* data) {
    return {data, Tile<S>::together, Tile<S>::MR};
}

#if defined(__AVX512BF16__)

namespace detail {

/// s + a · b for pairs of bfloat16 in 32 bits. By value: sums passed by reference to an asm live in memory.
template <class Sums, class Pairs>
HOST Sums add_pairs(Sums s, Pairs a, Pairs b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(s) : "v"(a), "v"(b));
    return s;
}

}  // namespace detail

/// sums[i][v] = Σ_k a(i, k) · b[k][v] over a panel of B, by pairs of k, which lie side by side in `a` too.
HOST void multiply_panels(int64_t depth, MatrixView<bf16> a, const bf16* __restrict b,
                          Tile<bf16>::Sums& sums) {
    constexpr int MR = Tile<bf16>::MR, width = Tile<bf16>::width;
    using Vector = typename detail::HostVector<float, width>::type;
    using Pairs = typename detail::HostVector<int32_t, width>::type;
    Vector s[MR][2];
    UNROLL for (int i = 0; i < MR; ++i) s[i][0] = s[i][1] = Vector{};
    const bf16* __restrict column = a.data;
    for (int64_t k = 0; k < depth; k += 2) {
        Pairs low, high;
        std::memcpy(&low, b, sizeof low);
        std::memcpy(&high, b + 2 * width, sizeof high);
        UNROLL for (int i = 0; i < MR; ++i) {
            int32_t pair;
            std::memcpy(&pair, column + i * a.row_stride, sizeof pair);
            const Pairs both = pair - Pairs{};
            s[i][0] = detail::add_pairs(s[i][0], both, low);
            s[i][1] = detail::add_pairs(s[i][1], both, high);
        }
        column += 2 * a.column_stride;
        b += 4 * width;
    }
    std::memcpy(&sums, &s, sizeof s);
}

#endif

/// sums[i][v] = Σ_k a(i, k) · b[k][v] over a panel of B. `a` may be packed or lie anywhere, as long as all MR
/// rows can be read.
template <class T>
HOST void multiply_panels(int64_t depth, MatrixView<T> a, const T* __restrict b,
                          typename Tile<T>::Sums& sums) {
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
