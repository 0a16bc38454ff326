// The line search for the critical sharpness, and what the power iteration needs of scalars.
#include "probes/curvature.h"

#include <Random123/philox.h>

#include <algorithm>
#include <numbers>

namespace wobble {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// h(α) / α at an α that was tried; not finite where the loss was not.
struct Point {
    double alpha, slope;
};

/// Where the line through two points crosses 0; NaN where it does not, or either is not finite.
double crossing(const Point& a, const Point& b) {
    const double root = a.alpha - a.slope * ((b.alpha - a.alpha) / (b.slope - a.slope));
    return std::isfinite(root) ? root : kNaN;
}

/// The points tried so far, and the α to try next.
class Search {
  public:
    explicit Search(const CriticalOptions& options) : options_(options) {}

    double lower() const { return below_.alpha; }
    double upper() const { return above_.alpha; }
    bool enclosed() const { return lower() > 0 && upper() < kInfinity; }
    bool accurate() const { return enclosed() && upper() - lower() <= options_.accuracy * upper(); }
    bool given_up() const {
        return (upper() == kInfinity && lower() >= options_.largest) ||
               (lower() == 0 && upper() <= options_.smallest);
    }

    double next() const {
        if (lower() == 0 && upper() == kInfinity) {
            return std::clamp(options_.start, options_.smallest, options_.largest);
        }
        const double line = crossing(previous_, last_);
        if (!enclosed()) {
            // Where the line was wrong before, it is not let mark time.
            const double least = tried_ <= 2 ? 2 : 4, most = 8;
            if (lower() > 0) {
                const double step = line > lower() ? beyond(line) : 0;
                return std::min(std::clamp(step, least * lower(), most * lower()), options_.largest);
            }
            const double step = line > 0 && line < upper() ? before(line) : upper();
            return std::max(std::clamp(step, upper() / most, upper() / least), options_.smallest);
        }
        if (slow_ < 2 && std::isfinite(above_.slope)) {
            const double root = line > lower() && line < upper() ? line : crossing(below_, above_);
            // To the side on which the farther end of the interval comes closer.
            const double step = upper() - root > root - lower() ? beyond(root) : before(root);
            if (step > lower() && step < upper()) return step;
        }
        return std::sqrt(lower()) * std::sqrt(upper());
    }

    void add(double alpha, double rise) {
        const bool was_enclosed = enclosed();
        const double width = upper() / lower();
        ++tried_;
        previous_ = last_;
        last_ = {alpha, rise / alpha};
        if (std::isfinite(rise) && rise <= options_.noise) below_ = last_;
        else above_ = last_;
        if (was_enclosed) {
            const bool halved = upper() / lower() <= std::sqrt(width);
            slow_ = halved || slow_ == 2 ? 0 : slow_ + 1;
        }
    }

    /// The best guess inside an enclosing interval.
    double alpha() const {
        const double root = crossing(below_, above_);
        return root >= lower() && root <= upper() ? root : (lower() + upper()) / 2;
    }

  private:
    // A point on either side of an exact root makes the interval narrow enough.
    double beyond(double root) const { return root * (1 + 0.45 * options_.accuracy); }
    double before(double root) const { return root * (1 - 0.45 * options_.accuracy); }

    CriticalOptions options_;
    Point below_{0, kNaN}, above_{kInfinity, kNaN};
    Point previous_{kNaN, kNaN}, last_{kNaN, kNaN};
    int tried_ = 0;
    int slow_ = 0;  // evaluations in a row that did not halve the interval's logarithm
};

}  // namespace

CriticalSharpness critical_sharpness(const std::function<double(double)>& loss_along, double lr,
                                     const CriticalOptions& options) {
    CriticalSharpness result{.outcome = CriticalSharpness::NotFinite,
                             .alpha = kNaN,
                             .lr = kNaN,
                             .sharpness = kNaN,
                             .lower = 0,
                             .upper = kInfinity,
                             .evaluations = 0};
    double start_loss = options.start_loss;
    if (std::isnan(start_loss)) start_loss = loss_along(0), ++result.evaluations;
    if (!std::isfinite(start_loss)) return result;

    Search search(options);
    while (!search.accurate() && !search.given_up() && result.evaluations < options.max_evaluations) {
        const double alpha = search.next();
        search.add(alpha, loss_along(alpha) - start_loss);
        ++result.evaluations;
    }
    result.lower = search.lower(), result.upper = search.upper();
    if (!search.enclosed()) {
        result.outcome =
            result.upper == kInfinity ? CriticalSharpness::NoCrossing : CriticalSharpness::RisesAtOnce;
        return result;
    }
    result.outcome = search.accurate() ? CriticalSharpness::Found : CriticalSharpness::Inexact;
    result.alpha = search.alpha();
    result.lr = result.alpha * lr;
    result.sharpness = 2 / result.lr;
    return result;
}

double adaptive_edge_of_stability(double beta1, double lr) {
    return (2 + 2 * beta1) / ((1 - beta1) * lr);
}

namespace detail {

double start_element(uint64_t seed, uint64_t element) {
    const r123::Philox4x32::ctr_type counter = {
        {uint32_t(element), uint32_t(element >> 32), 0,
         0x63757276u /* "curv": apart from other uses of the seed */}};
    const r123::Philox4x32::key_type key = {{uint32_t(seed), uint32_t(seed >> 32)}};
    const auto bits = r123::Philox4x32{}(counter, key);
    const double u = (double(bits[0]) + 1) * 0x1p-32, angle = double(bits[1]) * 0x1p-32;
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * angle);
}

double difference_step(double epsilon, double weight_norm, int64_t n, double direction_norm) {
    const double rms = weight_norm > 0 ? weight_norm / std::sqrt(double(n)) : 1;
    return std::exp2(std::round(std::log2(std::cbrt(epsilon) * rms / direction_norm)));
}

}  // namespace detail

}  // namespace wobble
