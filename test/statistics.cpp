// Statistics of parts, merged, are those of the whole.
#include "probes/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "probes/block_statistics.h"
#include "test/exact_moments.h"
#include "test/number_series.h"

namespace wobble {
namespace {

constexpr int lengths[] = {0, 1, 2, 15, 16, 17, 100, 1000, 1024};

TEST(Moments, AddedOneByOneAreThoseOfTheValues) {
    for (int n : lengths) {
        for (double mean : {0.0, 1000.0, -1e6}) {
            SCOPED_TRACE(testing::Message() << n << " values, mean " << mean);
            for (const auto& values : {normal<double>(n, mean, 1), exponential_from<double>(n, mean)})
                expect_moments(one_by_one(values), values, Rounding::values(size_t(n)));
        }
        const Values<double> constant(size_t(n), 0.1);
        expect_moments(one_by_one(constant), constant, Rounding::values(size_t(n)));
    }
}

TEST(Moments, MergedFromAnySplitAreThoseOfTheWhole) {
    for (double mean : {0.0, 1000.0, -1e6}) {
        auto values = exponential_from<double>(300, mean);
        values[140] = -INFINITY, values[151] = NAN, values[20] = 0, values[299] = -0.0;
        for (size_t first :
             {size_t(0), size_t(1), size_t(20), size_t(141), size_t(150), size_t(299), size_t(300)}) {
            for (size_t second : {first, (first + 300) / 2, size_t(300)}) {
                SCOPED_TRACE(testing::Message() << "split at " << first << " and " << second);
                Moments merged = one_by_one(values, 0, first);
                merged.merge(one_by_one(values, first, second));
                merged.merge(one_by_one(values, second));
                expect_moments(merged, values, Rounding::values(values.size()));
                EXPECT_EQ(merged.first_column, 140);
            }
        }
    }
}

TEST(Moments, MergedFromTwoConstantPartsKnowTheirDistance) {
    Moments m = one_by_one<double>({0, 0});
    m.merge(one_by_one<double>({2, 2}));
    EXPECT_EQ(m.count, 4);
    EXPECT_EQ(m.mean, 1);
    EXPECT_EQ(m.variance(), 1);
    EXPECT_EQ(m.rms(), std::sqrt(2.0));
    EXPECT_EQ(m.skew(), 0);
    EXPECT_EQ(m.kurtosis(), 1);
    EXPECT_EQ(m.zeros, 2);
}

TEST(Moments, OfAFewNumbersAreWhatTheyAre) {
    const Moments m = one_by_one<double>({3, -1, 4, 2});  // deviations 1, -3, 2, 0
    EXPECT_EQ(m.mean, 2);
    EXPECT_NEAR(m.m2, 14, 14 * 16 * 0x1p-53);
    EXPECT_NEAR(m.m3, -18, 36 * 64 * 0x1p-53);
    EXPECT_NEAR(m.m4, 98, 98 * 64 * 0x1p-53);
    EXPECT_EQ(m.min, -1);
    EXPECT_EQ(m.absmax(), 4);
}

bool same(const Moments& a, const Moments& b) {
    return a.count == b.count && a.zeros == b.zeros && a.subnormals == b.subnormals && a.nans == b.nans &&
           a.positive_infinities == b.positive_infinities && a.negative_infinities == b.negative_infinities &&
           a.mean == b.mean && a.m2 == b.m2 && a.m3 == b.m3 && a.m4 == b.m4 && a.min == b.min &&
           a.max == b.max && a.first_row == b.first_row && a.first_column == b.first_column;
}

TEST(Moments, OfNothingChangeNothing) {
    for (const Values<double>& values : {Values<double>{}, {1, 2, 4}, {NAN}, {1, NAN, 3}, {0, INFINITY}}) {
        const Moments m = one_by_one(values);
        Moments before, after = m;
        before.merge(m);
        after.merge(Moments());
        EXPECT_TRUE(same(before, m));
        EXPECT_TRUE(same(after, m));
    }
}

TEST(Moments, OfPartsWithoutFiniteValuesAddTheirCountsAlone) {
    const Moments some = one_by_one<double>({1, 2, 4});
    const Moments bad = one_by_one<double>({NAN, -INFINITY});
    for (bool bad_first : {false, true}) {
        Moments m = bad_first ? bad : some;
        m.merge(bad_first ? some : bad);
        EXPECT_EQ(m.nans, 1);
        EXPECT_EQ(m.negative_infinities, 1);
        EXPECT_EQ(m.first_column, 0);
        m.nans = m.negative_infinities = 0, m.first_row = m.first_column = -1;
        EXPECT_TRUE(same(m, some));
    }
    Moments twice = bad;
    twice.merge(bad);
    EXPECT_EQ(twice.nonfinite(), 4);
    EXPECT_EQ(twice.count, 0);
    EXPECT_EQ(twice.mean, 0);
}

TEST(Moments, TellTheFirstPositionOfTheEarlierPart) {
    Moments earlier, later;
    earlier.add(1, 7, 1, 0), earlier.add(NAN, 7, 2, 0), earlier.add(INFINITY, 7, 3, 0);
    later.add(-INFINITY, 1, 0, 0);
    Moments m = earlier;
    m.merge(later);
    EXPECT_EQ(std::pair(m.first_row, m.first_column), std::pair(int64_t(7), int64_t(2)));
    later.merge(earlier);
    EXPECT_EQ(std::pair(later.first_row, later.first_column), std::pair(int64_t(1), int64_t(0)));
}

// --------------------------------------------------------------------------------------------------- columns

/// A matrix of small whole numbers, whose sums are exact.
int value_at(int64_t row, int64_t column) {
    return int(row * 7 + column * 3) % 11 - 5;
}

/// Adds `rows` rows from column `first` to before `last`.
template <class T>
void add_rows(Columns& columns, int64_t begin, int64_t end, int64_t first, int64_t last) {
    for (int64_t row = begin; row < end; ++row) {
        Values<T> values;
        for (int64_t c = first; c < last; ++c) values.push_back(T(value_at(row, c)));
        columns.add(first, values.data(), last - first);
    }
}

/// Fails where `columns` is not about rows [begin, end), columns [first, last).
void expect_columns(const Columns& columns, int64_t begin, int64_t end, int64_t first, int64_t last) {
    ASSERT_EQ(columns.first, first);
    ASSERT_EQ(columns.sizes.size(), size_t(last - first));
    ASSERT_EQ(columns.squares.size(), size_t(last - first));
    for (int64_t c = first; c < last; ++c) {
        int size = 0, square = 0;
        for (int64_t row = begin; row < end; ++row)
            size += std::abs(value_at(row, c)), square += value_at(row, c) * value_at(row, c);
        EXPECT_EQ(columns.sizes[size_t(c - first)], size) << c;
        EXPECT_EQ(columns.squares[size_t(c - first)], square) << c;
    }
}

TEST(Columns, AreSumsOverTheRowsOfEach) {
    Columns floats, doubles;
    add_rows<float>(floats, 0, 9, 3, 20);
    add_rows<double>(doubles, 0, 9, 3, 20);
    expect_columns(floats, 0, 9, 3, 20);
    expect_columns(doubles, 0, 9, 3, 20);
}

TEST(Columns, MayBeSeenInPiecesOfRowsInAnyOrder) {
    Columns columns;
    for (int64_t row = 0; row < 5; ++row) {
        add_rows<float>(columns, row, row + 1, 8, 16);
        add_rows<float>(columns, row, row + 1, 20, 21);
        add_rows<float>(columns, row, row + 1, 0, 8);
        add_rows<float>(columns, row, row + 1, 16, 20);
    }
    expect_columns(columns, 0, 5, 0, 21);
}

TEST(Columns, OfPartsThatSawOthersMergeToThoseOfTheWhole) {
    // Tiles of a matrix of 12 × 40, as the tasks of a product see them, in every order.
    struct Tile {
        int64_t begin, end, first, last;
    };
    std::vector<Tile> tiles{{0, 5, 0, 16}, {0, 5, 16, 40}, {5, 12, 0, 7}, {5, 12, 7, 40}};
    std::vector<int> order{0, 1, 2, 3};
    do {
        Columns merged;
        merged.merge(Columns());
        for (int i : order) {
            Columns part;
            const Tile& t = tiles[size_t(i)];
            add_rows<float>(part, t.begin, t.end, t.first, t.last);
            merged.merge(part);
        }
        merged.merge(Columns());
        expect_columns(merged, 0, 12, 0, 40);
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Columns, ThatNobodySawBetweenTwoPartsAreZero) {
    Columns left, right;
    add_rows<float>(left, 0, 3, 2, 4);
    add_rows<float>(right, 0, 3, 7, 9);
    right.merge(left);
    ASSERT_EQ(right.first, 2);
    ASSERT_EQ(right.sizes.size(), 7u);
    for (size_t i : {2, 3, 4}) EXPECT_EQ(right.sizes[i], 0);
    EXPECT_EQ(right.sizes[0], left.sizes[0]);
    EXPECT_EQ(right.squares[1], left.squares[1]);
}

TEST(Columns, OfHugeAndTinyFloatsAndOfNonFiniteOnesAreWhatTheyAre) {
    Columns columns;
    const float values[] = {1e38f, 1e-45f, NAN, -INFINITY, -0.0f};
    columns.add(0, values, 5);
    columns.add(0, values, 5);
    EXPECT_EQ(columns.squares[0], 2 * double(1e38f) * double(1e38f));
    EXPECT_EQ(columns.squares[1], 2 * double(1e-45f) * double(1e-45f));
    EXPECT_TRUE(std::isnan(columns.sizes[2]) && std::isnan(columns.squares[2]));
    EXPECT_EQ(columns.sizes[3], INFINITY);
    EXPECT_EQ(columns.sizes[4], 0);
}

TEST(Statistics, MergeWhatBothHave) {
    const Values<double> one{1, 2}, two{4};
    const auto of = [](const Values<double>& values, bool all) {
        Statistics s;
        s.moments = one_by_one(values);
        if (!all) return s;
        s.histogram = std::make_unique<Histogram>();
        add_block(values.data(), int(values.size()), *s.histogram);
        s.columns = std::make_unique<Columns>();
        for (double x : values) s.columns->add(0, &x, 1);
        return s;
    };
    Statistics full = of(one, true), moments = of(one, false);
    full.merge(of(two, true));
    moments.merge(of(two, true));
    EXPECT_EQ(full.moments.count, 3);
    EXPECT_EQ(full.histogram->by_exponent[size_t(2 - Histogram::lowest)], 1u);
    EXPECT_EQ(full.columns->squares[0], 21);
    EXPECT_EQ(moments.moments.count, 3);
    EXPECT_EQ(moments.histogram, nullptr);
    full.merge(of(two, false));
    EXPECT_EQ(full.moments.count, 4);
    EXPECT_EQ(full.columns->squares[0], 21);
}

}  // namespace
}  // namespace wobble
