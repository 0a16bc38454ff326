// Backward attention on CUDA in tiles: the queries' gradients, which also leave δ, and then the keys' and
// values'.
#pragma once

#include "kernels/attention_blocks.h"
#include "kernels/flash.h"

#ifdef WOBBLE_CUDA

namespace wobble {

/// What comes of scores that nobody sees may be anything by now: it is nothing.
template <int N, class Sees>
__device__ __forceinline__ void clear_unseen(LaneTile<N>& tile, Sees&& sees) {
    each_number(tile, [&](float& x, int half, int column) INLINED {
        if (!sees(half, column)) x = 0;
    });
}

/// A tile of queries of one head per block: dq, and δ.
template <class T, int D>
struct FlashBackwardQuery {
    using Element = T;
    using Sizes = FlashSizes<T, D>;
    using Rows = AttentionBackwardQuery<T>;
    static constexpr const char* name = Rows::name;
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    enum Identity { SumOfDs };
    static constexpr const char* identities[1] = {"sum dS"};
    static constexpr int cuda_threads = Sizes::threads, shared_bytes = 16 * Sizes::chunks(2, 2);

    Rows of;

    HD int64_t tiles() const { return ceil_div(of.shape.sequence, Sizes::rows); }
    int64_t blocks() const { return of.shape.batch * of.shape.heads * tiles(); }
    int64_t row_elements() const { return of.row_elements() * Sizes::rows; }
    ObservedMatrix<T> observed() const { return of.observed(); }

    template <class Team, class Probe>
    __device__ void operator()(Team, int64_t index, Probe& probe) const {
        constexpr int rows = Sizes::rows, N = Sizes::others;
        using Tile = typename Sizes::Tile;
        const AttentionShape& shape = of.shape;
        const Visibility who{shape.sequence, of.options};
        const int64_t heads = shape.batch * shape.heads;
        const int64_t b = index % heads / shape.heads, h = index % shape.heads, key_head = shape.key_head(h);
        const int position = int(tiles() - 1 - index / heads) * rows, present = who.sequence - position;
        const int64_t width = shape.qkv_channels();
        const float scale = of.options.template factor<float>(shape.head_size),
                    cap = float(of.options.softcap);

        DYNAMIC_SHARED(Chunk, memory);
        const Tile queries{memory, 0}, gradients{memory, Tile::chunks(rows)};
        const auto visited = [&](int n) { return VisitedTiles<T, D>(memory, 2, n); };
        const auto fetch = [&](int n) {
            visited(n).fetch(of.qkv + shape.qkv(b, n * N, key_head, 1), width,
                             of.qkv + shape.qkv(b, n * N, key_head, 2), width, who.sequence - n * N,
                             shape.head_size);
        };
        const int last_position = position + (present < rows ? present : rows) - 1;
        const int begin = who.first_key(position) / N, end = last_position / N + 1;
        const int64_t first_out = (b * shape.sequence + position) * shape.channels() + h * shape.head_size;
        queries.fetch(of.qkv + shape.qkv(b, position, h, 0), width, rows, present, shape.head_size);
        gradients.fetch(of.dout + first_out, shape.channels(), rows, present, shape.head_size);
        fetch(begin);

        float delta[2], lse[2];
        const int64_t statistic = (b * shape.heads + h) * shape.sequence + position;
        UNROLL for (int half = 0; half < 2; ++half) {
            const int row = row_of_lane(half);
            const bool there = row < present;
            delta[half] = over_quad(there ? part_of_delta(first_out + row * shape.channels()) : 0.0f);
            lse[half] = there ? of.lse[statistic + row] : 0.0f;
            if (there && threadIdx.x % 4 == 0) of.delta[statistic + row] = delta[half];
        }
        wait_for_copies();
        __syncthreads();
        constexpr bool keep = D <= 64;
        const int warp_row = int(threadIdx.x) / 32 * 16;
        const LeftRows<T, D, keep> left(queries, warp_row), left_gradients(gradients, warp_row);

        LaneTile<D> dq;
        [[maybe_unused]] double residual[2] = {}, size[2] = {};
        each_fetched(begin, end, fetch, [&](int n) INLINED {
            const auto [keys, values] = visited(n);
            LaneTile<N> scores, dp;
            multiply_rows(scores, left, keys);
            multiply_rows(dp, left_gradients, values);
            const auto sees = [&](int half, int column)
                                  INLINED { return who.sees(position + row_of_lane(half), n * N + column); };
            const bool masked = !who.all(position, rows, n * N, N);
            make_logits(scores, scale, cap, masked, sees);
            UNROLL for (int j = 0; j < N / 8; ++j) {
                UNROLL for (int e = 0; e < 4; ++e) {
                    const float s = scores.of[j][e], p = quick_exponential<T>(s - lse[e / 2]);
                    float ds = p * (dp.of[j][e] - delta[e / 2]) * scale;
                    if constexpr (Probe::looks) {
                        if (p != 0) {
                            residual[e / 2] += double(ds);
                            size[e / 2] +=
                                double(p * (std::fabs(dp.of[j][e]) + std::fabs(delta[e / 2])) * scale);
                        }
                    }
                    if (cap > 0) ds *= slope_of_capped(s, cap);
                    dp.of[j][e] = ds;
                }
            }
            if (masked) clear_unseen(dp, sees);
            multiply_weights(dq, dp, keys);
        });

        UNROLL for (int half = 0; half < 2; ++half) {
            const int row = row_of_lane(half);
            const bool there = row < present, leads = threadIdx.x % 4 == 0;
            const int64_t qkv_row = b * shape.sequence + position + row;
            const int64_t column = shape.column(h, 0);
            if (there) {
                write_row(dq, half, of.dqkv + qkv_row * width + column, qkv_row, column, shape.head_size,
                          probe);
            }
            float ds = 0;
            if (of.sinks && there) {
                ds = exponential(float(of.sinks[h]) - lse[half]) * -delta[half];
                if (leads) of.dsinks[qkv_row * shape.heads + h] = T(ds);
            }
            if constexpr (Probe::looks) {
                if (probe.full()) {
                    const double all = over_quad(residual[half]) + double(ds * scale);
                    const double magnitudes = over_quad(size[half]) + std::fabs(double(ds * scale));
                    if (there && leads) probe.residual(SumOfDs, statistic + row, all, magnitudes);
                }
            }
        }
    }

