#include "optim/record.h"

#include <cmath>

#include "kernels/adamw.h"

namespace wobble {

TensorRow tensor_row(const std::string& name, int64_t n, const double* sums, double clip, double per_unit,
                     double update_squares, double weight_squares, double grad_max, bool has_distance) {
    using Update = AdamW<float>;
    const double count = double(n), updated = sums[Update::Updated];
    const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0; };
    return {.name = name,
            .grad_rms = std::sqrt(sums[Update::Gg] / count) / per_unit / clip,
            .grad_max = grad_max,
            .weight_rms = std::sqrt(weight_squares / count),
            .distance_rms = has_distance ? std::sqrt(sums[Update::Distance] / count) : NAN,
            .update_rms = std::sqrt(update_squares / count),
            .update_ratio = std::sqrt(update_squares / sums[Update::Ww]),
            .rms_t = std::sqrt(sums[Update::Ratio] / count),
            .cos_grad_momentum = sums[Update::Gm] / std::sqrt(sums[Update::Gg] * sums[Update::Mm]),
            .epsilon_share = sums[Update::BelowEpsilon] / count,
            .lost_share = share(sums[Update::Lost], updated),
            .lost_share_bf16 = share(sums[Update::LostInBf16], updated),
            .weight_dot_grad = sums[Update::Wg] / per_unit / clip,
            .cos_weight_grad = sums[Update::Wg] / std::sqrt(sums[Update::Ww] * sums[Update::Gg])};
}

std::vector<EmbeddingRow> embedding_rows(const std::string& name, const std::vector<int>& decile_of_token,
                                         int64_t columns, const double* weight_squares,
                                         const double* grad_squares, const double* update_squares) {
    std::vector<EmbeddingRow> rows;
    for (int decile = 0; decile < 10; ++decile) {
        EmbeddingRow row{
            .name = name, .decile = decile, .rows = 0, .weight_rms = 0, .grad_rms = 0, .update_rms = 0};
        for (size_t token = 0; token < decile_of_token.size(); ++token) {
            if (decile_of_token[token] != decile) continue;
            ++row.rows;
            row.weight_rms += weight_squares[token];
            row.grad_rms += grad_squares[token];
            row.update_rms += update_squares[token];
        }
        if (row.rows == 0) continue;
        const double elements = double(row.rows * columns);
        for (double* sum : {&row.weight_rms, &row.grad_rms, &row.update_rms})
            *sum = std::sqrt(*sum / elements);
        rows.push_back(row);
    }
    return rows;
}

}  // namespace wobble
