// Losses of tokens, worked by hand.
#include "probes/token_losses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "data/token_counts.h"
#include "test/data_files.h"

namespace wobble {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<int> deciles(const std::vector<int64_t>& counts) {
    const TokenFrequency frequency(counts);
    std::vector<int> out;
    for (size_t token = 0; token < counts.size(); ++token) out.push_back(frequency.decile(int32_t(token)));
    return out;
}

TEST(TokenFrequency, DealsTokensOfEqualCountOutByTheirId) {
    EXPECT_EQ(deciles(std::vector<int64_t>(10, 7)), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    EXPECT_EQ(deciles(std::vector<int64_t>(20, 1)),
              (std::vector<int>{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9}));
}

TEST(TokenFrequency, PutsATokenThatACutGoesThroughWhereItsMiddleLies) {
    // Total 20, so a decile is 2 long. In order of count: token 2 [0, 1), 0 [1, 4) with its middle at 2.5, 3
    // [4, 8) with 6, which is the first point of decile 3, and 1 [8, 20) with 14.
    EXPECT_EQ(deciles({3, 12, 1, 4}), (std::vector<int>{1, 7, 0, 3}));
}

TEST(TokenFrequency, KeepsUnseenTokensInDecileZeroAndCountsEachDecile) {
    const TokenFrequency frequency({0, 90, 0, 5, 5});
    EXPECT_EQ(frequency.vocab(), 5);
    EXPECT_EQ(frequency.decile(0), 0);
    EXPECT_EQ(frequency.decile(2), 0);
    EXPECT_EQ(frequency.decile(3), 0);
    EXPECT_EQ(frequency.decile(4), 0);
    EXPECT_EQ(frequency.decile(1), 5) << "the middle of [10, 100)";
    EXPECT_EQ(frequency.tokens_in(0), 4);
    EXPECT_EQ(frequency.tokens_in(5), 1);
    EXPECT_EQ(frequency.tokens_in(9), 0);
}

TEST(TokenFrequency, OfNothingSeenIsAllDecileZero) {
    EXPECT_EQ(deciles({0, 0, 0}), (std::vector<int>{0, 0, 0}));
    EXPECT_EQ(TokenFrequency({0, 0, 0}).tokens_in(0), 3);
}

TEST(TokenFrequency, HoldsATenthOfTheOccurrencesOfManyTokensInEachDecile) {
    // Zipf: the count of token k is about 1 / k.
    std::vector<int64_t> counts;
    int64_t total = 0;
    for (int64_t k = 1; k <= 50000; ++k) counts.push_back(10'000'000 / (k + 50)), total += counts.back();
    const TokenFrequency frequency(counts);
    std::vector<int64_t> held(10), tokens(10);
    for (size_t k = 0; k < counts.size(); ++k) {
        const int decile = frequency.decile(int32_t(k));
        held[size_t(decile)] += counts[k], ++tokens[size_t(decile)];
        if (k > 0 && counts[k] < counts[k - 1]) {
            EXPECT_LE(decile, frequency.decile(int32_t(k) - 1)) << "rarer tokens are not in higher deciles";
        }
    }
    for (int decile = 0; decile < 10; ++decile) {
        // Half of the largest count at either end.
        EXPECT_NEAR(double(held[size_t(decile)]), double(total) / 10, double(counts[0]));
        EXPECT_EQ(frequency.tokens_in(decile), tokens[size_t(decile)]);
    }
}

/// A micro-batch that owns its values.
template <class T>
struct Micro {
    int64_t number, context;
    std::vector<T> losses;
    std::vector<int32_t> targets;
    std::vector<Provenance> provenance;

    Micro(int64_t micro, int64_t length, std::vector<T> loss, std::vector<int32_t> target)
        : number(micro), context(length), losses(std::move(loss)), targets(std::move(target)) {
        for (size_t row = 0; row < losses.size() / size_t(length); ++row) {
            provenance.push_back(
                {.source = int(row), .document = 10 + int64_t(row), .offset = 100 * int64_t(row)});
        }
    }
    operator MicroLosses<T>() const {
        return {.micro = number,
                .losses = losses.data(),
                .targets = targets.data(),
                .provenance = provenance.data(),
                .rows = int64_t(provenance.size()),
                .context = context};
    }
};

/// A micro-batch of sequences of one token, all of them token 0.
Micro<double> column(const std::vector<double>& losses, int64_t micro = 0) {
    return {micro, 1, losses, std::vector<int32_t>(losses.size())};
}

struct Group {
    std::string kind;
    int64_t key;
    double loss;
    int64_t tokens;
};

void expect_rows(const std::vector<LossRow>& rows, const std::string& kind,
                 const std::vector<Group>& expected) {
    std::vector<LossRow> found;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(found),
                 [&](const LossRow& r) { return r.kind == kind; });
    ASSERT_EQ(found.size(), expected.size()) << kind;
    for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].key, expected[i].key) << kind;
        EXPECT_EQ(found[i].tokens, expected[i].tokens) << kind << " " << found[i].key;
        if (std::isnan(expected[i].loss))
            EXPECT_TRUE(std::isnan(found[i].loss)) << kind << " " << found[i].key;
        else EXPECT_EQ(found[i].loss, expected[i].loss) << kind << " " << found[i].key;
    }
}

