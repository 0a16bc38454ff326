// How sharply the loss curves: along the update just made, and in the steepest direction of all.
//
// Critical sharpness   A step of α updates, u = w_new - w_old each, brings the loss to L(w_old + α u). It
//                      falls at first and is back at its old value at α_c. Kalra et al. (2026, arXiv
//                      2601.16979) call η_c = α_c η the critical learning rate and λ_c = 2 / η_c the critical
//                      sharpness. For a quadratic loss with gradient g and Hessian H at w_old,
//
//                          α gᵀu + α² uᵀHu / 2 = 0,   so   λ_c = uᵀHu / (-gᵀu η):
//
//                      gᵀHg / gᵀg for gradient descent, where u = -η g; (P⁻¹g)ᵀH(P⁻¹g) / gᵀP⁻¹g where u is
//                      preconditioned. An update with λ_c > 2/η raises the loss. Forward passes are all it
//                      takes.
// Largest eigenvalue   of H or of P^(-1/2) H P^(-1/2), by power iteration with Hessian-vector products from
//                      differences of gradients. Gradient descent is stable up to 2/η; for Adam see
//                      adaptive_edge_of_stability.
#pragma once

#include <cassert>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace wobble {

struct CriticalOptions {
    double start = 1;  // the first α tried: that of the last search, where there was one
    double start_loss = std::numeric_limits<double>::quiet_NaN();  // L(w_old) where known: saves a pass
    double accuracy = 1.0 / 64;    // relative width of the interval that α_c is found in
    double noise = 0;              // rises of the loss up to this count as rounding
    double smallest = 1.0 / 1024;  // α at which a loss that has only risen is given up
    double largest = 1024;         // α at which a loss that has only fallen is given up
    int max_evaluations = 24;      // of the loss
};

struct CriticalSharpness {
    enum Outcome {
        Found,       // to the accuracy asked for
        Inexact,     // α_c lies in [lower, upper], but the evaluations were used up
        NoCrossing,  // not above the old loss up to α = lower: λ_c is below 2 / (lower η), or negative
        RisesAtOnce,  // above the old loss down to α = upper: the update goes uphill, or λ_c > 2 / (upper η)
        NotFinite     // the old loss is not finite
    };
    Outcome outcome;
    double alpha;      // α_c; NaN unless Found or Inexact, like the two below
    double lr;         // η_c = α_c η
    double sharpness;  // λ_c = 2 / η_c
    double lower;      // the largest α known below the crossing, 0 when there is none
    double upper;      // the smallest known beyond it, infinity when there is none
    int evaluations;   // of the loss
};

/// `loss_along(α)` is L(w_old + α (w_new - w_old)) on the batch of the update, in any order of α; `lr` is its
/// learning rate, above 0. A loss that is not finite counts as risen. Four to eight evaluations from a start
/// within a factor of 2 of the crossing, up to a dozen or so from a hundred times off.
///
/// With h(α) = L(α) - L(0), h(α) / α is a straight line for a quadratic loss, and α_c is where it crosses 0.
/// α goes to just beyond and just before where the line through the last two points does so: by a factor of 2
/// to 8 a step while the crossing is not yet enclosed, and once it is, to the middle of the interval (in
/// logarithm) where that is slow. A loss that rises and falls again between two steps is missed.
CriticalSharpness critical_sharpness(const std::function<double(double)>& loss_along, double lr,
                                     const CriticalOptions& options = {});

/// The largest eigenvalue of P⁻¹H at which Adam with constant preconditioner P and step lr is stable:
/// (2 + 2β₁) / ((1 - β₁) η), 38/η at β₁ = 0.9 (Cohen et al. 2022, arXiv 2207.14484). Along an eigenvector of
/// eigenvalue λ, m' = β₁ m + (1 - β₁) λ x and x' = x - η m' have the characteristic polynomial
/// z² - (1 + β₁ - η (1 - β₁) λ) z + β₁, one root of which leaves the unit circle at z = -1 for this λ.
/// Weight decay and the bias correction of early steps are left out.
double adaptive_edge_of_stability(double beta1, double lr);

template <class T>
struct EigenvalueOptions {
    int max_iterations = 100;       // two gradients each
    double tolerance = 1e-4;        // see largest_eigenvalue
    uint64_t seed = 0;              // of the start vector
    std::span<const T> start = {};  // [n] a start instead: the vector of the last search
    double weight_norm = 0;         // |w|; 0 where unknown, then n weights of size 1 are assumed
    double epsilon = std::numeric_limits<T>::epsilon();  // relative rounding error of the gradients
};

template <class T>
struct Eigenvalue {
    double value;     // signed; NaN when a gradient was not finite
    double residual;  // |Av - value v| for |v| = 1: A has an eigenvalue no farther from value than this
    int iterations;
    bool converged;
    std::vector<T> vector;  // [n] of norm 1; with P, to be multiplied by P^(-1/2) for a direction of w
};

