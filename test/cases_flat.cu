// Kernel cases over flat arrays and columns: tanh GELU, residual, AdamW, sums.
#include <cmath>

#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/reduce.h"
#include "kernels/residual.h"
#include "kernels/round.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

template <class F>
Values each(const Values& x, F f) {
    Values result;
    for (double value : x) result.push_back(f(value));
    return result;
}

KernelCase activation_forward(int64_t n) {
    KernelCase c;
    c.name = label("activation_forward", "n", n);
    c.terms = 8;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("x", random_values(seed + "x", n, 2)), out("y", n)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, flat_rows(n), ActivationForward<E>{.x = at.get<E>("x"), .y = at.get<E>("y"), .n = n},
               {"case"});
    });
    c.reference = [](const Named& given) -> Named { return {{"y", each(given.at("x"), reference::gelu)}}; };
    set_naive(c, [](const Named& given, auto zero) -> Named {
        auto x = naive::as<decltype(zero)>(given, {"x"});
        for (auto& value : x) value = naive::gelu(value);
        return {{"y", naive::back(x)}};
    });
    c.observed = {sees("output", "y")};
    return c;
}

KernelCase activation_backward(int64_t n, bool in_place) {
    KernelCase c;
    c.name = label(in_place ? "activation_backward_in_place" : "activation_backward", "n", n);
    c.terms = 16;
    if (!in_place) c.forward = label("activation_forward", "n", n);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        std::vector<Operand> operands{in("x", random_values(seed + "x", n, 2))};
        const Values dy = random_values(seed + "dy", n);
        if (!in_place) operands.push_back(in("dy", dy));
        operands.push_back(in_place ? in_out("dx", dy) : out("dx", n));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(
            context, flat_rows(n),
            ActivationBackward<E>{
                .x = at.get<E>("x"), .dy = at.get<E>(in_place ? "dx" : "dy"), .dx = at.get<E>("dx"), .n = n},
            {"case"});
    });
    c.reference = [](const Named& given) -> Named {
        Values dx = any_of(given, {"dy", "dx"});
        const double scale = largest_magnitude(dx);  // the slope is a sum of parts near 1 that may cancel
        for (size_t i = 0; i < dx.size(); ++i) dx[i] *= reference::gelu_derivative(given.at("x")[i]);
        return {{"dx", dx}, {"|dx|", {scale}}};
    };
    set_naive(c, [](const Named& given, auto zero) -> Named {
        using E = decltype(zero);
        auto dx = naive::as<E>(given, {"dy", "dx"});
        for (size_t i = 0; i < dx.size(); ++i) dx[i] *= naive::gelu_derivative(E(given.at("x")[i]));
        return {{"dx", naive::back(dx)}};
    });
    c.observed = {sees("output", "dx")};
    return c;
}

KernelCase residual(int64_t n, bool in_place, double scale = 1) {
    KernelCase c;
    const std::string kernel = in_place ? "residual_in_place" : "residual";
    c.name = label(scale == 1 ? kernel : kernel + "_scaled", "n", n);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const Values x = random_values(seed + "x", n);
        std::vector<Operand> operands{in("branch", random_values(seed + "branch", n))};
        if (!in_place) operands.push_back(in("x", x));
        operands.push_back(in_place ? in_out("y", x) : out("y", n));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, flat_rows(n),
               Residual<E>{.x = at.get<E>(in_place ? "y" : "x"),
                           .branch = at.get<E>("branch"),
                           .y = at.get<E>("y"),
                           .n = n,
                           .scale = Accumulator<E>(scale)},
               {"case"});
    });
    const auto sum = [=](const Named& given, auto zero) -> Named {
        using E = decltype(zero);
        auto x = naive::as<E>(given, {"x", "y"});
        const auto branch = naive::as<E>(given, {"branch"});
        E largest = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            largest = std::max({largest, E(std::abs(x[i])), E(std::abs(E(scale) * branch[i]))});
            x[i] += E(scale) * branch[i];
        }
        return {{"y", naive::back(x)}, {"|y|", {double(largest)}}};
    };
    c.reference = [=](const Named& given) { return sum(given, double{}); };
    set_naive(c, sum);
    c.observed = {sees("output", "y")};
    c.pair = [=](const Named& given) -> ObservedPair {
        Values write = given.at("branch");
        for (double& value : write) value *= scale;
        return {write, any_of(given, {"x", "y"}), 1};
    };
    return c;
}

