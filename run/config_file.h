// config.toml: the options of a run as TOML, one `key = value` a line under commented groups.
#pragma once

#include <string>
#include <vector>

#include "run/options.h"

namespace wobble {

/// All options as TOML: `./train --config` on it repeats the run.
std::string to_toml(const Options& options);

/// The options stored in a config.toml; those it does not name keep their defaults. Reads what `to_toml`
/// writes and what a person would write by hand: comments, strings, numbers, booleans, arrays of strings on
/// one line. UserError with the line's number for anything else.
Options read_config(const std::string& path);
/// The same from text. `name`: what messages call it.
Options parse_config(const std::string& text, const std::string& name);

/// One value as TOML.
std::string toml_value(const std::string& v);
std::string toml_value(bool v);
std::string toml_value(int64_t v);
std::string toml_value(uint64_t v);
std::string toml_value(double v);
std::string toml_value(const std::vector<std::string>& v);
template <class Choice>
requires std::is_enum_v<Choice> std::string toml_value(Choice v) {
    return toml_value(words<Choice>()[size_t(v)]);
}

}  // namespace wobble
