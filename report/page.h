// The page: one HTML file with everything in it, the data of the runs as JSON in a <script> element.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "report/history.h"

namespace wobble {

/// Called with a few words as each part of the work begins.
using Saying = std::function<void(const std::string&)>;

/// All that the page shows of the runs, as JSON in ASCII. A run is read in one transaction, as it was at one
/// moment. `live`: the page asks for it again.
std::string report_data(std::vector<History>& runs, bool live, const Saying& say);

/// The page around such data.
std::string report_page(const std::string& title, const std::string& data);

/// Of the runs: "books, again".
std::string report_title(const std::vector<History>& runs);

}  // namespace wobble
