// Teams: the lanes that work on one row together.
//
// A kernel's body asks its team for three things: to visit the elements of a row (`each`), to add up what the
// lanes hold
// (`sum`, `maximum`), and whether this lane speaks for the team (`leads`). `Lane` is one CPU thread working
// in SIMD packs; `Warp` and `Block` are 32 or more CUDA threads. Sums have a fixed shape: they depend on the
// row length alone.
#pragma once

#include "kernels/pack.h"

namespace wobble {

namespace detail {

/// The elements of a pack combined in a fixed tree: first half with second half, down to one.
template <class A, int N, class F>
HD A fold(Pack<A, N> p, F combine) {
    if constexpr (N == 1) {
        return p[0];
    } else if constexpr (Pack<A, N>::vector) {
        Pack<A, N / 2> low, high;
        std::memcpy(&low.v, &p.v, sizeof low.v);
        std::memcpy(&high.v, reinterpret_cast<const A*>(&p.v) + N / 2, sizeof high.v);
        return fold(combine(low, high), combine);
    } else {
        return fold(generate<A, N / 2>([&](int i) { return combine(p[i], p[i + N / 2]); }), combine);
    }
}

}  // namespace detail

/// What a team's lanes have added up so far. Each element position of a pack keeps its own sum.
template <class Team, class A>
struct Sum {
    Pack<A, Team::width> lanes = splat<Team::width>(A(0));
    A tail = A(0);

    template <int N>
    HD void operator+=(Pack<A, N> value) {
        if constexpr (N == Team::width) lanes = lanes + value;
        else tail += value[0];
    }
    /// += a · b
    template <int N>
    HD void add_product(Pack<A, N> a, Pack<A, N> b) {
        if constexpr (N == Team::width) lanes = fused(a, b, lanes);
        else tail = fused(a, b, splat<1>(tail))[0];
    }
    HD A total() const {
        return detail::fold(lanes, [](auto a, auto b) { return a + b; }) + tail;
    }
};

/// The largest of the values that a team's lanes have seen; NaN is passed over.
template <class Team, class A>
struct Largest {
    Pack<A, Team::width> lanes = splat<Team::width>(A(-INFINITY));
    A tail = A(-INFINITY);

    template <int N>
    HD void take(Pack<A, N> value) {
        if constexpr (N == Team::width) lanes = larger(lanes, value);
        else tail = larger(tail, value[0]);
    }
    HD A total() const {
        return larger(detail::fold(lanes, [](auto a, auto b) { return larger(a, b); }), tail);
    }
};

/// One CPU thread. A pack is 16 elements: one AVX-512 register of floats, two AVX2 registers, four SSE
/// registers.
struct Lane {
    static constexpr int width = 16;

    CALLS_HOST_CODE
    template <class F>
    HD void each(int64_t n, F&& f) const {
        int64_t i = 0;
        for (; i + width <= n; i += width) f(At<width>{i});
#pragma GCC unroll 1
        for (; i < n; ++i) f(At<1>{i});
    }
    CALLS_HOST_CODE
    template <class F>
    HD void each(int64_t n, int64_t, F&& f) const {
        each(n, f);
    }
    template <class A>
    HD A sum(const Sum<Lane, A>& s) const {
        return s.total();
    }
    template <class A>
    HD A maximum(const Largest<Lane, A>& s) const {
        return s.total();
    }
    HD bool leads() const {
        return true;
    }
    HD void sync() const {}
};

#ifdef WOBBLE_CUDA

/// One warp; W elements to a pack, 16 bytes of the kernel's element type.
template <int W>
struct Warp {
    static constexpr int width = W;
    static constexpr unsigned all = 0xffffffffu;

    __device__ __forceinline__ int lane() const { return int(threadIdx.x) & 31; }

    /// Packs where every row starts aligned, that is where n is a multiple of the pack; single elements
    /// otherwise.
    template <class F>
    __device__ __forceinline__ void each(int64_t n, F&& f) const {
        each(n, n, f);
    }
    /// The same for pieces that begin at multiples of `stride` and not of n.
    template <class F>
    __device__ __forceinline__ void each(int64_t n, int64_t stride, F&& f) const {
        if (n % W == 0 && stride % W == 0) {
            for (int64_t i = int64_t(lane()) * W; i < n; i += 32 * W) f(At<W>{i});
        } else {
            for (int64_t i = lane(); i < n; i += 32) f(At<1>{i});
        }
    }
    template <class A>
    __device__ __forceinline__ A sum(const Sum<Warp, A>& s) const {
        A value = s.total();
        for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(all, value, offset);
        return value;
    }
    template <class A>
    __device__ __forceinline__ A maximum(const Largest<Warp, A>& s) const {
        A mine = s.total();
        for (int offset = 16; offset > 0; offset >>= 1)
            mine = larger(mine, __shfl_xor_sync(all, mine, offset));
        return mine;
    }
    __device__ __forceinline__ bool leads() const { return lane() == 0; }
    __device__ __forceinline__ void sync() const { __syncwarp(all); }
};

/// One CUDA block of a multiple of 32 threads, at most 1024.
template <int W>
struct Block {
    static constexpr int width = W;

