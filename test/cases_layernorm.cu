// Kernel cases of layer norm.
#include <algorithm>
#include <cmath>

#include "kernels/layernorm.h"
#include "kernels/reduce.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

constexpr double epsilon = 1e-5;

/// What a norm has besides its division: a gain as it is, about zero or none, and a bias or none.
enum class Form { Plain, NoBias, NoWeight, Bare, ZeroCentred, ZeroCentredNoBias };

bool has_weight(Form form) {
    return form != Form::NoWeight && form != Form::Bare;
}
bool has_bias(Form form) {
    return form == Form::Plain || form == Form::NoWeight || form == Form::ZeroCentred;
}
bool zero_centred(Form form) {
    return form == Form::ZeroCentred || form == Form::ZeroCentredNoBias;
}
std::string suffix(Form form) {
    const char* names[] = {"", "_no_bias", "_no_weight", "_bare", "_zero_centred", "_zero_centred_no_bias"};
    return names[int(form)];
}
/// The weight as the formulas have it, and zeros or ones for what is missing.
Named completed(Named given, Form form, int64_t C) {
    given.try_emplace("weight", Values(size_t(C), 1.0));
    given.try_emplace("bias", Values(size_t(C), 0.0));
    if (zero_centred(form))
        for (double& w : given.at("weight")) w += 1;
    return given;
}

// ------------------------------------------------------------------------------------------------ layer norm
KernelCase layernorm_forward(int64_t rows, int64_t C, Form form = Form::Plain) {
    KernelCase c;
    c.name = label("layernorm_forward" + suffix(form), "rows", rows, "C", C);
    c.terms = C;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        std::vector<Operand> operands{in("x", random_values(seed + "x", rows * C, 2, 0.5)),
                                      out("y", rows * C), out("mean", rows, Kind::Sum),
                                      out("rstd", rows, Kind::Sum)};
        const double centre = zero_centred(form) ? 0 : 1;
        if (has_weight(form))
            operands.push_back(in("weight", random_values(seed + "weight", C, 0.5, centre)));
        if (has_bias(form)) operands.push_back(in("bias", random_values(seed + "bias", C)));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        launch(context, rows,
               LayerNormForward<E>{.x = at.get<E>("x"),
                                   .weight = has_weight(form) ? at.get<E>("weight") : nullptr,
                                   .bias = has_bias(form) ? at.get<E>("bias") : nullptr,
                                   .y = at.get<E>("y"),
                                   .mean = at.get<A>("mean"),
                                   .rstd = at.get<A>("rstd"),
                                   .C = C,
                                   .epsilon = A(epsilon),
                                   .zero_centred = zero_centred(form)},
               {"case"});
    });
    c.reference = [=](const Named& operands) -> Named {
        const Named given = completed(operands, form, C);
        const auto norm = reference::layer_norm_forward(given.at("x"), given.at("weight"), given.at("bias"),
                                                        rows, C, epsilon);
        return {{"y", norm.y},
                {"mean", norm.mean},
                {"|mean|", {largest_magnitude(given.at("x"))}},  // it is made of numbers of this size
                {"rstd", norm.rstd}};
    };
    set_naive(c, [=](const Named& given, auto zero) {
        return naive::layer_norm_forward<decltype(zero)>(completed(given, form, C), rows, C, epsilon);
    });
    c.observed = {sees("output", "y"),
                  sees("rstd", "rstd"),
                  {"kurtosis",
                   [=](const Named& before, const Named&) {
                       return kurtosis_of_rows(before.at("x"), rows, C, true, epsilon);
                   },
                   16 + 2 * std::sqrt(double(C))}};
    c.matrix = "y", c.columns = C;
    return c;
}