KernelCase round_weights(int64_t n, bool stochastic) {
    KernelCase c;
    c.name = label(stochastic ? "round_weights_stochastic" : "round_weights", "n", n);
    c.narrow_roundings = stochastic ? 2 : 1;  // to either side
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("master", random_values(seed + "master", n), Kind::Sum), out("weight", n)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, flat_rows(n),
               RoundWeights<E>{.master = at.get<Accumulator<E>>("master"),
                               .weight = at.get<E>("weight"),
                               .n = n,
                               .stochastic = stochastic},
               {"case"});
    });
    set_naive(c, [](const Named& given, auto) -> Named { return {{"weight", given.at("master")}}; });
    c.reference = c.naive_float64;
    c.observed = {sees("output", "weight")};
    return c;
}

KernelCase scale(int64_t n, bool in_place) {
    KernelCase c;
    c.name = label(in_place ? "scale_in_place" : "scale", "n", n);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const Values x = random_values(seed + "x", n);
        if (in_place) return {in_out("y", x)};
        return {in("x", x), out("y", n)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, flat_rows(n),
               Scale<E>{.x = at.get<E>(in_place ? "y" : "x"),
                        .y = at.get<E>("y"),
                        .n = n,
                        .factor = Accumulator<E>(-1.5)},
               {"case"});
    });
    const auto scaled = [](const Named& given, auto zero) -> Named {
        auto x = naive::as<decltype(zero)>(given, {"x", "y"});
        for (auto& value : x) value *= decltype(zero)(-1.5);
        return {{"y", naive::back(x)}};
    };
    c.reference = [=](const Named& given) { return scaled(given, double{}); };
    set_naive(c, scaled);
    c.observed = {sees("output", "y")};
    return c;
}

// --------------------------------------------------------------------------------------------------- updates
/// Σ x² of each row of a flat array.
Values row_squares(const Values& x) {
    Values sums(size_t(flat_rows(int64_t(x.size()))));
    for (size_t i = 0; i < x.size(); ++i) sums[i / size_t(flat_row)] += x[i] * x[i];
    return sums;
}

