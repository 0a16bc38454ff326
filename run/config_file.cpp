#include "run/config_file.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>

#include "kernels/error.h"
#include "run/option_table.h"

namespace wobble {

// ------------------------------------------------------------------------------------------------------------
// writing

std::string toml_value(const std::string& v) {
    std::string out = "\"";
    for (const char c : v) {
        switch (c) {
            case '"':
                out += "\\\"";
                break;
            case '\\':
                out += "\\\\";
                break;
            case '\n':
                out += "\\n";
                break;
            case '\r':
                out += "\\r";
                break;
            case '\t':
                out += "\\t";
                break;
            default:
                out += c;
        }
    }
    return out + '"';
}

std::string toml_value(bool v) {
    return v ? "true" : "false";
}
std::string toml_value(int64_t v) {
    return std::to_string(v);
}
std::string toml_value(uint64_t v) {
    return std::to_string(v);
}

/// The shortest text that reads back as the same number.
std::string toml_value(double v) {
    char text[32];
    for (int digits = 1; digits <= 17; ++digits) {
        std::snprintf(text, sizeof text, "%.*g", digits, v);
        if (std::strtod(text, nullptr) == v) break;
    }
    return text;
}

std::string toml_value(const std::vector<std::string>& v) {
    std::string out = "[";
    for (size_t i = 0; i < v.size(); ++i) out += (i ? ", " : "") + toml_value(v[i]);
    return out + "]";
}

namespace {

struct WriteToml {
    std::ostringstream out;

    void group(const char* name) { out << "\n# " << name << "\n"; }
    template <class T>
    void operator()(const char* name, const T& value, OnResume, const char*) {
        out << name << " = " << toml_value(value) << "\n";
    }
};

// ------------------------------------------------------------------------------------------------------------
// reading

/// One line of the file, read from left to right.
class Line {
  public:
    Line(const std::string& text, std::string where) : text_(text), where_(std::move(where)) {}

    [[noreturn]] void refuse(const std::string& expected) const {
        throw UserError(where_ + ": found '" + text_ + "'; expected " + expected +
                        "; mend the line or leave it out");
    }
    void skip_space() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
    }
    bool at_end() {
        skip_space();
        return at_ == text_.size() || text_[at_] == '#';
    }
    bool take(char c) {
        skip_space();
        if (at_ == text_.size() || text_[at_] != c) return false;
        ++at_;
        return true;
    }
    /// A bare word: a key, a number, true or false.
    std::string word() {
        skip_space();
        const size_t begin = at_;
        while (at_ < text_.size() && std::string(" \t\r=#,[]\"").find(text_[at_]) == std::string::npos) ++at_;
        return text_.substr(begin, at_ - begin);
    }
    std::string string() {
        if (!take('"')) refuse("a text in quotation marks");
        std::string out;
        while (at_ < text_.size() && text_[at_] != '"') {
            char c = text_[at_++];
            if (c == '\\') {
                const size_t which = std::string("\"\\nrt").find(at_ < text_.size() ? text_[at_] : ' ');
                if (which == std::string::npos) refuse("one of \\\" \\\\ \\n \\r \\t after a backslash");
                c = "\"\\\n\r\t"[which];
                ++at_;
            }
            out += c;
        }
        if (!take('"')) refuse("a closing quotation mark");
        return out;
    }

  private:
    std::string text_, where_;
    size_t at_ = 0;
};

void read_value(Line& line, std::string& value) {
    value = line.string();
}
template <class Choice>
requires std::is_enum_v<Choice>
void read_value(Line& line, Choice& value) {
    const std::optional<Choice> choice = choice_named<Choice>(line.string());
    if (!choice) line.refuse("one of " + listed(words<Choice>()));
    value = *choice;
}
void read_value(Line& line, bool& value) {
    const std::string word = line.word();
    if (word != "true" && word != "false") line.refuse("true or false");
    value = word == "true";
}
template <class Number>
requires std::is_arithmetic_v<Number>
void read_value(Line& line, Number& value) {
    const std::string word = line.word();
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) {
        line.refuse(std::is_same_v<Number, double> ? "a number" : "a whole number");
    }
}
void read_value(Line& line, std::vector<std::string>& values) {
    values.clear();
    if (!line.take('[')) line.refuse("a list of texts in [ ]");
    while (!line.take(']')) {
        values.push_back(line.string());
        if (!line.take(',') && !line.take(']')) line.refuse("a list of texts in [ ] on one line");
        else if (line.at_end()) return;
    }
}

/// Sets the option of the table whose name is the line's key.
struct ReadOption {
    const std::string& key;
    Line& line;
    bool found = false;

    void group(const char*) {}
    template <class T>
    void operator()(const char* name, T& value, OnResume, const char*) {
        if (key != name) return;
        found = true;
        read_value(line, value);
    }
};

}  // namespace

std::string to_toml(const Options& options) {
    WriteToml toml;
    toml.out << "# A run of wobble. `./train --config` on this file, with another --run, repeats it.\n";
    for_each_option(options, toml);
    return toml.out.str();
}

Options read_config(const std::string& path) {
    std::ifstream in(path);
    std::ostringstream text;
    if (!in || !(text << in.rdbuf())) {
        throw UserError("cannot read " + path +
                        "; expected a config.toml that a run has written; check the path");
    }
    return parse_config(text.str(), path);
}

Options parse_config(const std::string& all, const std::string& name) {
    std::istringstream in(all);
    Options options;
    std::map<std::string, int> seen;
    std::string text;
    for (int number = 1; std::getline(in, text); ++number) {
        Line line(text, name + ", line " + std::to_string(number));
        if (line.at_end()) continue;
        const std::string key = line.word();
        if (!line.take('=')) line.refuse("KEY = VALUE");
        ReadOption read{key, line};
        for_each_option(options, read);
        if (!read.found) line.refuse("a key that ./train --help lists");
        if (!line.at_end()) line.refuse("nothing more after the value");
        if (seen[key]++) line.refuse("each key once");
    }
    return options;
}

}  // namespace wobble
