// Builds Markov chains, draws from them, and makes a source of them.
#include "data/markov.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>

#include "data/random.h"
#include "data/source.h"
#include "kernels/error.h"

namespace wobble {

namespace {

double entropy(const std::vector<double>& distribution) {
    double sum = 0;
    for (const double p : distribution) sum -= p > 0 ? p * std::log(p) : 0;
    return sum;
}

// The first i with u < cumulative[i]. The last entry counts as 1, whatever its rounding.
int64_t choose(const double* cumulative, int64_t count, double u) {
    return std::upper_bound(cumulative, cumulative + count - 1, u) - cumulative;
}

}  // namespace

MarkovChain::MarkovChain(int order, int vocab, uint64_t seed, double temperature)
    : order_(order), vocab_(vocab) {
    for (int k = 0; k < order; ++k) {
        contexts_ *= vocab;
        if (contexts_ > kMaxProbabilities / vocab) {
            throw UserError("a Markov chain of order " + std::to_string(order) + " over " +
                            std::to_string(vocab) + " tokens has more than " +
                            std::to_string(kMaxProbabilities) +
                            " transition probabilities; expected V^K * V up to that; lower order or vocab");
        }
    }
    draw_table(seed, temperature);
    find_stationary();
    find_block_entropies();
    for (int64_t c = 0; c < contexts_; ++c) {
        double* row = cumulative_.data() + c * vocab_;
        for (int v = 1; v < vocab_; ++v) row[v] += row[v - 1];
    }
    stationary_cumulative_ = stationary_;
    for (size_t c = 1; c < stationary_.size(); ++c)
        stationary_cumulative_[c] += stationary_cumulative_[c - 1];
}

void MarkovChain::draw_table(uint64_t seed, double temperature) {
    cumulative_.resize(static_cast<size_t>(contexts_ * vocab_));
    for (int64_t c = 0; c < contexts_; ++c) {
        double* row = cumulative_.data() + c * vocab_;
        double largest = -INFINITY, sum = 0;
        for (int v = 0; v < vocab_; ++v) {
            const auto words = random_words(seed, Purpose::MarkovTable, 0, static_cast<uint64_t>(c),
                                            static_cast<uint32_t>(v));
            const double radius =
                std::sqrt(-2 * std::log(1 - uniform(words[0], words[1])));  // Box and Muller
            row[v] = 2 * radius * std::cos(2 * std::numbers::pi * uniform(words[2], words[3])) / temperature;
            largest = std::max(largest, row[v]);
        }
        for (int v = 0; v < vocab_; ++v) sum += row[v] = std::exp(row[v] - largest);
        for (int v = 0; v < vocab_; ++v) row[v] /= sum;
    }
}

void MarkovChain::find_stationary() {
    const size_t n = static_cast<size_t>(contexts_);
    stationary_.assign(n, 1.0 / static_cast<double>(n));
    // Each step shrinks the distance to pi by the second eigenvalue. Far below the rounding of float64 sums
    // there is nothing left to gain.
    constexpr double kConverged = 1e-14;
    constexpr int kMaxSteps = 20000;
    std::vector<double> next(n);
    for (int step = 0; step < kMaxSteps; ++step) {
        std::fill(next.begin(), next.end(), 0.0);
        for (int64_t c = 0; c < contexts_; ++c) {
            const double* row = cumulative_.data() + c * vocab_;
            // The context after (c, v) is (c V + v) mod V^K: the oldest token leaves.
            double* to = next.data() + (order_ == 0 ? 0 : c * vocab_ % contexts_);
            for (int v = 0; v < vocab_; ++v)
                to[order_ == 0 ? 0 : v] += stationary_[static_cast<size_t>(c)] * row[v];
        }
        double total = 0, change = 0;
        for (const double p : next) total += p;
        for (size_t c = 0; c < n; ++c) {
            next[c] = 0.5 * (next[c] / total + stationary_[c]);
            change += std::abs(next[c] - stationary_[c]);
        }
        stationary_.swap(next);
        if (change < kConverged) return;
    }
    throw UserError(
        "the Markov chain does not settle into a stationary distribution; expected one that mixes within " +
        std::to_string(kMaxSteps) + " steps; raise its temperature or change its seed");
}

void MarkovChain::find_block_entropies() {
    // Any m <= K consecutive tokens are distributed as the first m of a context: sum pi over the K - m that
    // follow.
    std::vector<double> marginal = stationary_;
    block_entropies_.assign(static_cast<size_t>(order_) + 2, 0.0);
    for (int m = order_; m > 0; --m) {
        block_entropies_[static_cast<size_t>(m)] = entropy(marginal);
        std::vector<double> shorter(marginal.size() / static_cast<size_t>(vocab_), 0.0);
        for (size_t i = 0; i < marginal.size(); ++i) shorter[i / static_cast<size_t>(vocab_)] += marginal[i];
        marginal.swap(shorter);
    }
    double rate = 0;
    for (int64_t c = 0; c < contexts_; ++c) {
        const double* row = cumulative_.data() + c * vocab_;
        rate += stationary(c) * entropy({row, row + vocab_});
    }
    block_entropies_.back() = block_entropies_[static_cast<size_t>(order_)] + rate;
}

double MarkovChain::probability(int64_t context, int token) const {
    const double* row = cumulative_.data() + context * vocab_;
    return row[token] - (token > 0 ? row[token - 1] : 0);
}

double MarkovChain::loss_floor(int T) const {
    // Target t has t + 1 tokens before it: fewer than K for the first K - 1, whose conditional entropies
    // telescope.
    const int first = std::clamp(order_ - 1, 0, T);
    const double early = block_entropies_[static_cast<size_t>(first) + 1] - block_entropies_[1];
    return (early + (T - first) * entropy_rate()) / T;
}

void MarkovChain::draw(uint64_t seed, uint32_t stream, int64_t index, int64_t count, int32_t* out) const {
    std::array<uint32_t, 4> words{};
    uint32_t drawn = 0;
    const auto next_uniform = [&] {  // two from each block of random words
        if (drawn % 2 == 0) {
            words = random_words(seed, Purpose::MarkovDraw, stream, static_cast<uint64_t>(index), drawn / 2);
        }
        const size_t half = 2 * (drawn++ % 2);
        return uniform(words[half], words[half + 1]);
    };
    int64_t context = choose(stationary_cumulative_.data(), contexts_, next_uniform());
    int64_t place = contexts_;
    int64_t written = 0;
    for (; written < std::min<int64_t>(order_, count); ++written) {  // the digits of the first context
        place /= vocab_;
        out[written] = static_cast<int32_t>(context / place % vocab_);
    }
    for (; written < count; ++written) {
        const int64_t token = choose(cumulative_.data() + context * vocab_, vocab_, next_uniform());
        out[written] = static_cast<int32_t>(token);
        context = (context * vocab_ + token) % contexts_;
    }
}

namespace {

// Every sequence is a chain of its own, so there is no end and no order: visit i is sequence i. The three
// parts draw from disjoint streams of random numbers.
class MarkovSource : public Source {
  public:
    MarkovSource(MarkovChain chain, int number, const DatasetOptions& options)
        : chain_(std::move(chain)),
          options_(options),
          stream_(static_cast<uint32_t>(number) * 4 + static_cast<uint32_t>(options.part)) {
        constexpr int64_t kNominalTokens = int64_t{1} << 20;  // see Dataset::sequences_per_epoch
        const int64_t all = std::max<int64_t>(2, kNominalTokens / options.context);
        const int64_t held_out =
            std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(all) * options.holdout), 1, all - 1);
        sequences_ = options.part == Part::All     ? all
                     : options.part == Part::Train ? all - held_out
                                                   : held_out;
    }

