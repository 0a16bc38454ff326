#include "model/parameters.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "kernels/error.h"

namespace wobble {

namespace {

/// What the tensors of a configuration start as, and what the optimizer makes of them: everything that is not
/// a shape.
class Rules {
  public:
    explicit Rules(const ModelConfig& config) : c_(config) {}

    Parameter embedding() const {
        Parameter p;
        p.role = Role::Embedding, p.decay = true;
        p.init_std = c_.embedding_std > 0 ? c_.embedding_std : table_std();
        return p;
    }
    /// A matrix inside the blocks with `in` inputs.
    Parameter matrix(int64_t in) const {
        Parameter p;
        p.role = Role::Matrix, p.decay = true, p.draw = c_.init, p.init_std = c_.init_std;
        if (c_.init == Init::FanIn) p.init_std = 1 / std::sqrt(double(in));
        if (c_.init == Init::Orthogonal) p.init_std = 1;
        if (c_.parametrization == Parametrization::Standard) return p;
        // muP for Adam (Yang et al. 2022, table 8): variance and learning rate fall as 1 / width. What
        // follows the number of inputs does so of itself.
        const double m = c_.width_ratio();
        if (c_.init == Init::Normal || c_.init == Init::Truncated) p.init_std /= std::sqrt(m);
        p.lr_factor = 1 / m;
        if (c_.parametrization == Parametrization::CompleteP) {
            p.decay_factor = m;
            p.epsilon_factor = 1 / (m * c_.depth_ratio());
        }
        return p;
    }
    /// A matrix that writes to the residual stream, in `layer` counted from 0.
    Parameter projection(int64_t in, int64_t layer) const {
        Parameter p = matrix(in);
        p.multiplier = c_.branch_factor();
        ResidualInit how = c_.residual_init;
        // CompleteP's factor takes the place of GPT-2's.
        if (c_.parametrization == Parametrization::CompleteP && how == ResidualInit::Total)
            how = ResidualInit::Same;
        // 2L projections add up (Radford et al. 2019, section 2.3), 2l of them up to layer l.
        if (how == ResidualInit::Total) p.init_std /= std::sqrt(2.0 * double(c_.layers));
        if (how == ResidualInit::Depth) p.init_std /= std::sqrt(2.0 * double(layer + 1));
        if (how == ResidualInit::Zero) p.init_std = 0;
        return p;
    }
    Parameter head() const {
        Parameter p;
        p.role = Role::Matrix, p.decay = true, p.init_std = c_.zero_head ? 0 : table_std();
        p.multiplier = c_.output_factor();
        return p;
    }
    Parameter vector(Role role, double value, bool in_block) const {
        Parameter p;
        p.role = role, p.init_mean = value;
        if (in_block && c_.parametrization == Parametrization::CompleteP)
            p.epsilon_factor = 1 / c_.depth_ratio();
        return p;
    }

  private:
    /// The deviation of what has a row for each token or position. Parametrizations keep it as it is at the
    /// base.
    double table_std() const {
        if (c_.init != Init::FanIn) return c_.init_std;
        const bool standard = c_.parametrization == Parametrization::Standard;
        return 1 / std::sqrt(double(standard ? c_.channels : c_.base_channels));
    }