    template <class F>
    __device__ __forceinline__ void each(int64_t n, F&& f) const {
        each(n, n, f);
    }
    template <class F>
    __device__ __forceinline__ void each(int64_t n, int64_t stride, F&& f) const {
        if (n % W == 0 && stride % W == 0) {
            for (int64_t i = int64_t(threadIdx.x) * W; i < n; i += int64_t(blockDim.x) * W) f(At<W>{i});
        } else {
            for (int64_t i = threadIdx.x; i < n; i += blockDim.x) f(At<1>{i});
        }
    }
    template <class A>
    __device__ __forceinline__ A sum(const Sum<Block, A>& s) const {
        return across(s.total(), [](A a, A b) { return a + b; });
    }
    template <class A>
    __device__ __forceinline__ A maximum(const Largest<Block, A>& s) const {
        return across(s.total(), [](A a, A b) { return larger(a, b); });
    }
    __device__ __forceinline__ bool leads() const { return threadIdx.x == 0; }
    __device__ __forceinline__ void sync() const { __syncthreads(); }

  private:
    /// Folds within each warp, then the warps' results in order. The two barriers keep a second call off the
    /// scratch that the first one is still reading.
    template <class A, class F>
    __device__ __forceinline__ A across(A value, F combine) const {
        SHARED(A, partial, 32);
        for (int offset = 16; offset > 0; offset >>= 1) {
            value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
        }
        __syncthreads();
        if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = value;
        __syncthreads();
        A result = partial[0];
        for (unsigned w = 1; w < blockDim.x >> 5; ++w) result = combine(result, partial[w]);
        return result;
    }
};

#endif

/// A strip of a row, in the accumulator's type, that a team's lanes hold while they add to it again and
/// again. each(n, stride, f) goes over the first n of its `size` elements as the team's `each` does, with
/// f(at, held).
template <class Team, class A>
struct Held;

template <class A>
struct Held<Lane, A> {
    static constexpr int64_t size = 128;
    alignas(64) A values[size];

    CALLS_HOST_CODE
    template <class F>
    HD void each(Lane team, int64_t n, int64_t, F&& f) {
        team.each(n, [&](auto at) INLINED {
            auto held = load(values, at);
            f(at, held);
            store(values, at, held);
        });
    }
};

#ifdef WOBBLE_CUDA

template <int W, class A>
struct Held<Warp<W>, A> {
    static constexpr int64_t size = 32 * W;
    A values[W];  // of this lane

    template <class F>
    __device__ __forceinline__ void each(Warp<W> team, int64_t n, int64_t stride, F&& f) {
        if (n % W == 0 && stride % W == 0) {
            const int64_t i = int64_t(team.lane()) * W;
            if (i >= n) return;
            auto held = generate<A, W>([&](int j) { return values[j]; });
            f(At<W>{i}, held);
            UNROLL for (int j = 0; j < W; ++j) values[j] = held[j];
        } else {
            UNROLL for (int j = 0; j < W; ++j) {
                const int64_t i = team.lane() + 32 * j;
                if (i >= n) continue;
                Pack<A, 1> held = splat<1>(values[j]);
                f(At<1>{i}, held);
                values[j] = held[0];
            }
        }
    }
};

#endif

/// x · y over the n elements of a row.
template <class Team, class T>
HD Accumulator<T> dot(Team team, const T* x, const T* y, int64_t n) {
    Sum<Team, Accumulator<T>> sum;
    team.each(n, [&](auto at) { sum.add_product(load(x, at), load(y, at)); });
    return team.sum(sum);
}

/// out = out + factor · x over the n elements of a row, or just factor · x at first.
template <class Team, class T>
HD void add_scaled(Team team, T* out, const T* x, Accumulator<T> factor, int64_t n, bool first) {
    team.each(n, [&](auto at) {
        const auto term = load(x, at) * factor;
        store(out, at, first ? term : load(out, at) + term);
    });
}

}  // namespace wobble
