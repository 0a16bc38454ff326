#include "probes/recorder.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>

#include "kernels/error.h"
#include "probes/spectrum.h"

namespace wobble {

const char* phase_name(Phase phase) {
    switch (phase) {
        case Phase::Forward:
            return "forward";
        case Phase::Backward:
            return "backward";
        case Phase::Update:
            return "update";
    }
    return "";
}

namespace {

Tier tier_of(const std::string& name, const std::string& text) {
    if (name == "off") return Tier::Off;
    if (name == "moments") return Tier::Moments;
    if (name == "full") return Tier::Full;
    throw UserError(
        "--probes " + text + ": '" + name +
        "' is not a tier; expected off, moments or full; write for example full:h.*.attn.*,moments:*");
}

}  // namespace

bool matches_any(const std::string& patterns, const std::string& site) {
    for (size_t at = 0; at <= patterns.size();) {
        const size_t end = std::min(patterns.find(',', at), patterns.size());
        if (fnmatch(patterns.substr(at, end - at).c_str(), site.c_str(), 0) == 0) return true;
        at = end + 1;
    }
    return false;
}

ProbePlan::ProbePlan(const std::string& text) {
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(',', at), text.size());
        const std::string rule = text.substr(at, end - at);
        const size_t colon = rule.find(':');
        const std::string pattern = colon == std::string::npos ? "*" : rule.substr(colon + 1);
        const Tier tier = tier_of(rule.substr(0, colon), text);
        if (pattern.empty()) {
            throw UserError("--probes " + text +
                            ": a tier has no site; expected a pattern after the colon, as in full:h.0.*");
        }
        rules_.push_back({tier, pattern});
        at = end + 1;
    }
}

Tier ProbePlan::tier(const std::string& site) const {
    for (const Rule& rule : rules_) {
        if (fnmatch(rule.pattern.c_str(), site.c_str(), 0) == 0) return rule.tier;
    }
    return Tier::Off;
}

Tier ProbePlan::most() const {
    Tier most = Tier::Off;
    for (const Rule& rule : rules_) most = std::max(most, rule.tier);
    return most;
}

bool Recorder::sampled(const std::string& site) const {
    return !sampled_.empty() && matches_any(sampled_, site);
}

void Recorder::record(const Site& at, const char* kernel, const char* channel, Statistics statistics,
                      int64_t rows) {
    const std::string site = at.full_name();
    const Phase phase = at.phase;
    const std::string key = site + '/' + phase_name(phase) + '/' + kernel + '/' + channel;
    const auto [place, is_new] = record_index_.try_emplace(key, seen_.records.size());
    if (statistics.moments.nonfinite() > 0 && first_nonfinite_ < 0) first_nonfinite_ = int64_t(place->second);
    if (is_new) {
        seen_.records.push_back({site, at.layer, phase, kernel, channel, std::move(statistics), rows});
    } else {
        seen_.records[place->second].statistics.merge(statistics);
        seen_.records[place->second].rows += rows;
    }
}

void Recorder::record(const Site& site, const char* kernel, const char* identity,
                      const ResidualTally& residuals) {
    tallies(site.full_name(), site.layer, site.phase, kernel).residuals.emplace_back(identity, residuals);
}

Recorder::Tallies& Recorder::tallies(const std::string& site, int layer, Phase phase, const char* kernel) {
    const std::string key = site + '/' + phase_name(phase) + '/' + kernel;
    const auto [place, is_new] = tally_index_.try_emplace(key, tallies_.size());
    if (is_new) tallies_.push_back({site, layer, phase, kernel, {}, {}, {}, {}, 0});
    return tallies_[place->second];
}

const Record* Recorder::find(const Site& site, const char* kernel) {
    collect();
    const std::string name = site.full_name();
    for (const Record& r : seen_.records) {
        if (r.phase == site.phase && r.site == name && std::string(kernel) == r.kernel) return &r;
    }
    return nullptr;
}

const double* Recorder::sums(const Site& site) {
    collect();
    const std::string name = site.full_name();
    for (auto t = tallies_.rbegin(); t != tallies_.rend(); ++t) {
        if (t->site == name && t->phase == site.phase && !t->sums.empty()) return t->sums.data();
    }
    return nullptr;
}

