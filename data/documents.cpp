// The held-out split, and the way from a position in a part to a document and an offset.
#include "data/documents.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace wobble {

Documents::Documents(std::vector<int64_t> starts, double holdout, Part part)
    : starts_(std::move(starts)),
      holdout_(holdout),
      part_(holdout > 0 ? part : Part::All),
      whole_documents_(holdout > 0 && static_cast<double>(all_documents()) >= 2 / holdout) {
    assert(starts_.size() >= 2 && starts_.front() == 0);
    const int64_t all = starts_.back();
    tail_ = all - static_cast<int64_t>(std::floor(static_cast<double>(all) * holdout));
    int64_t held_out_tokens = all - tail_;
    if (whole_documents_) {
        held_out_.push_back(0);
        for (int64_t d = 0; d < all_documents(); ++d) {
            if (held_out_before(d + 1) == held_out_before(d)) continue;
            const size_t i = static_cast<size_t>(d);
            held_out_.push_back(held_out_.back() + starts_[i + 1] - starts_[i]);
        }
        held_out_tokens = held_out_.back();
    }
    tokens_ = part_ == Part::All ? all : part_ == Part::Train ? all - held_out_tokens : held_out_tokens;
}

// floor(d f) of the documents before d are held out. f < 1, so it grows by at most 1 from one document to the
// next.
int64_t Documents::held_out_before(int64_t document) const {
    return static_cast<int64_t>(std::floor(static_cast<double>(document) * holdout_));
}

// Tokens of the part in the documents before this one. Only where whole documents are held out.
int64_t Documents::part_start(int64_t document) const {
    const int64_t held_out = held_out_[static_cast<size_t>(held_out_before(document))];
    return part_ == Part::HeldOut ? held_out : starts_[static_cast<size_t>(document)] - held_out;
}

int64_t Documents::documents() const {
    if (part_ == Part::All) return all_documents();
    if (whole_documents_) {
        const int64_t held_out = held_out_before(all_documents());
        return part_ == Part::HeldOut ? held_out : all_documents() - held_out;
    }
    if (tokens_ == 0) return 0;
    const Place first = locate(0), last = locate(tokens_ - 1);
    return last.document - first.document + 1;
}

Documents::Place Documents::locate(int64_t position) const {
    assert(position >= 0 && position < tokens_);
    if (part_ == Part::All || !whole_documents_) {
        const int64_t whole = part_ == Part::HeldOut ? tail_ + position : position;
        const auto next = std::upper_bound(starts_.begin(), starts_.end(), whole);
        const int64_t end = part_ == Part::Train ? std::min(*next, tail_) : *next;
        return {.position = whole,
                .document = next - starts_.begin() - 1,
                .offset = whole - *(next - 1),
                .left = end - whole};
    }
    // The last document that starts at or before `position` in the part: those of the other part take no
    // room, so they start where the next one of this part does, and the last of equals is the one that holds
    // the token.
    int64_t low = 0, high = all_documents();
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (part_start(middle) <= position ? low : high) = middle;
    }
    const int64_t offset = position - part_start(low);
    const size_t i = static_cast<size_t>(low);
    return {.position = starts_[i] + offset,
            .document = low,
            .offset = offset,
            .left = starts_[i + 1] - starts_[i] - offset};
}

}  // namespace wobble
