// Files that the program carries inside itself: the page, its style and scripts, and dygraphs. The Makefile
// says where dygraphs stands.
#pragma once

#include <string_view>

namespace wobble {

struct Assets {
    std::string_view page, style, dygraphs, dygraphs_style;
    std::string_view scripts[9];  // in the order in which they need one another
};
const Assets& assets();

}  // namespace wobble
