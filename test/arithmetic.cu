// The arithmetic under the kernels: packs, sums over a lane, the exponential, and the helpers that turn sizes
// into offsets.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/rows.h"
#include "kernels/team.h"

namespace wobble {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// A pack of f(i). (`generate` is for device code as well, which a lambda of the host is not.)
template <class T, int N, class F>
Pack<T, N> pack_of(F f) {
    Pack<T, N> pack;
    for (int i = 0; i < N; ++i) pack.set(i, T(f(i)));
    return pack;
}

/// How many floats lie between two; NaN equals NaN.
int64_t distance(float a, float b) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b) ? 0 : INT64_MAX;
    const auto ordered = [](float x) {
        const int32_t bits = std::bit_cast<int32_t>(x);
        return bits < 0 ? int64_t(INT32_MIN) - bits : int64_t(bits);
    };
    return std::abs(ordered(a) - ordered(b));
}

// -------------------------------------------------------------------------------------------------- bfloat16

/// The nearest of the two bfloat16 numbers around x, of equally near ones that with an even last bit; beyond
/// the largest lies 2^128, which is infinity.
float nearest_bfloat16(float x) {
    if (!std::isfinite(x)) return x;
    const uint32_t below = std::bit_cast<uint32_t>(std::abs(x)) & 0xffff0000u, above = below + 0x10000u;
    const double low = double(std::bit_cast<float>(below)),
                 high = above == 0x7f800000u ? 0x1p128 : double(std::bit_cast<float>(above));
    const double down = std::abs(double(x)) - low, up = high - std::abs(double(x));
    const bool takes_low = down < up || (down == up && (below >> 16) % 2 == 0);
    return std::copysign(std::bit_cast<float>(takes_low ? below : above), x);
}

// Every 509th float, subnormal, infinite and NaN ones among them, and every tie near 1; alone and in packs.
TEST(Arithmetic, Bfloat16RoundsToTheNearestAloneAndInPacks) {
    std::vector<float> all;
    for (uint64_t bits = 0; bits < (uint64_t(1) << 32); bits += 509)
        all.push_back(std::bit_cast<float>(uint32_t(bits)));
    for (uint32_t bits = 0x3f808000u; bits < 0x40008000u; bits += 0x8000u)
        all.push_back(std::bit_cast<float>(bits));
    all.resize(all.size() / 16 * 16);
    int64_t wrong = 0;
    for (size_t i = 0; i < all.size(); i += 16) {
        Pack<float, 16> x;
        for (int j = 0; j < 16; ++j) x.set(j, all[i + size_t(j)]);
        bf16 stored[16];
        store(stored, At<16>{0}, x);
        const auto back = load(stored, At<16>{0});
        for (int j = 0; j < 16; ++j) {
            const float expected = nearest_bfloat16(x[j]), alone = float(bf16(x[j]));
            if (std::isnan(expected)) wrong += !std::isnan(alone) + !std::isnan(back[j]);
            else
                wrong += (alone != expected) + (back[j] != expected) +
                         (std::signbit(alone) != std::signbit(expected));
            wrong += bf16(alone).bits != stored[j].bits;
        }
    }
    EXPECT_EQ(wrong, 0);
}

// ----------------------------------------------------------------------------------------------- exponential

// Not inlined, so that sanitized builds compile it once.
__attribute__((noinline)) Pack<float, 16> exponentials(Pack<float, 16> x) {
    return exponential(x);
}
__attribute__((noinline)) float exponential_of(float x) {
    return exponential(x);
}

// Every 1009th float, positive, negative, subnormal, infinite and NaN; each in a pack and alone.
TEST(Arithmetic, ExponentialIsWithinOneUlpOverTheWholeRange) {
    int64_t worst = 0, worst_alone = 0;
    float at = 0;
    for (uint64_t bits = 0; bits < (uint64_t(1) << 32); bits += 16 * 1009) {
        Pack<float, 16> x;
        for (int i = 0; i < 16; ++i) x.set(i, std::bit_cast<float>(uint32_t(bits + uint64_t(i) * 1009)));
        const auto y = exponentials(x);
        for (int i = 0; i < 16; ++i) {
            const float exact = float(std::exp(double(x[i])));
            if (distance(y[i], exact) > worst) worst = distance(y[i], exact), at = x[i];
            worst_alone = std::max(worst_alone, distance(exponential_of(x[i]), exact));
        }
    }
    EXPECT_LE(worst, 1) << "at " << at;
    EXPECT_LE(worst_alone, 1);
}

