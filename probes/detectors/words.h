// Numbers and details as events tell them.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

namespace wobble {

/// Three digits: 3.14, 0.00271, 1.2e+06, NaN.
std::string number_text(double x);
/// A JSON object; what is not finite is text in it.
std::string as_json(std::initializer_list<std::pair<const char*, double>> values);

}  // namespace wobble