    int vocab() const override { return chain_.vocab(); }
    int64_t sequences() const override { return sequences_; }
    int64_t tokens() const override { return sequences_ * options_.context; }
    std::optional<double> loss_floor() const override { return chain_.loss_floor(options_.context); }

    std::string describe() const override {
        std::ostringstream out;
        out.precision(6);
        out << "without end (nominally " << tokens() << " tokens), entropy rate " << chain_.entropy_rate()
            << " nats per token, loss floor at T = " << options_.context << ": " << *loss_floor();
        return out.str();
    }

    Provenance read(int64_t visit, int32_t* inputs, int32_t* targets) const override {
        std::vector<int32_t> tokens(static_cast<size_t>(options_.context) + 1);
        chain_.draw(options_.seed, stream_, visit, static_cast<int64_t>(tokens.size()), tokens.data());
        std::copy_n(tokens.data(), options_.context, inputs);
        std::copy_n(tokens.data() + 1, options_.context, targets);
        return {.source = 0, .document = visit, .offset = 0};
    }

  private:
    MarkovChain chain_;
    DatasetOptions options_;
    uint32_t stream_;
    int64_t sequences_;
};

}  // namespace

std::shared_ptr<const Source> open_synthetic(const Term& term, int number, const DatasetOptions& options) {
    if (term.pattern != "markov") {
        throw UserError("data '" + term.name + "': unknown synthetic kind '" + term.pattern +
                        "'; expected markov; write synthetic:markov?order=1&vocab=64&seed=1");
    }
    term.allow_options({"order", "vocab", "seed", "temperature"});
    const int order = static_cast<int>(term.whole_number("order", 1, 0, 16));
    const int vocab = static_cast<int>(term.whole_number("vocab", 64, 2, 1 << 20));
    const int64_t seed = term.whole_number("seed", 1, 0, INT64_MAX);
    const double temperature = term.number("temperature", 1, 0.25, 1e6);
    return std::make_shared<MarkovSource>(MarkovChain(order, vocab, static_cast<uint64_t>(seed), temperature),
                                          number, options);
}

}  // namespace wobble