std::vector<Group> percentiles(const std::vector<double>& losses, int64_t tokens) {
    const int64_t keys[] = {1, 5, 25, 50, 75, 95, 99, 100};
    std::vector<Group> groups;
    for (size_t i = 0; i < losses.size(); ++i) groups.push_back({"percentile", keys[i], losses[i], tokens});
    return groups;
}

const TokenFrequency& ten_tokens() {
    static const TokenFrequency frequency(std::vector<int64_t>(10, 1));  // token v is in decile v
    return frequency;
}

TEST(TokenLosses, PercentilesAreNearestRanks) {
    // Of n losses in order, the ceil(p n / 100)-th.
    const auto of = [](std::vector<double> losses) {
        std::shuffle(losses.begin(), losses.end(), std::mt19937(4));
        TokenLosses summary(ten_tokens());
        summary.add<double>(column(losses));
        return summary.rows();
    };
    std::vector<double> losses(200);
    std::iota(losses.begin(), losses.end(), 1.0);
    expect_rows(of(losses), "percentile", percentiles({2, 10, 50, 100, 150, 190, 198, 200}, 200));
    losses.resize(199);
    expect_rows(of(losses), "percentile", percentiles({2, 10, 50, 100, 150, 190, 198, 199}, 199));
    losses.resize(3);
    expect_rows(of(losses), "percentile", percentiles({1, 1, 1, 2, 3, 3, 3, 3}, 3));
    expect_rows(of({4}), "percentile", percentiles({4, 4, 4, 4, 4, 4, 4, 4}, 1));
    expect_rows(of({5, 5, 5, 5, 1}), "percentile", percentiles({1, 1, 5, 5, 5, 5, 5, 5}, 5));
}

TEST(TokenLosses, MeansAreByDecileOfTheTargetAndLeavePaddingOut) {
    TokenLosses summary(ten_tokens());
    summary.add<float>(Micro<float>(0, 3, {1, 2, 3, 10, 20, 99}, {4, 4, 9, 0, 9, -1}));
    expect_rows(summary.rows(), "frequency",
                {{"frequency", 0, 10, 1}, {"frequency", 4, 1.5, 2}, {"frequency", 9, 11.5, 2}});
    expect_rows(summary.rows(), "percentile", percentiles({1, 1, 2, 3, 10, 20, 20, 20}, 5));
}

TEST(TokenLosses, PositionsAreTakenTogetherInRangesThatDouble) {
    TokenLosses summary(ten_tokens());
    // Position t has loss t in one row and 3 t in the other, whose last token is padding.
    std::vector<double> losses(20);
    std::vector<int32_t> targets(20);
    for (int t = 0; t < 10; ++t) losses[size_t(t)] = t, losses[size_t(10 + t)] = 3 * t;
    targets[19] = -1;
    summary.add<double>(Micro<double>(0, 10, losses, targets));
    expect_rows(summary.rows(), "position",
                {{"position", 0, 0, 2},
                 {"position", 1, 2, 2},
                 {"position", 2, 5, 4},   // 2, 3: mean 2.5, twice
                 {"position", 4, 11, 8},  // 4 to 7: mean 5.5, twice
                 {"position", 8, (8 + 9 + 24) / 3.0, 3}});
}

TEST(TokenLosses, LongSequencesHaveSixteenRanges) {
    constexpr int64_t kLong = 100'000;
    TokenLosses summary(ten_tokens());
    summary.add<float>(Micro<float>(0, kLong, std::vector<float>(kLong, 2), std::vector<int32_t>(kLong)));
    std::vector<Group> expected = {{"position", 0, 2, 1}};
    for (int64_t start = 1; start < 16384; start *= 2) expected.push_back({"position", start, 2, start});
    expected.push_back({"position", 16384, 2, kLong - 16384});
    EXPECT_EQ(expected.size(), 16u);
    expect_rows(summary.rows(), "position", expected);
}