/// Of the norm's own share of dx, as mean and rstd are given: Σ dx, and Σ dx · x̂ less what epsilon makes of
/// it.
std::vector<ObservedIdentity> layernorm_identities(const Named& before, int64_t rows, int64_t C) {
    const Values &x = before.at("x"), &weight = before.at("weight"), &dy = before.at("dy");
    ObservedIdentity sum{"layernorm_backward", "sum dx", {}, {}, {}};
    ObservedIdentity along{"layernorm_backward", "sum dx * x_hat", {}, {}, {}};
    for (int64_t row = 0; row < rows; ++row) {
        const double mean = before.at("mean")[row], rstd = before.at("rstd")[row];
        const auto normalised = [&](int64_t c) { return (x[row * C + c] - mean) * rstd; };
        const auto g = [&](int64_t c) { return dy[row * C + c] * weight[c]; };
        double mean_g = 0, mean_gx = 0, mean_size_g = 0, mean_size_gx = 0;
        for (int64_t c = 0; c < C; ++c) {
            mean_g += g(c) / double(C), mean_size_g += std::abs(g(c)) / double(C);
            mean_gx += g(c) * normalised(c) / double(C);
            mean_size_gx += std::abs(g(c) * normalised(c)) / double(C);
        }
        double total = 0, size = 0, total_x = 0, size_x = 0, unsure = 0, unsure_x = 0;
        for (int64_t c = 0; c < C; ++c) {
            const double n = normalised(c), dx = rstd * (g(c) - mean_g - n * mean_gx);
            const double magnitudes = rstd * (std::abs(g(c)) + std::abs(mean_g) + std::abs(n * mean_gx));
            // The means err in proportion to the magnitudes that they are made of.
            const double errs = rstd * (std::abs(g(c)) + mean_size_g + std::abs(n) * mean_size_gx);
            total += dx, size += magnitudes, unsure += errs;
            total_x += dx * n, size_x += magnitudes * std::abs(n), unsure_x += errs * std::abs(n);
        }
        unsure_x += rstd * mean_size_gx * double(C);
        const double roundings = 2 * (4 + std::sqrt(double(C)));
        sum.residuals.push_back(total), sum.scales.push_back(size);
        sum.uncertainties.push_back(roundings * unsure);
        along.residuals.push_back(total_x - rstd * mean_gx * double(C) * epsilon * rstd * rstd);
        along.scales.push_back(size_x), along.uncertainties.push_back(roundings * unsure_x);
    }
    return {sum, along};
}

enum class Stream { None, Apart, InPlace };

