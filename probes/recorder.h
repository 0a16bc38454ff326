// Who wants to see what: a kernel is launched at a site, and the recorder says how closely to look and keeps
// what was seen.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "probes/observation.h"
#include "probes/watch.h"

namespace wobble {

/// A place in the model: {"attn.qkv", 3} is "h.3.attn.qkv"; layer -1 stands outside the layers. In the
/// backward phase a site without `part` is the gradient of its input, and one with ".weight" or ".bias" that
/// of the parameter.
struct Site {
    const char* name;
    int layer = -1;
    Phase phase = Phase::Forward;
    const char* part = "";
    int64_t first_row = 0;  // of the batch, where a launch begins with a later one

    Site of(const char* parameter) const { return {name, layer, phase, parameter}; }
    Site from_row(int64_t row) const { return {name, layer, phase, part, row}; }
    std::string full_name() const {
        return (layer < 0 ? std::string() : "h." + std::to_string(layer) + ".") + name + part;
    }
};

/// Whether one of a comma-separated list of patterns (as in the shell) matches.
bool matches_any(const std::string& patterns, const std::string& name);

/// Which sites to look at: "moments" or "full:h.*.attn.*,moments:*". Of several patterns (as in the shell)
/// the first that matches a site decides; sites that none matches are left alone.
class ProbePlan {
  public:
    ProbePlan() = default;
    /// UserError when `text` is not such a list.
    explicit ProbePlan(const std::string& text);

    Tier tier(const std::string& site) const;
    /// The most that any site gets.
    Tier most() const;
    bool looks() const { return most() != Tier::Off; }

  private:
    struct Rule {
        Tier tier;
        std::string pattern;
    };
    std::vector<Rule> rules_;
};

/// A change of what a kernel computes, to see what becomes of it.
struct Injection {
    std::string site;
    Phase phase;
    std::string kernel, channel;
    int64_t row, column;  // or Fault::every
    Change change;
    int64_t micro = 0;  // the micro-batch of the step
};

/// Records that are still on their way from a device.
class PendingRecords {
  public:
    virtual ~PendingRecords() = default;
    /// Waits for them, and hands them to the recorder.
    virtual void collect() = 0;
};

class Recorder {
  public:
    /// `sampled`: pattern of the sites that are watched at tier full of which rows are kept, for their
    /// spectrum.
    explicit Recorder(ProbePlan plan, std::string sampled = "")
        : plan_(std::move(plan)), sampled_(std::move(sampled)) {}

    /// No site gets more than this, whatever the plan says.
    void limit(Tier most) { most_ = most; }
    /// Where the squared norms of the norms' gradients are to be added up for each sequence of the
    /// micro-batch [B]; null: they are not wanted.
    void measure_examples(double* squares) { example_squares_ = squares; }
    double* example_squares() const { return example_squares_; }
    /// Changes what is computed while the recorder is in use, whether it looks or not. The first that
    /// concerns a launch counts.
    void inject(std::vector<Injection> injections) { injections_ = std::move(injections); }
    void inject(Injection injection) { injections_ = {std::move(injection)}; }
    bool injects() const { return !injections_.empty(); }
    /// Launches from here on are those of micro-batch number `micro`.
    void begin_micro(int64_t micro) { micro_ = micro; }
    /// All rows are kept, as `sampled` sites' rows are, whatever the phase: to find a value among them.
    void keep_rows() { every_row_ = true; }

    Tier tier(const Site& site) const { return tier_of(site.full_name()); }
    /// How to look at a launch; tier off and no fault: not at all. `rows`, `columns`: of what channel 0
    /// observes.
    template <class Kernel>
    Look look(const Site& site, int64_t rows, int64_t columns) const;
    /// What a launch of a kernel showed.
    /// `rows`: that it worked on, or those of the matrix that its first channel is.
    template <class Kernel>
    void record(const Site& site, Seen<Kernel> seen, int64_t rows = 0);
    /// What one channel of it showed.
    void record(const Site& site, const char* kernel, const char* channel, Statistics statistics,
                int64_t rows = 0);

    /// An identity that no single kernel can check.
    void record(const Site& site, const char* kernel, const char* identity, const ResidualTally& residuals);

    /// Calls f when what was launched so far has been done and somebody asks for records: what it reads must
    /// be there until then.
    void later(std::function<void()> f) { later_.push_back(std::move(f)); }
    /// Where a device keeps what it has not handed over; made by the first launch there. All that follows
    /// waits for it.
    std::unique_ptr<PendingRecords>& pending() { return pending_; }

