// Heat maps of a run: what was recorded of each site, tensor and head, step by step, with depth on one axis.
//
// A long run has recorded more steps than a picture has columns, so some are chosen (History::recorded_steps)
// and read whole; each column is one recorded step as it was, never a mean.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/history.h"

namespace wobble {

/// How much of a run goes into the page.
struct MapPlan {
    size_t columns;             // recorded steps of a heat map
    size_t exponent_columns;    // and of exponent histograms, which take more room
    std::vector<int64_t> also;  // steps that are wanted among them
};

/// What fits into a page with so many runs, of a model with so many sites.
MapPlan map_plan(size_t runs, size_t sites, std::vector<int64_t> also);

/// Rows of the heat maps: sites of one phase by depth, embeddings before the layers and the head behind them;
/// within a layer in the order of the forward pass.
struct SiteGroup {
    std::string id, title;
    std::vector<Site> sites;
    std::vector<std::string> labels;  // of each; with channel or kernel where the name is not enough
};
std::vector<SiteGroup> site_groups(const std::vector<Site>& sites);

/// {axes: {id: {title, rows, layers, steps}}, maps: [{quantity, axis, log, values}]}; values are
/// base64_reals, a row of the map after the other, null where all are zero. NaN: not recorded, or not finite.
nlohmann::ordered_json heat_maps(History&, const std::vector<Site>&, const MapPlan&);

/// {steps, sites: [{name, low, bins, shares}]}: shares has one byte for each step and bin; 0 is none, b is a
/// share of 2^((b - 255) / 8) of the values other than zero. Bin i holds magnitudes from 2^(low + i) on.
nlohmann::ordered_json exponents(History&, const std::vector<Site>&, const MapPlan&);

/// {name: [log2 of half the smallest subnormal, log2 of the largest number]} of the formats.
nlohmann::ordered_json format_ranges();

/// Calls visit(name, number) for each pair of an object of whole numbers, as run.db holds histograms.
template <class Visit>
void for_each_count(const std::string& json, Visit&& visit) {
    for (size_t at = json.find('"'); at != std::string::npos; at = json.find('"', at)) {
        const size_t end = json.find('"', at + 1);
        if (end == std::string::npos || end + 2 > json.size()) return;
        visit(json.substr(at + 1, end - at - 1), std::strtod(json.c_str() + end + 2, nullptr));
        at = end + 1;
    }
}

}  // namespace wobble