KernelCase layernorm_backward(int64_t rows, int64_t C, Stream residual, Form form = Form::Plain) {
    KernelCase c;
    c.name = label((residual == Stream::None    ? "layernorm_backward"
                    : residual == Stream::Apart ? "layernorm_backward_residual"
                                                : "layernorm_backward_in_place") +
                       suffix(form),
                   "rows", rows, "C", C);
    if (residual == Stream::None) c.forward = label("layernorm_forward" + suffix(form), "rows", rows, "C", C);
    c.terms = std::max(rows, C);
    const int64_t chunks = chunk_count(rows);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const Values x = random_values(seed + "x", rows * C, 2, 0.5);
        const auto norm = reference::layer_norm_forward(x, {}, {}, rows, C, epsilon);
        const Values stream = random_values(seed + "dresidual", rows * C);
        std::vector<Operand> operands{in("x", x), in("mean", norm.mean, Kind::Sum),
                                      in("rstd", norm.rstd, Kind::Sum),
                                      in("dy", random_values(seed + "dy", rows * C))};
        if (has_weight(form)) {
            const double centre = zero_centred(form) ? 0 : 1;
            operands.push_back(in("weight", random_values(seed + "weight", C, 0.5, centre)));
            operands.push_back(out("dweight_chunks", chunks * C, Kind::Sum));
            operands.push_back(out("dweight", C, Kind::Sum));
        }
        if (has_bias(form)) {
            operands.push_back(out("dbias_chunks", chunks * C, Kind::Sum));
            operands.push_back(out("dbias", C, Kind::Sum));
        }
        if (residual == Stream::Apart) operands.push_back(in("dresidual", stream));
        operands.push_back(residual == Stream::InPlace ? in_out("dx", stream) : out("dx", rows * C));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        launch(
            context, chunks,
            LayerNormBackward<E>{.x = at.get<E>("x"),
                                 .weight = has_weight(form) ? at.get<E>("weight") : nullptr,
                                 .mean = at.get<A>("mean"),
                                 .rstd = at.get<A>("rstd"),
                                 .dy = at.get<E>("dy"),
                                 .dresidual = residual == Stream::None      ? nullptr
                                              : residual == Stream::InPlace ? at.get<E>("dx")
                                                                            : at.get<E>("dresidual"),
                                 .dx = at.get<E>("dx"),
                                 .dweight_chunks = has_weight(form) ? at.get<A>("dweight_chunks") : nullptr,
                                 .dbias_chunks = has_bias(form) ? at.get<A>("dbias_chunks") : nullptr,
                                 .rows = rows,
                                 .C = C,
                                 .epsilon = A(epsilon),
                                 .zero_centred = zero_centred(form)},
            {"case"});
        for (const char* name : {"dweight", "dbias"}) {
            if (name[1] == 'w' ? !has_weight(form) : !has_bias(form)) continue;
            launch(context, SumChunks<E>::teams(C),
                   SumChunks<E>{.chunks = at.get<A>(std::string(name) + "_chunks"),
                                .out = at.get<A>(name),
                                .count = chunks,
                                .C = C,
                                .accumulate = false},
                   {"case", -1, Phase::Backward, name});
        }
    });
    c.reference = [=](const Named& operands) -> Named {
        const Named given = completed(operands, form, C);
        const Values &weight = given.at("weight"), &dy = given.at("dy");
        auto gradients = reference::layer_norm_backward(dy, given.at("x"), weight, rows, C, epsilon);
        // dx is what is left of the incoming gradient when its mean and its part along x̂ are taken out.
        double scale = 0;
        for (int64_t i = 0; i < rows * C; ++i)
            scale = std::max(scale, std::abs(dy[i] * weight[i % C] * given.at("rstd")[i / C]));
        const Values stream = any_of(given, {"dresidual", "dx"});
        for (size_t i = 0; i < stream.size(); ++i) gradients.dx[i] += stream[i];
        Named result{{"dx", gradients.dx}, {"|dx|", {scale + largest_magnitude(stream)}}};
        if (has_weight(form))
            result["dweight"] = gradients.dweight, result["|dweight|"] = {largest_magnitude(dy)};
        if (has_bias(form)) result["dbias"] = gradients.dbias;
        return result;
    };
    set_naive(c, [=](const Named& given, auto zero) {
        Named result = naive::layer_norm_backward<decltype(zero)>(completed(given, form, C), rows, C);
        if (!has_weight(form)) result.erase("dweight");
        if (!has_bias(form)) result.erase("dbias");
        return result;
    });
    c.observed = {sees("output", "dx")};
    if (has_weight(form)) c.observed.push_back(sees("output", "dweight"));
    if (has_bias(form)) c.observed.push_back(sees("output", "dbias"));
    c.matrix = "dx", c.columns = C;
    c.identities = [=](const Named& before) {
        return layernorm_identities(completed(before, form, C), rows, C);
    };
    c.breaks = {"mean", "rstd"};
    return c;
}

