// The ring of the last steps.
#include "probes/ring.h"

#include <utility>

namespace wobble {

namespace {
SiteKey key_of(const Record& r) {
    return {r.site, r.phase, r.kernel, r.channel};
}
}  // namespace

int32_t Ring::site_number(const Record& r, int32_t guess) {
    const SiteKey key = key_of(r);
    if (size_t(guess) < names_.size() && SiteKey(names_[size_t(guess)]) == key) return guess;
    if (const auto known = numbers_.find(key); known != numbers_.end()) return int32_t(known->second);
    const auto number = int32_t(names_.size());
    names_.emplace_back(key, r.layer);
    numbers_.emplace(names_.back(), number);
    return number;
}

void Ring::push(int64_t step, const std::vector<Record>& records) {
    if (room_ <= 0) return;
    while (!steps_.empty() && steps_.back().step >= step) steps_.pop_back();
    RingDump::Step next;
    if (size() == room_) {
        next = std::move(steps_.front());  // for its memory
        steps_.pop_front();
    }
    next.step = step;
    next.sites.resize(records.size());
    next.moments.resize(records.size());
    // A step mostly has the sites of other steps, in the same order: what followed a site follows it again.
    int32_t guess = 0;
    for (size_t i = 0; i < records.size(); ++i) {
        next.sites[i] = site_number(records[i], guess);
        next.moments[i] = records[i].moments();
        guess = next.sites[i] + 1;
    }
    steps_.push_back(std::move(next));
}

RingDump Ring::take() {
    return {names_, std::exchange(steps_, {})};
}

}  // namespace wobble
