// ./train coordcheck: how the sizes of what passes through the model follow its width and its depth, at the
// start and after a few steps on one batch (Yang et al. 2022, "Tensor Programs V", appendix D.1; Dey et al.
// 2025 for depth).
//
// A parametrization is meant to keep sizes, and what training changes them by, the same at every width (or
// depth). So a few models of growing size take the same few steps, and for each site a straight line is
// fitted to log size against log width: its slope is the power of the width by which the site grows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run/options.h"

namespace wobble {

struct Command;

struct CoordCheckOptions {
    std::string widths = "128,256,512,1024", depths = "4";
    int64_t head_size = 32;  // at every width
    int64_t seeds = 1;
    std::string json, out = "coordcheck.svg";  // files; empty: not written

    std::vector<int64_t> width_list() const, depth_list() const;
};

/// What the rest of the options are without a flag: few steps, all alike, of a small batch.
Options coordcheck_defaults();
/// The same, but for model, data and optimizer from `file`, the options of a run.
Options coordcheck_defaults(const Options& file);

/// UserError when nothing can be checked, or some size is not a model.
void check(const CoordCheckOptions& how, const Options& options);

/// The model of the options at this width and depth.
ModelConfig model_of_size(const CoordCheckOptions& how, const Options& options, int64_t vocab, int64_t width,
                          int64_t depth);

/// Prints the slopes and writes the files that were asked for.
void run_coordcheck(const Command& command);

}  // namespace wobble
