// Kernel cases of the activations other than tanh GELU (cases_flat.cu), and of gated units.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/activation.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

std::string name_of(Activation activation) {
    const char* names[] = {"gelu", "gelu_exact", "relu", "relu_squared", "silu"};
    return names[int(activation)];
}

/// Value and derivative as they are defined. Beyond |x| = 800 the factor of x is 0 or 1 to the last bit of
/// any type, and products with infinity would have no value.
template <class T>
struct Curve {
    T value, slope;
};
template <class T>
Curve<T> curve(Activation activation, T x) {
    const bool far = std::abs(x) > 800;
    switch (activation) {
        case Activation::Gelu:
            if (far) return x > 0 ? Curve<T>{x, 1} : Curve<T>{0, 0};
            return {naive::gelu(x), naive::gelu_derivative(x)};
        case Activation::GeluExact: {
            if (far) return x > 0 ? Curve<T>{x, 1} : Curve<T>{0, 0};
            const T normal = std::erfc(-x / std::numbers::sqrt2_v<T>) / 2;
            const T density = std::exp(-x * x / 2) * std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>;
            return {x * normal, normal + x * density};
        }
        case Activation::Relu:
            return x > 0 ? Curve<T>{x, 1} : Curve<T>{x * 0 == 0 || x < 0 ? T(0) : x, x < 0 ? T(0) : x * 0};
        case Activation::ReluSquared:
            return x > 0 ? Curve<T>{x * x, 2 * x} : x <= 0 ? Curve<T>{0, 0} : Curve<T>{x, x};
        case Activation::Silu: {
            if (far) return x > 0 ? Curve<T>{x, 1} : Curve<T>{0, 0};
            const T sigmoid = 1 / (1 + std::exp(-x)), complement = 1 / (1 + std::exp(x));
            return {x * sigmoid, sigmoid + x * sigmoid * complement};
        }
    }
    return {};
}

/// Ordinary numbers, none of them so near the kink at 0 that finite differences would reach across it.
Values inputs(const std::string& seed, int64_t n) {
    Values x = random_values(seed, n, 2);
    for (double& value : x)
        if (std::abs(value) < 0x1p-6) value = value < 0 ? -0x1p-6 : 0x1p-6;
    return x;
}

KernelCase activation_forward(Activation activation, int64_t n) {
    KernelCase c;
    c.name = label("activation_forward_" + name_of(activation), "n", n);
    c.terms = 8;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("x", inputs(seed + "x", n)), out("y", n)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        with_activation(activation, [&](auto act) {
            launch(context, flat_rows(n),
                   ActivationForward<E, decltype(act)>{.x = at.get<E>("x"), .y = at.get<E>("y"), .n = n},
                   {"case"});
        });
    });
    const auto all = [=](const Named& given, auto zero) -> Named {
        auto x = naive::as<decltype(zero)>(given, {"x"});
        for (auto& value : x) value = curve(activation, value).value;
        return {{"y", naive::back(x)}};
    };
    c.reference = [=](const Named& given) { return all(given, double{}); };
    set_naive(c, all);
    c.observed = {sees("output", "y")};
    return c;
}

KernelCase activation_backward(Activation activation, int64_t n, bool in_place) {
    KernelCase c;
    c.name = label(
        (in_place ? "activation_backward_in_place_" : "activation_backward_") + name_of(activation), "n", n);
    c.terms = 16;
    if (!in_place) c.forward = label("activation_forward_" + name_of(activation), "n", n);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        std::vector<Operand> operands{in("x", inputs(seed + "x", n))};
        const Values dy = random_values(seed + "dy", n);
        if (!in_place) operands.push_back(in("dy", dy));
        operands.push_back(in_place ? in_out("dx", dy) : out("dx", n));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        with_activation(activation, [&](auto act) {
            launch(context, flat_rows(n),
                   ActivationBackward<E, decltype(act)>{.x = at.get<E>("x"),
                                                        .dy = at.get<E>(in_place ? "dx" : "dy"),
                                                        .dx = at.get<E>("dx"),
                                                        .n = n},
                   {"case"});
        });
    });
    const auto all = [=](const Named& given, auto zero) -> Named {
        const auto x = naive::as<decltype(zero)>(given, {"x"});
        auto dx = naive::as<decltype(zero)>(given, {"dy", "dx"});
        for (size_t i = 0; i < dx.size(); ++i) dx[i] *= curve(activation, x[i]).slope;
        return {{"dx", naive::back(dx)}};
    };
    c.reference = [=](const Named& given) {
        Named result = all(given, double{});
        // The slope is a sum of parts near 1 that may cancel.
        result["|dx|"] = {
            std::max(largest_magnitude(any_of(given, {"dy", "dx"})), largest_magnitude(result.at("dx")))};
        return result;
    };
    set_naive(c, all);
    c.observed = {sees("output", "dx")};
    return c;
}

