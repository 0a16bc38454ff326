// From the sums that the update's kernel made to the rows of run.db.
#pragma once

#include <vector>

#include "probes/observation.h"

namespace wobble {

/// What one tensor of n elements did in an update. `sums`: AdamW's, over all of it; `clip`: the factor on its
/// gradient, `per_unit`: its unit in the sums; the squares are those of the update and of the weights after
/// it; grad_max: largest |gradient| before clipping.
TensorRow tensor_row(const std::string& name, int64_t n, const double* sums, double clip, double per_unit,
                     double update_squares, double weight_squares, double grad_max, bool has_distance);

/// The rows of an embedding, `columns` wide, by decile of their tokens. Squares are summed by row [V];
/// gradients before clipping.
std::vector<EmbeddingRow> embedding_rows(const std::string& name, const std::vector<int>& decile_of_token,
                                         int64_t columns, const double* weight_squares,
                                         const double* grad_squares, const double* update_squares);

}  // namespace wobble
