#include "model/family.h"

#include <charconv>
#include <sstream>

#include "kernels/error.h"

namespace wobble {

namespace {

struct SetChoice {
    const std::string &key, &text;
    bool found = false;

    void group(const char*) {}
    template <class T>
    void operator()(const char* name, T& value, const char*, const char*, const Others&) {
        if (key != name) return;
        found = true;
        if constexpr (std::is_enum_v<T>) {
            value = choice_of<T>("--" + key, text);
        } else if constexpr (std::is_same_v<T, bool>) {
            if (text != "true" && text != "false") refuse_value("--" + key, text, "true or false");
            value = text == "true";
        } else if constexpr (std::is_same_v<T, std::string>) {
            value = text;
        } else {
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            if (error != std::errc() || end != text.data() + text.size())
                refuse_value("--" + key, text, std::is_same_v<T, double> ? "a number" : "a whole number");
        }
    }
};

/// name = value of every choice, in the order of the table; sizes apart.
struct ListValues {
    bool sizes = true;
    std::vector<std::pair<std::string, std::string>> all;

    void group(const char* title) { sizes = std::string(title) == "Model: size"; }
    template <class T>
    void operator()(const char* name, const T& value, const char*, const char*, const Others&) {
        if (sizes) return;
        std::ostringstream text;
        if constexpr (std::is_enum_v<T>) text << words<T>()[size_t(value)];
        else text << std::boolalpha << value;
        all.emplace_back(name, text.str());
    }
};

}  // namespace

namespace detail {

const char* norm_formulas() {
    static const std::string text = [] {
        std::string all;
        for (const NormFacts& f : norm_facts()) {
            if (f.word != "none") all += f.word + ": " + f.what + "; ";
        }
        return all + "none";
    }();
    return text.c_str();
}

const char* norm_sources() {
    static const std::string text = [] {
        std::string all;
        for (const NormFacts& f : norm_facts())
            all += (all.empty() || f.source.empty() ? "" : "; ") + f.source;
        return all;
    }();
    return text.c_str();
}

Others other_norms() {
    Others words;
    for (const NormFacts& f : norm_facts()) {
        if (f.word != norm_facts()[size_t(ModelConfig().norm)].word) words.push_back(f.word);
    }
    return words;
}

}  // namespace detail

std::string flags_of(const ModelConfig& config) {
    ListValues mine, usual;
    for_each_choice(config, mine);
    const ModelConfig gpt2;
    for_each_choice(gpt2, usual);
    std::string flags;
    for (size_t i = 0; i < mine.all.size(); ++i) {
        const auto& [name, value] = mine.all[i];
        if (value == usual.all[i].second) continue;
        const bool is_switch = value == "true" || value == "false";
        flags += (flags.empty() ? "--" : " --") + name + (is_switch ? "=" : " ") + value;
    }
    return flags;
}

void set_choice(ModelConfig& config, const std::string& name, const std::string& value) {
    SetChoice set{name, value};
    for_each_choice(config, set);
    if (!set.found) throw UserError("--" + name + " is no choice of the model; ./train --help lists them");
}

}  // namespace wobble
