// Synthetic text whose entropy is known: a Markov chain of order K over V tokens.
//
// The next token x is drawn from p(x | the K tokens before) = softmax_x(2 g / temperature), with a standard
// Gaussian g for each (context, x) from the seed. At temperature 1 and large V the chain then has an entropy
// of about log V - 2 nats: much can be learned, and much cannot. Everything else follows exactly:
//
//   stationary     pi P = pi over the V^K contexts, by power iteration (on (P + 1) / 2)
//   entropy rate   h = sum_c pi(c) H(p(. | c)): no model can predict better on average, given K tokens of
//   context loss floor     the mean over the T targets of a sequence of H(x_{t+1} | x_0 .. x_t). The first K
//   - 1 targets have fewer than
//                  K tokens before them, and the floor there is a difference of block entropies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace wobble {

class MarkovChain {
  public:
    /// The most transition probabilities, V^K * V, that a chain may have: 32 MiB of float64.
    static constexpr int64_t kMaxProbabilities = int64_t{1} << 22;

    /// order K >= 0, vocab V >= 2, temperature >= 0.25 (below it chains may take too long to mix). Throws
    /// UserError where V^K * V is above kMaxProbabilities, or the power iteration does not converge.
    MarkovChain(int order, int vocab, uint64_t seed, double temperature);

    int order() const { return order_; }
    int vocab() const { return vocab_; }
    /// V^K. A context is numbered by its tokens as digits in base V, the latest as the last digit.
    int64_t contexts() const { return contexts_; }
    /// p(token | context).
    double probability(int64_t context, int token) const;
    /// pi(context).
    double stationary(int64_t context) const { return stationary_[static_cast<size_t>(context)]; }
    /// h, in nats per token.
    double entropy_rate() const {
        return block_entropies_.back() - block_entropies_[block_entropies_.size() - 2];
    }
    /// The lowest mean loss over the targets of sequences of T tokens, in nats per token.
    double loss_floor(int T) const;

    /// Draws `count` tokens of a chain that starts from its stationary distribution. A pure function of
    /// (seed, stream, index), with the seed here that of the draws. stream must be below 2^24.
    void draw(uint64_t seed, uint32_t stream, int64_t index, int64_t count, int32_t* out) const;

  private:
    void draw_table(uint64_t seed, double temperature);
    void find_stationary();
    void find_block_entropies();

    int order_, vocab_;
    int64_t contexts_ = 1;
    std::vector<double>
        cumulative_;  // [V^K, V] P(x <= token | context); while it is built, p(token | context)
    std::vector<double> stationary_;             // [V^K]
    std::vector<double> stationary_cumulative_;  // [V^K]
    std::vector<double> block_entropies_;        // [K + 2] of m consecutive tokens, m = 0 .. K + 1
};

}  // namespace wobble