    /// What was seen since the last `clear`, channels in the order in which they were first launched. Others
    /// may add their rows.
    Observation& observation() {
        collect();
        return seen_;
    }
    const std::vector<Record>& records() { return observation().records; }
    /// Hands over everything that was seen, made into rows, and starts afresh.
    Observation take();
    /// The sums that a kernel made at a site in its last launch there; null when nobody looked.
    const double* sums(const Site& site);
    /// The first channel of that kernel at a site; null when it was not observed.
    const Record* find(const Site& site, const char* kernel);
    /// The record that was the first, in time, to see a value that is not finite; null when all were.
    const Record* first_nonfinite() {
        collect();
        return first_nonfinite_ < 0 ? nullptr : &seen_.records[size_t(first_nonfinite_)];
    }
    void clear();

  private:
    /// A site's tallies over the launches of a step.
    struct Tallies {
        std::string site;
        int layer;
        Phase phase;
        const char* kernel;
        std::vector<std::pair<const char*, ResidualTally>> residuals;
        std::vector<HeadTally> heads;
        std::vector<double> sums;
        PairTally pair;
        int64_t values = 0;  // that the pair is about
    };

    Tier tier_of(const std::string& site) const {
        const Tier tier = plan_.tier(site);
        return tier < most_ ? tier : most_;
    }
    bool sampled(const std::string& site) const;
    void collect() {
        if (pending_) pending_->collect();
        for (const auto& f : std::exchange(later_, {})) f();
    }
    Tallies& tallies(const std::string& site, int layer, Phase phase, const char* kernel);

    ProbePlan plan_;
    std::string sampled_;
    Tier most_ = Tier::Full;
    std::vector<Injection> injections_;
    int64_t micro_ = 0;
    bool every_row_ = false;
    double* example_squares_ = nullptr;
    Observation seen_;
    std::vector<Tallies> tallies_;
    std::unordered_map<std::string, size_t> record_index_, tally_index_;
    int64_t first_nonfinite_ = -1;
    std::unique_ptr<PendingRecords> pending_;
    std::vector<std::function<void()>> later_;
};

template <class Kernel>
Look Recorder::look(const Site& site, int64_t rows, int64_t columns) const {
    const std::string name = site.full_name();
    Look a{.tier = tier_of(name), .fault = {}, .rows = rows, .columns = columns};
    constexpr int64_t most_sampled = 128;
    if (a.tier == Tier::Full && (site.phase == Phase::Forward || every_row_) && columns > 0 &&
        sampled(name)) {
        a.row_step = rows > most_sampled && !every_row_ ? (rows + most_sampled - 1) / most_sampled : 1;
    }
    for (const Injection& i : injections_) {
        if (i.site != name || i.phase != site.phase || i.kernel != Kernel::name || i.micro != micro_)
            continue;
        for (int c = 0; c < Channels<Kernel>::count && a.fault.channel < 0; ++c) {
            if (i.channel != Kernel::channels[c]) continue;
            a.fault = {c, i.row == Fault::every ? i.row : i.row - site.first_row, i.column, i.change};
        }
    }
    return a;
}

template <class Kernel>
void Recorder::record(const Site& site, Seen<Kernel> seen, int64_t rows) {
    using C = Channels<Kernel>;
    const std::string name = site.full_name();
    seen.begins_with_row(site.first_row);
    int64_t values = 0;
    for (int c = 0; c < C::count; ++c) {
        const Moments& m = seen.channels[c].moments;
        // A channel that saw nothing is one that this launch does not have.
        if (m.count + m.nonfinite() == 0) continue;
        if (c == 0) values = m.count + m.nonfinite();
        record(site, Kernel::name, Kernel::channels[c], std::move(seen.channels[c]), rows);
    }
    if (C::sums == 0 && C::identities == 0 && !C::heads && !seen.pair.any) return;
    Tallies& t = tallies(name, site.layer, site.phase, Kernel::name);
    t.sums.assign(seen.sums, seen.sums + C::sums);
    for (int i = 0; i < C::identities; ++i) {
        if (t.residuals.size() == size_t(i)) {
            if constexpr (C::identities > 0) t.residuals.emplace_back(Kernel::identities[i], ResidualTally());
        }
        t.residuals[size_t(i)].second.merge(seen.residuals[i]);
    }
    for (const auto& [number, tally] : seen.heads) {
        if (t.heads.size() <= size_t(number)) t.heads.resize(size_t(number) + 1);
        t.heads[size_t(number)].merge(tally);
    }
    if (seen.pair.any) t.pair.merge(seen.pair), t.values += values;
}

}  // namespace wobble
