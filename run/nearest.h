// What a person may have meant.
#pragma once

#include <string>
#include <vector>

namespace wobble {

/// The candidate that is so few letters from `word` that it may have been meant; empty when none is.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace wobble
