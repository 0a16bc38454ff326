// A watched launch of a row kernel on CUDA: the kernel with a probe in every lane, then what its warps saw
// made one, then, at tier full, passes over the matrix that it wrote. Nobody waits; the recorder hears of it
// later.
#pragma once

#include "probes/device_records.h"
#include "probes/lane_probe.h"

namespace wobble {

/// sizes[c] = Σ |x|, squares[c] = Σ x² over some rows of a matrix, in float64; one chunk of rows per team.
template <class T>
struct ColumnSizes {
    using Element = T;
    static constexpr const char* name = "column_sizes";

    const T* x;      // the first column that counts, [rows, stride]
    double* chunks;  // [chunk_count(rows), 2, columns]
    int64_t rows, stride, columns;

    int64_t row_elements() const { return ceil_div(rows, chunk_count(rows)) * columns; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t chunk, Probe&) const {
        const Range range = chunk_rows(chunk, rows);
        double* const sizes = chunks + chunk * 2 * columns;
        team.each(columns, 1, [&](auto at) {
            double size = 0, square = 0;
            for (int64_t row = range.begin; row < range.end; ++row) {
                const double value = double(load(x + row * stride, at)[0]);
                size += std::fabs(value), square += value * value;
            }
            sizes[at.index] = size, sizes[columns + at.index] = square;
        });
    }
};

/// out[c] = Σ over the chunks, in their order. 256 columns per team.
struct AddChunks {
    using Element = double;
    static constexpr const char* name = "add_chunks";
    static constexpr int64_t strip = 256;

    const double* chunks;  // [count, columns]
    double* out;           // [columns]
    int64_t count, columns;

    int64_t row_elements() const { return count * strip; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t index, Probe&) const {
        const int64_t first = index * strip, rest = columns - first;
        team.each(rest < strip ? rest : strip, 1, [&](auto at) {
            double sum = 0;
            for (int64_t i = 0; i < count; ++i) sum += chunks[i * columns + first + at.index];
            out[first + at.index] = sum;
        });
    }
};

/// Every `step`-th row of a matrix, in float32; one per team.
template <class T>
struct GatherRows {
    using Element = T;
    static constexpr const char* name = "gather_rows";

    const T* x;  // [·, columns]
    float* out;  // [·, columns]
    int64_t columns, step;

    int64_t row_elements() const { return columns; }

    template <class Team, class Probe>
    HD void operator()(Team team, int64_t row, Probe&) const {
        team.each(columns, 1, [&](auto at) {
            out[row * columns + at.index] = float(load(x + row * step * columns, at)[0]);
        });
    }
};

inline DeviceRecords& device_records(Recorder& recorder) {
    if (!recorder.pending()) recorder.pending() = std::make_unique<DeviceRecords>();
    return static_cast<DeviceRecords&>(*recorder.pending());
}

/// Where the results of one launch lie, from its first byte.
template <class Kernel>
struct ResultLayout {
    using C = Channels<Kernel>;
    size_t nonfinite = 0, histograms = 0, heads = 0, columns = 0, sample = 0, bytes = 0;
    int64_t head_count = 0, own_columns = 0, first_column = 0, sampled_rows = 0, all_columns = 0;

    ResultLayout(const Kernel& kernel, const Look& look) {
        const bool full = look.tier == Tier::Full;
        bytes = sizeof(WarpSaw<Kernel>);
        nonfinite = take(sizeof(NonFinite), C::count);
        if (full) histograms = take(sizeof(DeviceHistogram), C::count);
        if constexpr (C::heads) head_count = kernel.observed_heads();
        heads = take(sizeof(HeadTally), head_count);
        if constexpr (requires { kernel.observed(); }) {
            const auto matrix = kernel.observed();
            if (!full) return;
            own_columns = matrix.own > 0 ? matrix.own : matrix.columns, first_column = matrix.first;
            all_columns = matrix.columns;
            columns = take(sizeof(double), 2 * own_columns);
            if (look.row_step > 0) sampled_rows = ceil_div(look.rows, look.row_step);
            sample = take(sizeof(float), sampled_rows * all_columns);
        }
    }

