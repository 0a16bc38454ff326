#include "run/scaling.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace wobble {

double slope(const std::vector<double>& x, const std::vector<double>& y) {
    const double n = double(x.size());
    double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
    for (size_t i = 0; i < x.size(); ++i) mean_x += x[i] / n, mean_y += y[i] / n;
    for (size_t i = 0; i < x.size(); ++i) {
        xx += (x[i] - mean_x) * (x[i] - mean_x);
        xy += (x[i] - mean_x) * (y[i] - mean_y);
    }
    return std::isfinite(xy) ? xy / xx : NAN;
}

Estimate estimate(const std::vector<double>& values) {
    // Student's t at 97.5 % for 1 to 29 degrees of freedom.
    constexpr double t[most_seeds - 1] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                          2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                          2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                          2.060,  2.056, 2.052, 2.048, 2.045};
    const size_t n = values.size();
    double mean = 0, squares = 0;
    for (double v : values) mean += v / double(n);
    for (double v : values) squares += (v - mean) * (v - mean);
    if (n < 2) return {mean, NAN};
    return {mean, t[n - 2] * std::sqrt(squares / double(n - 1) / double(n))};
}

namespace {

/// The site in a forward; null when it has none of that name.
const SiteSize* find(const std::vector<SiteSize>& forward, const std::string& site) {
    for (const SiteSize& s : forward)
        if (s.site == site) return &s;
    return nullptr;
}

/// The sites that every model has, in the order of the first.
std::vector<std::string> common_sites(const std::vector<std::vector<Trajectory>>& trajectories) {
    std::vector<std::string> sites;
    for (const SiteSize& s : trajectories[0][0][0]) {
        bool everywhere = true;
        for (const auto& models : trajectories)
            for (const Trajectory& model : models) everywhere = everywhere && find(model[0], s.site);
        if (everywhere) sites.push_back(s.site);
    }
    return sites;
}

}  // namespace

Scaling scaling(const std::string& axis, const std::vector<int64_t>& sizes, const std::string& at,
                const std::vector<std::vector<Trajectory>>& trajectories) {
    Scaling result{axis, sizes, at, {}};
    std::vector<double> x;
    for (int64_t size : sizes) x.push_back(std::log(double(size)));
    const size_t forwards = trajectories[0][0].size();
    for (const std::string& name : common_sites(trajectories)) {
        SiteScaling site;
        site.site = name;
        // [sizes] of a seed.
        const auto curve = [&](const std::vector<Trajectory>& models, size_t t, double SiteSize::*what) {
            std::vector<double> y;
            for (const Trajectory& model : models) y.push_back(find(model[t], name)->*what);
            return y;
        };
        const auto mean_curves = [&](double SiteSize::*what) {
            std::vector<std::vector<double>> mean(forwards, std::vector<double>(sizes.size(), 0.0));
            for (const auto& models : trajectories) {
                for (size_t t = 0; t < forwards; ++t) {
                    const std::vector<double> y = curve(models, t, what);
                    for (size_t i = 0; i < y.size(); ++i) mean[t][i] += y[i] / double(trajectories.size());
                }
            }
            return mean;
        };
        const auto slope_over_seeds = [&](size_t t, double SiteSize::*what) {
            std::vector<double> slopes;
            for (const auto& models : trajectories) slopes.push_back(slope(x, curve(models, t, what)));
            return estimate(slopes);
        };
        site.log_size = mean_curves(&SiteSize::log_size);
        site.log_change = mean_curves(&SiteSize::log_change);
        site.at_start = slope_over_seeds(0, &SiteSize::log_size);
        site.after = slope_over_seeds(forwards - 1, &SiteSize::log_size);
        site.change = slope_over_seeds(forwards - 1, &SiteSize::log_change);
        result.sites.push_back(std::move(site));
    }
    return result;
}

namespace {

template <class... Values>
std::string format(const char* how, Values... values) {
    char text[256];
    std::snprintf(text, sizeof text, how, values...);
    return text;
}

std::string listed_sizes(const std::vector<int64_t>& sizes) {
    std::string text;
    for (int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return text;
}

std::string slope_text(const Estimate& e) {
    if (!std::isfinite(e.mean)) return "-";
    std::string text = format("%.2f", e.mean);
    if (text == "-0.00") text = "0.00";
    return text + (std::isfinite(e.half_width) ? format(" (%.2f)", e.half_width) : "");
}

/// The two sizes at the ends of a curve.
std::string ends(const std::vector<double>& log_size) {
    return format("%.3g .. %.3g", std::exp(log_size.front()), std::exp(log_size.back()));
}

}  // namespace

std::string to_text(const Scaling& c) {
    const std::string after =
        c.steps() == 1 ? "after 1 step" : "after " + std::to_string(c.steps()) + " steps";
    std::string text = c.axis + " " + listed_sizes(c.sizes) + " at " + c.at +
                       ": slope of log size against log " + c.axis + "\n";
    std::vector<std::vector<std::string>> rows = {
        {"site", "at start", after, "change", "size " + after, "change"}};
    for (const SiteScaling& s : c.sites) {
        const bool change = std::isfinite(s.change.mean);
        rows.push_back({s.site, slope_text(s.at_start), slope_text(s.after), slope_text(s.change),
                        ends(s.log_size.back()), change ? ends(s.log_change.back()) : "-"});
    }
    std::vector<size_t> widths(rows[0].size());
    for (const auto& row : rows)
        for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    for (const auto& row : rows) {
        std::string line;
        for (size_t i = 0; i < row.size(); ++i)
            line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
        text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    // The verdict is about what training does: sizes at the start may fall, as muP's logits do.
    int flat = 0, known = 0;
    const SiteScaling* steepest = nullptr;
    for (const SiteScaling& s : c.sites) {
        if (!std::isfinite(s.change.mean)) continue;
        ++known, flat += std::abs(s.change.mean) < flat_slope;
        if (!steepest || std::abs(s.change.mean) > std::abs(steepest->change.mean)) steepest = &s;
    }
    if (!steepest) return text;
    return text +
           format("the change is flat (|slope| < %g) at %d of %d sites; steepest: ", flat_slope, flat,
                  known) +
           steepest->site + ", " + slope_text(steepest->change) + "\n";
}

nlohmann::json to_json(const Scaling& c) {
    const auto json = [](const Estimate& e) {
        return nlohmann::json{{"mean", e.mean}, {"half_width", e.half_width}};
    };
    const auto sizes = [](std::vector<std::vector<double>> curves) {
        for (auto& curve : curves)
            for (double& x : curve) x = std::exp(x);
        return curves;
    };
    nlohmann::json sites = nlohmann::json::array();
    for (const SiteScaling& s : c.sites) {
        sites.push_back({{"site", s.site},
                         {"slope_at_start", json(s.at_start)},
                         {"slope_after", json(s.after)},
                         {"slope_of_change", json(s.change)},
                         {"rms", sizes(s.log_size)},
                         {"change_rms", sizes(s.log_change)}});
    }
    return {{"axis", c.axis}, {"sizes", c.sizes}, {"at", c.at}, {"steps", c.steps()}, {"sites", sites}};
}

}  // namespace wobble
