#include "report/encode.h"

#include <bit>
#include <cmath>

namespace wobble {

std::string base64(std::string_view bytes) {
    static constexpr char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    text.reserve((bytes.size() + 2) / 3 * 4);
    for (size_t i = 0; i < bytes.size(); i += 3) {
        const size_t left = bytes.size() - i;
        const auto byte = [&](size_t k) { return k < left ? uint32_t(uint8_t(bytes[i + k])) : 0u; };
        const uint32_t word = byte(0) << 16 | byte(1) << 8 | byte(2);
        text += letters[word >> 18];
        text += letters[word >> 12 & 63];
        text += left > 1 ? letters[word >> 6 & 63] : '=';
        text += left > 2 ? letters[word & 63] : '=';
    }
    return text;
}

std::string base64_reals(const std::vector<double>& values) {
    std::string bytes;
    bytes.reserve(3 * values.size());
    for (const double value : values) {
        auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
        if (std::isnan(value)) bits = 0x7fc00000;
        else if (std::isfinite(value)) bits += 0x7f + (bits >> 8 & 1);  // to nearest, ties to even
        for (const int shift : {8, 16, 24}) bytes += char(bits >> shift & 255);
    }
    return base64(bytes);
}

std::string base64_integers(const std::vector<int64_t>& values) {
    std::string bytes;
    bytes.reserve(4 * values.size());
    for (const int64_t value : values) {
        for (const int shift : {0, 8, 16, 24}) bytes += char(value >> shift & 255);
    }
    return base64(bytes);
}

std::string for_script(const std::string& json) {
    std::string out;
    out.reserve(json.size());
    for (const char c : json) {
        if (c == '<') out += "\\u003c";
        else if (c == '>') out += "\\u003e";
        else if (c == '&') out += "\\u0026";
        else out += c;
    }
    return out;
}

std::string for_html(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '&') out += "&amp;";
        else if (c == '<') out += "&lt;";
        else if (c == '>') out += "&gt;";
        else if (c == '"') out += "&quot;";
        else if (c == '\'') out += "&#39;";
        else out += c;
    }
    return out;
}

}  // namespace wobble