/// x rounded to 8 significant bits, to even, from its definition.
double rounded_to_bf16(double x) {
    if (x == 0 || !std::isfinite(x)) return x;
    int exponent;
    const double mantissa = std::frexp(x, &exponent);
    return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

/// The update kernel's eleven sums, from the clipped gradient g, what lay in memory before and after, and the
/// update. g errs by one rounding, the moments by a few, v̂ by a few and its root by half of that. A row of
/// 4,096 is added up in the kernel's precision, 256 to a lane; 4 √256 units as for other sums.
std::vector<ObservedSum> adamw_sums(const reference::AdamW& options, int64_t step, const Values& g,
                                    const Named& before, const Named& after, const Values& update,
                                    double per_unit) {
    double gg = 0, gm = 0, gm_size = 0, mm = 0, mm_size = 0, wg = 0, wg_size = 0, ww = 0, ratio = 0,
           distance = 0;
    double distance_size = 0;
    int64_t below = 0, updated = 0, lost = 0, lost_in_bf16 = 0;
    const double bias2 = 1 / (1 - std::pow(options.beta2, double(step)));
    for (size_t i = 0; i < g.size(); ++i) {
        const double w = before.at("weight")[i], new_w = after.at("weight")[i],
                     start = before.at("initial")[i];
        const double m = options.beta1 * before.at("m")[i] + (1 - options.beta1) * g[i];
        const double m_size =
            options.beta1 * std::abs(before.at("m")[i]) + (1 - options.beta1) * std::abs(g[i]);
        const double v = options.beta2 * before.at("v")[i] + (1 - options.beta2) * g[i] * g[i];
        const double root = std::sqrt(v * bias2);
        gg += g[i] * g[i], ww += w * w;
        mm += m * m, mm_size += std::abs(m) * m_size;
        gm += g[i] * m, gm_size += std::abs(g[i]) * m_size;
        wg += w * g[i], wg_size += std::abs(w * g[i]);
        ratio += std::pow(g[i] / std::max(root, options.epsilon), 2);
        distance += (new_w - start) * (new_w - start);
        distance_size += std::abs(new_w - start) * (std::abs(new_w) + std::abs(start));
        below += root < options.epsilon;
        updated += update[i] != 0;
        lost += update[i] != 0 && new_w == w;
        lost_in_bf16 += update[i] != 0 && rounded_to_bf16(new_w) == rounded_to_bf16(w);
    }
    // Gradient and momentum are in units, powers of two.
    gg *= per_unit * per_unit, gm *= per_unit * per_unit, mm *= per_unit * per_unit, wg *= per_unit;
    gm_size *= per_unit * per_unit, mm_size *= per_unit * per_unit, wg_size *= per_unit;
    constexpr double sum = 4 * 16 + 8;
    return {{"g g", gg, (4 + sum) * gg},
            {"g m", gm, (8 + sum) * gm_size},
            {"m m", mm, (8 + sum) * mm_size},
            {"w g", wg, (4 + sum) * wg_size},
            {"w w", ww, (2 + sum) * ww},
            {"g g / v", ratio, (16 + sum) * ratio},
            {"below epsilon", double(below), 0},
            {"updated", double(updated), 0},
            {"lost", double(lost), 0},
            {"lost in bf16", double(lost_in_bf16), 0},
            {"distance", distance, (2 + sum) * distance_size}};
}

KernelCase adamw(int64_t n, int64_t step, double clip) {
    KernelCase c;
    c.name = label("adamw", "n", n, "step", step) + (clip == 1 ? "" : "_clipped");
    // The sums of squares are added up in the accumulator type, one row at a time.
    c.terms = std::min(n, flat_row);
    const reference::AdamW options{
        .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
    const int64_t rows = flat_rows(n);
    const double per_unit = clip == 1 ? 1 : 64;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const bool fresh = step == 1;  // then the moments are zero
        Values v = random_values(seed + "v", n, 0.1);
        for (double& value : v) value = fresh ? 0 : double(float(value * value + 1e-4));
        return {in("gradient", random_values(seed + "gradient", n), Kind::Sum),
                in_out("weight", random_values(seed + "weight", n)),
                in_out("m", random_values(seed + "m", n, fresh ? 0 : 0.1), Kind::Sum),
                in_out("v", v, Kind::Sum),
                out("update_squares", rows, Kind::Wide),
                out("weight_squares", rows, Kind::Wide),
                in("initial", random_values(seed + "initial", n))};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        if constexpr (!std::is_same_v<E, bf16>)  // master weights are wider
            launch(context, rows,
                   AdamW<E>{.weight = at.get<E>("weight"),
                            .gradient = at.get<A>("gradient"),
                            .m = at.get<A>("m"),
                            .v = at.get<A>("v"),
                            .update_squares = at.get<double>("update_squares"),
                            .weight_squares = at.get<double>("weight_squares"),
                            .n = n,
                            .clip = A(clip),
                            .lr = A(options.lr),
                            .decay = A(options.weight_decay),
                            .beta1 = A(options.beta1),
                            .beta2 = A(options.beta2),
                            .epsilon = A(options.epsilon),
                            .one_minus_beta1 = A(1 - options.beta1),
                            .one_minus_beta2 = A(1 - options.beta2),
                            .bias1 = A(1 / (1 - std::pow(options.beta1, double(step)))),
                            .bias2 = A(1 / (1 - std::pow(options.beta2, double(step)))),
                            .per_unit = A(per_unit),
                            .initial = at.get<E>("initial")},
                   {"case"});
    });
    c.run_bfloat16 = nullptr;  // master weights are float32
    const auto clipped = [=](const Named& given) {
        return each(given.at("gradient"), [=](double g) { return g * clip; });
    };
    const auto updated = [=](const Named& given) -> Named {
        Named now = given;
        reference::adamw_step(options, step, clipped(given), now.at("weight"), now.at("m"), now.at("v"));
        return now;
    };
    // Not the difference of the weights, which would lose most of its digits.
    const auto update = [=](const Named& given) {
        const Named now = updated(given);
        const double bias1 = 1 - std::pow(options.beta1, double(step));
        const double bias2 = 1 - std::pow(options.beta2, double(step));
        Values result;
        for (size_t i = 0; i < size_t(n); ++i) {
            const double m_hat = now.at("m")[i] / bias1, v_hat = now.at("v")[i] / bias2;
            result.push_back(options.lr * (m_hat / (std::sqrt(v_hat) + options.epsilon) +
                                           options.weight_decay * given.at("weight")[i]));
        }
        return result;
    };
    c.reference = [=](const Named& given) -> Named {
        const Named now = updated(given);
        return {{"weight", now.at("weight")},
                {"m", now.at("m")},
                {"v", now.at("v")},
                {"update_squares", row_squares(update(given))},
                {"weight_squares", row_squares(now.at("weight"))}};
    };
    set_naive(c, [=](const Named& given, auto zero) {
        return naive::adamw<decltype(zero)>(given, options, step, clip);
    });
    // Update: m̂ and v̂ each two roundings, the root, three operations more; relative to an update that the
    // root's ε keeps near 1.
    c.observed = {{"update", [=](const Named& before, const Named&) { return update(before); }, 16}};
    c.sums = [=](const Named& before, const Named& after) {
        return adamw_sums(options, step, clipped(before), before, after, update(before), per_unit);
    };
    return c;
}