/// The eigenvalue of the Hessian that is largest in magnitude. `gradient(direction, step, out)`, with
/// std::span<const T>, double and std::span<T> of n elements, writes ∇L(w + step · direction) to out; step is
/// a power of two of either sign. L must be the same function at each call (one batch, the same dropout).
///
/// Stops when the value has changed by at most tolerance · |value| and the residual is at most
/// √tolerance · |value|: the value is off by about residual² / gap, and the residual tells a value between
/// eigenvalues of equal size and opposite sign, which does not change either. Eigenvalues that differ by less
/// than √tolerance are not told apart. A Hessian that annihilates the vector has value 0, converged.
///
/// Memory: 4n elements. Sums are taken in float64, in order: the result depends on the gradients alone.
template <class T, class Gradient>
Eigenvalue<T> largest_eigenvalue(Gradient&& gradient, int64_t n, const EigenvalueOptions<T>& options = {});

/// The same of P^(-1/2) H P^(-1/2), which has the eigenvalues of P⁻¹H. `preconditioner(i)` is the diagonal of
/// P, above 0: for Adam √v̂_i + ε, with the v̂ of the step.
template <class T, class Gradient, class Diagonal>
Eigenvalue<T> largest_preconditioned_eigenvalue(Gradient&& gradient, int64_t n, Diagonal&& preconditioner,
                                                const EigenvalueOptions<T>& options = {});

namespace detail {

/// A standard normal number, a function of (seed, element).
double start_element(uint64_t seed, uint64_t element);

/// h for (∇L(w + h d) - ∇L(w - h d)) / 2h, a power of two. Such a difference has a truncation error in h² and
/// a rounding error in ε / h, balanced at h ~ ε^(1/3) times the length over which L changes shape. Along a
/// direction of high curvature that is not the norm of w but about the size of one weight: λ = 100 to 10,000
/// makes a change of one nat within 0.1 to 0.01. So |h d| = ε^(1/3) RMS(w). Tried in float32 on a perceptron
/// of 28,000 weights and two hidden layers: λ is off by 3e-5 at the start and 3e-4 after training to a loss
/// of 0.007; with 64 times this step by 1e-4 and 0.1, with an eighth of it by 2e-4 and 6e-3.
double difference_step(double epsilon, double weight_norm, int64_t n, double direction_norm);

template <class T>
double norm(std::span<const T> v) {
    double sum = 0;
    for (const T x : v) sum += double(x) * double(x);
    return std::sqrt(sum);
}

}  // namespace detail

template <class T, class Gradient, class Diagonal>
Eigenvalue<T> largest_preconditioned_eigenvalue(Gradient&& gradient, int64_t n, Diagonal&& preconditioner,
                                                const EigenvalueOptions<T>& options) {
    assert(n >= 1 && (options.start.empty() || int64_t(options.start.size()) == n));
    const size_t size = size_t(n);
    std::vector<T> v(size), direction(size), product(size), other(size);
    const auto scaled = [&](size_t i, double x) { return x / std::sqrt(double(preconditioner(int64_t(i)))); };

    double length = options.start.empty() ? 0 : detail::norm(options.start);
    const bool warm = length > 0 && std::isfinite(length);
    for (size_t i = 0; i < size; ++i) {
        product[i] = warm ? options.start[i] : T(detail::start_element(options.seed, i));
    }
    length = detail::norm<T>(product);

    constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
    Eigenvalue<T> result{.value = kNaN, .residual = kNaN, .iterations = 0, .converged = false, .vector = {}};
    while (result.iterations < options.max_iterations && !result.converged) {
        for (size_t i = 0; i < size; ++i) {
            v[i] = T(double(product[i]) / length);
            direction[i] = T(scaled(i, double(v[i])));
        }
        const double h =
            detail::difference_step(options.epsilon, options.weight_norm, n, detail::norm<T>(direction));
        gradient(std::span<const T>(direction), h, std::span<T>(product));
        gradient(std::span<const T>(direction), -h, std::span<T>(other));
        ++result.iterations;

        double vv = 0, vAv = 0;
        for (size_t i = 0; i < size; ++i) {
            product[i] = T(scaled(i, (double(product[i]) - double(other[i])) / (2 * h)));
            vv += double(v[i]) * double(v[i]);
            vAv += double(v[i]) * double(product[i]);
        }
        const double before = result.value;
        result.value = vAv / vv;
        double rest = 0;
        for (size_t i = 0; i < size; ++i) {
            const double r = double(product[i]) - result.value * double(v[i]);
            rest += r * r;
        }
        result.residual = std::sqrt(rest / vv);
        length = detail::norm<T>(product);
        if (!std::isfinite(length)) {
            result.value = result.residual = kNaN;
            break;
        }
        const double magnitude = std::abs(result.value);
        result.converged = length == 0 || (std::abs(result.value - before) <= options.tolerance * magnitude &&
                                           result.residual <= std::sqrt(options.tolerance) * magnitude);
    }
    result.vector = std::move(v);
    return result;
}

template <class T, class Gradient>
Eigenvalue<T> largest_eigenvalue(Gradient&& gradient, int64_t n, const EigenvalueOptions<T>& options) {
    return largest_preconditioned_eigenvalue<T>(
        gradient, n, [](int64_t) { return 1.0; }, options);
}

}  // namespace wobble
