#include "run/params.h"

#include <algorithm>
#include <cstdio>

#include "data/dataset.h"
#include "kernels/cublas.h"
#include "model/model.h"
#include "optim/optimizer.h"
#include "run/evaluate.h"
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

namespace {

ModelConfig config_of(const Options& options) {
    const Dataset data = Dataset::open(
        options.data, {.context = int(options.model.context), .vocab = int(options.vocab), .seed = 0});
    return model_config(options, data.vocab());
}

}  // namespace

void print_parameters(const Options& options) {
    std::fputs(to_text(ParameterTable(config_of(options))).c_str(), stdout);
}

void print_plan(const Options& options) {
    const ModelConfig config = config_of(options);
    // A GPU need not be here.
    const Device device = options.device == "cuda" ? Device::Cuda : make_context(options).device;
    const ParameterTable table(config);
    std::vector<Memory::Section> sections =
        plan_model(config, options.precision, options.batch, true, device);
    for (const Memory::Section& section : Optimizer<float>::plan(table, device)) sections.push_back(section);
    // Copies of the weights and of the gradients (observer.h).
    const size_t copies = size_t(options.distance_from_init) + size_t(options.noise_scale);
    sections.push_back({"observation", copies * size_t(table.buffer_size) * sizeof(float)});
    if (device == Device::Cuda) sections.push_back({"workspace of cuBLASLt", cublas_workspace_bytes});
    size_t all = 0;
    const auto line = [](const char* name, size_t bytes) {
        std::printf("%-22s %12.1f MB\n", name, double(bytes) * 1e-6);
    };
    std::printf("%s parameters on %s, %lld sequences of %lld tokens at a time\n",
                with_commas(table.count()).c_str(), device == Device::Cuda ? "the GPU" : "the CPU",
                static_cast<long long>(options.batch), static_cast<long long>(config.context));
    for (const Memory::Section& section : sections) {
        all += section.bytes;
        if (section.bytes > 0) line(section.name, section.bytes);
    }
    line("in all", all);
    if (options.snapshot_every == 0 || options.snapshots == 0 || options.snapshot_to != "memory") return;
    const double snapshot = 3.0 * double(table.buffer_size) * sizeof(float);
    std::printf("%-22s %12.1f MB in the host's memory, for replay; --snapshots says how many\n",
                "and snapshots", double(options.snapshots) * snapshot * 1e-6);
}

}  // namespace wobble
