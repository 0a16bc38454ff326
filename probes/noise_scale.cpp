// Two equations with two unknowns, and their running means.
#include "probes/noise_scale.h"

#include <cmath>
#include <limits>

namespace wobble {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace

bool NoiseEstimate::finite() const {
    return std::isfinite(trace) && std::isfinite(squared_norm);
}

NoiseEstimate estimate_noise(const std::vector<GradientNorm>& parts, GradientNorm batch) {
    double sizes = 0, sum = 0, count = 0;
    for (const GradientNorm& part : parts) {
        if (part.size == 0) continue;
        sizes += part.size, sum += part.size * part.squared_norm, count += 1;
    }
    const double small = sizes / count;  // NaN when there is no part
    const double large = batch.size;
    const double small_norm = sum / sizes, large_norm = batch.squared_norm;
    if (!(small > 0 && small < large) || !std::isfinite(large) || !std::isfinite(small_norm) ||
        !std::isfinite(large_norm)) {
        return {kNaN, kNaN};
    }
    return {.trace = (small_norm - large_norm) / (1 / small - 1 / large),
            .squared_norm = (large * large_norm - small * small_norm) / (large - small)};
}

void NoiseScale::add(const NoiseEstimate& step) {
    if (!step.finite()) return;
    trace_ = decay_ * trace_ + (1 - decay_) * step.trace;
    squared_norm_ = decay_ * squared_norm_ + (1 - decay_) * step.squared_norm;
    weight_ = decay_ * weight_ + (1 - decay_);
}

NoiseEstimate NoiseScale::mean() const {
    return weight_ > 0 ? NoiseEstimate{trace_ / weight_, squared_norm_ / weight_} : NoiseEstimate{kNaN, kNaN};
}

double NoiseScale::scale() const {
    const NoiseEstimate average = mean();
    return average.squared_norm > 0 ? average.trace / average.squared_norm : kNaN;
}

}  // namespace wobble