TEST(TokenLosses, MeansAreNaNAndPercentilesFiniteWhereALossIsNot) {
    for (const double bad : {kNaN, kInfinity, -kInfinity}) {
        TokenLosses summary(ten_tokens());
        summary.add<double>(Micro<double>(0, 2, {1, 2, bad, 4}, {3, 5, 3, 7}));
        expect_rows(summary.rows(), "percentile", percentiles({1, 1, 1, 2, 4, 4, 4, 4}, 3));
        expect_rows(summary.rows(), "frequency",
                    {{"frequency", 3, kNaN, 2}, {"frequency", 5, 2, 1}, {"frequency", 7, 4, 1}});
        expect_rows(summary.rows(), "position", {{"position", 0, kNaN, 2}, {"position", 1, 3, 2}});
    }
    TokenLosses nothing_finite(ten_tokens());
    nothing_finite.add<double>(column({kNaN, kNaN}));
    expect_rows(nothing_finite.rows(), "percentile", {});
    expect_rows(nothing_finite.rows(), "frequency", {{"frequency", 0, kNaN, 2}});
}

TEST(TokenLosses, OfNoTokenHasNoRows) {
    TokenLosses summary(ten_tokens());
    EXPECT_TRUE(summary.rows().empty());
    summary.add<double>(Micro<double>(0, 2, {1, 2}, {-1, -1}));
    EXPECT_TRUE(summary.rows().empty());
    EXPECT_TRUE(summary.largest().empty());
}

TEST(TokenLosses, OfMicroBatchesAreThoseOfTheWholeStep) {
    std::mt19937 generator(3);
    std::vector<double> losses(8 * 50);
    std::vector<int32_t> targets(losses.size());
    for (size_t i = 0; i < losses.size(); ++i) {
        losses[i] = double(generator() % 64) / 8;  // sums of eighths are exact in any order
        targets[i] = int32_t(generator() % 11) - 1;
    }
    TokenLosses whole(ten_tokens()), parts(ten_tokens());
    whole.add<double>(Micro<double>(0, 50, losses, targets));
    for (size_t micro = 0; micro < 4; ++micro) {
        const auto from = std::ptrdiff_t(100 * micro);
        parts.add<double>(Micro<double>(int64_t(micro), 50,
                                        {losses.begin() + from, losses.begin() + from + 100},
                                        {targets.begin() + from, targets.begin() + from + 100}));
    }
    const std::vector<LossRow> right = whole.rows(), found = parts.rows();
    ASSERT_EQ(found.size(), right.size());
    for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].kind, right[i].kind);
        EXPECT_EQ(found[i].key, right[i].key);
        EXPECT_EQ(found[i].loss, right[i].loss);
        EXPECT_EQ(found[i].tokens, right[i].tokens);
    }
    ASSERT_EQ(parts.largest().size(), 16u);
    for (size_t i = 0; i < 16; ++i) {
        const TokenRow &a = parts.largest()[i], &b = whole.largest()[i];
        EXPECT_EQ(a.micro * 2 + a.row, b.row) << i;
        EXPECT_EQ(a.position, b.position);
        EXPECT_EQ(a.loss, b.loss);
    }
}

TEST(LargestLosses, NameTheTokenAndItsPlaceInTheData) {
    LargestLosses largest;
    largest.add<float>(Micro<float>(2, 3, {1, 7, 3, 4, 5, 99}, {40, 41, 42, 43, 44, -1}));
    ASSERT_EQ(largest.rows().size(), 5u);
    const TokenRow& first = largest.rows()[0];
    EXPECT_EQ(first.rank, 0);
    EXPECT_EQ(first.micro, 2);
    EXPECT_EQ(first.row, 0);
    EXPECT_EQ(first.position, 1);
    EXPECT_EQ(first.token, 41);
    EXPECT_EQ(first.loss, 7);
    EXPECT_EQ(first.source, 0);
    EXPECT_EQ(first.document, 10);
    EXPECT_EQ(first.offset, 2) << "the second input token's successor";
    const TokenRow& second = largest.rows()[1];
    EXPECT_EQ(second.rank, 1);
    EXPECT_EQ(second.row, 1);
    EXPECT_EQ(second.position, 1);
    EXPECT_EQ(second.token, 44);
    EXPECT_EQ(second.source, 1);
    EXPECT_EQ(second.document, 11);
    EXPECT_EQ(second.offset, 102);
    EXPECT_EQ(largest.rows()[4].loss, 1);
}