namespace {

HeadRow head_row(const std::string& site, int layer, int64_t head, const HeadTally& t) {
    const double queries = double(t.queries), wide = double(t.wide);
    return {.site = site,
            .layer = layer,
            .head = head,
            .max_logit = t.max_logit,
            .abs_logit = t.abs_logit,
            .entropy = t.entropy / queries,
            .entropy_min = t.wide > 0 ? t.entropy_min : NAN,
            .sink = t.sink / queries,
            .ties = t.wide > 0 ? double(t.ties) / wide : NAN,
            .saturated = t.wide > 0 ? double(t.saturated) / wide : NAN};
}

/// Channels whose mean magnitude is at most this share of the average are dormant (Sokar et al. 2023, figure
/// 1).
constexpr double dormant_share = 0.025;

ChannelRow channel_row(const Record& r) {
    const Columns& columns = *r.statistics.columns;
    const size_t n = columns.squares.size();
    double sizes = 0, squares = 0, fourths = 0;
    for (size_t j = 0; j < n; ++j) {
        sizes += columns.sizes[j], squares += columns.squares[j];
        fourths += columns.squares[j] * columns.squares[j];
    }
    const double mean = sizes / double(n);
    int64_t dormant = 0, dead = 0, largest = 0;
    for (size_t j = 0; j < n; ++j) {
        dormant += columns.sizes[j] <= dormant_share * mean, dead += columns.sizes[j] == 0;
        if (columns.squares[j] > columns.squares[size_t(largest)]) largest = int64_t(j);
    }
    ChannelRow row{
        .site = r.site,
        .layer = r.layer,
        .phase = r.phase,
        .kernel = r.kernel,
        .channel = r.channel,
        .columns = int64_t(n),
        .kurtosis = double(n) * (fourths / squares) / squares,
        .dormant = double(dormant) / double(n),
        .dead = double(dead) / double(n),
        .largest = columns.first + largest,
        .largest_rms = std::sqrt(columns.squares[size_t(largest)] /
                                 (double(r.moments().count + r.moments().nonfinite()) / double(n))),
        .effective_rank = NAN,
        .stable_rank = NAN,
        .sampled_rows = 0};
    if (const SampledRows* sample = r.statistics.sample.get()) {
        const Spectrum s = spectrum(sample->values.data(), sample->rows, sample->columns);
        row.effective_rank = s.effective_rank, row.stable_rank = s.stable_rank,
        row.sampled_rows = sample->rows;
    }
    return row;
}

StreamRow stream_row(const std::string& site, int layer, const PairTally& pair, int64_t values) {
    return {.site = site,
            .layer = layer,
            .stream_rms = std::sqrt(pair.beside_squares / double(values)),
            .write_rms = std::sqrt(pair.squares / double(values)),
            .ratio = std::sqrt(pair.squares / pair.beside_squares),
            .cosine = pair.dot / std::sqrt(pair.squares * pair.beside_squares)};
}

}  // namespace

Observation Recorder::take() {
    collect();
    for (const Tallies& t : tallies_) {
        for (size_t h = 0; h < t.heads.size(); ++h) {
            if (t.heads[h].queries > 0)
                seen_.heads.push_back(head_row(t.site, t.layer, int64_t(h), t.heads[h]));
        }
        for (const auto& [identity, r] : t.residuals) {
            if (r.rows == 0) continue;
            seen_.residuals.push_back({t.site, t.layer, t.phase, t.kernel, identity, r.rows, r.value, r.bias,
                                       r.scale, r.worst, r.worst_row});
        }
        if (t.pair.any && t.phase == Phase::Forward)
            seen_.streams.push_back(stream_row(t.site, t.layer, t.pair, t.values));
    }
    for (const Record& r : seen_.records) {
        if (r.statistics.columns && !r.statistics.columns->sizes.empty())
            seen_.channels.push_back(channel_row(r));
    }
    Observation all = std::move(seen_);
    clear();
    return all;
}

void Recorder::clear() {
    collect();
    seen_ = {};
    tallies_.clear();
    record_index_.clear(), tally_index_.clear();
    first_nonfinite_ = -1;
}

}  // namespace wobble
