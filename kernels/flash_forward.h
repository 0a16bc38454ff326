// Forward attention on CUDA in tiles.
#pragma once

#include "kernels/flash.h"

#ifdef WOBBLE_CUDA

namespace wobble {

/// What a probe wants to know of the queries of a lane's two rows, from the keys that the lane has; what its
/// quad has is taken together in the end.
struct FlashQueries {
    float weighted[2] = {}, first[2] = {}, least[2] = {INFINITY, INFINITY};
    int at_maximum[2] = {};

    /// The maximum rises from `from` to `to`; `sum` is of exponentials below `from`, `shrink` what they are
    /// multiplied with.
    __device__ void rise(int half, float from, float to, float sum, float shrink) {
        if (!(to > from)) return;
        weighted[half] = shrink > 0 ? shrink * (weighted[half] - (to - from) * sum) : 0;
        first[half] *= shrink, at_maximum[half] = 0;
    }
    /// A logit, how far it is below the maximum, and the exponential of that.
    __device__ void take(int half, int key, float s, float below, float e) {
        weighted[half] += e > 0 ? e * below : e;
        least[half] = s < least[half] ? s : least[half];
        at_maximum[half] += below == 0;
        if (key == 0) first[half] = e;
    }
    __device__ QueryStatistics statistics(int half, int64_t keys, float maximum, float sum) const {
        const float low = over_quad(least[half], [](float a, float b) { return b < a ? b : a; });
        return {.keys = keys,
                .max_logit = double(maximum),
                .abs_logit = double(larger(maximum, -low)),
                .sum = double(sum),
                .weighted = double(over_quad(weighted[half])),
                .first = double(over_quad(first[half])),
                .at_maximum = over_quad(at_maximum[half])};
    }
};

/// A tile of queries of one head per block.
template <class T, int D>
struct FlashForward {
    using ObservesHeads = void;
    using Element = T;
    using Sizes = FlashSizes<T, D>;
    static constexpr const char* name = AttentionForward<T>::name;
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    static constexpr int cuda_threads = Sizes::threads, shared_bytes = 16 * Sizes::chunks(1, 2);

    AttentionForward<T> of;

    HD int64_t tiles() const { return ceil_div(of.shape.queries, Sizes::rows); }
    int64_t blocks() const { return of.shape.batch * of.shape.heads * tiles(); }
    int64_t row_elements() const { return of.row_elements() * Sizes::rows; }
    ObservedMatrix<T> observed() const { return of.observed(); }
    int64_t observed_heads() const { return of.observed_heads(); }

    template <class Team, class Probe>
    __device__ void operator()(Team, int64_t index, Probe& probe) const {
        constexpr int rows = Sizes::rows, N = Sizes::others;
        using Tile = typename Sizes::Tile;
        const AttentionShape& shape = of.shape;
        const Visibility who(shape.sequence, of.options);
        // Later tiles see more keys: they begin first.
        const int64_t heads = shape.batch * shape.heads;
        const int64_t b = index % heads / shape.heads, h = index % shape.heads, key_head = shape.key_head(h);
        const int first_row = int(tiles() - 1 - index / heads) * rows;
        const int position = int(shape.sequence - shape.queries) + first_row;
        const int present = int(shape.queries) - first_row;
        const int64_t width = shape.qkv_channels();
        const float scale = of.options.template factor<float>(shape.head_size),
                    cap = float(of.options.softcap);

        DYNAMIC_SHARED(Chunk, memory);
        const Tile queries{memory, 0};
        const auto visited = [&](int n) { return VisitedTiles<T, D>(memory, 1, n); };
        const auto fetch = [&](int n) {
            visited(n).fetch(of.qkv + shape.qkv(b, n * N, key_head, 1), width,
                             of.qkv + shape.qkv(b, n * N, key_head, 2), width, who.sequence - n * N,
                             shape.head_size);
        };
        const int last_position = position + (present < rows ? present : rows) - 1;
        const int begin = who.first_key(position) / N, end = last_position / N + 1;
        queries.fetch(of.qkv + shape.qkv(b, position, h, 0), width, rows, present, shape.head_size);
        fetch(begin);
        wait_for_copies();
        __syncthreads();
        const LeftRows<T, D, true> left(queries, int(threadIdx.x) / 32 * 16);

        LaneTile<D> sums;
        float maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {};
        [[maybe_unused]] FlashQueries seen;
        each_fetched(begin, end, fetch, [&](int n) INLINED {
            const auto [keys, values] = visited(n);
            LaneTile<N> scores;
            multiply_rows(scores, left, keys);
            const bool masked = !who.all(position, rows, n * N, N);
            const auto sees = [&](int half, int column)
                                  INLINED { return who.sees(position + row_of_lane(half), n * N + column); };
            make_logits(scores, scale, cap, masked, sees);
            float top[2] = {maximum[0], maximum[1]}, floor[2];
            each_number(scores, [&](float& s, int half, int) INLINED { top[half] = larger(top[half], s); });
            UNROLL for (int half = 0; half < 2; ++half) {
                top[half] = over_quad(top[half], [](float x, float y) { return larger(x, y); });
                // Where all so far is -inf, it is not taken from itself.
                floor[half] = top[half] == -INFINITY ? 0.0f : top[half];
                const float shrink = quick_exponential<T>(maximum[half] - floor[half]);
                if constexpr (Probe::looks) seen.rise(half, maximum[half], top[half], sum[half], shrink);
                maximum[half] = top[half], sum[half] *= shrink;
                UNROLL for (int j = 0; j < D / 8; ++j) {
                    sums.of[j][2 * half] *= shrink, sums.of[j][2 * half + 1] *= shrink;
                }
            }
            each_number(scores, [&](float& s, int half, int column) INLINED {
                const float below = s - floor[half], e = quick_exponential<T>(below);
                if constexpr (Probe::looks) {
                    if (!masked || sees(half, column)) seen.take(half, n * N + column, s, below, e);
                }
                s = e, sum[half] += e;
            });
            multiply_weights(sums, scores, values);
        });

        UNROLL for (int half = 0; half < 2; ++half) {
            sum[half] = over_quad(sum[half]);
            const int row = row_of_lane(half);
            const bool there = row < present;
            const int64_t query = first_row + row;
            const int64_t statistic = (b * shape.heads + h) * shape.queries + query;
            const auto total = of.with_sink(maximum[half], sum[half], h);
            if (there && threadIdx.x % 4 == 0) of.lse[statistic] = total.lse;
            if (there) {
                const int64_t out_row = b * shape.queries + query;
                T* const out = of.out + out_row * shape.channels() + h * shape.head_size;
                UNROLL for (int j = 0; j < D / 8; ++j) {
                    sums.of[j][2 * half] *= total.inverse, sums.of[j][2 * half + 1] *= total.inverse;
                }
                write_row(sums, half, out, out_row, h * shape.head_size, shape.head_size, probe);
            }
            if constexpr (Probe::looks) {
                const int keys = position + row + 1 - who.first_key(position + row);
                const auto statistics = seen.statistics(half, keys, maximum[half], sum[half]);
                // One after the other: they are added up in one place.
                for (int g = 0; g < 8; ++g) {
                    if (there && int(threadIdx.x) % 32 == 4 * g) probe.query(h, statistics);
                    __syncwarp();
                }
            }
        }
    }
};

}  // namespace wobble

#endif
