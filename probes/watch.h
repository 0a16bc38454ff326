// Probes that gather statistics, and the watch that hands them out.
//
// A kernel's work is cut into parts (chunks of rows, tasks of a product), a number that follows from its
// shape alone. Each part gets a probe of its own, and what the parts saw is merged in order, so what is
// reported depends neither on the number of threads nor on who finished first.
#pragma once

#include <iterator>
#include <limits>
#include <vector>

#include "kernels/probe.h"
#include "probes/block_statistics.h"
#include "probes/tallies.h"

namespace wobble {

enum class Tier { Off, Moments, Full };

/// What becomes of a value: another one takes its place, it is multiplied, or one of its bits is flipped.
struct Change {
    enum Kind { Replace, Scale, Flip } kind = Replace;
    double by = 0;  // the other value, the factor, or the number of the bit of a float32, 31 being its sign

    Change() = default;
    HD Change(double value) : by(value) {}
    HD Change(Kind what, double value) : kind(what), by(value) {}

    template <class A>
    HD A of(A x) const {
        if (kind == Replace) return A(by);
        if (kind == Scale) return x * A(by);
        const float before = float(x);
        uint32_t bits;
        memcpy(&bits, &before, sizeof bits);
        bits ^= 1u << int(by);
        float after;
        memcpy(&after, &bits, sizeof after);
        return A(after);
    }
};

/// A change of what passes through a channel of the kernel: a test of what becomes of it.
struct Fault {
    static constexpr int64_t every = INT64_MIN;  // row, or column

    int channel = -1;  // none
    int64_t row = 0, column = 0;
    Change change;

    HD bool hits_row(int of, int64_t its_row) const {
        return of == channel && (its_row == row || row == every);
    }
    HD bool hits(int of, int64_t its_row, int64_t first, int64_t width) const {
        return hits_row(of, its_row) &&
               ((first <= column && column < first + width) || (column == every && width > 0));
    }
};

namespace detail {

// The arrays are declared with their sizes: nvcc does not look at an initialiser for that here.
template <class Kernel>
constexpr int sum_count() {
    if constexpr (requires { Kernel::sums; }) return int(std::size(Kernel::sums));
    else return 0;
}
template <class Kernel>
constexpr int identity_count() {
    if constexpr (requires { Kernel::identities; }) return int(std::size(Kernel::identities));
    else return 0;
}

}  // namespace detail

/// What a kernel lets a probe see, read off its declarations.
template <class Kernel>
struct Channels {
    template <class K>
    struct ObservedBy {
        using type = Accumulator<typename K::Element>;
    };
    template <class K>
    requires requires { typename K::Observed; }
    struct ObservedBy<K> {
        using type = typename K::Observed;
    };

    template <class K>
    struct StoredBy {
        using type = typename K::Element;
    };
    template <class K>
    requires requires { typename K::Stored; }
    struct StoredBy<K> {
        using type = typename K::Stored;
    };

    using A = typename ObservedBy<Kernel>::type;
    using Stored = typename StoredBy<Kernel>::type;  // what `writes` ends up in
    static constexpr int count = int(std::size(Kernel::channels));
    static constexpr int sums = detail::sum_count<Kernel>();
    static constexpr int identities = detail::identity_count<Kernel>();
    static constexpr bool pair = requires { typename Kernel::ObservesPair; };
    static constexpr bool heads = requires { typename Kernel::ObservesHeads; };
};

/// What was seen of one part of a kernel's work.
template <class Kernel>
struct Seen {
    using C = Channels<Kernel>;
    Statistics channels[C::count];
    double sums[C::sums + 1] = {};  // + 1: no array is empty
    ResidualTally residuals[C::identities + 1];
    PairTally pair;
    std::vector<std::pair<int64_t, HeadTally>> heads;  // by head, in the order in which they were met

    /// Rows were counted from this one on.
    void begins_with_row(int64_t row) {
        for (Statistics& channel : channels)
            if (channel.moments.first_row >= 0) channel.moments.first_row += row;
        for (ResidualTally& tally : residuals)
            if (tally.worst_row >= 0) tally.worst_row += row;
    }
    HeadTally& head(int64_t h) {
        for (auto& [number, tally] : heads)
            if (number == h) return tally;
        return heads.emplace_back(h, HeadTally()).second;
    }
    void merge(const Seen& other) {
        for (int c = 0; c < C::count; ++c) channels[c].merge(other.channels[c]);
        for (int i = 0; i < C::sums; ++i) sums[i] += other.sums[i];
        for (int i = 0; i < C::identities; ++i) residuals[i].merge(other.residuals[i]);
        pair.merge(other.pair);
        for (const auto& [number, tally] : other.heads) head(number).merge(tally);
    }
};

/// How the parts of one launch are watched.
struct Look {
    Tier tier = Tier::Off;
    Fault fault;
    int64_t rows = 0, columns = 0;  // of the matrix that channel 0 observes; columns 0: it is none
    int64_t row_step = 0;           // every so many rows are sampled; 0: none
};

/// The CPU's probe. It notes what lies in memory and goes over it some kilobytes at a time, while that is
/// still in the cache, at full vector width; the kernel's own loop pays for a few integers a row. Values that
/// are kept nowhere are laid aside for it.
template <class Kernel>
class BlockProbe {
    using C = Channels<Kernel>;
    using A = typename C::A;