// ------------------------------------------------------------------------------------------------- examples
/// Each sequence's own gradient of gain and bias, and its square.
KernelCase layernorm_examples(int64_t B, int64_t T, int64_t C, Form form = Form::Plain) {
    KernelCase c;
    c.name = label("layernorm_examples" + suffix(form), "B", B, "T", T, "C", C);
    c.terms = T + C + 8;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const Values x = random_values(seed + "x", B * T * C, 2, 0.5);
        const auto norm = reference::layer_norm_forward(x, {}, {}, B * T, C, epsilon);
        return {in("x", x),
                in("mean", norm.mean, Kind::Sum),
                in("rstd", norm.rstd, Kind::Sum),
                in("dy", random_values(seed + "dy", B * T * C)),
                out("workspace", 2 * B * C, Kind::Sum),
                in_out("squares", random_values(seed + "squares", B), Kind::Wide)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        launch(context, B,
               LayerNormExamples<E>{.x = at.get<E>("x"),
                                    .mean = at.get<A>("mean"),
                                    .rstd = at.get<A>("rstd"),
                                    .dy = at.get<E>("dy"),
                                    .workspace = at.get<A>("workspace"),
                                    .squares = at.get<double>("squares"),
                                    .sequence = T,
                                    .C = C,
                                    .has_weight = has_weight(form),
                                    .has_bias = has_bias(form)},
               {"case"});
    });
    const auto own = [=](const Named& given) {
        Values squares;
        for (int64_t b = 0; b < B; ++b) {
            const auto part = [&](const char* name) {
                const double* first = given.at(name).data() + b * T * C;
                return Values(first, first + T * C);
            };
            const auto g = reference::layer_norm_backward(part("dy"), part("x"), {}, T, C, epsilon);
            double sum = 0;
            for (double w : g.dweight) sum += has_weight(form) ? w * w : 0;
            for (double own_bias : g.dbias) sum += has_bias(form) ? own_bias * own_bias : 0;
            squares.push_back(sum);
        }
        return squares;
    };
    c.reference = [=](const Named& given) -> Named {
        Values squares = own(given);
        for (size_t b = 0; b < squares.size(); ++b) squares[b] += given.at("squares")[b];
        return {{"squares", squares}};
    };
    set_naive(c, [=](const Named& given, auto zero) -> Named {
        using E = decltype(zero);
        const auto x = naive::as<E>(given, {"x"}), dy = naive::as<E>(given, {"dy"});
        const auto mean = naive::as<E>(given, {"mean"}), rstd = naive::as<E>(given, {"rstd"});
        auto squares = naive::as<E>(given, {"squares"});
        for (int64_t b = 0; b < B; ++b) {
            for (int64_t i = 0; i < C; ++i) {
                E dweight = 0, dbias = 0;
                for (int64_t t = b * T; t < (b + 1) * T; ++t) {
                    dweight += dy[t * C + i] * ((x[t * C + i] - mean[t]) * rstd[t]);
                    dbias += dy[t * C + i];
                }
                if (has_weight(form)) squares[size_t(b)] += dweight * dweight;
                if (has_bias(form)) squares[size_t(b)] += dbias * dbias;
            }
        }
        return {{"squares", naive::back(squares)}};
    });
    c.observed = {{"output", [=](const Named& before, const Named&) { return own(before); },
                   2 * (4 + std::sqrt(double(T)))}};
    c.observed[0].wide = true;
    return c;
}

}  // namespace

void add_layernorm_cases(std::vector<KernelCase>& table) {
    const int64_t norms[][2] = {{1, 1}, {17, 1}, {3, 7}, {15, 48}, {17, 200}, {1, 768}, {99, 768}, {165, 48}};
    for (const auto& [rows, C] : norms) {
        table.push_back(layernorm_forward(rows, C));
        table.push_back(layernorm_backward(rows, C, Stream::None));
        table.push_back(layernorm_backward(rows, C, Stream::Apart));
        table.push_back(layernorm_backward(rows, C, Stream::InPlace));
    }
    for (Form form : {Form::NoBias, Form::NoWeight, Form::Bare, Form::ZeroCentred, Form::ZeroCentredNoBias}) {
        table.push_back(layernorm_forward(17, 50, form));
        table.push_back(layernorm_backward(17, 50, Stream::None, form));
        table.push_back(layernorm_backward(99, 21, Stream::InPlace, form));
    }
    const int64_t sequences[][3] = {{1, 1, 1}, {3, 5, 7}, {5, 33, 48}, {2, 17, 200}};
    for (const auto& [B, T, C] : sequences) table.push_back(layernorm_examples(B, T, C));
    for (Form form : {Form::NoBias, Form::NoWeight}) table.push_back(layernorm_examples(3, 5, 23, form));
}

}  // namespace wobble::test
