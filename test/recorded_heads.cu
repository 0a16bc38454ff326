// What attention's heads show: a tally of their queries, merged from any parts, and the row made of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/attention_blocks.h"
#include "probes/launch.h"

namespace wobble {
namespace {

/// A kernel that exists to be observed.
struct Watched {
    using Element = double;
    static constexpr const char* name = "watched";
    static constexpr const char* channels[] = {"output"};
    using ObservesHeads = void;
};

/// What attention tells of a query with these logits.
QueryStatistics query_of(const std::vector<double>& logits) {
    QueryStatistics q{int64_t(logits.size()), -INFINITY, 0, 0, 0, 0, 0};
    for (double s : logits)
        q.max_logit = larger(q.max_logit, s), q.abs_logit = larger(q.abs_logit, std::abs(s));
    for (double s : logits) {
        const double d = s - q.max_logit, e = std::exp(d);
        q.sum += e, q.weighted += e * d, q.at_maximum += d == 0;
    }
    q.first = std::exp(logits[0] - q.max_logit);
    return q;
}

TEST(QueryStatistics, HaveTheEntropyOfTheSoftmax) {
    // Sums of a few rounded terms: some units of the largest of them.
    const double u = 0x1p-53;
    for (int n : {1, 2, 7, 100}) {
        for (double logit : {0.0, -3.0, 1e6}) {
            EXPECT_NEAR(query_of(std::vector<double>(size_t(n), logit)).entropy(), std::log(n),
                        4 * u * std::log(n));
        }
    }
    // p = 3/4, 1/4, wherever the logits lie: the difference is 1e4 at most, so log 3 keeps 40 bits.
    const double expected = -0.75 * std::log(0.75) - 0.25 * std::log(0.25);
    for (double at : {0.0, 100.0, -1e4})
        EXPECT_NEAR(query_of({at, at - std::log(3)}).entropy(), expected, 2e4 * u);
    // All but collapsed: the logarithm of 1 + p keeps p to one unit; log-sum-exp less the mean logit would be
    // off by a unit of 1e6.
    const double p = std::exp(-20);
    EXPECT_NEAR(query_of({1e6, 1e6 - 20}).entropy(), std::log1p(p) + 20 * p / (1 + p), 2 * u);
    EXPECT_EQ(query_of({1e6, 0}).entropy(), 0);
}

std::vector<QueryStatistics> some_queries(int n) {
    std::mt19937_64 generator(5);
    std::normal_distribution<double> distribution(-1, 2);
    std::vector<QueryStatistics> queries;
    for (int i = 0; i < n; ++i) {
        std::vector<double> logits;
        for (int k = 0; k <= i % 6; ++k) logits.push_back(distribution(generator));
        if (i % 7 == 3 && logits.size() > 2) logits[2] = logits[0];       // a tie, where that is the largest
        if (i % 9 == 5 && logits.size() > 1) logits[1] = logits[0] + 50;  // all on one key
        if (i == 50) logits[0] = -80;
        queries.push_back(query_of(logits));
    }
    return queries;
}

HeadTally tally_of(const std::vector<QueryStatistics>& queries, size_t begin = 0, size_t end = SIZE_MAX) {
    HeadTally tally;
    for (size_t i = begin; i < std::min(end, queries.size()); ++i) tally.add(queries[i], 1);
    return tally;
}

TEST(HeadTally, AddsUpWhatTheQueriesSaw) {
    const auto queries = some_queries(100);
    const HeadTally tally = tally_of(queries);
    HeadTally expected;
    double entropy = 0, sink = 0;
    for (const QueryStatistics& q : queries) {
        entropy += q.entropy(), sink += q.first / q.sum;
        expected.max_logit = std::max(expected.max_logit, q.max_logit);
        expected.abs_logit = std::max(expected.abs_logit, q.abs_logit);
        if (q.keys == 1) continue;
        ++expected.wide, expected.ties += q.at_maximum > 1, expected.saturated += q.sum == 1;
        expected.entropy_min = std::min(expected.entropy_min, q.entropy());
    }
    EXPECT_EQ(tally.queries, 100);
    EXPECT_EQ(tally.wide, expected.wide);
    EXPECT_EQ(tally.ties, expected.ties);
    EXPECT_EQ(tally.saturated, expected.saturated);
    EXPECT_GT(tally.ties, 0);
    EXPECT_GT(tally.saturated, 0);
    EXPECT_EQ(tally.max_logit, expected.max_logit);
    EXPECT_EQ(tally.abs_logit, expected.abs_logit);
    EXPECT_GT(tally.abs_logit, tally.max_logit);
    EXPECT_EQ(tally.entropy_min, expected.entropy_min);
    EXPECT_EQ(tally.entropy, entropy);
    EXPECT_EQ(tally.sink, sink);
}

TEST(HeadTally, MergedFromAnySplitIsThatOfTheWhole) {
    const auto queries = some_queries(60);
    const HeadTally whole = tally_of(queries);
    for (size_t first = 0; first <= 60; ++first) {
        for (size_t second : {first, (first + 60) / 2, size_t(60)}) {
            HeadTally merged = tally_of(queries, 0, first);
            merged.merge(tally_of(queries, first, second));
            merged.merge(tally_of(queries, second));
            EXPECT_EQ(merged.queries, whole.queries);
            EXPECT_EQ(merged.wide, whole.wide);
            EXPECT_EQ(merged.ties, whole.ties);
            EXPECT_EQ(merged.saturated, whole.saturated);
            EXPECT_EQ(merged.max_logit, whole.max_logit);
            EXPECT_EQ(merged.abs_logit, whole.abs_logit);
            EXPECT_EQ(merged.entropy_min, whole.entropy_min);
            // All terms are positive: 60 additions.
            EXPECT_NEAR(merged.entropy, whole.entropy, 120 * 0x1p-53 * whole.entropy);
            EXPECT_NEAR(merged.sink, whole.sink, 120 * 0x1p-53 * whole.sink);
        }
    }
}

HeadRow row_of(const HeadTally& tally) {
    Recorder recorder{ProbePlan("moments")};
    Seen<Watched> seen;
    seen.head(0).merge(tally);
    recorder.record({"attn", 4}, std::move(seen));
    Observation all = recorder.take();
    EXPECT_EQ(all.heads.size(), 1u);
    return all.heads.at(0);
}

TEST(HeadRows, AreMeansAndSharesOfTheQueriesThatHaveAChoice) {
    const HeadRow row = row_of(tally_of({query_of({2}), query_of({1, 1}), query_of({-9, 50, -9}),
                                         query_of({-1, 0, 0}), query_of({0, std::log(3)})}));
    EXPECT_EQ(row.site, "h.4.attn");
    EXPECT_EQ(row.layer, 4);
    EXPECT_EQ(row.head, 0);
    EXPECT_EQ(row.max_logit, 50);
    EXPECT_EQ(row.abs_logit, 50);
    EXPECT_EQ(row.ties, 0.5);        // the second and the fourth
    EXPECT_EQ(row.saturated, 0.25);  // the third
    const double e = std::exp(-1.0), z = 2 + e, u = 0x1p-53;
    EXPECT_NEAR(row.sink, (1 + 0.5 + std::exp(-59.0) + e / z + 0.25) / 5, 20 * u);
    EXPECT_NEAR(row.entropy,
                (std::log(2) + 2 * 59 * std::exp(-59.0) + (std::log(z) + e / z) + 2 * std::log(2) -
                 0.75 * std::log(3)) /
                    5,
                20 * u);
    EXPECT_NEAR(row.entropy_min, 2 * 59 * std::exp(-59.0), 1e-14 * 118 * std::exp(-59.0));
}

TEST(HeadRows, OfQueriesWithASingleKeyHaveNothingToChoose) {
    const HeadRow row = row_of(tally_of({query_of({-3}), query_of({-2})}));
    EXPECT_EQ(row.max_logit, -2);
    EXPECT_EQ(row.abs_logit, 3);
    EXPECT_EQ(row.entropy, 0);
    EXPECT_EQ(row.sink, 1);
    for (double undefined : {row.entropy_min, row.ties, row.saturated}) EXPECT_TRUE(std::isnan(undefined));
}

TEST(HeadRows, DoNotHideLogitsThatAreNaN) {
    for (const std::vector<double>& logits :
         {std::vector<double>{NAN}, {NAN, 1, 2}, {1, NAN}, {NAN, NAN}, {INFINITY, 1}, {-INFINITY}}) {
        for (bool first : {false, true}) {
            const auto good = query_of({1, 2}), bad = query_of(logits);
            const HeadRow row = row_of(tally_of(first ? std::vector{bad, good} : std::vector{good, bad}));
            EXPECT_TRUE(std::isnan(row.entropy));
            EXPECT_TRUE(std::isnan(row.sink));
        }
    }
}

TEST(HeadRows, AreOneForEachHeadInTheOrderOfHeads) {
    Recorder recorder{ProbePlan("moments")};
    for (int64_t micro : {0, 1}) {
        Seen<Watched> seen;
        for (int64_t head : {3, 0, 1}) seen.head(head).add(query_of({double(10 * micro + head)}), 1);
        recorder.record({"attn", 0}, std::move(seen));
    }
    const Observation all = recorder.take();
    ASSERT_EQ(all.heads.size(), 3u);  // nobody saw a query of head 2
    for (size_t i = 0; i < 3; ++i) {
        const int64_t head = std::vector<int64_t>{0, 1, 3}[i];
        EXPECT_EQ(all.heads[i].head, head);
        EXPECT_EQ(all.heads[i].max_logit, double(10 + head));
    }
}

// A NaN in one query's vector: every logit of that query, and no other.
TEST(HeadRows, OfALaunchWithANaNShowItInItsHeadAlone) {
    constexpr int64_t B = 2, T = 5, H = 3, D = 4, C = H * D;
    std::mt19937_64 generator(3);
    std::normal_distribution<float> distribution;
    std::vector<float> qkv(size_t(B * T * 3 * C)), out(size_t(B * T * C)), lse(size_t(B * H * T));
    for (float& x : qkv) x = distribution(generator);
    const AttentionShape shape{B, T, H, D, T};
    qkv[size_t(shape.qkv(1, 3, 1, 0) + 2)] = NAN;
    const AttentionForward<float> kernel{qkv.data(), out.data(), lse.data(), shape};
    for (bool blocks : {true, false}) {
        SCOPED_TRACE(blocks ? "blocks" : "rows");
        Context context(1);
        Recorder recorder{ProbePlan("moments")};
        context.recorder = &recorder;
        if (blocks) launch(context, kernel, {"attn", 0});
        else launch(context, shape.rows(), kernel, {"attn", 0});
        const Observation all = recorder.take();
        ASSERT_EQ(all.heads.size(), size_t(H));
        for (const HeadRow& row : all.heads) {
            EXPECT_EQ(std::isnan(row.entropy), row.head == 1);
            EXPECT_EQ(std::isnan(row.sink), row.head == 1);
        }
        EXPECT_EQ(all.records.at(0).moments().nans, D);
    }
}

}  // namespace
}  // namespace wobble