  public:
    static constexpr bool looks = true;

    BlockProbe(Seen<Kernel>& seen, const Look& look, SampledRows* sample)
        : seen_(seen), look_(look), sample_(sample), breaks_(look.fault.channel >= 0) {}
    BlockProbe(const BlockProbe&) = delete;
    BlockProbe& operator=(const BlockProbe&) = delete;
    ~BlockProbe() {
        for (int c = 0; c < C::count; ++c) {
            flush(c);
            queues_[c].moments.finish(seen_.channels[c].moments);
        }
    }

    HD bool full() const { return look_.tier == Tier::Full; }

    CALLS_HOST_CODE
    template <int N>
    HD Pack<A, N> writes(int, int64_t, At<N>, Pack<A, N> value) {
        return value;
    }
    CALLS_HOST_CODE
    HD void wrote(int channel, int64_t row, int64_t column, A* p, int64_t columns, int64_t rows = 1,
                  int64_t stride = 0) {
        Queue& queue = queues_[channel];
        queue.regions[queue.count++] = {p, stride, row, column, rows, columns};
        queue.values += rows * columns;
        if (breaks_) [[unlikely]]
            break_one(channel, row, column, p, columns, rows, stride);
        if (queue.values >= enough || queue.count == most_regions) [[unlikely]]
            flush(channel);
    }
    /// Of narrower storage, a widened copy is laid aside.
    CALLS_HOST_CODE
    template <class S>
    requires(!std::is_same_v<S, A>) HD void wrote(int channel, int64_t row, int64_t column, S* p,
                                                  int64_t columns, int64_t rows = 1, int64_t stride = 0) {
        if (breaks_) [[unlikely]]
            break_one(channel, row, column, p, columns, rows, stride);
        Queue& queue = queues_[channel];
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t done = 0; done < columns;) {
                if (queue.aside == most_aside || queue.count == most_regions) [[unlikely]]
                    flush(channel);
                const int64_t left = columns - done, room = most_aside - queue.aside;
                const int64_t some = left < room ? left : room;
                A* aside = queue.memory + queue.aside;
                const S* from = p + r * stride + done;
                Lane{}.each(some, [&](auto at) INLINED { store(aside, at, load(from, at)); });
                queue.regions[queue.count++] = {aside, 0, row + r, column + done, 1, some};
                queue.aside += int(some);
                done += some;
            }
        }
    }
    CALLS_HOST_CODE
    template <int N>
    HD Pack<A, N> observe(int channel, int64_t row, At<N> at, Pack<A, N> value) {
        if (breaks_) [[unlikely]]
            value = broken(channel, row, at, value);
        Queue& queue = queues_[channel];
        if (queue.aside + N > most_aside || queue.count == most_regions) [[unlikely]]
            flush(channel);
        A* p = queue.memory + queue.aside;
        store(p, At<N>{0}, value);
        queue.aside += N;
        if (queue.count > 0) {
            Region<A>& last = queue.regions[queue.count - 1];
            if (last.row == row && last.column + last.columns == at.index) {
                last.columns += N;
                return value;
            }
        }
        queue.regions[queue.count++] = {p, 0, row, at.index, 1, N};
        return value;
    }
    CALLS_HOST_CODE
    template <class Branch, class Beside>
    HD void pair(const Branch* branch, int64_t stride, const Beside* beside, int64_t beside_stride,
                 int64_t columns, int64_t rows, A factor = 1) {
        if (!add_pair<A>(branch, stride, beside, beside_stride, columns, rows, factor))
            add_pair<double>(branch, stride, beside, beside_stride, columns, rows, factor);
    }
    HD void sum(int which, double value) { seen_.sums[which] += value; }
    HD void residual(int identity, int64_t row, double value, double scale) {
        seen_.residuals[identity].add(row, value, scale);
    }
    CALLS_HOST_CODE
    HD void query(int64_t head, const QueryStatistics& statistics) {
        seen_.head(head).add(statistics, 1);  // probabilities are kept in the precision of the sum
    }

  private:
    static constexpr int enough = 4096, most_regions = 64, most_aside = 1024;

    struct Queue {
        Region<A> regions[most_regions];
        int count = 0, aside = 0;
        int64_t values = 0;
        RunningMoments<A> moments;
        alignas(64) A memory[most_aside];
    };

    /// Adds up products in S. Returns false, with nothing added, where S might not hold the squares.
    template <class S, class Branch, class Beside>
    bool add_pair(const Branch* branch, int64_t stride, const Beside* beside, int64_t beside_stride,
                  int64_t columns, int64_t rows, A factor) {
        Sum<Lane, S> dot, squares, beside_squares;
        for (int64_t r = 0; r < rows; ++r) {
            Lane{}.each(columns, [&](auto at) {
                const auto v = convert<S>(load(branch + r * stride, at)) * S(factor);
                const auto b = convert<S>(load(beside + r * beside_stride, at));
                dot.add_product(v, b);
                squares.add_product(v, v);
                beside_squares.add_product(b, b);
            });
        }
        const double v2 = double(squares.total()), b2 = double(beside_squares.total());
        if constexpr (sizeof(S) < sizeof(double)) {
            constexpr double least = 0x1p-60, most = std::numeric_limits<S>::max();
            if (!(v2 >= least && b2 >= least && v2 <= most && b2 <= most)) return false;
        }
        seen_.pair.merge({true, double(dot.total()), v2, b2});
        return true;
    }

    template <int N>
    __attribute__((noinline)) Pack<A, N> broken(int channel, int64_t row, At<N> at, Pack<A, N> value) const {
        const Fault& f = look_.fault;
        for (int i = 0; i < N; ++i)
            if (f.hits(channel, row, at.index + i, 1)) value.set(i, f.change.of(value[i]));
        return value;
    }
    template <class S>
    __attribute__((noinline)) void break_one(int channel, int64_t row, int64_t column, S* p, int64_t columns,
                                             int64_t rows, int64_t stride) const {
        const Fault& f = look_.fault;
        for (int64_t r = 0; r < rows; ++r) {
            if (!f.hits(channel, row + r, column, columns)) continue;
            const bool all = f.column == Fault::every;
            for (int64_t c = all ? 0 : f.column - column, end = all ? columns : c + 1; c < end; ++c)
                p[r * stride + c] = S(f.change.of(A(p[r * stride + c])));
        }
    }

    __attribute__((noinline)) void flush(int channel) {
        Queue& queue = queues_[channel];
        Statistics& to = seen_.channels[channel];
        queue.moments.add(queue.regions, queue.count);
        if (to.histogram) look_closely(queue, to);
        queue.count = queue.aside = 0;
        queue.values = 0;
    }

    void look_closely(const Queue& queue, Statistics& to) {
        // The histogram has tables to fill and to add up: rows are gathered for it.
        A gathered[2048];
        int count = 0;
        const auto gather = [&](const A* values, int64_t n) {
            for (int64_t done = 0; done < n;) {
                const int64_t some = n - done < 2048 - count ? n - done : 2048 - count;
                std::copy(values + done, values + done + some, gathered + count);
                done += some, count += int(some);
                if (count == 2048) add_block(gathered, count, *to.histogram), count = 0;
            }
        };
        for (int i = 0; i < queue.count; ++i) {
            const Region<A>& region = queue.regions[i];
            for (int64_t r = 0; r < region.rows; ++r) {
                const A* values = region.p + r * region.stride;
                gather(values, region.columns);
                if (!to.columns) continue;
                to.columns->add(region.column, values, region.columns);
                const int64_t row = region.row + r;
                if (!sample_ || row % look_.row_step != 0) continue;
                std::copy(values, values + region.columns,
                          sample_->values.data() + row / look_.row_step * sample_->columns + region.column);
            }
        }
        if (count > 0) add_block(gathered, count, *to.histogram);
    }

    Seen<Kernel>& seen_;
    const Look& look_;
    SampledRows* sample_;
    bool breaks_;
    Queue queues_[C::count];
};

