#include "model/parameters.h"

#include <Random123/philox.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace wobble {

ParameterTable::ParameterTable(const ModelConfig& config) {
    const int64_t C = config.channels, F = config.width();
    // GPT-2: N(0, 0.02), and the projections that write to the residual stream scaled by 1/sqrt(2L), since 2L
    // of them add up (Radford et al. 2019, section 2.3).
    const double std = 0.02, residual_std = std / std::sqrt(2.0 * double(config.layers));

    const auto add = [&](std::string name, std::vector<int64_t> shape, Role role, double mean,
                         double deviation) {
        int64_t size = 1;
        for (int64_t n : shape) size *= n;
        const bool decay = role == Role::Embedding || role == Role::Matrix;
        parameters.push_back(
            {std::move(name), std::move(shape), role, mean, deviation, decay, buffer_size, size});
        buffer_size += (size + 15) / 16 * 16;
    };
    const auto norm = [&](const std::string& name) {
        if (config.norm == NormKind::None) return;
        if (config.norm_gain) add(name + ".weight", {C}, Role::Gain, 1, 0);
        if (config.norm_bias && config.norm == NormKind::LayerNorm)
            add(name + ".bias", {C}, Role::Bias, 0, 0);
    };
    const auto linear = [&](const std::string& name, int64_t in, int64_t out, double deviation) {
        add(name + ".weight", {in, out}, Role::Matrix, 0, deviation);
        if (config.bias) add(name + ".bias", {out}, Role::Bias, 0, 0);
    };
    // A branch's norms: the one before it, or of the sum, and the one behind it.
    const Placement placement = config.norm_placement;
    const auto first_norm = [&](const std::string& name) {
        if (placement != Placement::Reordered) norm(name);
    };
    const auto last_norm = [&](const std::string& name) {
        if (placement == Placement::Peri || placement == Placement::Reordered) norm(name + "_out");
    };

    add("wte.weight", {config.vocab, C}, Role::Embedding, 0, std);
    if (config.position == Position::Learned) add("wpe.weight", {config.context, C}, Role::Embedding, 0, std);
    if (config.embedding_norm) norm("ln_0");
    for (int64_t l = 0; l < config.layers; ++l) {
        const std::string h = "h." + std::to_string(l) + ".";
        first_norm(h + "ln_1");
        linear(h + "attn.qkv", C, 3 * C, std);
        linear(h + "attn.proj", C, C, residual_std);
        last_norm(h + "ln_1");
        first_norm(h + "ln_2");
        linear(h + "mlp.fc", C, F, std);
        linear(h + "mlp.proj", F, C, residual_std);
        last_norm(h + "ln_2");
    }
    if (config.final_norm()) norm("ln_f");
    if (!config.tied) add("head.weight", {config.vocab, C}, Role::Matrix, 0, config.zero_head ? 0 : std);
}

int64_t ParameterTable::count() const {
    int64_t n = 0;
    for (const Parameter& p : parameters) n += p.size;
    return n;
}

const Parameter* ParameterTable::find(const std::string& name) const {
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const Parameter& p) { return p.name == name; });
    return found == parameters.end() ? nullptr : &*found;
}

const Parameter& ParameterTable::at(const std::string& name) const {
    if (const Parameter* p = find(name)) return *p;
    throw std::logic_error("no parameter is named " + name);
}

namespace {

/// A standard normal number for each counter: Box and Muller's transform of two 32-bit uniforms in (0, 1].
double normal(uint64_t seed, uint32_t stream, uint64_t element) {
    const r123::Philox4x32::ctr_type counter = {
        {uint32_t(element), uint32_t(element >> 32), stream,
         0x77656967u /* "weig": apart from other uses of the seed */}};
    const r123::Philox4x32::key_type key = {{uint32_t(seed), uint32_t(seed >> 32)}};
    const auto bits = r123::Philox4x32{}(counter, key);
    const double u = (double(bits[0]) + 1) * 0x1p-32, angle = double(bits[1]) * 0x1p-32;
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * angle);
}

/// FNV-1a, 32 bits.
uint32_t hash(const std::string& name) {
    uint32_t h = 2166136261u;
    for (const char c : name) h = (h ^ uint8_t(c)) * 16777619u;
    return h;
}

}  // namespace

template <class T>
void initialise(const ParameterTable& table, uint64_t seed, T* buffer) {
    for (const Parameter& p : table.parameters) {
        T* out = buffer + p.offset;
        const uint32_t stream = hash(p.name);
#pragma omp parallel for
        for (int64_t i = 0; i < p.size; ++i) {
            const double deviation = p.init_std == 0 ? 0 : p.init_std * normal(seed, stream, uint64_t(i));
            out[i] = T(p.init_mean + deviation);
        }
    }
}

template void initialise(const ParameterTable&, uint64_t, float*);
template void initialise(const ParameterTable&, uint64_t, double*);

}  // namespace wobble
