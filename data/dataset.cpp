// Opens the sources of a specification and deals out the sequences of their mixture.
#include "data/dataset.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "data/permutation.h"
#include "data/source.h"
#include "data/spec.h"
#include "kernels/error.h"

namespace wobble {

namespace {

constexpr int64_t kBlock = 1000;  // sequences over which the shares of a mixture are exact

void check(const DatasetOptions& options) {
    if (options.context < 1) {
        throw UserError("context is " + std::to_string(options.context) +
                        "; expected at least 1; use --context 64");
    }
    if (options.vocab < 0) {
        throw UserError("vocab is " + std::to_string(options.vocab) +
                        "; expected at least 1; leave --vocab out");
    }
    if (!(options.holdout >= 0 && options.holdout < 1)) {
        throw UserError("held-out share is " + std::to_string(options.holdout) +
                        "; expected a number from 0 to below 1; try 0.1");
    }
    if (options.part == Part::HeldOut && options.holdout == 0) {
        throw UserError(
            "the held-out share is 0, so there is no held-out part; expected a share above 0; try 0.1");
    }
}

// Slots out of kBlock for each weight (which sum to 1): the whole parts, then one more to the largest
// remainders.
std::vector<int64_t> share_slots(const std::vector<double>& weights) {
    std::vector<int64_t> slots;
    std::vector<double> remainders;
    for (const double weight : weights) {
        const double exact = weight * static_cast<double>(kBlock);
        // 0.3 / (0.3 + 0.7) * 1000 may come out a rounding error below 300.
        const double whole = std::floor(exact + 1e-9);
        slots.push_back(static_cast<int64_t>(whole));
        remainders.push_back(exact - whole);
    }
    std::vector<size_t> order(weights.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
    const int64_t left = kBlock - std::accumulate(slots.begin(), slots.end(), int64_t{0});
    for (int64_t i = 0; i < left; ++i) ++slots[order[static_cast<size_t>(i) % order.size()]];
    return slots;
}

std::shared_ptr<const Source> open_source(const Term& term, int number, const DatasetOptions& options) {
    if (term.kind == "text") return open_text(term, number, options);
    if (term.kind == "tokens") return open_tokens(term, number, options);
    return open_synthetic(term, number, options);
}

std::string shortened(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    return text;
}

}  // namespace

Dataset Dataset::open(const std::string& spec, const DatasetOptions& options) {
    check(options);
    const std::vector<Term> terms = parse_spec(spec);
    if (static_cast<int64_t>(terms.size()) > kBlock) {
        throw UserError("the data specification has " + std::to_string(terms.size()) +
                        " sources; expected at most " + std::to_string(kBlock) +
                        "; join files of a kind with a glob");
    }
    double total = 0;
    for (const Term& term : terms) total += term.weight;
    std::vector<double> weights;
    for (const Term& term : terms) weights.push_back(term.weight / total);
    const std::vector<int64_t> slots = share_slots(weights);

    Dataset dataset;
    dataset.options_ = options;
    int64_t first_slot = 0;
    for (size_t i = 0; i < terms.size(); ++i) {
        const Term& term = terms[i];
        if (slots[i] == 0) {
            throw UserError("data '" + term.name + "' has a share of " + shortened(weights[i]) +
                            " in the mixture; expected at least 1 sequence in " + std::to_string(kBlock) +
                            "; raise its weight or leave it out");
        }
        dataset.entries_.push_back({.source = open_source(term, static_cast<int>(i), options),
                                    .name = term.name,
                                    .weight = weights[i],
                                    .slots = slots[i],
                                    .first_slot = first_slot});
        first_slot += slots[i];
    }
    return dataset;
}

int Dataset::vocab() const {
    int largest = 0;
    for (const Entry& entry : entries_) largest = std::max(largest, entry.source->vocab());
    return largest;
}

int64_t Dataset::sequences_per_epoch() const {
    int64_t sum = 0;
    for (const Entry& entry : entries_) sum += entry.source->sequences();
    return sum;
}

int64_t Dataset::tokens() const {
    int64_t sum = 0;
    for (const Entry& entry : entries_) sum += entry.source->tokens();
    return sum;
}

const std::string& Dataset::source_name(int source) const {
    return entries_.at(static_cast<size_t>(source)).name;
}

std::string Dataset::describe() const {
    std::string text;
    for (const Entry& entry : entries_) {
        text += entry.name + ": " + entry.source->describe() + "; " +
                std::to_string(entry.source->sequences()) + " sequences of " +
                std::to_string(options_.context) + ", V = " + std::to_string(entry.source->vocab());
        if (sources() > 1) text += ", weight " + shortened(entry.weight);
        text += '\n';
    }
    return text;
}

std::optional<double> Dataset::loss_floor() const {
    // In a mixture a model must also find out which source it reads, and what that costs is not known in
    // closed form.
    return sources() == 1 ? entries_[0].source->loss_floor() : std::nullopt;
}

Provenance Dataset::read(int64_t index, int32_t* inputs, int32_t* targets) const {
    if (sources() == 1) return entries_[0].source->read(index, inputs, targets);
    const int64_t block = index / kBlock;
    const int64_t slot = Permutation(kBlock, options_.seed, Purpose::Mixture, 0, block)(index % kBlock);
    const auto after = std::upper_bound(entries_.begin(), entries_.end(), slot,
                                        [](int64_t s, const Entry& entry) { return s < entry.first_slot; });
    const Entry& entry = *(after - 1);
    Provenance provenance =
        entry.source->read(block * entry.slots + slot - entry.first_slot, inputs, targets);
    provenance.source = static_cast<int>(&entry - entries_.data());
    return provenance;
}

}  // namespace wobble
