#include "report/evidence.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "report/first_mover.h"
#include "report/maps.h"
#include "report/series.h"

namespace wobble {
namespace {

using Json = nlohmann::ordered_json;

// Recorded steps that lead up to an event: a past for the first of them, and room to leave it early.
constexpr size_t records = 64, longest = 640;

constexpr double missing = -INFINITY;  // NaN is what was not finite

/// One table's records by step, each read once: events often follow one another closely.
class Records {
  public:
    /// `columns`: expressions of the table. `quantities` name them.
    Records(History& history, std::string table, const std::string& columns,
            std::vector<std::string> quantities, std::vector<char> positive)
        : history_(history),
          table_(std::move(table)),
          quantities_(std::move(quantities)),
          positive_(std::move(positive)) {
        if (history.has(table_))
            select_ = history.database().prepare("SELECT " + columns + " FROM " + table_ + " WHERE step = ?");
    }
    virtual ~Records() = default;

    /// Adds the series of all rows up to the event. The first step of them, or the event's where there are
    /// none.
    int64_t add_leads(int64_t event, std::vector<Lead>& leads) {
        const std::vector<int64_t> steps = history_.recorded_before(table_, event, records);
        if (steps.empty()) return event;
        for (const int64_t step : steps) read(step);
        const size_t count = quantities_.size();
        for (size_t r = 0; r < rows_.size(); ++r) {
            for (size_t q = 0; q < count; ++q) {
                Lead lead{rows_[r], quantities_[q], positive_[q] != 0, {}, {}};
                for (const int64_t step : steps) {
                    const std::vector<float>& values = cache_[step];
                    const size_t at = r * count + q;
                    if (at >= values.size() || double(values[at]) == missing) continue;
                    lead.steps.push_back(step), lead.values.push_back(double(values[at]));
                }
                if (lead.values.size() > mover_past) leads.push_back(std::move(lead));
            }
        }
        return steps.front();
    }

  protected:
    /// The name of the row that the statement stands at; empty: of no interest.
    virtual std::string name_of(const Sqlite::Statement&) = 0;
    virtual double value_of(const Sqlite::Statement& row, size_t quantity) = 0;
    virtual int64_t key_of(const Sqlite::Statement& row) { return Sqlite::integer(row, 0); }

  private:
    void read(int64_t step) {
        if (cache_.contains(step)) return;
        std::vector<float>& values = cache_[step];
        const size_t count = quantities_.size();
        sqlite3_reset(select_.get());
        history_.database().bind(select_, step);
        while (history_.database().next(select_)) {
            const auto [place, is_new] = row_of_.try_emplace(key_of(select_), rows_.size());
            if (is_new) rows_.push_back(name_of(select_));
            const size_t at = place->second * count;
            if (rows_[place->second].empty()) continue;
            if (values.size() < at + count) values.resize(at + count, float(missing));
            for (size_t q = 0; q < count; ++q) values[at + q] = float(value_of(select_, q));
        }
    }

    History& history_;
    std::string table_;
    std::vector<std::string> quantities_;
    std::vector<char> positive_;
    Sqlite::Statement select_;
    std::map<int64_t, std::vector<float>> cache_;
    std::map<int64_t, size_t> row_of_;
    std::vector<std::string> rows_;
};

std::map<int64_t, std::string> names_of(const std::vector<Site>& sites) {
    std::map<int64_t, std::string> names;
    for (const SiteGroup& g : site_groups(sites)) {
        for (size_t i = 0; i < g.sites.size(); ++i)
            names[g.sites[i].number] =
                g.labels[i] + (g.sites[i].phase == "forward" ? "" : ", " + g.sites[i].phase);
    }
    return names;
}

class SiteRecords : public Records {
  public:
    SiteRecords(History& h, const std::vector<Site>& sites)
        : Records(h, "stats_packed", "site, rms, min, max, nans + infs", {"RMS", "absmax"}, {1, 1}),
          names_(names_of(sites)) {}

  private:
    std::string name_of(const Sqlite::Statement& row) override { return names_[key_of(row)]; }
    double value_of(const Sqlite::Statement& row, size_t quantity) override {
        if (Sqlite::integer(row, 4) > 0) return NAN;
        const double value =
            quantity == 0 ? packed_real(row, 1) : std::max(-packed_real(row, 2), packed_real(row, 3));
        return std::isnan(value) ? missing : value;
    }
    std::map<int64_t, std::string> names_;
};

class TensorRecords : public Records {
  public:
    TensorRecords(History& h, const std::vector<Site>& sites)
        : Records(h, "tensors_packed", "site, update_ratio, rms_t, grad_rms",
                  {"update ratio", "RMS_t", "gradient RMS"}, {1, 1, 1}) {
        for (const Site& s : sites) names_[s.number] = s.name;
    }

