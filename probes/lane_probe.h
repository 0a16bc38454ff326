// Probes on CUDA: each lane looks at what passes through its registers; when its row is done, the warp's
// lanes are taken together and the warp's first leaves what they saw in device memory. Counts that need no
// order (values that are not finite, histograms) are added up there by integer atomics.
#pragma once

#include "kernels/cuda.h"

#ifdef WOBBLE_CUDA

#include "kernels/run.h"
#include "probes/lane_moments.h"
#include "probes/watch.h"

namespace wobble {

/// What is not finite in a channel, over a launch. All zeros at first.
struct NonFinite {
    unsigned long long nans, positive, negative;
    unsigned long long first;  // ~(row · 2^32 + column) of the first; 0: none

    __device__ void add(double x, int64_t row, int64_t column) {
        atomicAdd(x != x ? &nans : x > 0 ? &positive : &negative, 1ull);
        atomicMax(&first, ~((unsigned long long)(row) << 32 | (unsigned long long)(column)));
    }
    void move_into(Moments& m) const {
        m.nans = int64_t(nans), m.positive_infinities = int64_t(positive),
        m.negative_infinities = int64_t(negative);
        if (first == 0) return;
        m.first_row = int64_t(~first >> 32), m.first_column = int64_t(~first & 0xffffffffull);
    }
};

/// A histogram of a launch, in the layout of `Histogram`.
struct DeviceHistogram {
    unsigned long long by_exponent[Histogram::bins], flushed[format_count], overflowed[format_count];

    /// A finite value other than 0.
    __device__ void add(double x) {
        const double size = std::fabs(x);
        const int bin = std::ilogb(size) - Histogram::lowest;
        atomicAdd(&by_exponent[bin < 0 ? 0 : bin >= Histogram::bins ? Histogram::bins - 1 : bin], 1ull);
        count<0>(size);
    }

  private:
    template <int F>
    __device__ void count(double size) {
        if constexpr (F < format_count) {
            constexpr double smallest = formats[F].smallest, largest = formats[F].largest;
            if (size <= smallest / 2) atomicAdd(&flushed[F], 1ull);
            if (size >= largest) atomicAdd(&overflowed[F], 1ull);
            count<F + 1>(size);
        }
    }
};
static_assert(sizeof(DeviceHistogram) == sizeof(Histogram));

/// What a warp saw, and later what all did.
template <class Kernel>
struct WarpSaw {
    using C = Channels<Kernel>;
    Moments channels[C::count];
    double sums[C::sums + 1] = {};
    ResidualTally residuals[C::identities + 1];
    PairTally pair;
    HeadTally head;
    int64_t which_head = -1;

    /// Takes in what later rows' warps saw; heads stay apart.
    HD void merge(const WarpSaw& other) {
        for (int c = 0; c < C::count; ++c) channels[c].merge(other.channels[c]);
        for (int i = 0; i < C::sums; ++i) sums[i] += other.sums[i];
        for (int i = 0; i < C::identities; ++i) residuals[i].merge(other.residuals[i]);
        pair.merge(other.pair);
    }
};

template <class Kernel>
class LaneProbe;

/// Hands out the probes of a launch.
template <class Kernel>
struct DeviceWatch {
    WarpSaw<Kernel>* warps;       // [warps of the launch]
    NonFinite* nonfinite;         // [channels]
    DeviceHistogram* histograms;  // [channels]; null: not wanted
    Fault fault;
    bool full;
    int64_t team_count;

    HD int64_t teams(int64_t) const { return team_count; }

    /// `lane` of `lanes`: of the team.
    __device__ LaneProbe<Kernel> probe(int64_t warp, int lane, int lanes) const {
        return LaneProbe<Kernel>(*this, warps + warp, lane, lanes);
    }
};

template <class Kernel>
class LaneProbe {
    using C = Channels<Kernel>;
    using A = typename C::A;

  public:
    static constexpr bool looks = true;

    __device__ __forceinline__ LaneProbe(const DeviceWatch<Kernel>& watch, WarpSaw<Kernel>* warp, int lane,
                                         int lanes)
        : watch_(watch), warp_(warp), lane_(lane), lanes_(lanes) {
        if ((lane_ & 31) == 0) *warp_ = {};
    }

