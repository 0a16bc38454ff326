#include "probes/detectors/history.h"

#include <algorithm>
#include <cmath>

namespace wobble {

double median(std::vector<double> values) {
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    const double upper = *middle;
    if (values.size() % 2 == 1) return upper;
    return (*std::max_element(values.begin(), middle) + upper) / 2;
}

History::Verdict History::take(double x) {
    const double y = std::log(x);  // NaN of what is negative, -inf of 0: both stand out
    Verdict verdict;
    const bool judged = int64_t(usual_.size()) >= rule_.least;
    if (!usual_.empty()) {
        const double centre = median(usual_);
        verdict.usual = std::exp(centre);
        std::vector<double> distances;
        for (const double u : usual_) distances.push_back(std::fabs(u - centre));
        const double spread = std::max(1.4826 * median(distances), rule_.smallest);
        verdict.spreads = std::isfinite(y) ? (y - centre) / spread : std::isnan(x) ? INFINITY : y;
    }
    verdict.out = !std::isfinite(y) || (judged && std::fabs(verdict.spreads) > rule_.spreads);
    if (!verdict.out) {
        out_.clear();
        usual_.push_back(y);
        if (int64_t(usual_.size()) > rule_.window) usual_.erase(usual_.begin());
    } else if (std::isfinite(y)) {
        out_.push_back(y);
        if (int64_t(out_.size()) >= rule_.window / 2) usual_ = std::move(out_), out_.clear();
    }
    return verdict;
}

std::vector<double> History::state() const {
    std::vector<double> all = {double(usual_.size())};
    all.insert(all.end(), usual_.begin(), usual_.end());
    all.insert(all.end(), out_.begin(), out_.end());
    return all;
}

void History::restore(const std::vector<double>& state) {
    usual_.clear(), out_.clear();
    if (state.empty()) return;
    const auto split = state.begin() + 1 + std::ptrdiff_t(std::min(double(state.size() - 1), state[0]));
    usual_.assign(state.begin() + 1, split);
    out_.assign(split, state.end());
}

}  // namespace wobble