// ------------------------------------------------------------------------------------------------------ sums
KernelCase column_sum(int64_t rows, int64_t C, bool accumulate) {
    KernelCase c;
    c.name = label(accumulate ? "column_sum_accumulate" : "column_sum", "rows", rows, "C", C);
    c.terms = rows;
    const int64_t chunks = chunk_count(rows);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("x", random_values(seed + "x", rows * C)), out("chunks", chunks * C, Kind::Sum),
                accumulate ? in_out("sums", random_values(seed + "sums", C), Kind::Sum)
                           : out("sums", C, Kind::Sum)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        launch(context, chunks,
               ColumnSum<E>{.x = at.get<E>("x"), .chunks = at.get<A>("chunks"), .rows = rows, .C = C},
               {"case"});
        launch(context, SumChunks<E>::teams(C),
               SumChunks<E>{.chunks = at.get<A>("chunks"),
                            .out = at.get<A>("sums"),
                            .count = chunks,
                            .C = C,
                            .accumulate = accumulate},
               {"case"});
    });
    const auto sum = [=](const Named& given, auto zero) -> Named {
        auto sums = naive::column_sums(naive::as<decltype(zero)>(given, {"x"}), C);
        const auto before = naive::as<decltype(zero)>(given, {"sums"});
        for (size_t i = 0; i < before.size(); ++i) sums[i] += before[i];
        return {{"sums", naive::back(sums)}};
    };
    c.reference = [=](const Named& given) { return sum(given, double{}); };
    set_naive(c, sum);
    c.observed = {sees("output", "chunks"), sees("output", "sums")};
    return c;
}

KernelCase squared_sum(int64_t n) {
    KernelCase c;
    c.name = label("squared_sum", "n", n);
    c.wide_outputs = true;
    c.terms = std::min(n, flat_row);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("x", random_values(seed + "x", n)), out("partials", flat_rows(n), Kind::Wide)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, flat_rows(n),
               SquaredSum<E>{.x = at.get<E>("x"), .partials = at.get<double>("partials"), .n = n}, {"case"});
    });
    c.reference = [](const Named& given) -> Named { return {{"partials", row_squares(given.at("x"))}}; };
    set_naive(c, [](const Named& given, auto) -> Named {
        return {{"partials", row_squares(given.at("x"))}};
    });
    c.observed = {sees("value", "x")};
    return c;
}

KernelCase squared_change(int64_t n) {
    KernelCase c;
    c.name = label("squared_change", "n", n);
    c.terms = std::min(n, flat_row);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("x", random_values(seed + "x", n)),
                in_out("previous", random_values(seed + "previous", n)),
                out("partials", flat_rows(n), Kind::Wide)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, flat_rows(n),
               SquaredChange<E>{.x = at.get<E>("x"),
                                .previous = at.get<E>("previous"),
                                .partials = at.get<double>("partials"),
                                .n = n},
               {"case"});
    });
    const auto change = [](const Named& given, auto zero) {
        auto x = naive::as<decltype(zero)>(given, {"x"});
        const auto previous = naive::as<decltype(zero)>(given, {"previous"});
        for (size_t i = 0; i < x.size(); ++i) x[i] -= previous[i];
        return naive::back(x);
    };
    const auto all = [=](const Named& given, auto zero) -> Named {
        return {{"previous", given.at("x")}, {"partials", row_squares(change(given, zero))}};
    };
    c.reference = [=](const Named& given) { return all(given, double{}); };
    set_naive(c, all);
    c.observed = {{"change", [=](const Named& before, const Named&) { return change(before, double{}); }, 1}};
    return c;
}

}  // namespace

void add_flat_cases(std::vector<KernelCase>& table) {
    for (int64_t n : {1, 15, 4096, 4097, 10007}) {
        table.push_back(activation_forward(n));
        table.push_back(activation_backward(n, false));
        table.push_back(activation_backward(n, true));
        table.push_back(residual(n, false));
        table.push_back(residual(n, true));
        table.push_back(residual(n, n > 15, 0.75));
        table.push_back(round_weights(n, false));
        table.push_back(round_weights(n, true));
        table.push_back(scale(n, n > 15));
        table.push_back(squared_sum(n));
        table.push_back(squared_change(n));
    }
    for (int64_t n : {1, 17, 4097, 10007}) {
        table.push_back(adamw(n, 1, 1));
        table.push_back(adamw(n, 1000, 1));
        table.push_back(adamw(n, 7, 0.125));
    }
    const int64_t columns[][2] = {{1, 1}, {3, 7}, {17, 48}, {165, 257}, {99, 768}};
    for (const auto& [rows, C] : columns) {
        table.push_back(column_sum(rows, C, false));
        table.push_back(column_sum(rows, C, true));
    }
}

}  // namespace wobble::test
