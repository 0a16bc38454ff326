// Parses data specifications. What cannot be read is answered with what could have been written.
#include "data/spec.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>
#include <string_view>

#include "kernels/error.h"

namespace wobble {

namespace {

// All of `text` as a number, or nothing.
template <class T>
std::optional<T> parse(std::string_view text) {
    T value{};
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc{} || stop != end) return std::nullopt;
    return value;
}

// In plain decimal: messages are read by people, who write 0.25 and 1000000.
std::string show(double value) {
    std::ostringstream out;
    out.precision(15);
    out << value;
    return out.str();
}

bool is_word(std::string_view text) {
    const auto in_word = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
    };
    return !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) &&
           std::all_of(text.begin(), text.end(), in_word);
}

bool is_kind(std::string_view word) {
    return word == "text" || word == "tokens" || word == "synthetic";
}

// The start of a term, up to its colon.
struct Head {
    std::optional<std::string_view> weight;
    std::string_view kind;
    size_t length = 0;  // with the colon
};

std::optional<Head> read_head(std::string_view text) {
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    std::string_view before = text.substr(0, colon);
    before.remove_prefix(std::min(before.find_first_not_of(' '), before.size()));
    Head head{.weight = std::nullopt, .kind = before, .length = colon + 1};
    if (const size_t star = before.rfind('*'); star != std::string_view::npos) {
        head.weight = before.substr(0, star);
        head.kind = before.substr(star + 1);
    }
    if (!is_word(head.kind)) return std::nullopt;
    return head;
}

// Whether a '+' before `text` separates two terms: a known kind follows, with any weight (a wrong one is
// reported later), or any kind with a proper weight. A proper weight may hold a '+' itself: 1e+3.
bool begins_term(std::string_view text) {
    const std::optional<Head> head = read_head(text);
    if (!head) return false;
    if (head->weight && parse<double>(*head->weight)) return true;
    return is_kind(head->kind) &&
           (!head->weight || head->weight->find_first_of("/*+") == std::string_view::npos);
}

std::vector<std::string> split_terms(std::string_view spec) {
    std::vector<std::string> terms;
    size_t begin = 0;
    size_t at = begins_term(spec) ? read_head(spec)->length : 0;
    for (at = spec.find('+', at); at != std::string_view::npos; at = spec.find('+', at)) {
        const std::string_view rest = spec.substr(at + 1);
        if (!begins_term(rest)) {
            ++at;
            continue;
        }
        terms.emplace_back(spec.substr(begin, at - begin));
        begin = at + 1;
        at = begin + read_head(rest)->length;
    }
    terms.emplace_back(spec.substr(begin));
    for (std::string& term : terms) {
        term.erase(0, term.find_first_not_of(' '));
        term.erase(term.find_last_not_of(' ') + 1);
    }
    return terms;
}

// Where the options begin: the first '?' that KEY= follows, or the end.
size_t find_options(std::string_view pattern) {
    for (size_t at = pattern.find('?'); at != std::string_view::npos; at = pattern.find('?', at + 1)) {
        const std::string_view rest = pattern.substr(at + 1);
        const size_t equals = rest.find('=');
        if (equals != std::string_view::npos && is_word(rest.substr(0, equals))) return at;
    }
    return pattern.size();
}

void parse_options(const std::string& text, Term& term) {
    std::istringstream list(text);
    for (std::string option; std::getline(list, option, '&');) {
        const size_t equals = option.find('=');
        if (equals == std::string::npos || equals == 0) {
            throw UserError("data '" + term.name + "': option '" + option +
                            "' has no value; expected KEY=VALUE, joined by '&'; write it so");
        }
        const std::string key = option.substr(0, equals);
        if (!term.options.emplace(key, option.substr(equals + 1)).second) {
            throw UserError("data '" + term.name + "': option '" + key +
                            "' is given twice; expected once; leave one out");
        }
    }
}

Term parse_term(const std::string& text) {
    static const char* const kinds = "expected text:GLOB, tokens:GLOB or synthetic:KIND";
    const std::optional<Head> head = read_head(text);
    if (!head) {
        throw UserError("data '" + text + "' names no kind; " + kinds +
                        "; for plain text write 'text:" + (text.empty() ? "FILE" : text) + "'");
    }
    Term term;
    term.kind = head->kind;
    term.pattern = text.substr(head->length);
    term.name = term.kind + ":" + term.pattern;
    if (!is_kind(term.kind)) {
        throw UserError("data '" + text + "': unknown kind '" + term.kind + "'; " + kinds +
                        "; use one of these");
    }
    if (head->weight) {
        const std::optional<double> weight = parse<double>(*head->weight);
        if (!weight || !std::isfinite(*weight) || *weight <= 0) {
            throw UserError("data '" + text + "': weight '" + std::string(*head->weight) +
                            "'; expected a number above 0; correct it or leave the source out");
        }
        term.weight = *weight;
    }
    const size_t options = find_options(term.pattern);
    if (options < term.pattern.size()) parse_options(term.pattern.substr(options + 1), term);
    term.pattern.erase(options);
    return term;
}

}  // namespace

std::vector<Term> parse_spec(const std::string& spec) {
    std::vector<Term> terms;
    for (const std::string& text : split_terms(spec)) terms.push_back(parse_term(text));
    return terms;
}

void Term::allow_options(std::initializer_list<const char*> known) const {
    for (const auto& [key, value] : options) {
        std::string list;
        bool found = false;
        for (const char* option : known) {
            found = found || key == option;
            list += (list.empty() ? "" : ", ") + std::string(option);
        }
        if (!found) {
            throw UserError("data '" + name + "': unknown option '" + key + "'; expected " + list +
                            "; correct it or leave it out");
        }
    }
}

int64_t Term::whole_number(const std::string& key, int64_t otherwise, int64_t least, int64_t most) const {
    const auto found = options.find(key);
    if (found == options.end()) return otherwise;
    const std::optional<int64_t> value = parse<int64_t>(found->second);
    if (!value || *value < least || *value > most) {
        throw UserError("data '" + name + "': " + key + " is '" + found->second +
                        "'; expected a whole number from " + std::to_string(least) + " to " +
                        std::to_string(most) + "; correct it");
    }
    return *value;
}

double Term::number(const std::string& key, double otherwise, double least, double most) const {
    const auto found = options.find(key);
    if (found == options.end()) return otherwise;
    const std::optional<double> value = parse<double>(found->second);
    if (!value || !(*value >= least && *value <= most)) {
        throw UserError("data '" + name + "': " + key + " is '" + found->second +
                        "'; expected a number from " + show(least) + " to " + show(most) + "; correct it");
    }
    return *value;
}

}  // namespace wobble