TEST(Arithmetic, ExponentialHasItsLimits) {
    EXPECT_EQ(exponential_of(0.0f), 1);
    EXPECT_EQ(exponential_of(-0.0f), 1);
    EXPECT_EQ(exponential_of(-infinity), 0);
    EXPECT_EQ(exponential_of(infinity), infinity);
    EXPECT_TRUE(std::isnan(exponential_of(nan)));
    EXPECT_EQ(exponential_of(-104.0f), 0);
    EXPECT_EQ(exponential_of(89.0f), infinity);
    EXPECT_GT(exponential_of(-103.0f), 0) << "the smallest results are subnormal";
    EXPECT_LT(exponential_of(88.7f), infinity);
    EXPECT_TRUE(std::isnan(exponential(std::nan(""))));
}

// ----------------------------------------------------------------------------------------------------- packs
TEST(Arithmetic, PacksComputeElementByElement) {
    const auto a = pack_of<float, 16>([](int i) { return i - 5; });
    const auto b = pack_of<float, 16>([](int i) { return i * i + 1; });
    for (int i = 0; i < 16; ++i) {
        EXPECT_EQ((a + b)[i], a[i] + b[i]);
        EXPECT_EQ((a - b)[i], a[i] - b[i]);
        EXPECT_EQ((a * b)[i], a[i] * b[i]);
        EXPECT_EQ((a / b)[i], a[i] / b[i]);
        EXPECT_EQ((2.0f / b)[i], 2 / b[i]);
        EXPECT_EQ((a - 2.0f)[i], a[i] - 2);
        EXPECT_EQ(where_less(a, b, a, b)[i], a[i] < b[i] ? a[i] : b[i]);
        EXPECT_EQ(square_root(b)[i], std::sqrt(b[i]));
        EXPECT_EQ(hold(a, -2.0f, 3.0f)[i], std::min(std::max(a[i], -2.0f), 3.0f));
    }
}

TEST(Arithmetic, MagnitudesDropTheSignAndKeepNan) {
    const auto x = pack_of<float, 16>([](int i) { return i - 5.5; });
    for (int i = 0; i < 16; ++i) EXPECT_EQ(magnitude(x)[i], std::abs(x[i]));
    EXPECT_EQ(magnitude(splat<16>(-infinity))[3], infinity);
    EXPECT_EQ(magnitude(splat<16>(-0.0f))[3], 0);
    EXPECT_TRUE(std::isnan(magnitude(splat<16>(nan))[3]));
    EXPECT_TRUE(std::isnan(magnitude(splat<16>(-nan))[3]));
}

// Every 1009th normal float of a magnitude whose multiple is finite, and every one halfway between two
// numbers of bfloat16.
TEST(Arithmetic, RoundsToBf16AsIntegersDo) {
    const auto expect = [](uint32_t bits) {
        const float x = std::bit_cast<float>(bits);
        for (float signed_x : {x, -x}) {
            const float rounded = rounded_to_bf16(splat<1>(signed_x))[0];
            if (rounded != nearest_bfloat16(signed_x)) ADD_FAILURE() << signed_x << " became " << rounded;
        }
    };
    for (uint32_t bits = 0x00800000; bits < 0x77000000; bits += 1009) expect(bits);
    for (uint32_t bits = 0x00808000; bits < 0x77000000; bits += 0x10000) expect(bits);
    EXPECT_EQ(rounded_to_bf16(splat<16>(1 + 0x1p-8))[5], 1.0);
    EXPECT_EQ(rounded_to_bf16(splat<16>(1 + 0x1.8p-7))[5], 1 + 0x1p-6);
    EXPECT_EQ(rounded_to_bf16(splat<16>(-1 - 0x1.0001p-8))[5], -1 - 0x1p-7);
    EXPECT_EQ(rounded_to_bf16(splat<16>(0.0))[5], 0.0);
}

TEST(Arithmetic, SplatKeepsTheSignOfZeroAndNan) {
    EXPECT_TRUE(std::signbit(splat<16>(-0.0f)[7]));
    EXPECT_FALSE(std::signbit(splat<16>(0.0f)[7]));
    EXPECT_TRUE(std::isnan(splat<16>(nan)[7]));
    EXPECT_EQ(splat<16>(-infinity)[15], -infinity);
}

TEST(Arithmetic, LoadAndStoreNeedNoAlignmentAndTouchNothingElse) {
    std::array<float, 40> from{}, to{};
    for (size_t i = 0; i < from.size(); ++i) from[i] = float(i);
    store(to.data(), At<16>{3}, load(from.data(), At<16>{5}));
    store(to.data(), At<1>{21}, load(from.data(), At<1>{39}));
    for (size_t i = 0; i < to.size(); ++i)
        EXPECT_EQ(to[i], i == 21 ? 39 : i >= 3 && i < 19 ? float(i + 2) : 0) << i;
}

TEST(Arithmetic, ComparisonsPassOverNanAndHoldKeepsIt) {
    EXPECT_EQ(larger(1.0f, nan), 1);
    EXPECT_EQ(larger(splat<16>(1.0f), splat<16>(nan))[3], 1);
    EXPECT_EQ(where_less(splat<16>(nan), splat<16>(1.0f), splat<16>(2.0f), splat<16>(3.0f))[3], 3);
    EXPECT_TRUE(std::isnan(hold(splat<16>(nan), -1.0f, 1.0f)[3]));
    EXPECT_TRUE(std::isnan(square_root(splat<16>(-1.0f))[3]));
}

