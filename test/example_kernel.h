// A kernel that exists to be observed, and what a probe that watches it must have seen.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "probes/watch.h"

namespace wobble {

/// A kernel that exists to be observed: a channel that it stores, one that only passes, one value of each
/// row, and one of everything else that a probe can be shown.
template <class T>
struct Example {
    using Element = T;
    static constexpr const char* name = "example";
    enum Channel { Stored, Passing, Single };
    static constexpr const char* channels[] = {"stored", "passing", "single"};
    enum Sums { First, Second };
    static constexpr const char* sums[2] = {"first", "second"};
    enum Identity { Left, Right };
    static constexpr const char* identities[2] = {"left", "right"};
    using ObservesPair = void;
    using ObservesHeads = void;
};

inline Look at_tier(Tier tier) {
    Look look;
    look.tier = tier;
    return look;
}

template <class A>
struct Expected {
    std::vector<A> values;
    std::pair<int64_t, int64_t> first = {-1, -1};  // row and column of the first that is not finite

    void add(int64_t row, int64_t column, A value) {
        if (!std::isfinite(value) && first.first < 0) first = {row, column};
        values.push_back(value);
    }
};

template <int N, class A>
bool same_bits(Pack<A, N> a, Pack<A, N> b) {
    for (int i = 0; i < N; ++i) {
        const A x = a[i], y = b[i];
        if (std::memcmp(&x, &y, sizeof x) != 0) return false;
    }
    return true;
}

/// Shows rows of `columns` values to a probe as kernels do: packs, then single values, once on their way to
/// `memory`, once in passing; and after each row one more value. So the three fill up at different times.
template <class A, class Probe>
void show(Probe& probe, std::vector<A>& memory, int64_t rows, int64_t first_row, int64_t columns,
          std::vector<A> specials, Expected<A> (&expected)[3]) {
    using Kernel = Example<A>;
    std::mt19937_64 generator{uint64_t(first_row)};
    std::normal_distribution<double> distribution(3, 1);
    size_t special = 0;
    memory.assign(size_t(rows * columns), A(0));
    for (int64_t row = first_row; row < first_row + rows; ++row) {
        A* line = memory.data() + (row - first_row) * columns;
        const auto next = [&](int64_t column) {
            // One in each row, from column 15 + row on.
            const bool is_special = column == 15 + row && special < specials.size();
            return is_special ? specials[special++] : A(distribution(generator));
        };
        Lane{}.each(columns, [&](auto at) {
            constexpr int N = decltype(at)::width;
            const auto pack = generate<A, N>([&](int i) { return next(at.index + i); });
            const auto stored = probe.writes(Kernel::Stored, row, at, pack);
            EXPECT_TRUE(same_bits(stored, pack));
            store(line, at, stored);
            EXPECT_TRUE(same_bits(probe.observe(Kernel::Passing, row, at, pack), pack));
            for (int i = 0; i < N; ++i) {
                for (int channel : {Kernel::Stored, Kernel::Passing})
                    expected[channel].add(row, at.index + i, pack[i]);
            }
        });
        probe.wrote(Kernel::Stored, row, 0, line, columns);
        probe.observe(Kernel::Single, row, At<1>{7}, splat<1>(A(row)));
        expected[Kernel::Single].add(row, 7, A(row));
    }
}

}  // namespace wobble
