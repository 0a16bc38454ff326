// What a recorder says of attention's heads, where it is known exactly: uniform, one-hot and tied logits, the
// first key's share, saturation; and on random logits by a float64 reference. In both texts, row by row and
// in blocks, and in both precisions.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "kernels/attention_blocks.h"
#include "probes/launch.h"
#include "test/tallies.h"

namespace wobble::test {
namespace {

/// Heads whose logits are chosen: head size 1 and all keys' own, s_ij = q(i) k(j); q and k are given position
/// and head.
struct Chosen {
    int64_t length, heads = 1;
    std::function<double(int64_t, int64_t)> q = [](int64_t, int64_t) { return 1.0; };
    std::function<double(int64_t, int64_t)> k;
};

template <class T>
std::vector<T> chosen_qkv(const Chosen& c) {
    std::vector<T> qkv;
    for (int64_t t = 0; t < c.length; ++t) {
        for (int64_t h = 0; h < c.heads; ++h) qkv.push_back(T(c.q(t, h)));
        for (int64_t h = 0; h < c.heads; ++h) qkv.push_back(T(c.k(t, h)));
        for (int64_t h = 0; h < c.heads; ++h) qkv.push_back(T(0.5));
    }
    return qkv;
}

template <class T>
void attend(Context& context, const T* qkv, const AttentionShape& shape, bool blocks) {
    std::vector<T> out(size_t(shape.rows() * shape.head_size)), lse(size_t(shape.rows()));
    const AttentionForward<T> kernel{.qkv = qkv, .out = out.data(), .lse = lse.data(), .shape = shape};
    if (blocks) launch(context, kernel, {"attn"});
    else launch(context, shape.rows(), kernel, {"attn"});
}

template <class T>
std::vector<HeadRow> heads_of(const std::vector<T>& qkv, const AttentionShape& shape, bool blocks) {
    Recorder recorder{ProbePlan("moments")};
    Context context(1);
    context.recorder = &recorder;
    attend(context, qkv.data(), shape, blocks);
    return recorder.take().heads;
}

/// check(heads, unit) of the chosen logits, in both texts and precisions.
void for_all(const Chosen& c, const std::function<void(const std::vector<HeadRow>&, double)>& check) {
    const AttentionShape shape{1, c.length, c.heads, 1, c.length};
    for (bool blocks : {false, true}) {
        SCOPED_TRACE(blocks ? "in blocks" : "row by row");
        check(heads_of(chosen_qkv<float>(c), shape, blocks), 0x1p-24);
        check(heads_of(chosen_qkv<double>(c), shape, blocks), 0x1p-53);
    }
}

/// Of n equal terms, or of n sums of such: what their roundings may add up to.
double rounding(int64_t n, double unit) {
    return (8 + std::sqrt(double(n))) * (1 + std::log(double(n))) * unit;
}

TEST(AttentionHeads, AreUniformWhereQueriesAreZero) {
    const std::pair<int64_t, double> cases[] = {{64, 3.2058}, {256, 4.5596}};
    for (const auto& [length, published] : cases) {
        const auto zero = [](int64_t, int64_t) { return 0.0; };
        const auto any = [](int64_t t, int64_t h) { return double(t * 7 % 11 + h); };
        // Query i has entropy log i, counted from 1: the mean is log(T!) / T. The first key's share is 1 / i.
        const double mean = std::lgamma(double(length) + 1) / double(length);
        EXPECT_NEAR(mean, published, 5e-5);
        double harmonic = 0;
        for (int64_t i = 1; i <= length; ++i) harmonic += 1 / double(i);
        for_all({.length = length, .heads = 3, .q = zero, .k = any},
                [&](const std::vector<HeadRow>& heads, double unit) {
                    ASSERT_EQ(heads.size(), 3u);
                    for (const HeadRow& head : heads) {
                        EXPECT_NEAR(head.entropy, published, 5e-5);
                        EXPECT_NEAR(head.entropy, mean, rounding(length, unit));
                        EXPECT_NEAR(head.entropy_min, std::log(2.0), rounding(2, unit));
                        EXPECT_NEAR(head.sink, harmonic / double(length), rounding(length, unit));
                        EXPECT_EQ(head.max_logit, 0);
                        EXPECT_EQ(head.abs_logit, 0);
                        EXPECT_EQ(head.ties, 1);
                        EXPECT_EQ(head.saturated, 0);
                    }
                });
    }
}

TEST(AttentionHeads, HaveNoEntropyWhereOneKeyHasItAll) {
    // The one key is the first in head 0, the latest in head 1 (each outdoes the ones before it).
    const auto k = [](int64_t t, int64_t h) { return h == 0 ? (t == 0 ? 2000.0 : 0.0) : 2000.0 * double(t); };
    for_all({.length = 70, .heads = 2, .k = k}, [](const std::vector<HeadRow>& heads, double) {
        ASSERT_EQ(heads.size(), 2u);
        for (const HeadRow& head : heads) {
            EXPECT_EQ(head.entropy, 0);
            EXPECT_EQ(head.entropy_min, 0);
            EXPECT_EQ(head.ties, 0);
            EXPECT_EQ(head.saturated, 1);
        }
        EXPECT_EQ(heads[0].sink, 1);
        EXPECT_EQ(heads[1].sink, 1 / 70.0) << "query 0 has no other key";
        EXPECT_EQ(heads[0].max_logit, 2000);
        EXPECT_EQ(heads[1].max_logit, 2000 * 69);
    });
}

// All but e^-20 of the probability on one key: log-sum-exp less the mean logit would leave nothing of this in
// float32, where 20 is known to 2e-6.
TEST(AttentionHeads, KeepTheSmallEntropyOfACollapsedHead) {
    const auto k = [](int64_t t, int64_t) { return t == 0 ? 20.0 : 0.0; };
    for_all({.length = 2, .k = k}, [](const std::vector<HeadRow>& heads, double unit) {
        const double rest = std::exp(-20.0), l = 1 + rest, exact = std::log1p(rest) + 20 * rest / l;
        EXPECT_NEAR(heads[0].entropy_min, exact, std::min(unit, rest)) << "the sum itself rounds to 1";
        EXPECT_GT(heads[0].entropy_min, 0.9 * exact);
    });
}

TEST(AttentionHeads, KnowTwoEqualMaximaAtLogitsOfAMillion) {
    const int64_t length = 100;
    // The two stand first in head 0 and are met last in head 1, beyond a block and after lower maxima.
    const auto k = [=](int64_t t, int64_t h) {
        const bool largest = h == 0 ? t < 2 : t >= length - 2;
        return largest ? 1e6 : 1e3 * double(t % 17);
    };
    for_all({.length = length, .heads = 2, .k = k}, [=](const std::vector<HeadRow>& heads, double unit) {
        ASSERT_EQ(heads.size(), 2u);
        EXPECT_NEAR(heads[0].entropy_min, std::log(2.0), 1e-6);
        EXPECT_NEAR(heads[0].entropy * double(length) / double(length - 1), std::log(2.0), 1e-6);
        EXPECT_EQ(heads[0].ties, 1);
        EXPECT_EQ(heads[0].saturated, 0);
        EXPECT_NEAR(heads[0].sink, (1 + 0.5 * double(length - 1)) / double(length), 2 * unit);
        EXPECT_EQ(heads[0].max_logit, 1e6);
        EXPECT_EQ(heads[0].abs_logit, 1e6);
        EXPECT_EQ(heads[1].max_logit, 1e6);
        // Logits below repeat from the eighteenth key on, so that later queries tie too.
        int64_t ties = 1;
        for (int64_t t = 1; t < length - 2; ++t) ties += t % 17 == 16 ? t > 16 : t > 16 + 16;
        EXPECT_EQ(heads[1].ties * double(length - 1), double(ties));
    });
}

TEST(AttentionHeads, SayHowMuchTheFirstKeyTakes) {
    // p_0 = 3 / (3 + i) for the query with i keys after the first.
    const int64_t length = 60;
    const auto k = [](int64_t t, int64_t) { return t == 0 ? std::log(3.0) : 0.0; };
    double expected = 0;
    for (int64_t i = 0; i < length; ++i) expected += 3 / (3 + double(i)) / double(length);
    for_all({.length = length, .k = k}, [=](const std::vector<HeadRow>& heads, double unit) {
        EXPECT_NEAR(heads[0].sink, expected, rounding(length, unit));
        EXPECT_EQ(heads[0].ties, 0);
    });
}

TEST(AttentionHeads, SayHowManyQueriesAreSaturated) {
    // Every third query has logits 800 apart, the others 1 apart; the largest is the newest key.
    const int64_t length = 61;
    const auto q = [](int64_t t, int64_t) { return t % 3 == 0 ? 800.0 : 1.0; };
    const auto k = [](int64_t t, int64_t) { return double(t); };
    for_all({.length = length, .q = q, .k = k}, [=](const std::vector<HeadRow>& heads, double) {
        EXPECT_EQ(heads[0].saturated, 20.0 / 60) << "queries 3, 6 … 60 of those with two keys";
        EXPECT_EQ(heads[0].entropy_min, 0);
    });
}

TEST(AttentionHeads, KeepTheSignOfTheLargestLogit) {
    const auto k = [](int64_t t, int64_t) { return -5 - double(t % 4); };
    for_all({.length = 40, .k = k}, [](const std::vector<HeadRow>& heads, double) {
        EXPECT_EQ(heads[0].max_logit, -5);
        EXPECT_EQ(heads[0].abs_logit, 8);
    });
}

TEST(AttentionHeads, HaveNoLeastEntropyWhereNoQueryHasTwoKeys) {
    for_all({.length = 1, .k = [](int64_t, int64_t) { return 3.0; }},
            [](const std::vector<HeadRow>& heads, double) {
                EXPECT_EQ(heads[0].entropy, 0);
                EXPECT_EQ(heads[0].sink, 1);
                EXPECT_EQ(heads[0].max_logit, 3);
                EXPECT_TRUE(std::isnan(heads[0].entropy_min));
                EXPECT_TRUE(std::isnan(heads[0].ties));
                EXPECT_TRUE(std::isnan(heads[0].saturated));
            });
}

// ---------------------------------------------------------------------------------------------- random ones
template <class T>
void expect_reference(double deviation, double unit) {
    const AttentionShape shape{2, 110, 3, 16, 110};
    const Values values = random_values("qkv" + std::to_string(deviation), 2 * 110 * 3 * 48, deviation);
    const std::vector<T> qkv(values.begin(), values.end());
    const double scale = 1 / std::sqrt(16.0);
    std::vector<std::vector<ObservedQuery>> queries(3);
    for (int64_t row = 0; row < shape.rows(); ++row) {
        const auto [b, t, h, out, statistic] = shape.row(row);
        ObservedQuery query{{}, 0};
        for (int64_t j = 0; j <= t; ++j) {
            const double *q = values.data() + shape.qkv(b, t, h, 0),
                         *k = values.data() + shape.qkv(b, j, h, 1);
            double dot = 0, size = 0;
            for (int d = 0; d < 16; ++d) dot += q[d] * k[d], size += std::abs(q[d] * k[d]);
            query.logits.push_back(dot * scale);
            query.uncertainty = std::max(query.uncertainty, (4 + std::sqrt(16.0)) * size * scale);
        }
        queries[size_t(h)].push_back(query);
    }
    for (bool blocks : {false, true}) {
        SCOPED_TRACE(testing::Message() << deviation << (blocks ? " in blocks" : " row by row"));
        const std::vector<HeadRow> heads = heads_of(qkv, shape, blocks);
        ASSERT_EQ(heads.size(), 3u);
        for (size_t h = 0; h < 3; ++h) {
            const ExpectedHead e = expected_head(queries[h], unit);
            const double entropy = unit * e.entropy_uncertainty, max = unit * e.max_uncertainty;
            EXPECT_NEAR(heads[h].entropy, e.row.entropy, entropy);
            EXPECT_NEAR(heads[h].entropy_min, e.row.entropy_min, entropy * double(queries[h].size()));
            EXPECT_NEAR(heads[h].sink, e.row.sink, unit * e.sink_uncertainty);
            EXPECT_NEAR(heads[h].max_logit, e.row.max_logit, max);
            EXPECT_NEAR(heads[h].abs_logit, e.row.abs_logit, max);
            EXPECT_EQ(heads[h].ties, 0);
            if (!e.close_to_saturated) {
                EXPECT_EQ(heads[h].saturated, e.row.saturated);
            }
        }
    }
}

TEST(AttentionHeads, AreThoseOfTheReferenceForSmallAndLargeLogits) {
    for (double deviation : {1e-3, 1.0, 4.0, 30.0}) {
        expect_reference<float>(deviation, 0x1p-24);
        expect_reference<double>(deviation, 0x1p-53);
    }
}

TEST(AttentionHeads, AreTheSameFromOneBatchAndFromMicroBatches) {
    const AttentionShape both{2, 70, 2, 8, 70}, each{1, 70, 2, 8, 70};
    const Values values = random_values("micro-batches", 2 * 70 * 48);
    const std::vector<float> qkv(values.begin(), values.end());
    for (bool blocks : {false, true}) {
        const std::vector<HeadRow> whole = heads_of(qkv, both, blocks);
        Recorder recorder{ProbePlan("moments")};
        Context context(1);
        context.recorder = &recorder;
        for (int64_t b : {0, 1}) attend(context, qkv.data() + b * 70 * 48, each, blocks);
        const std::vector<HeadRow> parts = recorder.take().heads;
        ASSERT_EQ(parts.size(), whole.size());
        for (size_t h = 0; h < whole.size(); ++h) {
            EXPECT_NEAR(parts[h].entropy, whole[h].entropy, 1e-14 * whole[h].entropy);
            EXPECT_NEAR(parts[h].sink, whole[h].sink, 1e-14);
            EXPECT_EQ(parts[h].max_logit, whole[h].max_logit);
            EXPECT_EQ(parts[h].abs_logit, whole[h].abs_logit);
            EXPECT_EQ(parts[h].entropy_min, whole[h].entropy_min);
        }
    }
}

}  // namespace
}  // namespace wobble::test
