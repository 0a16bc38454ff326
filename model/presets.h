// Presets: names for members of the family that people train. Each is a list of choices (family.h), without
// sizes, and stands for exactly these flags: a run stores them, not the name.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace wobble {

struct Preset {
    std::string name, flags, source;  // flags as `flags_of` writes them
};

const std::vector<Preset>& presets();

/// The preset of that name. UserError when there is none.
const Preset& preset(const std::string& name);

/// Makes the preset's choices.
void apply(const Preset& preset, ModelConfig& config);

}  // namespace wobble
