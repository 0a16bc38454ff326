#include "model/presets.h"

#include <sstream>

#include "model/family.h"

namespace wobble {

const std::vector<Preset>& presets() {
    static const std::vector<Preset> all = {
        {"gpt2", "", "Radford et al. 2019"},
        {"llama",
         "--norm rmsnorm --activation silu --gated=true --bias=false --position rotary --tied=false "
         "--residual-init same",
         "Touvron et al. 2023"},
        {"olmo2",
         "--norm rmsnorm --norm-placement reordered --norm-epsilon 1e-06 --qk-norm rmsnorm "
         "--rotary-base 500000 --activation silu --gated=true --bias=false --position rotary --tied=false "
         "--z-loss 1e-05 --residual-init same",
         "OLMo 2, 2025; there a norm of queries and keys is over all heads, here over each"},
        {"nanodo", "--norm-epsilon 1e-06 --norm-bias=false --bias=false --init fan_in --residual-init same",
         "Wortsman et al. 2023 and its program; there matrices are uniform, of the mean fan"},
        {"modern",
         "--norm rmsnorm --norm-gain=false --qk-norm rmsnorm --value-residual 0.5 --activation relu2 "
         "--bias=false --position rotary --embedding-norm=true --tied=false --zero-head=true "
         "--logit-softcap 15 --init fan_in --residual-init zero",
         "what the records at training a small GPT-2 share: modded-nanogpt, Jordan et al. 2024"},
    };
    return all;
}

const Preset& preset(const std::string& name) {
    std::vector<std::string> names;
    for (const Preset& p : presets()) {
        if (p.name == name) return p;
        names.push_back(p.name);
    }
    refuse_value("--preset", name, listed(names));
}

void apply(const Preset& preset, ModelConfig& config) {
    std::istringstream words(preset.flags);
    for (std::string word; words >> word;) {
        const size_t equals = word.find('=');
        const std::string name = word.substr(2, equals - 2);
        std::string value;
        if (equals == std::string::npos) words >> value;
        else value = word.substr(equals + 1);
        set_choice(config, name, value);
    }
}

}  // namespace wobble
