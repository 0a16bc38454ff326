// How sizes scale: slopes of log size against log width or depth, as a table, as JSON and as a picture.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace wobble {

/// How large a site's output was in one forward, as natural logarithms (their mean over layers): of its RMS,
/// and of the RMS of its difference from what it was before the first step. NaN: not known.
struct SiteSize {
    std::string site;
    double log_size, log_change;
};

/// The forwards of one model: before the first step, and after each.
using Trajectory = std::vector<std::vector<SiteSize>>;  // [steps + 1][sites]

/// Least squares of y on x; NaN when a y is not finite.
double slope(const std::vector<double>& x, const std::vector<double>& y);

/// The mean over seeds, and half the width of its 95 % interval (Student's t); NaN from a single seed.
struct Estimate {
    double mean, half_width;
};
/// Of at most 30 values.
Estimate estimate(const std::vector<double>& values);
constexpr int64_t most_seeds = 30;

struct SiteScaling {
    std::string site;
    std::vector<std::vector<double>> log_size, log_change;  // [steps + 1][sizes], mean over seeds
    Estimate at_start, after, change;                       // slopes: of sizes, and of the last change
};

/// One check: models that differ in one size.
struct Scaling {
    std::string axis;            // "width" or "depth"
    std::vector<int64_t> sizes;  // along it
    std::string at;              // the other: "depth 4"
    std::vector<SiteScaling> sites;

    int64_t steps() const { return sites.empty() ? 0 : int64_t(sites[0].log_size.size()) - 1; }
};

/// `trajectories` [seeds][sizes], all of the same steps; of their sites, those that all of them have.
Scaling scaling(const std::string& axis, const std::vector<int64_t>& sizes, const std::string& at,
                const std::vector<std::vector<Trajectory>>& trajectories);

/// A slope within this of zero counts as flat.
constexpr double flat_slope = 0.1;

std::string to_text(const Scaling& scaling);
nlohmann::json to_json(const Scaling& scaling);
/// An SVG with a panel per site of each check, all of the same span.
std::string to_svg(const std::string& title, const std::vector<Scaling>& checks);

}  // namespace wobble
