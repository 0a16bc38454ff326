#include "report/maps.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <map>
#include <unordered_map>

#include "probes/statistics.h"
#include "report/encode.h"

namespace wobble {
namespace {

using Json = nlohmann::ordered_json;

bool is_parameter(const std::string& name) {
    return name.ends_with(".weight") || name.ends_with(".bias") || name.ends_with(".alpha");
}

/// Before the layers, in them, or behind them.
int depth(const Site& s) {
    if (s.layer >= 0) return s.layer;
    return s.name.starts_with("wte") || s.name.starts_with("wpe") || s.name.starts_with("embed") ? -1
                                                                                                 : INT_MAX;
}

/// Backward goes through the model from its end, and sites are numbered as they come.
bool by_depth(const Site& a, const Site& b) {
    if (depth(a) != depth(b)) return depth(a) < depth(b);
    return a.phase == "backward" ? a.number > b.number : a.number < b.number;
}

/// Values of a heat map, [rows, columns].
struct Grid {
    size_t columns;
    std::vector<double> values;

    Grid(size_t rows, size_t cols) : columns(cols), values(rows * cols, NAN) {}
    double& at(size_t row, size_t column) { return values[row * columns + column]; }
};

Json axis_of(const std::string& title, const std::vector<std::string>& labels, const std::vector<int>& layers,
             const std::vector<int64_t>& steps) {
    return {{"title", title}, {"rows", labels}, {"layers", layers}, {"steps", base64_integers(steps)}};
}

Json map_of(const std::string& quantity, const std::string& axis, bool logarithmic, const Grid& grid) {
    const bool zero =
        std::all_of(grid.values.begin(), grid.values.end(), [](double x) { return x == 0 || std::isnan(x); });
    return {{"quantity", quantity},
            {"axis", axis},
            {"log", logarithmic},
            {"values", zero ? Json() : Json(base64_reals(grid.values))}};
}

/// Where a site's row is: which group, which row of it.
using Places = std::unordered_map<int64_t, std::pair<size_t, size_t>>;

Places places_of(const std::vector<SiteGroup>& groups) {
    Places places;
    for (size_t g = 0; g < groups.size(); ++g)
        for (size_t r = 0; r < groups[g].sites.size(); ++r) places[groups[g].sites[r].number] = {g, r};
    return places;
}

std::vector<int> layers_of(const std::vector<Site>& sites) {
    std::vector<int> layers;
    for (const Site& s : sites) layers.push_back(s.layer);
    return layers;
}

/// Calls visit(column, rows) for each row that a query of one step gives, at each of the steps.
template <class Visit>
void for_each_row(History& history, const char* sql, const std::vector<int64_t>& steps, Visit visit) {
    auto rows = history.database().prepare(sql);
    for (size_t column = 0; column < steps.size(); ++column) {
        sqlite3_reset(rows.get());
        history.database().bind(rows, steps[column]);
        while (history.database().next(rows)) visit(column, rows);
    }
}

void add_statistics(History& history, const std::vector<SiteGroup>& groups, const MapPlan& plan, Json& out) {
    const std::vector<int64_t> steps = history.recorded_steps("stats_packed", plan.columns, plan.also);
    if (steps.empty()) return;
    const Places places = places_of(groups);
    std::vector<Grid> rms, absmax, nonfinite;
    for (const SiteGroup& g : groups) {
        for (auto* grids : {&rms, &absmax, &nonfinite}) grids->emplace_back(g.sites.size(), steps.size());
    }
    const char* const sql = "SELECT site, rms, min, max, nans + infs FROM stats_packed WHERE step = ?";
    for_each_row(history, sql, steps, [&](size_t c, const auto& rows) {
        const auto place = places.find(Sqlite::integer(rows, 0));
        if (place == places.end()) return;
        const auto [g, r] = place->second;
        rms[g].at(r, c) = packed_real(rows, 1);
        absmax[g].at(r, c) = std::max(-packed_real(rows, 2), packed_real(rows, 3));
        nonfinite[g].at(r, c) = Sqlite::real(rows, 4);
    });
    for (size_t g = 0; g < groups.size(); ++g) {
        const std::string& id = groups[g].id;
        if (groups[g].sites.empty()) continue;
        out["axes"][id] = axis_of(groups[g].title, groups[g].labels, layers_of(groups[g].sites), steps);
        out["maps"].push_back(map_of("RMS", id, true, rms[g]));
        out["maps"].push_back(map_of("absmax", id, true, absmax[g]));
        out["maps"].push_back(map_of("non-finite values", id, true, nonfinite[g]));
    }
}

void add_casts(History& history, const std::vector<SiteGroup>& groups, const MapPlan& plan, Json& out) {
    const auto steps = history.recorded_steps("histograms", plan.exponent_columns, plan.also);
    if (steps.empty()) return;
    const Places places = places_of(groups);
    // By group, format, and whether values were flushed or overflowed.
    std::vector<std::vector<Grid>> shares;
    std::vector<char> any(groups.size(), 0);
    for (const SiteGroup& g : groups)
        shares.emplace_back(2 * format_count, Grid(g.sites.size(), steps.size()));
    const char* const sql = "SELECT site, bins, flushed, overflowed FROM histograms WHERE step = ?";
    for_each_row(history, sql, steps, [&](size_t c, const auto& rows) {
        const auto place = places.find(Sqlite::integer(rows, 0));
        if (place == places.end()) return;
        const auto [g, r] = place->second;
        any[g] = 1;
        double total = 0;
        for_each_count(Sqlite::text(rows, 1), [&](const std::string&, double n) { total += n; });
        for (Grid& grid : shares[g]) grid.at(r, c) = 0;
        if (total == 0) return;
        for (const int what : {0, 1}) {
            for_each_count(Sqlite::text(rows, 2 + what), [&](const std::string& format, double n) {
                for (int f = 0; f < format_count; ++f)
                    if (format == formats[f].name) shares[g][size_t(2 * f + what)].at(r, c) = n / total;
            });
        }
    });
    for (size_t g = 0; g < groups.size(); ++g) {
        if (!any[g]) continue;
        const std::string id = "cast " + groups[g].id;
        out["axes"][id] = axis_of(groups[g].title, groups[g].labels, layers_of(groups[g].sites), steps);
        for (size_t f = 0; f < format_count; ++f) {
            const std::string format = formats[f].name;
            out["maps"].push_back(map_of("share flushed to zero in " + format, id, false, shares[g][2 * f]));
            out["maps"].push_back(map_of("share beyond " + format, id, false, shares[g][2 * f + 1]));
        }
    }
}

void add_tensors(History& history, const std::vector<Site>& all, const MapPlan& plan, Json& out) {
    const auto steps = history.recorded_steps("tensors_packed", plan.columns, plan.also);
    if (steps.empty()) return;
    SiteGroup tensors;
    for (const Site& s : all)
        if (s.channel == "tensor") tensors.sites.push_back(s), tensors.labels.push_back(s.name);
    std::stable_sort(tensors.sites.begin(), tensors.sites.end(), by_depth);
    for (size_t i = 0; i < tensors.sites.size(); ++i) tensors.labels[i] = tensors.sites[i].name;
    const Places places = places_of({tensors});
    const char* const quantities[] = {"update ratio", "RMS_t", "gradient RMS", "weight RMS"};
    std::vector<Grid> grids(4, Grid(tensors.sites.size(), steps.size()));
    const char* const sql =
        "SELECT site, update_ratio, rms_t, grad_rms, weight_rms FROM tensors_packed WHERE step = ?";
    for_each_row(history, sql, steps, [&](size_t c, const auto& rows) {
        const auto place = places.find(Sqlite::integer(rows, 0));
        if (place == places.end()) return;
        for (size_t q = 0; q < 4; ++q) grids[q].at(place->second.second, c) = packed_real(rows, int(q) + 1);
    });
    out["axes"]["tensors"] = axis_of("tensors", tensors.labels, layers_of(tensors.sites), steps);
    for (size_t q = 0; q < 4; ++q) out["maps"].push_back(map_of(quantities[q], "tensors", true, grids[q]));
}

void add_heads(History& history, const std::vector<Site>& all, const MapPlan& plan, Json& out) {
    const auto steps = history.recorded_steps("heads_packed", plan.columns, plan.also);
    if (steps.empty()) return;
    std::vector<Site> attention;
    for (const Site& s : all)
        if (s.channel == "heads") attention.push_back(s);
    std::stable_sort(attention.begin(), attention.end(), by_depth);
    const int64_t heads = history.database().number("SELECT max(head) + 1 FROM heads_packed WHERE step = " +
                                                    std::to_string(steps.front()));
    std::unordered_map<int64_t, size_t> first_row;
    std::vector<std::string> labels;
    std::vector<int> layers;
    for (const Site& s : attention) {
        first_row[s.number] = labels.size();
        for (int64_t h = 0; h < heads; ++h)
            labels.push_back(s.name + " head " + std::to_string(h)), layers.push_back(s.layer);
    }
    const char* const quantities[] = {"entropy", "maximum logit", "mass on the first key"};
    std::vector<Grid> grids(3, Grid(labels.size(), steps.size()));
    const char* const sql = "SELECT site, head, entropy, max_logit, sink FROM heads_packed WHERE step = ?";
    for_each_row(history, sql, steps, [&](size_t c, const auto& rows) {
        const auto first = first_row.find(Sqlite::integer(rows, 0));
        const int64_t head = Sqlite::integer(rows, 1);
        if (first == first_row.end() || head >= heads) return;
        for (size_t q = 0; q < 3; ++q)
            grids[q].at(first->second + size_t(head), c) = packed_real(rows, int(q) + 2);
    });
    out["axes"]["heads"] = axis_of("heads", labels, layers, steps);
    for (size_t q = 0; q < 3; ++q) out["maps"].push_back(map_of(quantities[q], "heads", false, grids[q]));
}

}  // namespace

MapPlan map_plan(size_t runs, size_t sites, std::vector<int64_t> also) {
    // 400 columns are about as many as a picture shows apart. 360,000 cells of three quantities, four letters
    // each, are four megabytes.
    const size_t among_runs = 800 / (runs + 1), among_sites = 360'000 / std::max<size_t>(sites, 1);
    const size_t columns = std::clamp<size_t>(std::min(among_runs, among_sites), 40, 400);
    also.resize(std::min(also.size(), columns / 8));
    return {columns, std::max<size_t>(columns / 4, 30), std::move(also)};
}

std::vector<SiteGroup> site_groups(const std::vector<Site>& sites) {
    std::vector<SiteGroup> groups = {{"forward", "forward", {}, {}},
                                     {"backward", "backward: gradients of activations", {}, {}},
                                     {"parameters", "backward: gradients of parameters", {}, {}},
                                     {"update", "update", {}, {}},
                                     {"rows", "forward: numbers of rows and tokens", {}, {}}};
    for (const Site& s : sites) {
        if (s.channel == "heads" || s.channel == "residuals" || s.channel == "stream" ||
            s.channel == "tensor")
            continue;
        if (s.phase == "forward") groups[s.channel == "output" ? 0 : 4].sites.push_back(s);
        else if (s.phase == "backward") groups[is_parameter(s.name) ? 2 : 1].sites.push_back(s);
        else if (s.channel == "update") groups[3].sites.push_back(s);
    }
    for (SiteGroup& g : groups) {
        std::stable_sort(g.sites.begin(), g.sites.end(), by_depth);
        std::map<std::string, int> seen;
        const auto plain = [](const Site& s) {
            return s.channel == "output" || s.channel == "update" ? s.name : s.name + " " + s.channel;
        };
        for (const Site& s : g.sites) ++seen[plain(s)];
        for (const Site& s : g.sites)
            g.labels.push_back(plain(s) + (seen[plain(s)] > 1 ? " (" + s.kernel + ")" : ""));
    }
    return groups;
}

Json heat_maps(History& history, const std::vector<Site>& sites, const MapPlan& plan) {
    Json out = {{"axes", Json::object()}, {"maps", Json::array()}};
    const std::vector<SiteGroup> groups = site_groups(sites);
    add_statistics(history, groups, plan, out);
    add_tensors(history, sites, plan, out);
    add_heads(history, sites, plan, out);
    add_casts(history, groups, plan, out);
    return out;
}

Json exponents(History& history, const std::vector<Site>& sites, const MapPlan& plan) {
    const auto steps = history.recorded_steps("histograms", plan.exponent_columns, plan.also);
    Json out = {{"steps", base64_integers(steps)}, {"sites", Json::array()}};
    if (steps.empty()) return out;
    const std::vector<SiteGroup> groups = site_groups(sites);
    const Places places = places_of(groups);
    // Of each group and row the counts, by column.
    using Counts = std::vector<std::pair<int, double>>;
    std::vector<std::vector<std::vector<Counts>>> counts;
    for (const SiteGroup& g : groups) counts.emplace_back(g.sites.size(), std::vector<Counts>(steps.size()));
    const char* const sql = "SELECT site, bins FROM histograms WHERE step = ?";
    for_each_row(history, sql, steps, [&](size_t c, const auto& rows) {
        const auto place = places.find(Sqlite::integer(rows, 0));
        if (place == places.end()) return;
        Counts& of = counts[place->second.first][place->second.second][c];
        for_each_count(Sqlite::text(rows, 1), [&](const std::string& exponent, double n) {
            of.emplace_back(std::atoi(exponent.c_str()), n);
        });
    });
    for (size_t g = 0; g < groups.size(); ++g) {
        for (size_t r = 0; r < groups[g].sites.size(); ++r) {
            int low = INT_MAX, high = INT_MIN;
            for (const Counts& column : counts[g][r])
                for (const auto& [exponent, n] : column)
                    low = std::min(low, exponent), high = std::max(high, exponent);
            if (low > high) continue;
            const size_t bins = size_t(high - low + 1);
            std::string shares(bins * steps.size(), '\0');
            for (size_t c = 0; c < steps.size(); ++c) {
                double total = 0;
                for (const auto& [exponent, n] : counts[g][r][c]) total += n;
                for (const auto& [exponent, n] : counts[g][r][c]) {
                    const double byte = std::round(255 + 8 * std::log2(n / total));
                    shares[c * bins + size_t(exponent - low)] = char(uint8_t(std::clamp(byte, 1.0, 255.0)));
                }
            }
            out["sites"].push_back({{"name", groups[g].labels[r]},
                                    {"phase", groups[g].title},
                                    {"low", low},
                                    {"bins", bins},
                                    {"shares", base64(shares)}});
        }
    }
    return out;
}

Json format_ranges() {
    Json ranges;
    for (const Format& f : formats) ranges[f.name] = {std::log2(f.smallest) - 1, std::log2(f.largest)};
    return ranges;
}

}  // namespace wobble
