// Packs: the elements that one lane loads at once, and arithmetic on them.
//
// On the CPU a pack is a GCC vector, one instruction per operation on machines whose registers are that wide
// and two or four elsewhere; on CUDA it is an array in registers that is loaded by one 128-bit access.
// Kernels are written over `At<N>`, a position of N adjacent elements: N is the pack width in the body of a
// row and 1 in its tail, so that one text is right for every length.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/bf16.h"
#include "kernels/cuda.h"

#define HOST inline __attribute__((always_inline))

// After the parameters of a lambda that is handed to `each`: one that is not inlined carries along whatever
// its text names, and so what only a probe uses.
#define INLINED __attribute__((always_inline))

// Before a HD function template that the CPU alone calls with host code: nvcc does not warn then.
#ifdef __CUDACC__
#define CALLS_HOST_CODE _Pragma("nv_exec_check_disable")
#else
#define CALLS_HOST_CODE
#endif

#ifdef __CUDA_ARCH__
#define UNROLL _Pragma("unroll")
#define SIMD _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#define SIMD _Pragma("omp simd")
#endif

namespace wobble {

/// The type in which values of storage type T are accumulated: float32 or wider.
template <class T>
struct AccumulatorOf {
    using type = float;
};
template <>
struct AccumulatorOf<double> {
    using type = double;
};
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

/// N adjacent elements from `index` on.
template <int N>
struct At {
    static constexpr int width = N;
    int64_t index;
};

/// The same elements, counted from `column` columns further left.
template <int N>
HD constexpr At<N> at_column(int64_t column, At<N> at) {
    return {column + at.index};
}

namespace detail {

/// A GCC vector: for the CPU's own code.
template <class T, int N>
struct HostVector {
    typedef T type __attribute__((vector_size(sizeof(T) * N)));
};

template <class T, int N>
struct PackStorage {
#ifdef __CUDA_ARCH__
    static constexpr bool vector = false;
    typedef T type[N];
#else
    static constexpr bool vector = true;
    typedef typename HostVector<T, N>::type type;
#endif
};
template <class T>
struct PackStorage<T, 1> {
    static constexpr bool vector = false;
    typedef T type[1];
};

}  // namespace detail

template <class T, int N>
struct Pack {
    static constexpr bool vector = detail::PackStorage<T, N>::vector;
    using Vector = typename detail::PackStorage<T, N>::type;
    alignas(sizeof(T) * N) Vector v;

