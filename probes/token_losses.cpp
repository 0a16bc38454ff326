// Sorting into groups, selection of ranks and of the largest.
#include "probes/token_losses.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

namespace wobble {

TokenFrequency::TokenFrequency(const std::vector<int64_t>& counts) : deciles_(counts.size()) {
    std::vector<size_t> order(counts.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return counts[a] < counts[b]; });
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    int64_t before = 0;
    for (const size_t token : order) {
        // The middle lies at (before + count / 2) / total.
        const int64_t middle = 2 * before + counts[token];
        const int64_t decile = total == 0 ? 0 : kDeciles * middle / (2 * total);
        deciles_[token] = static_cast<uint8_t>(decile);
        ++tokens_[static_cast<size_t>(decile)];
        before += counts[token];
    }
}

namespace {

bool ranks_before(const TokenRow& a, const TokenRow& b) {
    const bool a_nan = std::isnan(a.loss), b_nan = std::isnan(b.loss);
    if (a_nan != b_nan) return a_nan;
    if (!a_nan && a.loss != b.loss) return a.loss > b.loss;
    return std::tie(a.micro, a.row, a.position) < std::tie(b.micro, b.row, b.position);
}

}  // namespace

template <class T>
void LargestLosses::add(const MicroLosses<T>& micro) {
    for (int64_t row = 0; row < micro.rows; ++row) {
        const Provenance& place = micro.provenance[row];
        for (int64_t t = 0; t < micro.context; ++t) {
            const int64_t i = row * micro.context + t;
            const double loss = double(micro.losses[i]);
            if (micro.targets[i] < 0) continue;
            if (rows_.size() == kTokens && loss < rows_.back().loss) continue;  // nearly always
            insert({.rank = 0,
                    .micro = micro.micro,
                    .row = row,
                    .position = t,
                    .token = micro.targets[i],
                    .loss = loss,
                    .source = place.source,
                    .document = place.document,
                    .offset = place.offset + t + 1});
        }
    }
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i].rank = static_cast<int64_t>(i);
}

void LargestLosses::insert(const TokenRow& row) {
    rows_.insert(std::upper_bound(rows_.begin(), rows_.end(), row, ranks_before), row);
    if (rows_.size() > kTokens) rows_.pop_back();
}

void TokenLosses::Mean::add(double loss) {
    sum += loss;
    ++tokens;
    finite &= std::isfinite(loss);
}

LossRow TokenLosses::Mean::row(const char* kind, int64_t key) const {
    const double mean = finite ? sum / double(tokens) : std::numeric_limits<double>::quiet_NaN();
    return {.kind = kind, .key = key, .loss = mean, .tokens = tokens};
}

template <class T>
void TokenLosses::add(const MicroLosses<T>& micro) {
    for (int64_t row = 0; row < micro.rows; ++row) {
        for (int64_t t = 0; t < micro.context; ++t) {
            const int64_t i = row * micro.context + t;
            const int32_t target = micro.targets[i];
            if (target < 0) continue;
            assert(target < frequency_->vocab());
            const double loss = double(micro.losses[i]);
            if (std::isfinite(loss)) finite_.push_back(loss);
            by_decile_[static_cast<size_t>(frequency_->decile(target))].add(loss);
            const int range =
                std::min(static_cast<int>(std::bit_width(static_cast<uint64_t>(t))), kRanges - 1);
            by_position_[static_cast<size_t>(range)].add(loss);
        }
    }
    largest_.add(micro);
}

std::vector<LossRow> TokenLosses::rows() const {
    std::vector<LossRow> rows;
    std::vector<double> losses = finite_;
    const int64_t n = static_cast<int64_t>(losses.size());
    auto first = losses.begin();  // all before it are no larger than all from it on
    for (const int64_t percent : {1, 5, 25, 50, 75, 95, 99, 100}) {
        if (n == 0) break;
        const auto ranked = losses.begin() + ((percent * n + 99) / 100 - 1);
        std::nth_element(first, ranked, losses.end());
        rows.push_back({.kind = "percentile", .key = percent, .loss = *ranked, .tokens = n});
        first = ranked;
    }
    for (size_t i = 0; i < by_decile_.size(); ++i) {
        if (by_decile_[i].tokens > 0) rows.push_back(by_decile_[i].row("frequency", static_cast<int64_t>(i)));
    }
    for (size_t i = 0; i < by_position_.size(); ++i) {
        const int64_t start = i == 0 ? 0 : int64_t{1} << (i - 1);
        if (by_position_[i].tokens > 0) rows.push_back(by_position_[i].row("position", start));
    }
    return rows;
}

template void LargestLosses::add(const MicroLosses<float>&);
template void LargestLosses::add(const MicroLosses<double>&);
template void TokenLosses::add(const MicroLosses<float>&);
template void TokenLosses::add(const MicroLosses<double>&);

}  // namespace wobble