  private:
    std::string name_of(const Sqlite::Statement& row) override { return names_[key_of(row)]; }
    double value_of(const Sqlite::Statement& row, size_t quantity) override {
        return packed_real(row, int(quantity) + 1);
    }
    std::map<int64_t, std::string> names_;
};

class HeadRecords : public Records {
  public:
    HeadRecords(History& h, const std::vector<Site>& sites)
        : Records(h, "heads_packed", "site, head, entropy, max_logit", {"entropy", "maximum logit"}, {1, 0}) {
        for (const Site& s : sites) names_[s.number] = s.name;
    }

  private:
    int64_t key_of(const Sqlite::Statement& row) override {
        return Sqlite::integer(row, 0) << 16 | Sqlite::integer(row, 1);
    }
    std::string name_of(const Sqlite::Statement& row) override {
        return names_[Sqlite::integer(row, 0)] + " head " + std::to_string(Sqlite::integer(row, 1));
    }
    double value_of(const Sqlite::Statement& row, size_t quantity) override {
        return packed_real(row, int(quantity) + 2);
    }
    std::map<int64_t, std::string> names_;
};

/// Loss and norms of every step from `from` to the event.
void add_step_leads(const StepHistory& h, int64_t from, int64_t event, std::vector<Lead>& leads) {
    const auto last = h.row_at(event);
    if (!last) return;
    const size_t before = h.row_at(from).value_or(0);
    const size_t first = std::max(before, *last + 1 - std::min(*last + 1, longest));
    for (const size_t column : {0u, 1u, 2u}) {
        Lead lead{StepHistory::names[column], "", true, {}, {}};
        for (size_t i = first; i <= *last; ++i)
            lead.steps.push_back(h.step[i]), lead.values.push_back(h.columns[column][i]);
        leads.push_back(std::move(lead));
    }
}

Json movers_of(const StepHistory& steps, int64_t event, Records& sites, Records& tensors, Records& heads) {
    std::vector<Lead> leads;
    int64_t from = event;
    for (Records* records_of : {&sites, &tensors, &heads})
        from = std::min(from, records_of->add_leads(event, leads));
    if (leads.empty()) from = event - int64_t(records);
    add_step_leads(steps, from, event, leads);
    Json list = Json::array();
    const std::vector<Mover> movers = first_movers(leads);
    for (const Mover& m : movers) {
        if (list.size() == movers_shown) break;
        const Lead& lead = leads[m.lead];
        const std::vector<size_t> kept =
            kept_rows({&lead.values}, lead.values.size(), 40, {m.departure.index});
        Json at = Json::array(), values = Json::array();
        for (const size_t i : kept) at.push_back(lead.steps[i]), values.push_back(rounded(lead.values[i]));
        list.push_back({{"name", lead.name},
                        {"quantity", lead.quantity},
                        {"step", m.step},
                        {"score", rounded(m.departure.score)},
                        {"baseline", rounded(m.departure.baseline)},
                        {"value", rounded(lead.values[m.departure.index])},
                        {"last", rounded(lead.values.back())},
                        {"log", lead.positive},
                        {"steps", at},
                        {"values", values}});
    }
    return {{"from", from}, {"series", leads.size()}, {"left", movers.size()}, {"list", list}};
}

/// Steps with events, those of alarms first.
std::vector<int64_t> by_severity(const std::vector<StoredEvent>& events) {
    std::vector<int64_t> steps;
    std::set<int64_t> seen;
    for (const char* severity : {"alarm", "warning", "note"}) {
        for (const StoredEvent& e : events)
            if (e.severity == severity && seen.insert(e.step).second) steps.push_back(e.step);
    }
    return steps;
}

}  // namespace

Json rounded(double x) {
    if (!std::isfinite(x)) return nullptr;
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", x);
    return std::strtod(text, nullptr);
}

Json evidence(History& history, const StepHistory& steps, const std::vector<Site>& all,
              const std::vector<StoredEvent>& events) {
    Json out = Json::object();
    SiteRecords sites(history, all);
    TensorRecords tensors(history, all);
    HeadRecords heads(history, all);
    size_t count = 0;
    for (const int64_t step : by_severity(events)) {
        if (count >= steps_with_batches) break;
        Json of;
        int64_t total = 0, losses_at = step;
        Json batch = Json::array(), losses = Json::array();
        for (const int64_t near : {step - 1, step, step + 1}) {
            int64_t of_step = 0;
            for (const BatchPlace& b : history.batches(near, batches_shown, of_step))
                batch.push_back({b.step, b.micro, b.row, b.source, b.document, b.offset});
            total += of_step;
        }
        for (const TokenLoss& t : history.largest_losses(losses_at))
            losses.push_back({t.rank, t.micro, t.row, t.position, t.token, rounded(t.loss), t.source,
                              t.document, t.offset});
        of["batches"] = {{"total", total}, {"rows", batch}};
        of["losses"] = {{"step", losses_at}, {"rows", losses}};
        of["tokens"] = Json::array();
        for (const SequenceStart& s : history.tokens(step, sequences_shown, tokens_shown))
            of["tokens"].push_back({s.micro, s.row, s.tokens});
        if (count < steps_with_movers) of["movers"] = movers_of(steps, step, sites, tensors, heads);
        out[std::to_string(step)] = std::move(of);
        ++count;
    }
    return out;
}

}  // namespace wobble
