#include "run/params.h"

#include <algorithm>
#include <cstdio>

#include "data/dataset.h"
#include "run/progress.h"

namespace wobble {

namespace {

const char* role_name(Role role) {
    switch (role) {
        case Role::Embedding:
            return "embedding";
        case Role::Matrix:
            return "matrix";
        case Role::Gain:
            return "gain";
        case Role::Bias:
            return "bias";
    }
    return "";
}

std::string number(double x) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", x);
    return text;
}

std::string start_of(const Parameter& p) {
    if (p.init_std == 0) return number(p.init_mean);
    switch (p.draw) {
        case Init::Orthogonal:
            return number(p.init_std) + " orthogonal";
        case Init::Truncated:
            return "N(0, " + number(p.init_std) + "^2) within 3 std";
        case Init::Normal:
        case Init::FanIn:
            break;
    }
    return "N(0, " + number(p.init_std) + "^2)";
}

}  // namespace

std::string to_text(const ParameterTable& table) {
    std::vector<std::vector<std::string>> rows = {
        {"tensor", "shape", "role", "start", "decay", "lr", "epsilon", "multiplier"}};
    for (const Parameter& p : table.parameters) {
        std::string shape;
        for (int64_t n : p.shape) shape += (shape.empty() ? "" : " x ") + std::to_string(n);
        rows.push_back({p.name, shape, role_name(p.role), start_of(p), p.decay ? number(p.decay_factor) : "-",
                        number(p.lr_factor), number(p.epsilon_factor), number(p.multiplier)});
    }
    std::vector<size_t> widths(rows[0].size());
    for (const auto& row : rows)
        for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    std::string text;
    for (const auto& row : rows) {
        std::string line;
        for (size_t i = 0; i < row.size(); ++i)
            line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
        text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return text + with_commas(table.count()) +
           " parameters; decay, lr and epsilon are factors on the flags\n";
}

void print_parameters(const Options& options) {
    const Dataset data = Dataset::open(
        options.data, {.context = int(options.model.context), .vocab = int(options.vocab), .seed = 0});
    std::fputs(to_text(ParameterTable(model_config(options, data.vocab()))).c_str(), stdout);
}

}  // namespace wobble