    /// What a recorder takes in.
    Seen<Kernel> read(const char* results, const Look& look) const {
        Seen<Kernel> seen;
        WarpSaw<Kernel> all;
        std::memcpy(static_cast<void*>(&all), results, sizeof all);
        for (int c = 0; c < C::count; ++c) {
            Statistics& channel = seen.channels[c];
            channel.moments = all.channels[c];
            NonFinite special;
            std::memcpy(&special, results + nonfinite + size_t(c) * sizeof special, sizeof special);
            special.move_into(channel.moments);
            if (look.tier != Tier::Full) continue;
            channel.histogram = std::make_unique<Histogram>();
            std::memcpy(static_cast<void*>(channel.histogram.get()),
                        results + histograms + size_t(c) * sizeof(Histogram), sizeof(Histogram));
        }
        std::copy_n(all.sums, C::sums, seen.sums);
        std::copy_n(all.residuals, C::identities, seen.residuals);
        seen.pair = all.pair;
        for (int64_t h = 0; h < head_count; ++h) {
            HeadTally tally;
            std::memcpy(static_cast<void*>(&tally), results + heads + size_t(h) * sizeof tally, sizeof tally);
            if (tally.queries > 0) seen.head(h) = tally;
        }
        if (own_columns > 0) {
            auto of_columns = std::make_unique<Columns>();
            const double* const sums = reinterpret_cast<const double*>(results + columns);
            of_columns->first = first_column;
            of_columns->sizes.assign(sums, sums + own_columns);
            of_columns->squares.assign(sums + own_columns, sums + 2 * own_columns);
            seen.channels[0].columns = std::move(of_columns);
        }
        if (sampled_rows > 0) {
            auto rows = std::make_unique<SampledRows>();
            const float* const values = reinterpret_cast<const float*>(results + sample);
            rows->rows = sampled_rows, rows->columns = all_columns;
            rows->values.assign(values, values + sampled_rows * all_columns);
            seen.channels[0].sample = std::move(rows);
        }
        return seen;
    }

  private:
    size_t take(size_t size, int64_t count) {
        const size_t place = (bytes + 15) / 16 * 16;
        bytes = place + size * size_t(count);
        return place;
    }
};

template <class Kernel>
void watch_on_cuda(Context& context, int64_t rows, const Kernel& kernel, const Site& site, const Look& look) {
    if (rows == 0) return;
    DeviceRecords& records = device_records(*context.recorder);
    const ResultLayout<Kernel> layout(kernel, look);
    std::function<void(const char*)> read;
    if (look.tier != Tier::Off) {
        read = [layout, look, site, recorder = context.recorder](const char* results) {
            recorder->record(site, layout.read(results, look), look.rows);
        };
    }
    char* const results = records.results(layout.bytes, std::move(read));
    // A warp knows of one head alone.
    const int64_t teams = ResultLayout<Kernel>::C::heads ? rows : lasting_teams(context, rows, kernel);
    const int64_t warps = warps_for(context, teams, kernel);
    using Saw = WarpSaw<Kernel>;
    Saw* saw = static_cast<Saw*>(records.parts(size_t(warps) * sizeof(Saw)));
    const bool full = look.tier == Tier::Full;
    run_on_cuda(
        context, rows, kernel,
        DeviceWatch<Kernel>{
            .warps = saw,
            .nonfinite = reinterpret_cast<NonFinite*>(results + layout.nonfinite),
            .histograms = full ? reinterpret_cast<DeviceHistogram*>(results + layout.histograms) : nullptr,
            .fault = look.fault,
            .full = full,
            .team_count = teams});
    Saw* all = reinterpret_cast<Saw*>(results);
    HeadTally* heads = reinterpret_cast<HeadTally*>(results + layout.heads);
    int64_t count = warps, head_count = layout.head_count;
    void* arguments[] = {&saw, &count, &all, &heads, &head_count};
    check_cuda(cudaLaunchKernel(merge_warps<Kernel>, dim3{1, 1, 1}, dim3{block_threads, 1, 1}, arguments, 0,
                                cuda_stream()),
               Kernel::name);
    if constexpr (requires { kernel.observed(); }) {
        if (!full) return;
        const auto matrix = kernel.observed();
        using E = std::remove_const_t<std::remove_pointer_t<decltype(matrix.p)>>;
        const int64_t chunks = chunk_count(look.rows), columns = layout.own_columns;
        double* const partial =
            static_cast<double*>(records.parts(size_t(chunks * 2 * columns) * sizeof(double)));
        run_on_cuda(context, chunks,
                    ColumnSizes<E>{matrix.p + matrix.first, partial, look.rows, matrix.columns, columns},
                    NoWatch{});
        run_on_cuda(
            context, ceil_div(2 * columns, AddChunks::strip),
            AddChunks{partial, reinterpret_cast<double*>(results + layout.columns), chunks, 2 * columns},
            NoWatch{});
        if (layout.sampled_rows == 0) return;
        run_on_cuda(context, layout.sampled_rows,
                    GatherRows<E>{matrix.p, reinterpret_cast<float*>(results + layout.sample), matrix.columns,
                                  look.row_step},
                    NoWatch{});
    }
}

}  // namespace wobble