    const ModelConfig& c_;
};

/// Multiplies initial weights as 'h.3.attn.qkv=8,wte=0.5' says.
void scale_initial(const std::string& text, std::vector<Parameter>& parameters) {
    std::istringstream items(text);
    std::vector<bool> done(parameters.size(), false);
    for (std::string item; std::getline(items, item, ',');) {
        const size_t equals = item.rfind('=');
        char* end = nullptr;
        const double factor =
            equals == std::string::npos ? NAN : std::strtod(item.c_str() + equals + 1, &end);
        if (!std::isfinite(factor) || *end != 0 || equals + 1 == item.size()) {
            throw UserError(
                "--init-scale holds '" + item +
                "'; expected PATTERN=FACTOR, for example h.3.attn.qkv=8; mend it or leave it out");
        }
        const std::string pattern = item.substr(0, equals);
        bool found = false;
        for (size_t i = 0; i < parameters.size(); ++i) {
            Parameter& p = parameters[i];
            const std::string stem = p.name.substr(0, p.name.rfind('.'));
            if (fnmatch(pattern.c_str(), p.name.c_str(), 0) != 0 &&
                fnmatch(pattern.c_str(), stem.c_str(), 0) != 0)
                continue;
            found = true;
            if (!done[i]) p.init_mean *= factor, p.init_std *= factor;
            done[i] = true;
        }
        if (!found) {
            throw UserError("--init-scale names " + pattern +
                            ", but no tensor has such a name; ./train params lists them");
        }
    }
}

}  // namespace

ParameterTable::ParameterTable(const ModelConfig& config) {
    const int64_t C = config.channels, F = config.width();
    const Rules rules(config);
    const auto add = [&](std::string name, std::vector<int64_t> shape, Parameter p) {
        p.size = 1;
        for (int64_t n : shape) p.size *= n;
        p.name = std::move(name), p.shape = std::move(shape), p.offset = buffer_size;
        buffer_size += (p.size + 15) / 16 * 16;
        parameters.push_back(std::move(p));
    };
    const auto norm = [&](const std::string& name, bool in_block) {
        if (config.norm == NormKind::None) return;
        const NormFacts& facts = norm_facts()[size_t(config.norm)];
        if (facts.alpha != 0) add(name + ".alpha", {1}, rules.vector(Role::Gain, facts.alpha, in_block));
        if (config.norm_gain)
            add(name + ".weight", {C}, rules.vector(Role::Gain, config.zero_centred_gain ? 0 : 1, in_block));
        if (facts.has_bias && config.norm_bias)
            add(name + ".bias", {C}, rules.vector(Role::Bias, 0, in_block));
    };
    const auto linear = [&](const std::string& name, int64_t in, int64_t out, const Parameter& matrix) {
        add(name + ".weight", {in, out}, matrix);
        if (config.bias) add(name + ".bias", {out}, rules.vector(Role::Bias, 0, true));
    };
    // A branch's norms: the one before it, or of the sum, and the one behind it.
    const Placement placement = config.norm_placement;
    const auto first_norm = [&](const std::string& name) {
        if (placement != Placement::Reordered) norm(name, true);
    };
    const auto last_norm = [&](const std::string& name) {
        if (placement == Placement::Peri || placement == Placement::Reordered) norm(name + "_out", true);
    };

    Parameter wte = rules.embedding();
    wte.multiplier = config.embedding_scale;
    add("wte.weight", {config.vocab, C}, wte);
    if (config.position == Position::Learned) add("wpe.weight", {config.context, C}, rules.embedding());
    if (config.embedding_norm) norm("ln_0", false);
    for (int64_t l = 0; l < config.layers; ++l) {
        const std::string h = "h." + std::to_string(l) + ".";
        first_norm(h + "ln_1");
        linear(h + "attn.qkv", C, config.qkv_width(), rules.matrix(C));
        if (config.qk_norm != QkNorm::None && config.norm_gain) {
            for (const char* name : {"attn.q_norm.weight", "attn.k_norm.weight"})
                add(h + name, {config.head_size()}, rules.vector(Role::Gain, 1, true));
        }
        if (config.sink) add(h + "attn.sink.weight", {config.heads}, rules.vector(Role::Bias, 0, true));
        linear(h + "attn.proj", C, C, rules.projection(C, l));
        last_norm(h + "ln_1");
        first_norm(h + "ln_2");
        linear(h + "mlp.fc", C, config.fc_width(), rules.matrix(C));
        linear(h + "mlp.proj", F, C, rules.projection(F, l));
        last_norm(h + "ln_2");
    }
    if (config.final_norm()) norm("ln_f", false);
    if (!config.tied) add("head.weight", {config.vocab, C}, rules.head());
    scale_initial(config.init_scale, parameters);
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

}  // namespace wobble