  private:
    /// This lane's part of dout · out, over the head that begins at `first`.
    __device__ float part_of_delta(int64_t first) const {
        constexpr int W = 16 / int(sizeof(T));
        float sum = 0;
        for (int64_t i = int64_t(threadIdx.x) % 4 * W; i < of.shape.head_size; i += 4 * W) {
            const auto x = load(of.dout + first, At<W>{i}), y = load(of.out + first, At<W>{i});
            UNROLL for (int e = 0; e < W; ++e) sum = std::fma(x[e], y[e], sum);
        }
        return sum;
    }
};

/// A tile of keys of one key head per block: dk and dv, from every query that sees it, head after head.
template <class T, int D>
struct FlashBackwardKey {
    using Element = T;
    using Sizes = FlashSizes<T, D>;
    using Rows = AttentionBackwardKey<T>;
    static constexpr const char* name = Rows::name;
    enum Channel { Output };
    static constexpr const char* channels[] = {"output"};
    static constexpr int cuda_threads = Sizes::threads, shared_bytes = 16 * Sizes::chunks(2, 2);

    Rows of;

    HD int64_t tiles() const { return ceil_div(of.shape.sequence, Sizes::rows); }
    int64_t blocks() const { return of.shape.batch * of.shape.key_heads() * tiles(); }
    int64_t row_elements() const { return of.row_elements() * Sizes::rows; }
    ObservedMatrix<T> observed() const { return of.observed(); }

