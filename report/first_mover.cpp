#include "report/first_mover.h"

#include <algorithm>
#include <cmath>

namespace wobble {
namespace {

constexpr double leaves = 6, guess = 10, stays_out = 4, least_scale = 0.01, normal = 1.4826;

double median(std::vector<double>& values) {
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (values.size() % 2 == 1) return *middle;
    return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

std::optional<Departure> departure(const std::vector<double>& values, bool positive, size_t window) {
    std::vector<double> x(values.size()), past, distances;
    for (size_t i = 0; i < x.size(); ++i)
        x[i] = !positive ? values[i] : values[i] > 0 ? std::log(values[i]) : values[i] == 0 ? -104 : NAN;
    for (size_t i = mover_past; i < x.size(); ++i) {
        past.clear(), distances.clear();
        for (size_t j = i - std::min(i, window); j < i; ++j)
            if (std::isfinite(x[j])) past.push_back(x[j]);
        if (past.size() < mover_past) continue;
        const double m = median(past);
        const double baseline = positive ? std::exp(m) : m;
        if (!std::isfinite(x[i])) {
            // Missing now and then is how the quantity is; missing for the first time is a departure.
            if (past.size() == std::min(i, window)) return Departure{i, INFINITY, baseline};
            continue;
        }
        for (const double p : past) distances.push_back(std::fabs(p - m));
        // Of a signed quantity a hundredth of its size.
        const double least = positive ? least_scale : std::max(least_scale * std::fabs(m), 1e-12);
        const double scale = std::max(normal * median(distances), least);
        const double score = (x[i] - m) / scale;
        if (std::fabs(score) <= leaves * (1 + guess / double(past.size()))) continue;
        const auto is_out = [&](double later) {
            return !std::isfinite(later) || (score > 0 ? later - m : m - later) > stays_out * scale;
        };
        const auto out = size_t(std::count_if(x.begin() + std::ptrdiff_t(i), x.end(), is_out));
        if (3 * out >= 2 * (x.size() - i) && is_out(x.back())) return Departure{i, score, baseline};
    }
    return std::nullopt;
}

std::vector<Mover> first_movers(const std::vector<Lead>& leads) {
    std::vector<Mover> movers;
    for (size_t i = 0; i < leads.size(); ++i) {
        if (const auto d = departure(leads[i].values, leads[i].positive))
            movers.push_back({i, *d, leads[i].steps[d->index]});
    }
    std::stable_sort(movers.begin(), movers.end(), [](const Mover& a, const Mover& b) {
        if (a.step != b.step) return a.step < b.step;
        return std::fabs(a.departure.score) > std::fabs(b.departure.score);
    });
    return movers;
}

}  // namespace wobble