// ------------------------------------------------------------------------------------------------------ lane
TEST(Arithmetic, ALaneVisitsEveryElementOnce) {
    for (int64_t n = 0; n <= 70; ++n) {
        std::vector<int> visits(size_t(n), 0);
        Sum<Lane, double> sum;
        Largest<Lane, double> largest;
        Lane{}.each(n, [&](auto at) {
            for (int i = 0; i < at.width; ++i) ++visits[size_t(at.index + i)];
            const auto value = pack_of<double, at.width>([&](int i) { return at.index + i + 1; });
            sum += value;
            largest.take(value);
        });
        EXPECT_EQ(visits, std::vector<int>(size_t(n), 1));
        EXPECT_EQ(Lane{}.sum(sum), double(n * (n + 1) / 2));
        EXPECT_EQ(Lane{}.maximum(largest), n == 0 ? -INFINITY : double(n));
    }
}

TEST(Arithmetic, SumsShowNanWhereverItIsAndMaximaPassOverIt) {
    for (int64_t n : {1, 16, 37}) {
        for (int64_t bad = 0; bad < n; ++bad) {
            std::vector<float> x(size_t(n), -2.0f);
            x[size_t(bad)] = nan;
            Sum<Lane, float> sum;
            Largest<Lane, float> largest;
            Lane{}.each(n, [&](auto at) { sum += load(x.data(), at), largest.take(load(x.data(), at)); });
            EXPECT_TRUE(std::isnan(sum.total()));
            EXPECT_EQ(largest.total(), n == 1 ? -infinity : -2);
        }
    }
}

// -------------------------------------------------------------------------------------------- sizes, offsets
using Wide = __int128;
constexpr int64_t huge = int64_t(1) << 33;

TEST(Offsets, ChunksCoverTheRowsOnceInOrder) {
    for (int64_t rows :
         {int64_t(1), int64_t(2), int64_t(63), int64_t(64), int64_t(65), int64_t(1000), huge, huge + 7}) {
        int64_t next = 0, shortest = rows, longest = 0;
        for (int64_t chunk = 0; chunk < chunk_count(rows); ++chunk) {
            const Range range = chunk_rows(chunk, rows);
            EXPECT_EQ(range.begin, next);
            EXPECT_EQ(Wide(range.begin), Wide(chunk) * rows / chunk_count(rows));
            next = range.end;
            shortest = std::min(shortest, range.end - range.begin);
            longest = std::max(longest, range.end - range.begin);
        }
        EXPECT_EQ(next, rows);
        EXPECT_GE(shortest, 1);
        EXPECT_LE(longest - shortest, 1);
    }
    EXPECT_EQ(chunk_count(0), 0);
}

TEST(Offsets, FlatRowsCoverTheArray) {
    for (int64_t n : {int64_t(1), flat_row - 1, flat_row, flat_row + 1, huge, huge + 5}) {
        const int64_t rows = flat_rows(n);
        EXPECT_EQ(Wide(rows - 1) * flat_row + flat_row_length(rows - 1, n), Wide(n));
        EXPECT_GE(flat_row_length(rows - 1, n), 1);
        EXPECT_EQ(flat_row_length(0, n), std::min(n, flat_row));
    }
    EXPECT_EQ(flat_rows(0), 0);
}

TEST(Offsets, AttentionOffsetsDoNotOverflow) {
    // 3 · 2^33 · 96 elements and more.
    const AttentionShape shape{
        .batch = 9, .sequence = int64_t(1) << 30, .heads = 12, .head_size = 8, .queries = 1 << 20};
    for (int64_t b : {int64_t(0), shape.batch - 1}) {
        for (int64_t t : {int64_t(0), shape.sequence - 1}) {
            for (int64_t h : {int64_t(0), shape.heads - 1}) {
                for (int part : {0, 1, 2}) {
                    const Wide expected = ((Wide(b) * shape.sequence + t) * 3 + part) * 96 + h * 8;
                    EXPECT_EQ(Wide(shape.qkv(b, t, h, part)), expected);
                }
            }
        }
    }
    const AttentionShape::Row last = shape.row(shape.rows() - 1);
    EXPECT_EQ(last.b, shape.batch - 1);
    EXPECT_EQ(last.t, shape.sequence - 1);
    EXPECT_EQ(last.h, shape.heads - 1);
    EXPECT_EQ(Wide(last.out), Wide(shape.batch) * shape.queries * 96 - 8);
    EXPECT_EQ(Wide(last.statistic), Wide(shape.batch) * shape.heads * shape.queries - 1);
}

}  // namespace
}  // namespace wobble
