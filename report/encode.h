// How numbers travel inside the page: as base64, which is smaller than digits and quick to read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wobble {

/// RFC 4648, with padding.
std::string base64(std::string_view bytes);

/// Three bytes a value, four letters in base64: the upper 24 bits of the float32, rounded to nearest, little
/// end first. 16 significant bits, so a relative error of at most 2^-17, under one in a hundred thousand. NaN
/// stays NaN, and what is too large becomes an infinity.
std::string base64_reals(const std::vector<double>& values);

/// Four bytes a value, little end first.
std::string base64_integers(const std::vector<int64_t>& values);

/// JSON that may stand inside a <script> element: nothing in it can end the element or begin a comment.
/// `json` is ASCII, as nlohmann::json writes it on request; '<', '>' and '&' occur in its strings alone.
std::string for_script(const std::string& json);

/// Text that may stand in an HTML document.
std::string for_html(const std::string& text);

}  // namespace wobble
