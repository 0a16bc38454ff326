// The grammar of a data specification: WEIGHT*KIND:PATTERN?KEY=VALUE&KEY=VALUE, joined by '+'.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

namespace wobble {

/// One source of a mixture, as written.
struct Term {
    double weight = 1;    ///< as written, not normalised; > 0
    std::string kind;     ///< text, tokens or synthetic
    std::string pattern;  ///< what follows the colon: a glob, or the kind of synthetic source
    std::map<std::string, std::string> options;
    std::string name;  ///< the term without its weight: what messages call it

    /// Throws UserError for an option that is none of `known`.
    void allow_options(std::initializer_list<const char*> known) const;
    /// The value of option `key`, or `otherwise` where it is not given. Throws UserError unless it is a whole
    /// number from `least` to `most`.
    int64_t whole_number(const std::string& key, int64_t otherwise, int64_t least, int64_t most) const;
    /// The same for a number that need not be whole.
    double number(const std::string& key, double otherwise, double least, double most) const;
};

/// Splits a specification into its terms. Paths may hold '+', '*' and '?': a '+' separates terms only where a
/// kind and a colon follow (after a weight or none), and options begin at the first '?' that KEY= follows.
/// Throws UserError.
std::vector<Term> parse_spec(const std::string& spec);

}  // namespace wobble