    template <class Team, class Probe>
    __device__ void operator()(Team, int64_t index, Probe& probe) const {
        constexpr int rows = Sizes::rows, N = Sizes::others;
        using Tile = typename Sizes::Tile;
        const AttentionShape& shape = of.shape;
        const Visibility who{shape.sequence, of.options};
        // The first keys are seen by most queries.
        const int64_t key_heads = shape.batch * shape.key_heads();
        const int first_key = int(index / key_heads) * rows, present = who.sequence - first_key;
        const int64_t b = index % key_heads / shape.key_heads(), key_head = index % shape.key_heads();
        const int64_t width = shape.qkv_channels();
        const float scale = of.options.template factor<float>(shape.head_size),
                    cap = float(of.options.softcap);

        // Tiles of queries that see these keys, for one query head after the other.
        const int last_key = first_key + (present < rows ? present : rows) - 1;
        const int first_tile = first_key / N, tiles = (who.end_of_queries(last_key) - 1) / N + 1 - first_tile;
        const int steps = int(shape.group()) * tiles;
        const auto head = [&](int n) { return key_head * shape.group() + n / tiles; };
        const auto first_query = [&](int n) { return (first_tile + n % tiles) * N; };

        DYNAMIC_SHARED(Chunk, memory);
        const Tile keys{memory, 0}, values{memory, Tile::chunks(rows)};
        const auto visited = [&](int n) { return VisitedTiles<T, D>(memory, 2, n); };
        const auto fetch = [&](int n) {
            const int64_t h = head(n);
            const int i = first_query(n);
            visited(n).fetch(of.qkv + shape.qkv(b, i, h, 0), width,
                             of.dout + (b * shape.sequence + i) * shape.channels() + h * shape.head_size,
                             shape.channels(), who.sequence - i, shape.head_size);
        };
        keys.fetch(of.qkv + shape.qkv(b, first_key, key_head, 1), width, rows, present, shape.head_size);
        values.fetch(of.qkv + shape.qkv(b, first_key, key_head, 2), width, rows, present, shape.head_size);
        fetch(0);
        wait_for_copies();
        __syncthreads();
        constexpr bool keep = false;  // the registers hold two results
        const int warp_row = int(threadIdx.x) / 32 * 16;
        const LeftRows<T, D, keep> left(keys, warp_row), left_values(values, warp_row);

        LaneTile<D> dk, dv;
        each_fetched(0, steps, fetch, [&](int n) INLINED {
            const auto [queries, gradients] = visited(n);
            const int query = first_query(n);
            const int64_t statistic = (b * shape.heads + head(n)) * shape.sequence + query;
            // By keys and queries, the other way round than elsewhere.
            LaneTile<N> p, ds;
            multiply_rows(p, left, queries);
            multiply_rows(ds, left_values, gradients);
            const auto sees = [&](int half, int column)
                                  INLINED { return who.sees(query + column, first_key + row_of_lane(half)); };
            const bool masked = !who.all(query, N, first_key, rows);
            make_logits(p, scale, cap, masked, sees);
            UNROLL for (int j = 0; j < N / 8; ++j) {
                UNROLL for (int i = 0; i < 2; ++i) {
                    const int column = 8 * j + int(threadIdx.x) % 4 * 2 + i;
                    const bool there = query + column < who.sequence;
                    const float lse = there ? of.lse[statistic + column] : 0.0f;
                    const float delta = there ? of.delta[statistic + column] : 0.0f;
                    UNROLL for (int e = i; e < 4; e += 2) {
                        const float s = p.of[j][e];
                        p.of[j][e] = quick_exponential<T>(s - lse);
                        ds.of[j][e] = p.of[j][e] * (ds.of[j][e] - delta) * scale;
                        if (cap > 0) ds.of[j][e] *= slope_of_capped(s, cap);
                    }
                }
            }
            if (masked) clear_unseen(ds, sees);
            multiply_weights(dv, p, gradients);
            multiply_weights(dk, ds, queries);
        });

        UNROLL for (int half = 0; half < 2; ++half) {
            const int row = row_of_lane(half);
            if (row >= present) continue;
            const int64_t qkv_row = b * shape.sequence + first_key + row;
            const auto write = [&](const LaneTile<D>& tile, int part) INLINED {
                const int64_t column = shape.column(key_head, part);
                write_row(tile, half, of.dqkv + qkv_row * width + column, qkv_row, column, shape.head_size,
                          probe);
            };
            write(dk, 1), write(dv, 2);
        }
    }
};

}  // namespace wobble

#endif
