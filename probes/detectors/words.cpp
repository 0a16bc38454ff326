#include "probes/detectors/words.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace wobble {

std::string number_text(double x) {
    if (std::isnan(x)) return "NaN";
    if (std::isinf(x)) return x > 0 ? "infinite" : "-infinite";
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", x);
    return text;
}

std::string as_json(std::initializer_list<std::pair<const char*, double>> values) {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (const auto& [name, value] : values) {
        if (std::isfinite(value)) object[name] = value;
        else object[name] = number_text(value);
    }
    return object.dump();
}

}  // namespace wobble
