// What the losses of a step's single tokens say: their percentiles, their means by frequency of the target
// and by position, and the largest with their places in the data.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "data/dataset.h"
#include "probes/observation.h"

namespace wobble {

/// The vocabulary in ten groups that hold about a tenth of all occurrences each, the rarest tokens first.
///
/// The tokens are laid end to end by count (equal counts by id), each as long as its count, and that line is
/// cut in ten. A token that a cut goes through belongs to the group that its middle lies in. Tokens that
/// never occurred are in group 0. A token with more than a tenth of the occurrences leaves groups empty.
class TokenFrequency {
  public:
    static constexpr int kDeciles = 10;

    /// counts [V], at least 0; their sum is below 2^58.
    explicit TokenFrequency(const std::vector<int64_t>& counts);

    int64_t vocab() const { return static_cast<int64_t>(deciles_.size()); }
    /// 0 to 9, of a token in [0, V).
    int decile(int32_t token) const { return deciles_[static_cast<size_t>(token)]; }
    /// How many tokens are in a decile.
    int64_t tokens_in(int decile) const { return tokens_[static_cast<size_t>(decile)]; }

  private:
    std::vector<uint8_t> deciles_;
    std::array<int64_t, kDeciles> tokens_ = {};
};

/// The losses of one micro-batch, as the classifier leaves them.
template <class T>
struct MicroLosses {
    int64_t micro;                 // its number in the step
    const T* losses;               // [rows, context], nats
    const int32_t* targets;        // [rows, context], -1 where there is no loss
    const Provenance* provenance;  // [rows], of the first input token of each row
    int64_t rows;                  // sequences
    int64_t context;               // T
};

/// The tokens with the largest losses of a step. A loss that is NaN is larger than any; of equal losses the
/// earlier (by micro-batch, row, position) is the larger. So the outcome does not depend on the order of add.
class LargestLosses {
  public:
    static constexpr size_t kTokens = 16;

    template <class T>
    void add(const MicroLosses<T>& micro);

    /// At most kTokens, the largest first. The target at position t stands t + 1 after the first input token:
    /// the offset is counted from the beginning of that token's document, and lies past its end where the
    /// sequence has run on into a following one.
    const std::vector<TokenRow>& rows() const { return rows_; }

  private:
    void insert(const TokenRow& row);

    std::vector<TokenRow> rows_;
};

/// The losses of a step, micro-batch by micro-batch.
class TokenLosses {
  public:
    /// Positions are taken together in ranges that double: 0, 1, 2-3, 4-7, ..., and from 2^14 on all that is
    /// left. The loss falls with position about as a power does, fast and then ever more slowly, so ranges
    /// that are even on a logarithmic axis show it; and they are the same for every T.
    static constexpr int kRanges = 16;

    /// `frequency` covers all targets and outlives this.
    explicit TokenLosses(const TokenFrequency& frequency) : frequency_(&frequency) {}

    template <class T>
    void add(const MicroLosses<T>& micro);

    /// Percentiles 1, 5, 25, 50, 75, 95, 99 and 100 (the maximum) of the finite losses, by nearest rank: of n
    /// losses in ascending order the ceil(p n / 100)-th. Then the means by decile of the target's frequency
    /// and by range of positions, NaN where a loss of the group is not finite. Groups without a token are
    /// left out, and all percentiles where no loss is finite.
    std::vector<LossRow> rows() const;
    const std::vector<TokenRow>& largest() const { return largest_.rows(); }

  private:
    struct Mean {
        double sum = 0;
        int64_t tokens = 0;
        bool finite = true;

        void add(double loss);
        LossRow row(const char* kind, int64_t key) const;
    };

    const TokenFrequency* frequency_;
    std::vector<double> finite_;
    std::array<Mean, TokenFrequency::kDeciles> by_decile_;
    std::array<Mean, kRanges> by_position_;
    LargestLosses largest_;
};

}  // namespace wobble