// ------------------------------------------------------------------------------------------------ gated
// units
KernelCase gated_forward(Activation activation, int64_t rows, int64_t F) {
    KernelCase c;
    c.name = label("gated_forward_" + name_of(activation), "rows", rows, "F", F);
    c.terms = 9;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("x", inputs(seed + "x", rows * 2 * F)), out("y", rows * F)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        with_activation(activation, [&](auto act) {
            launch(context, rows,
                   GatedForward<E, decltype(act)>{.x = at.get<E>("x"), .y = at.get<E>("y"), .F = F},
                   {"case"});
        });
    });
    const auto all = [=](const Named& given, auto zero) -> Named {
        const auto x = naive::as<decltype(zero)>(given, {"x"});
        auto y = naive::zeros<decltype(zero)>(rows * F);
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t f = 0; f < F; ++f)
                y[r * F + f] = curve(activation, x[r * 2 * F + f]).value * x[r * 2 * F + F + f];
        return {{"y", naive::back(y)}};
    };
    c.reference = [=](const Named& given) { return all(given, double{}); };
    set_naive(c, all);
    c.observed = {sees("output", "y")};
    c.matrix = "y", c.columns = F;
    return c;
}

KernelCase gated_backward(Activation activation, int64_t rows, int64_t F, bool in_place) {
    KernelCase c;
    c.name = label((in_place ? "gated_backward_in_place_" : "gated_backward_") + name_of(activation), "rows",
                   rows, "F", F);
    c.terms = 17;
    if (!in_place) c.forward = label("gated_forward_" + name_of(activation), "rows", rows, "F", F);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const Values x = inputs(seed + "x", rows * 2 * F);
        std::vector<Operand> operands{in("dy", random_values(seed + "dy", rows * F))};
        if (!in_place) operands.push_back(in("x", x));
        operands.push_back(in_place ? in_out("dx", x) : out("dx", rows * 2 * F));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        with_activation(activation, [&](auto act) {
            launch(context, rows,
                   GatedBackward<E, decltype(act)>{.x = at.get<E>(in_place ? "dx" : "x"),
                                                   .dy = at.get<E>("dy"),
                                                   .dx = at.get<E>("dx"),
                                                   .F = F},
                   {"case"});
        });
    });
    const auto all = [=](const Named& given, auto zero) -> Named {
        const auto x = naive::as<decltype(zero)>(given, {"x", "dx"});
        const auto dy = naive::as<decltype(zero)>(given, {"dy"});
        auto dx = x;
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t f = 0; f < F; ++f) {
                const int64_t gate = r * 2 * F + f, up = gate + F;
                const auto [value, slope] = curve(activation, x[gate]);
                dx[gate] = slope * x[up] * dy[r * F + f];
                dx[up] = value * dy[r * F + f];
            }
        return {{"dx", naive::back(dx)}};
    };
    c.reference = [=](const Named& given) {
        Named result = all(given, double{});
        const double scale =
            largest_magnitude(given.at("dy")) * largest_magnitude(any_of(given, {"x", "dx"}));
        result["|dx|"] = {std::max(scale, largest_magnitude(result.at("dx")))};
        return result;
    };
    set_naive(c, all);
    c.observed = {sees("output", "dx")};
    c.matrix = "dx", c.columns = 2 * F;
    return c;
}

}  // namespace

void add_activation_cases(std::vector<KernelCase>& table) {
    for (Activation activation :
         {Activation::GeluExact, Activation::Relu, Activation::ReluSquared, Activation::Silu}) {
        for (int64_t n : {1, 15, 4097}) {
            table.push_back(activation_forward(activation, n));
            table.push_back(activation_backward(activation, n, false));
        }
        table.push_back(activation_backward(activation, 4097, true));
    }
    const int64_t units[][2] = {{1, 1}, {5, 23}, {67, 32}};
    for (Activation activation : {Activation::Gelu, Activation::GeluExact, Activation::Relu,
                                  Activation::ReluSquared, Activation::Silu}) {
        for (const auto& [rows, F] : units) {
            if (activation != Activation::Silu && rows != 5) continue;
            table.push_back(gated_forward(activation, rows, F));
            table.push_back(gated_backward(activation, rows, F, false));
            table.push_back(gated_backward(activation, rows, F, true));
        }
    }
}

}  // namespace wobble::test