TEST(LargestLosses, PutNaNBeforeInfinityAndEarlierBeforeLater) {
    LargestLosses largest;
    largest.add<double>(column({3, kInfinity, 3, kNaN, -kInfinity, 8, kNaN}, 0));
    largest.add<double>(column({kNaN, 8}, 1));
    const std::pair<int64_t, int64_t> order[] = {{0, 3}, {0, 6}, {1, 0}, {0, 1}, {0, 5},
                                                 {1, 1}, {0, 0}, {0, 2}, {0, 4}};
    ASSERT_EQ(largest.rows().size(), std::size(order));
    for (size_t i = 0; i < std::size(order); ++i) {
        EXPECT_EQ(largest.rows()[i].micro, order[i].first) << i;
        EXPECT_EQ(largest.rows()[i].row, order[i].second) << i;
        EXPECT_EQ(largest.rows()[i].rank, int64_t(i));
    }
}

TEST(LargestLosses, KeepSixteenInWhicheverOrderTheMicroBatchesCome) {
    std::mt19937 generator(6);
    std::vector<Micro<double>> micros;
    std::vector<std::tuple<double, int64_t, int64_t>> all;  // (-loss, micro, row) sorts as the rows do
    for (int64_t micro = 0; micro < 5; ++micro) {
        std::vector<double> losses(40);
        for (size_t row = 0; row < 40; ++row) {
            losses[row] = double(generator() % 12);  // many ties
            if (generator() % 40 == 0) losses[row] = kNaN;
            all.emplace_back(std::isnan(losses[row]) ? -kInfinity : -losses[row], micro, int64_t(row));
        }
        micros.push_back(column(losses, micro));
    }
    std::sort(all.begin(), all.end());
    for (int trial = 0; trial < 5; ++trial) {
        LargestLosses largest;
        for (const Micro<double>& micro : micros) largest.add<double>(micro);
        ASSERT_EQ(largest.rows().size(), LargestLosses::kTokens);
        for (size_t i = 0; i < LargestLosses::kTokens; ++i) {
            EXPECT_EQ(largest.rows()[i].micro, std::get<1>(all[i])) << i;
            EXPECT_EQ(largest.rows()[i].row, std::get<2>(all[i])) << i;
            EXPECT_EQ(largest.rows()[i].rank, int64_t(i));
        }
        std::shuffle(micros.begin(), micros.end(), generator);
    }
}

TEST(TokenCounts, OfAllSequencesCountEveryTokenButTheFirst) {
    const test::Directory directory;
    std::string text = "wobble, wobble: ";
    for (int i = 0; i < 97; ++i) text += char('a' + i % 26);
    const Dataset data = Dataset::open("text:" + directory.write("a.txt", text), {.context = 8});
    std::vector<int64_t> expected(256);
    for (const char c : text.substr(1)) ++expected[size_t(c)];
    ++expected[0];  // the byte that ends the document
    EXPECT_EQ(count_tokens(data), expected);
    EXPECT_EQ(count_tokens(data, 15 * 8), expected) << "113 targets in 15 sequences, the last one padded";
}

TEST(TokenCounts, OfALargeDatasetComeFromSequencesSpreadEvenlyOverAnEpoch) {
    const Dataset data = Dataset::open("synthetic:markov?vocab=20", {.context = 16, .seed = 3});
    const int64_t n = data.sequences_per_epoch(), k = 1000 / 16;
    ASSERT_GT(n, 10 * k);
    std::vector<int64_t> expected(20);
    for (int64_t i = 0; i < k; ++i) {
        for (const int32_t target : test::read(data, i * n / k).targets) ++expected[size_t(target)];
    }
    const std::vector<int64_t> counts = count_tokens(data, 1000);
    EXPECT_EQ(counts, expected);
    EXPECT_LE(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 1000);
    const Dataset again = Dataset::open("synthetic:markov?vocab=20", {.context = 16, .seed = 3});
    EXPECT_EQ(count_tokens(again, 1000), counts) << "as in a resumed run";
}

TEST(TokenCounts, TakeOneSequenceAtLeastAndEverySourceOfAMixture) {
    const test::Directory directory;
    const std::string a = directory.write("a.txt", std::string(500, 'a'));
    const std::string b = directory.write("b.txt", std::string(3000, 'b'));
    const Dataset data = Dataset::open("text:" + a + "+text:" + b, {.context = 10});
    const std::vector<int64_t> one = count_tokens(data, 1);
    EXPECT_EQ(std::accumulate(one.begin(), one.end(), int64_t{0}), 10);
    const std::vector<int64_t> all = count_tokens(data);
    // Equal weights: half of the 351 sequences each, within the shares of a block of 1000 in permuted order.
    EXPECT_GT(all['a'], 1000);
    EXPECT_GT(all['b'], 1000);
}

}  // namespace
}  // namespace wobble