    HD T operator[](int i) const { return v[i]; }
    HD void set(int i, T value) { v[i] = value; }
};

namespace detail {

/// bfloat16 in memory widened to float32, and float32 rounded to it, as `bf16` does one by one.
template <int N>
HOST typename HostVector<float, N>::type widened(const bf16* p) {
    typename HostVector<uint16_t, N>::type half;
    std::memcpy(&half, p, sizeof half);
    const auto bits = __builtin_convertvector(half, typename HostVector<uint32_t, N>::type) << 16;
    typename HostVector<float, N>::type x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
template <int N>
HOST void store_rounded(bf16* p, typename HostVector<float, N>::type x) {
    typename HostVector<uint32_t, N>::type bits;
    std::memcpy(&bits, &x, sizeof bits);
    const auto rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, quiet = bits >> 16 | 0x40u;
    const auto result = (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
    const auto half = __builtin_convertvector(result, typename HostVector<uint16_t, N>::type);
    std::memcpy(p, &half, sizeof half);
}

}  // namespace detail

/// f(i) for each element i, for what has no vector instruction of its own.
template <class T, int N, class F>
HD Pack<T, N> generate(F f) {
    Pack<T, N> r;
    UNROLL for (int i = 0; i < N; ++i) r.v[i] = f(i);
    return r;
}

/// A pack with every element equal to `value`.
template <int N, class T>
HD Pack<T, N> splat(T value) {
    // x - 0 is x for every x, -0 and NaN included; it makes GCC broadcast.
    if constexpr (Pack<T, N>::vector) return {value - decltype(Pack<T, N>::v){}};
    else return generate<T, N>([&](int) { return value; });
}

/// Elements at `at` of `p`, widened to the accumulator type. Needs no alignment on the CPU; on CUDA a pack of
/// more than one element must be aligned to its own size, which `Warp::each` and `Block::each` see to.
template <class T, int N>
HD Pack<Accumulator<T>, N> load(const T* p, At<N> at) {
    using A = Accumulator<T>;
    CHECK_ALIGNED(p + at.index, N * sizeof(T));
#ifdef __CUDA_ARCH__
    const auto raw = *reinterpret_cast<const Pack<T, N>*>(p + at.index);
    return generate<A, N>([&](int i) { return A(raw.v[i]); });
#else
    if constexpr (std::is_same_v<T, A>) {
        Pack<A, N> r;
        std::memcpy(&r.v, p + at.index, sizeof r.v);
        return r;
    } else if constexpr (std::is_same_v<T, bf16> && N > 1) {
        return {detail::widened<N>(p + at.index)};
    } else {
        return generate<A, N>([&](int i) { return A(p[at.index + i]); });
    }
#endif
}

/// Rounds `value` to the storage type and writes it at `at`. Alignment as for `load`.
template <class T, class A, int N>
HD void store(T* p, At<N> at, Pack<A, N> value) {
    CHECK_ALIGNED(p + at.index, N * sizeof(T));
#ifdef __CUDA_ARCH__
    *reinterpret_cast<Pack<T, N>*>(p + at.index) = generate<T, N>([&](int i) { return T(value.v[i]); });
#else
    if constexpr (std::is_same_v<T, A>) {
        std::memcpy(p + at.index, &value.v, sizeof value.v);
    } else if constexpr (std::is_same_v<T, bf16> && N > 1) {
        detail::store_rounded<N>(p + at.index, convert<float>(value).v);
    } else {
        for (int i = 0; i < N; ++i) p[at.index + i] = T(value.v[i]);
    }
#endif
}

#define WOBBLE_PACK_OPERATOR(op)                                             \
    template <class T, int N>                                                \
    HD Pack<T, N> operator op(Pack<T, N> a, Pack<T, N> b) {                  \
        if constexpr (Pack<T, N>::vector) return {a.v op b.v};               \
        else return generate<T, N>([&](int i) { return a.v[i] op b.v[i]; }); \
    }                                                                        \
    template <class T, int N>                                                \
    HD Pack<T, N> operator op(Pack<T, N> a, T b) {                           \
        return a op splat<N>(b);                                             \
    }                                                                        \
    template <class T, int N>                                                \
    HD Pack<T, N> operator op(T a, Pack<T, N> b) {                           \
        return splat<N>(a) op b;                                             \
    }
WOBBLE_PACK_OPERATOR(+)
WOBBLE_PACK_OPERATOR(-)
WOBBLE_PACK_OPERATOR(*)
WOBBLE_PACK_OPERATOR(/)
#undef WOBBLE_PACK_OPERATOR

namespace detail {

template <class T, int N, class V = typename HostVector<T, N>::type>
HOST V fused_vectors(V a, V b, V c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    if constexpr (sizeof(V) > 64) {
        // Wider than a register, GCC would take it apart into scalars.
        using Half = typename HostVector<T, N / 2>::type;
        Half x[2], y[2], z[2];
        std::memcpy(x, &a, sizeof x), std::memcpy(y, &b, sizeof y), std::memcpy(z, &c, sizeof z);
        z[0] = fused_vectors<T, N / 2>(x[0], y[0], z[0]), z[1] = fused_vectors<T, N / 2>(x[1], y[1], z[1]);
        std::memcpy(&c, z, sizeof z);
        return c;
    }
    T x[N], y[N], z[N];
    std::memcpy(x, &a, sizeof x), std::memcpy(y, &b, sizeof y), std::memcpy(z, &c, sizeof z);
#pragma GCC unroll 1
    for (int i = 0; i < N; ++i) z[i] = std::fma(x[i], y[i], z[i]);
    std::memcpy(&c, z, sizeof z);
    return c;
#else
    return a * b + c;
#endif
}

}  // namespace detail

/// a · b + c, rounded once where the machine has such an instruction, and always or never so: the compiler is
/// not left to choose (the build forbids it), since it might choose differently in a bare and in an
/// instrumented kernel.
template <class T, int N>
HD Pack<T, N> fused(Pack<T, N> a, Pack<T, N> b, Pack<T, N> c) {
    if constexpr (Pack<T, N>::vector) return {detail::fused_vectors<T, N>(a.v, b.v, c.v)};
    else return generate<T, N>([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
template <class T, int N>
HD Pack<T, N> fused(Pack<T, N> a, T b, Pack<T, N> c) {
    return fused(a, splat<N>(b), c);
}
template <class T, int N>
HD Pack<T, N> fused(Pack<T, N> a, Pack<T, N> b, T c) {
    return fused(a, b, splat<N>(c));
}

/// Every element rounded or widened to S.
template <class S, class T, int N>
HD Pack<S, N> convert(Pack<T, N> a) {
    if constexpr (std::is_same_v<S, T>) return a;
    else if constexpr (Pack<T, N>::vector) return {__builtin_convertvector(a.v, typename Pack<S, N>::Vector)};
    else return generate<S, N>([&](int i) { return S(a.v[i]); });
}

/// a < b ? x : y, element by element. A comparison with NaN is false, so NaN in `a` or `b` gives y.
template <class T, int N>
HD Pack<T, N> where_less(Pack<T, N> a, Pack<T, N> b, Pack<T, N> x, Pack<T, N> y) {
    if constexpr (Pack<T, N>::vector) return {a.v < b.v ? x.v : y.v};
    else return generate<T, N>([&](int i) { return a.v[i] < b.v[i] ? x.v[i] : y.v[i]; });
}

/// a == b ? x : y, element by element; NaN equals nothing.
template <class T, int N>
HD Pack<T, N> where_equal(Pack<T, N> a, Pack<T, N> b, Pack<T, N> x, Pack<T, N> y) {
    if constexpr (Pack<T, N>::vector) return {a.v == b.v ? x.v : y.v};
    else return generate<T, N>([&](int i) { return a.v[i] == b.v[i] ? x.v[i] : y.v[i]; });
}

/// |x|
template <class T, int N>
HD Pack<T, N> magnitude(Pack<T, N> x) {
    const auto minus = splat<N>(T(0)) - x;
    return where_less(x, minus, minus, x);
}

/// The larger of two; a NaN in `b` is passed over (count NaN apart where it matters).
template <class T>
HD T larger(T a, T b) {
    return b > a ? b : a;
}
template <class T, int N>
HD Pack<T, N> larger(Pack<T, N> a, Pack<T, N> b) {
    return where_less(a, b, b, a);
}

/// x held between low and high; NaN stays NaN.
template <class T, int N>
HD Pack<T, N> hold(Pack<T, N> x, T low, T high) {
    const auto lows = splat<N>(low), highs = splat<N>(high);
    const auto above = where_less(x, lows, lows, x);
    return where_less(highs, above, highs, above);
}

template <class T, int N>
HD Pack<T, N> square_root(Pack<T, N> a) {
    T values[N];
    UNROLL for (int i = 0; i < N; ++i) values[i] = a.v[i];
    SIMD for (int i = 0; i < N; ++i) values[i] = std::sqrt(values[i]);
    return generate<T, N>([&](int i) { return values[i]; });
}

/// e^x within 1 ulp over the whole range: 0 below the smallest subnormal, +inf above the largest number, NaN
/// for NaN.
///
/// x = n·ln 2 + r with |r| ≤ ln2/2, then Taylor's series to r^7 (its remainder is 5e-9, a tenth of an ulp),
/// then two multiplications by powers of two, so that the result may be subnormal or overflow.
template <int N>
HD Pack<float, N> exponential(Pack<float, N> a) {
#ifdef __CUDA_ARCH__
    return generate<float, N>([&](int i) { return expf(a.v[i]); });
#else
    const auto x = hold(a, -104.0f, 89.0f);  // e^-104 rounds to zero, e^89 to infinity
    const auto half = where_less(x, splat<N>(0.0f), splat<N>(-0.5f), splat<N>(0.5f));
    const auto scaled = fused(x, 1.44269504088896341f, half);  // rounded to the nearest integer by truncation
    int32_t n[N];
    Pack<float, N> rounded, low, high;
    SIMD for (int i = 0; i < N; ++i) n[i] = int32_t(scaled.v[i]);
    SIMD for (int i = 0; i < N; ++i) rounded.v[i] = float(n[i]);
    // ln 2 in two parts: the first has 9 significant bits, so that n times it is exact.
    const auto r = fused(rounded, 2.12194440054690583e-4f, fused(rounded, -0.693359375f, x));
    auto p = splat<N>(1.0f / 5040);
    p = fused(p, r, 1.0f / 720);
    p = fused(p, r, 1.0f / 120);
    p = fused(p, r, 1.0f / 24);
    p = fused(p, r, 1.0f / 6);
    p = fused(p, r, 0.5f);
    p = fused(p, r, 1.0f);
    p = fused(p, r, 1.0f);
    uint32_t low_bits[N], high_bits[N];
    SIMD for (int i = 0; i < N; ++i) {
        const int32_t first = n[i] >> 1;
        low_bits[i] = uint32_t(first + 127) << 23;
        high_bits[i] = uint32_t(n[i] - first + 127) << 23;
    }
    std::memcpy(&low.v, low_bits, sizeof low.v);
    std::memcpy(&high.v, high_bits, sizeof high.v);
    return p * low * high;
#endif
}

template <int N>
HD Pack<double, N> exponential(Pack<double, N> a) {
    return generate<double, N>([&](int i) { return std::exp(a.v[i]); });
}

template <class T>
HD T exponential(T a) {
    return exponential(splat<1>(a))[0];
}

}  // namespace wobble
