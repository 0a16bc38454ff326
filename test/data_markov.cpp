// The synthetic source: what it says about its entropy must be true of what it draws.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/dataset.h"
#include "data/markov.h"
#include "test/data_files.h"

namespace wobble::test {
namespace {

size_t index(int64_t i) {
    return static_cast<size_t>(i);
}

TEST(Markov, ProbabilitiesAreDistributionsWithWellSpreadEntropy) {
    const MarkovChain chain(1, 64, 1, 1);
    for (int64_t c = 0; c < chain.contexts(); ++c) {
        double sum = 0;
        for (int v = 0; v < 64; ++v) {
            EXPECT_GE(chain.probability(c, v), 0);
            sum += chain.probability(c, v);
        }
        EXPECT_NEAR(sum, 1, 64 * 1e-16 * 8);  // a rounding error a term
    }
    EXPECT_LT(chain.entropy_rate(), std::log(64) - 1);
    EXPECT_GT(chain.entropy_rate(), 1);
    // Higher temperature: flatter; other seed: another chain.
    EXPECT_GT(MarkovChain(1, 64, 1, 4).entropy_rate(), chain.entropy_rate());
    EXPECT_LT(MarkovChain(1, 64, 1, 4).entropy_rate(), std::log(64));
    EXPECT_NE(MarkovChain(1, 64, 2, 1).entropy_rate(), chain.entropy_rate());
}

TEST(Markov, StationaryDistributionIsKeptByATransition) {
    for (const auto& [order, vocab] : {std::pair{0, 5}, {1, 2}, {1, 100}, {2, 7}, {5, 3}}) {
        const MarkovChain chain(order, vocab, 3, 1);
        std::vector<double> after(index(chain.contexts()));
        double total = 0;
        for (int64_t c = 0; c < chain.contexts(); ++c) {
            total += chain.stationary(c);
            for (int v = 0; v < vocab; ++v) {
                after[index((c * vocab + v) % chain.contexts())] +=
                    chain.stationary(c) * chain.probability(c, v);
            }
        }
        double distance = 0;
        for (int64_t c = 0; c < chain.contexts(); ++c)
            distance += std::abs(after[index(c)] - chain.stationary(c));
        EXPECT_NEAR(total, 1, 1e-13);
        EXPECT_LT(distance, 1e-13) << order << " " << vocab;  // the power iteration stops at 1e-14
    }
}

TEST(Markov, TwoStateChainHasItsClosedForm) {
    // pi = (q, p) / (p + q) with p = P(0 -> 1), q = P(1 -> 0).
    const MarkovChain chain(1, 2, 11, 1);
    const double p = chain.probability(0, 1), q = chain.probability(1, 0);
    const auto h = [](double x) { return -x * std::log(x) - (1 - x) * std::log(1 - x); };
    EXPECT_NEAR(chain.stationary(0), q / (p + q), 1e-13);
    EXPECT_NEAR(chain.entropy_rate(), (q * h(p) + p * h(q)) / (p + q), 1e-13);
}

TEST(Markov, DrawsFollowTheStationaryDistributionAtEveryPosition) {
    const MarkovChain chain(2, 3, 5, 1);
    constexpr int kDraws = 40000, kLength = 40;
    for (const int position : {0, 1, 20, kLength - 2}) {
        std::vector<double> count(index(chain.contexts()));
        for (int i = 0; i < kDraws; ++i) {
            int32_t tokens[kLength];
            chain.draw(1, 0, i, kLength, tokens);
            ++count[index(tokens[position] * 3 + tokens[position + 1])];
        }
        double chi_square = 0;
        for (int64_t c = 0; c < chain.contexts(); ++c) {
            const double expected = kDraws * chain.stationary(c);
            chi_square += (count[index(c)] - expected) * (count[index(c)] - expected) / expected;
        }
        EXPECT_LT(chi_square, 37.3) << position;  // 8 degrees of freedom: above it once in 100,000
    }
}

TEST(Markov, DrawsHaveTheEntropyRateThatIsStated) {
    for (const auto& [order, vocab] : {std::pair{0, 6}, {1, 16}, {2, 5}}) {
        const Dataset data = Dataset::open(
            "synthetic:markov?order=" + std::to_string(order) + "&vocab=" + std::to_string(vocab) + "&seed=4",
            {.context = 128, .seed = 6});
        const MarkovChain chain(order, vocab, 4, 1);
        // Counts of (context, next token), and the code length of each sequence, whose spread gives the
        // standard error.
        std::vector<double> pairs(index(chain.contexts() * vocab)), lengths;
        for (int64_t i = 0; i < 4000; ++i) {
            const Sequence s = read(data, i);
            int64_t context = 0;
            double length = 0;
            for (size_t t = 0; t < 128; ++t) {
                context = (context * vocab + s.inputs[t]) % chain.contexts();
                if (static_cast<int>(t) + 1 < order) continue;
                ++pairs[index(context * vocab + s.targets[t])];
                length -= std::log(chain.probability(context, s.targets[t]));
            }
            lengths.push_back(length / (128 - std::max(0, order - 1)));
        }
        const double mean = std::accumulate(lengths.begin(), lengths.end(), 0.0) / 4000;
        double variance = 0;
        for (const double l : lengths) variance += (l - mean) * (l - mean) / 3999;
        const double error = std::sqrt(variance / 4000);
        EXPECT_NEAR(mean, chain.entropy_rate(), 4.5 * error) << order;

        // The entropy of the counts alone, which knows nothing of the probabilities; its bias is (cells -
        // contexts) / 2N.
        double entropy = 0, total = 0;
        for (int64_t c = 0; c < chain.contexts(); ++c) {
            const auto row = pairs.begin() + c * vocab;
            const double sum = std::accumulate(row, row + vocab, 0.0);
            for (int v = 0; v < vocab; ++v) {
                if (row[v] > 0) entropy -= row[v] * std::log(row[v] / sum);
            }
            total += sum;
        }
        const double bias = static_cast<double>(chain.contexts() * (vocab - 1)) / (2 * total);
        EXPECT_NEAR(entropy / total, chain.entropy_rate(), 4.5 * error + 2 * bias) << order;
        EXPECT_LT(4.5 * error + 2 * bias, 0.02);  // so that the comparison means something
    }
}

TEST(Markov, LossFloorIsTheEntropyRateWhereOneTokenIsContextEnough) {
    for (const int T : {1, 2, 64}) {
        EXPECT_DOUBLE_EQ(MarkovChain(1, 20, 2, 1).loss_floor(T), MarkovChain(1, 20, 2, 1).entropy_rate());
        EXPECT_DOUBLE_EQ(MarkovChain(0, 20, 2, 1).loss_floor(T), MarkovChain(0, 20, 2, 1).entropy_rate());
    }
}

TEST(Markov, LossFloorAgreesWithEnumerationOfAllSequences) {
    for (const auto& [order, vocab] : {std::pair{1, 3}, {2, 3}, {3, 2}, {4, 2}}) {
        const MarkovChain chain(order, vocab, 7, 1);
        for (int T = 1; T <= 6; ++T) {
            // The probability of every sequence of n tokens, by the chain rule; H(x_n | x_0 .. x_n-1) as a
            // sum over them.
            std::vector<double> entropies;
            for (int n = 1; n <= T + 1; ++n) {
                const int length = std::max(n, order);
                const int64_t count = std::lround(std::pow(vocab, length));
                std::vector<double> probabilities(index(std::lround(std::pow(vocab, n))));
                for (int64_t s = 0; s < count; ++s) {
                    std::vector<int> tokens;
                    for (int64_t rest = s, i = 0; i < length; ++i, rest /= vocab)
                        tokens.insert(tokens.begin(), static_cast<int>(rest % vocab));
                    int64_t context = 0, prefix = 0;
                    for (int i = 0; i < order; ++i) context = context * vocab + tokens[index(i)];
                    double p = chain.stationary(context);
                    for (int i = order; i < length; ++i) {
                        p *= chain.probability(context, tokens[index(i)]);
                        context = (context * vocab + tokens[index(i)]) % chain.contexts();
                    }
                    for (int i = 0; i < n; ++i) prefix = prefix * vocab + tokens[index(i)];
                    probabilities[index(prefix)] += p;
                }
                double h = 0;
                for (const double p : probabilities) h -= p * std::log(p);
                entropies.push_back(h);
            }
            // The mean of H(x_t+1 | x_0 .. x_t) telescopes.
            EXPECT_NEAR(chain.loss_floor(T), (entropies.back() - entropies.front()) / T, 1e-12)
                << order << " " << T;
        }
        EXPECT_GE(chain.loss_floor(2) + 1e-15, chain.entropy_rate());
    }
}

TEST(Markov, SourceIsAPureFunctionOfSeedPartAndIndex) {
    const std::string spec = "synthetic:markov?order=2&vocab=8&seed=1";
    const DatasetOptions options{.context = 32, .seed = 1, .holdout = 0.1, .part = Part::Train};
    const Dataset data = Dataset::open(spec, options);
    const Sequence far = read(data, int64_t{1} << 40);
    EXPECT_EQ(read(Dataset::open(spec, options), int64_t{1} << 40), far);
    EXPECT_EQ(far.provenance, (Provenance{0, int64_t{1} << 40, 0}));
    for (const DatasetOptions& other :
         {DatasetOptions{.context = 32, .seed = 2, .holdout = 0.1, .part = Part::Train},
          DatasetOptions{.context = 32, .seed = 1, .holdout = 0.1, .part = Part::HeldOut},
          DatasetOptions{.context = 32, .seed = 1, .part = Part::All}}) {
        EXPECT_NE(read(Dataset::open(spec, other), 5).inputs, read(data, 5).inputs);
    }
    EXPECT_NE(read(data, 6).inputs, read(data, 5).inputs);
    const Sequence s = read(data, 5);
    EXPECT_TRUE(std::equal(s.inputs.begin() + 1, s.inputs.end(), s.targets.begin()));
    // A shorter context reads the beginning of the same sequence.
    const Sequence shorter =
        read(Dataset::open(spec, {.context = 1, .seed = 1, .holdout = 0.1, .part = Part::Train}), 5);
    EXPECT_EQ(shorter.inputs[0], s.inputs[0]);
    EXPECT_EQ(shorter.targets[0], s.targets[0]);
}

TEST(Markov, TokensAreBelowTheVocabularyAndAllOfItAppears) {
    const Dataset data = Dataset::open("synthetic:markov?vocab=11&temperature=3", {.context = 100});
    EXPECT_EQ(data.vocab(), 11);
    std::vector<int> count(11);
    for (int64_t i = 0; i < 100; ++i) {
        for (const int32_t token : read(data, i).targets) ++count.at(static_cast<size_t>(token));
    }
    EXPECT_GT(*std::min_element(count.begin(), count.end()), 0);
}

TEST(Markov, SaysItsEntropyRateAndFloor) {
    const Dataset data = Dataset::open("synthetic:markov?order=2&vocab=4", {.context = 16});
    const MarkovChain chain(2, 4, 1, 1);
    ASSERT_TRUE(data.loss_floor().has_value());
    EXPECT_DOUBLE_EQ(*data.loss_floor(), chain.loss_floor(16));
    char rate[32], floor[32];
    std::snprintf(rate, sizeof rate, "%.6g", chain.entropy_rate());
    std::snprintf(floor, sizeof floor, "%.6g", chain.loss_floor(16));
    EXPECT_NE(data.describe().find(std::string("entropy rate ") + rate), std::string::npos)
        << data.describe();
    EXPECT_NE(data.describe().find(floor), std::string::npos) << data.describe();
    EXPECT_EQ(data.sequences_per_epoch(), (1 << 20) / 16);
}

TEST(Markov, PartsShareTheNominalEpoch) {
    const std::string spec = "synthetic:markov";
    const auto sequences = [&](Part part, double holdout) {
        return Dataset::open(spec, {.context = 64, .holdout = holdout, .part = part}).sequences_per_epoch();
    };
    EXPECT_EQ(sequences(Part::Train, 0.1) + sequences(Part::HeldOut, 0.1), sequences(Part::All, 0));
    EXPECT_EQ(sequences(Part::HeldOut, 1e-9), 1);
}

TEST(Markov, ExplainsWhatItRefuses) {
    expect_error("synthetic:garden", {}, {"unknown synthetic kind 'garden'", "markov"});
    expect_error("synthetic:markov?ordre=1", {},
                 {"unknown option 'ordre'", "order, vocab, seed, temperature"});
    expect_error("synthetic:markov?order=two", {}, {"order is 'two'", "whole number from 0 to 16"});
    expect_error("synthetic:markov?vocab=1", {}, {"vocab is '1'", "from 2"});
    expect_error("synthetic:markov?seed=-1", {}, {"seed is '-1'"});
    expect_error("synthetic:markov?temperature=0", {}, {"temperature is '0'", "from 0.25"});
    expect_error("synthetic:markov?temperature=nan", {}, {"temperature is 'nan'"});
    expect_error("synthetic:markov?order=4&vocab=100", {},
                 {"order 4 over 100", "4194304 transition probabilities"});
    expect_error("synthetic:markov?order=16&vocab=1000000", {}, {"transition probabilities"});
    // Two tokens that hardly ever follow each other.
    expect_error("synthetic:markov?vocab=2&temperature=0.25&seed=9", {},
                 {"does not settle", "raise its temperature"});
}

}  // namespace
}  // namespace wobble::test