/// Hands out a probe for each part of a kernel's work.
template <class Kernel>
class Watch {
    using C = Channels<Kernel>;

  public:
    Watch(int64_t parts, const Look& look) : look_(look), seen_(size_t(larger<int64_t>(parts, 1))) {
        if (look_.tier != Tier::Full) return;
        const bool matrix = look_.columns > 0;
        for (Seen<Kernel>& s : seen_) {
            for (Statistics& channel : s.channels) channel.histogram = std::make_unique<Histogram>();
            if (matrix) s.channels[0].columns = std::make_unique<Columns>();
        }
        if (matrix && look_.row_step > 0) {
            sample_ = std::make_unique<SampledRows>();
            sample_->rows = (look_.rows + look_.row_step - 1) / look_.row_step;
            sample_->columns = look_.columns;
            sample_->values.resize(size_t(sample_->rows * sample_->columns));
        }
    }

    BlockProbe<Kernel> probe(int64_t part) {
        return BlockProbe<Kernel>(seen_[size_t(part)], look_, sample_.get());
    }

    /// Everything that was seen; the watch is used up.
    Seen<Kernel> total() {
        Seen<Kernel> all = std::move(seen_[0]);
        for (size_t i = 1; i < seen_.size(); ++i) all.merge(seen_[i]);
        all.channels[0].sample = std::move(sample_);
        return all;
    }

  private:
    Look look_;
    std::vector<Seen<Kernel>> seen_;  // [parts]
    std::unique_ptr<SampledRows> sample_;
};

}  // namespace wobble