    __device__ __forceinline__ bool full() const { return watch_.full; }

    template <int N>
    __device__ __forceinline__ Pack<A, N> observe(int channel, int64_t row, At<N> at, Pack<A, N> value) {
        value = broken(channel, row, at, value);
        UNROLL for (int i = 0; i < N; ++i) see(channel, row, at.index + i, value[i]);
        return value;
    }
    /// What is stored narrower is seen as it will lie there.
    template <int N>
    __device__ __forceinline__ Pack<A, N> writes(int channel, int64_t row, At<N> at, Pack<A, N> value) {
        using Stored = typename C::Stored;
        value = broken(channel, row, at, value);
        UNROLL for (int i = 0; i < N; ++i) see(channel, row, at.index + i, A(Stored(value[i])));
        return value;
    }
    template <class T>
    __device__ __forceinline__ void wrote(int, int64_t, int64_t, const T*, int64_t, int64_t = 1,
                                          int64_t = 0) {}
    template <class Branch, class Beside>
    __device__ __forceinline__ void pair(const Branch* branch, int64_t stride, const Beside* beside,
                                         int64_t beside_stride, int64_t columns, int64_t rows, A factor = 1) {
        pair_.any = true;
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = lane_; c < columns; c += lanes_) {
                const double v = double(A(branch[r * stride + c])) * double(factor),
                             b = double(A(beside[r * beside_stride + c]));
                pair_.dot += v * b, pair_.squares += v * v, pair_.beside_squares += b * b;
            }
        }
    }
    __device__ __forceinline__ void residual(int identity, int64_t row, double value, double scale) {
        residuals_[identity].add(row, value, scale);
    }
    // One lane of a warp at a time calls these.
    __device__ __forceinline__ void sum(int which, double value) { warp_->sums[which] += value; }
    __device__ __forceinline__ void query(int64_t head, const QueryStatistics& statistics) {
        warp_->which_head = head, warp_->head.add(statistics, 1);
    }

    /// When the team's rows are done; all lanes of the warp call it.
    __device__ __forceinline__ void finish() {
        UNROLL for (int c = 0; c < C::count; ++c) {
            const Moments together = of_warp(of_[c]);
            if ((lane_ & 31) == 0) warp_->channels[c] = together;
        }
        if constexpr (C::identities > 0) {
            UNROLL for (int i = 0; i < C::identities; ++i) {
                if (!full()) continue;
                const ResidualTally together = over_warp(residuals_[i], [](ResidualTally a, ResidualTally b) {
                    a.merge(b);
                    return a;
                });
                if ((lane_ & 31) == 0) warp_->residuals[i] = together;
            }
        }
        if constexpr (C::pair) {
            const PairTally all{pair_.any, over_warp(pair_.dot), over_warp(pair_.squares),
                                over_warp(pair_.beside_squares)};
            if ((lane_ & 31) == 0) warp_->pair = all;
        }
    }

  private:
    __device__ __forceinline__ void see(int channel, int64_t row, int64_t column, A x) {
        if (!(x - x == 0)) {
            watch_.nonfinite[channel].add(double(x), row, column);
            return;
        }
        of_[channel].add(x);
        if (watch_.histograms && x != 0) watch_.histograms[channel].add(double(x));
    }
    template <int N>
    __device__ __forceinline__ Pack<A, N> broken(int channel, int64_t row, At<N> at, Pack<A, N> value) const {
        const Fault& f = watch_.fault;
        if (!f.hits(channel, row, at.index, N)) return value;
        // One number after the other: an index that is worked out would put them into memory.
        UNROLL for (int i = 0; i < N; ++i) {
            if (at.index + i == f.column || f.column == Fault::every) value.set(i, f.change.of(value[i]));
        }
        return value;
    }

    /// What the lane has whose number differs in the bits of `mask`.
    template <class Value>
    static __device__ __forceinline__ Value of_lane(Value value, int mask) {
        return __shfl_xor_sync(0xffffffffu, value, mask);
    }
    static __device__ __forceinline__ ResidualTally of_lane(ResidualTally t, int mask) {
        t.rows = of_lane(t.rows, mask), t.worst_row = of_lane(t.worst_row, mask);
        t.value = of_lane(t.value, mask), t.bias = of_lane(t.bias, mask), t.scale = of_lane(t.scale, mask);
        t.worst = of_lane(t.worst, mask);
        return t;
    }
    template <class Value, class F>
    static __device__ __forceinline__ Value over_warp(Value value, F combine) {
        for (int offset = 16; offset > 0; offset >>= 1) value = combine(value, of_lane(value, offset));
        return value;
    }
    static __device__ __forceinline__ double over_warp(double value) {
        return over_warp(value, [](double a, double b) { return a + b; });
    }
    static __device__ __forceinline__ int over_warp(int value) {
        return int(__reduce_add_sync(0xffffffffu, unsigned(value)));
    }
    /// Four sums at once, for the warp's first lane: at each of the first steps a lane hands on half of what
    /// it has left.
    static __device__ __forceinline__ void over_warp(double (&s)[4], int lane) {
        const bool upper = lane & 16, odd = lane & 8;
        const double s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3];
        const double a = (upper ? s2 : s0) + of_lane(upper ? s0 : s2, 16);
        const double b = (upper ? s3 : s1) + of_lane(upper ? s1 : s3, 16);
        double sum = (odd ? b : a) + of_lane(odd ? a : b, 8);
        UNROLL for (int offset = 4; offset > 0; offset >>= 1) sum += of_lane(sum, offset);
        // Lanes 0, 8, 16 and 24 have one each.
        const double other = of_lane(sum, 16);
        s[0] = sum, s[1] = of_lane(sum, 8), s[2] = other, s[3] = of_lane(other, 8);
    }
    static __device__ __forceinline__ Moments of_warp(LaneMoments<A>& lane) {
        lane.settle();
        const int n = over_warp(int(lane.earlier));
        Moments m;
        if (n == 0) return m;
        m.count = n, m.zeros = over_warp(lane.zeros), m.subnormals = over_warp(lane.subnormals);
        m.min = double(over_warp(lane.min, [](A a, A b) { return b < a ? b : a; }));
        m.max = double(over_warp(lane.max, [](A a, A b) { return larger(a, b); }));
        const double centre = m.min / 2 + m.max / 2;
        auto [s] = lane.about(centre);
        over_warp(s, int(threadIdx.x) & 31);
        set_moments(m, double(n), centre, s);
        return m;
    }

    DeviceWatch<Kernel> watch_;
    WarpSaw<Kernel>* warp_;
    int lane_, lanes_;
    LaneMoments<A> of_[C::count];
    ResidualTally residuals_[C::identities + 1];
    PairTally pair_;
};

/// What all warps saw, in their order, into `all`; and by head. One block.
template <class Kernel>
__global__ void __launch_bounds__(block_threads, 1)
    merge_warps(WarpSaw<Kernel>* warps, int64_t count, WarpSaw<Kernel>* all, HeadTally* heads,
                int64_t head_count) {
    const int64_t thread = threadIdx.x;
    for (int64_t h = thread; h < head_count; h += block_threads) {
        HeadTally tally;
        for (int64_t w = 0; w < count; ++w)
            if (warps[w].which_head == h) tally.merge(warps[w].head);
        heads[h] = tally;
    }
    // Each thread takes a range of warps together, then ranges are, two by two; many may be empty.
    const auto begin = [&](int64_t t) { return t * count / block_threads; };
    for (int64_t w = begin(thread) + 1; w < begin(thread + 1); ++w) warps[begin(thread)].merge(warps[w]);
    for (int64_t step = 1; step < block_threads; step *= 2) {
        __syncthreads();
        if (thread % (2 * step) != 0) continue;
        const int64_t first = begin(thread), second = begin(thread + step);
        if (first < second && second < begin(thread + 2 * step)) warps[first].merge(warps[second]);
    }
    if (thread == 0) *all = warps[0];
}

}  // namespace wobble

#endif
