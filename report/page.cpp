#include "report/page.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>

#include "report/assets.h"
#include "report/cost.h"
#include "report/encode.h"
#include "report/evidence.h"
#include "report/maps.h"
#include "report/series.h"

namespace wobble {
namespace {

using Json = nlohmann::ordered_json;

// A chart is at most some 2,000 pixels wide; with four times as many buckets it can be zoomed into without
// losing anything. Around events every step is kept.
constexpr size_t buckets = 4000, around_event = 100;
constexpr size_t events_listed = 3000, steps_marked = 200;

/// Steps with events, the first of the most severe.
std::vector<int64_t> marked_steps(const std::vector<StoredEvent>& events) {
    std::vector<int64_t> steps;
    for (const char* severity : {"alarm", "warning"})
        for (const StoredEvent& e : events)
            if (e.severity == severity && std::find(steps.begin(), steps.end(), e.step) == steps.end() &&
                steps.size() < steps_marked)
                steps.push_back(e.step);
    return steps;
}

Json curves(const StepHistory& h, const std::vector<int64_t>& marked, size_t runs) {
    std::vector<size_t> always;
    for (const int64_t step : marked) {
        const auto row = h.row_at(step);
        if (!row) continue;
        const size_t end = std::min(h.size(), *row + around_event + 1);
        for (size_t i = *row - std::min(*row, around_event); i < end; ++i) always.push_back(i);
    }
    std::vector<const std::vector<double>*> columns;
    // Of the rate, the schedule, any step will do; the rest has extremes.
    for (size_t i = 0; i < h.columns.size(); ++i)
        if (std::string(StepHistory::names[i]) != "lr") columns.push_back(&h.columns[i]);
    const std::vector<size_t> kept = kept_rows(columns, h.size(), 2 * buckets / (runs + 1), always);
    std::vector<int64_t> steps;
    for (const size_t i : kept) steps.push_back(h.step[i]);
    Json out = {{"count", h.size()},
                {"kept", kept.size()},
                {"first", h.step.empty() ? 0 : h.step.front()},
                {"last", h.step.empty() ? 0 : h.step.back()},
                {"steps", base64_integers(steps)},
                {"series", Json::object()}};
    for (size_t i = 0; i < h.columns.size(); ++i)
        out["series"][StepHistory::names[i]] = base64_reals(at_rows(h.columns[i], kept));
    return out;
}

Json summary(History& history, const StepHistory& h) {
    const auto best = [&] {
        double least = INFINITY;
        for (const double x : h.loss())
            if (x < least) least = x;
        return least;
    };
    return {{"steps", h.size()},
            {"tokens", h.tokens},
            {"last_loss", h.step.empty() ? Json() : rounded(h.loss().back())},
            {"best_loss", rounded(best())},
            {"not_finite", h.not_finite},
            {"not_applied", h.not_applied},
            {"bytes", history.bytes()}};
}

Json run_data(History& history, const std::string& name, size_t runs, const Saying& say) {
    Sqlite& db = history.database();
    db.execute("BEGIN");
    say(name + ": steps");
    const StepHistory steps = history.steps();
    int64_t left_out = 0;
    const std::vector<StoredEvent> events = history.events(events_listed, left_out);
    const std::vector<int64_t> marked = marked_steps(events);
    const std::vector<Site> sites = history.sites();
    const MapPlan plan = map_plan(runs, sites.size(), marked);
    Json out = {{"name", name}, {"path", history.path()}};
    out["summary"] = summary(history, steps);
    for (const auto& [key, value] : history.info()) out["info"].push_back({key, value});
    const std::vector<Setting> config = history.config();
    out["config"] = Json::array();
    for (const Setting& s : config) out["config"].push_back({s.group, s.key, s.value});
    out["curves"] = curves(steps, marked, runs);
    out["evals"] = Json::array();
    for (const StoredEval& e : history.evals())
        out["evals"].push_back({e.step, e.name, rounded(e.loss), e.tokens});
    out["events"] = Json::array();
    for (const StoredEvent& e : events) {
        out["events"].push_back({{"id", e.id},
                                 {"step", e.step},
                                 {"detector", e.detector},
                                 {"severity", e.severity},
                                 {"site", e.site},
                                 {"expected", rounded(e.expected)},
                                 {"seen", rounded(e.seen)},
                                 {"summary", e.summary},
                                 {"detail", e.detail}});
    }
    out["events_left_out"] = left_out;
    say(name + ": what moved first");
    out["evidence"] = evidence(history, steps, sites, events);
    say(name + ": heat maps");
    out["maps"] = heat_maps(history, sites, plan);
    say(name + ": exponents");
    out["exponents"] = exponents(history, sites, plan);
    out["cost"] = cost(history, steps, config);
    db.commit();
    return out;
}

/// Names of the runs; with the path where two are alike.
std::vector<std::string> names_of(const std::vector<History>& runs) {
    std::map<std::string, int> seen;
    for (const History& h : runs) ++seen[h.name()];
    std::vector<std::string> names;
    for (const History& h : runs) names.push_back(seen[h.name()] > 1 ? h.path() : h.name());
    return names;
}

/// Without what asks a browser's developer tools for another file.
std::string without_source_map(std::string_view script) {
    std::string text(script);
    for (const char* mark : {"//# sourceMappingURL=", "/*# sourceMappingURL="}) {
        const size_t at = text.rfind(mark);
        if (at != std::string::npos) text.erase(at, text.find('\n', at) - at);
    }
    return text;
}

}  // namespace

std::string report_title(const std::vector<History>& runs) {
    std::string title;
    for (const std::string& name : names_of(runs)) title += (title.empty() ? "" : ", ") + name;
    return title;
}

std::string report_data(std::vector<History>& runs, bool live, const Saying& say) {
    char made[64];
    const std::time_t now = std::time(nullptr);
    std::strftime(made, sizeof made, "%Y-%m-%d %H:%M", std::localtime(&now));
    Json out = {{"made", made}, {"live", live}, {"formats", format_ranges()}, {"runs", Json::array()}};
    const std::vector<std::string> names = names_of(runs);
    for (size_t i = 0; i < runs.size(); ++i)
        out["runs"].push_back(run_data(runs[i], names[i], runs.size(), say));
    // Names come from anywhere: what is not UTF-8 is replaced.
    return out.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string report_page(const std::string& title, const std::string& data) {
    const Assets& a = assets();
    std::string scripts;
    for (const std::string_view script : a.scripts) scripts += std::string(script) + "\n";
    const std::pair<std::string, std::string> parts[] = {
        {"{{title}}", for_html(title)},
        {"{{dygraphs style}}", without_source_map(a.dygraphs_style)},
        {"{{style}}", std::string(a.style)},
        {"{{dygraphs}}", without_source_map(a.dygraphs)},
        {"{{scripts}}", scripts},
        {"{{data}}", for_script(data)},
    };
    // From front to back, so that nothing is looked for in what was put in.
    std::string page;
    size_t from = 0;
    const std::string frame(a.page);
    while (true) {
        size_t first = std::string::npos;
        const std::pair<std::string, std::string>* found = nullptr;
        for (const auto& part : parts) {
            const size_t at = frame.find(part.first, from);
            if (at < first) first = at, found = &part;
        }
        page += frame.substr(from, first == std::string::npos ? first : first - from);
        if (!found) return page;
        page += found->second;
        from = first + found->first.size();
    }
}

}  // namespace wobble
