// Kernel cases of RMS norm.
#include <algorithm>
#include <cmath>

#include "kernels/reduce.h"
#include "kernels/rmsnorm.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

constexpr double epsilon = 1e-5;

enum class Gain { Plain, None, ZeroCentred };

std::string suffix(Gain gain) {
    return gain == Gain::Plain ? "" : gain == Gain::None ? "_no_weight" : "_zero_centred";
}
/// The weight as the formulas have it.
Named completed(Named given, Gain gain, int64_t C) {
    given.try_emplace("weight", Values(size_t(C), 1.0));
    if (gain == Gain::ZeroCentred)
        for (double& w : given.at("weight")) w += 1;
    return given;
}

enum class Stream { None, Apart, InPlace };

struct RMSNorm {
    Values y, rstd;
};
RMSNorm rmsnorm_reference(const Values& x, const Values& weight, int64_t rows, int64_t C) {
    RMSNorm result;
    for (int64_t r = 0; r < rows; ++r) {
        double squares = 0;
        for (int64_t c = 0; c < C; ++c) squares += x[r * C + c] * x[r * C + c];
        result.rstd.push_back(1 / std::sqrt(squares / double(C) + epsilon));
        for (int64_t c = 0; c < C; ++c)
            result.y.push_back(x[r * C + c] * result.rstd[size_t(r)] * (weight.empty() ? 1 : weight[c]));
    }
    return result;
}

/// From the derivative of x_i · (mean(x²) + ε)^(-1/2): dx_j = g_j rstd - x_j rstd³ Σ_i g_i x_i / C. dresidual
/// may be empty.
Named rmsnorm_gradients(const Values& dy, const Values& x, const Values& weight, const Values& dresidual,
                        int64_t rows, int64_t C) {
    const Values rstd = rmsnorm_reference(x, {}, rows, C).rstd;
    Values dx, dweight(size_t(C), 0.0);
    for (int64_t r = 0; r < rows; ++r) {
        const double* row = x.data() + r * C;
        const double* grad = dy.data() + r * C;
        double product = 0;
        for (int64_t c = 0; c < C; ++c) product += grad[c] * weight[c] * row[c] / double(C);
        for (int64_t c = 0; c < C; ++c) {
            const double own = grad[c] * weight[c] * rstd[r] - row[c] * product * std::pow(rstd[r], 3);
            dx.push_back(own + (dresidual.empty() ? 0 : dresidual[r * C + c]));
            dweight[c] += grad[c] * row[c] * rstd[r];
        }
    }
    return {{"dx", dx}, {"dweight", dweight}};
}

template <class T>
Named naive_rmsnorm_forward(const Named& given, int64_t rows, int64_t C) {
    const auto x = naive::as<T>(given, {"x"}), weight = naive::as<T>(given, {"weight"});
    auto y = naive::zeros<T>(rows * C), rstd = naive::zeros<T>(rows);
    for (int64_t r = 0; r < rows; ++r) {
        T squares = 0;
        for (int64_t c = 0; c < C; ++c) squares += x[r * C + c] * x[r * C + c];
        rstd[r] = 1 / std::sqrt(squares / T(C) + T(epsilon));
        for (int64_t c = 0; c < C; ++c) y[r * C + c] = x[r * C + c] * rstd[r] * weight[c];
    }
    return {{"y", naive::back(y)}, {"rstd", naive::back(rstd)}};
}

template <class T>
Named naive_rmsnorm_backward(const Named& given, int64_t rows, int64_t C) {
    const auto x = naive::as<T>(given, {"x"}), weight = naive::as<T>(given, {"weight"});
    const auto dy = naive::as<T>(given, {"dy"}), rstd = naive::as<T>(given, {"rstd"});
    const auto residual = naive::as<T>(given, {"dresidual", "dx"});
    auto dx = naive::zeros<T>(rows * C), dweight = naive::zeros<T>(C);
    for (int64_t r = 0; r < rows; ++r) {
        T sum = 0;
        for (int64_t c = 0; c < C; ++c) sum += dy[r * C + c] * weight[c] * (x[r * C + c] * rstd[r]);
        for (int64_t c = 0; c < C; ++c) {
            const T normalised = x[r * C + c] * rstd[r];
            dx[r * C + c] = (dy[r * C + c] * weight[c] - normalised * (sum / T(C))) * rstd[r];
            if (!residual.empty()) dx[r * C + c] += residual[r * C + c];
            dweight[c] += dy[r * C + c] * normalised;
        }
    }
    return {{"dx", naive::back(dx)}, {"dweight", naive::back(dweight)}};
}

KernelCase rmsnorm_forward(int64_t rows, int64_t C, Gain gain = Gain::Plain) {
    KernelCase c;
    c.name = label("rmsnorm_forward" + suffix(gain), "rows", rows, "C", C);
    c.terms = C;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        std::vector<Operand> operands{in("x", random_values(seed + "x", rows * C, 2, 0.5)),
                                      out("y", rows * C), out("rstd", rows, Kind::Sum)};
        const double centre = gain == Gain::ZeroCentred ? 0 : 1;
        if (gain != Gain::None)
            operands.push_back(in("weight", random_values(seed + "weight", C, 0.5, centre)));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        launch(context, rows,
               RMSNormForward<E>{.x = at.get<E>("x"),
                                 .weight = gain == Gain::None ? nullptr : at.get<E>("weight"),
                                 .y = at.get<E>("y"),
                                 .rstd = at.get<A>("rstd"),
                                 .C = C,
                                 .epsilon = A(epsilon),
                                 .zero_centred = gain == Gain::ZeroCentred},
               {"case"});
    });
    c.reference = [=](const Named& given) -> Named {
        const RMSNorm norm =
            rmsnorm_reference(given.at("x"), completed(given, gain, C).at("weight"), rows, C);
        return {{"y", norm.y}, {"rstd", norm.rstd}};
    };
    set_naive(c, [=](const Named& given, auto zero) {
        return naive_rmsnorm_forward<decltype(zero)>(completed(given, gain, C), rows, C);
    });
    c.observed = {sees("output", "y"),
                  sees("rstd", "rstd"),
                  {"kurtosis",
                   [=](const Named& before, const Named&) {
                       return kurtosis_of_rows(before.at("x"), rows, C, false, epsilon);
                   },
                   16 + 2 * std::sqrt(double(C))}};
    c.matrix = "y", c.columns = C;
    return c;
}

/// Σ dx · x of the norm's own share of dx, as rstd is given, less what epsilon makes of it.
ObservedIdentity rmsnorm_identity(const Named& before, int64_t rows, int64_t C) {
    const Values &x = before.at("x"), &weight = before.at("weight"), &dy = before.at("dy");
    ObservedIdentity along{"rmsnorm_backward", "sum dx * x", {}, {}, {}};
    for (int64_t r = 0; r < rows; ++r) {
        const double rstd = before.at("rstd")[r];
        double sum = 0, size = 0, squares = 0;
        for (int64_t c = 0; c < C; ++c) {
            const double normalised = x[r * C + c] * rstd, gx = dy[r * C + c] * weight[c] * normalised;
            sum += gx, size += std::abs(gx), squares += normalised * normalised;
        }
        const double mean = sum / double(C);
        along.residuals.push_back(sum - mean * squares - mean * double(C) * epsilon * rstd * rstd);
        along.scales.push_back(size + std::abs(mean) * squares);
        along.uncertainties.push_back(2 * (4 + std::sqrt(double(C))) * size *
                                      (1 + squares / double(C) + epsilon * rstd * rstd));
    }
    return along;
}

KernelCase rmsnorm_backward(int64_t rows, int64_t C, Stream residual, Gain gain = Gain::Plain) {
    KernelCase c;
    c.name = label((residual == Stream::None    ? "rmsnorm_backward"
                    : residual == Stream::Apart ? "rmsnorm_backward_residual"
                                                : "rmsnorm_backward_in_place") +
                       suffix(gain),
                   "rows", rows, "C", C);
    if (residual == Stream::None) c.forward = label("rmsnorm_forward" + suffix(gain), "rows", rows, "C", C);
    c.terms = std::max(rows, C);
    const int64_t chunks = chunk_count(rows);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const Values x = random_values(seed + "x", rows * C, 2, 0.5);
        const Values stream = random_values(seed + "dresidual", rows * C);
        std::vector<Operand> operands{in("x", x),
                                      in("rstd", rmsnorm_reference(x, {}, rows, C).rstd, Kind::Sum),
                                      in("dy", random_values(seed + "dy", rows * C))};
        if (gain != Gain::None) {
            const double centre = gain == Gain::ZeroCentred ? 0 : 1;
            operands.push_back(in("weight", random_values(seed + "weight", C, 0.5, centre)));
            operands.push_back(out("dweight_chunks", chunks * C, Kind::Sum));
            operands.push_back(out("dweight", C, Kind::Sum));
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
            RMSNormBackward<E>{.x = at.get<E>("x"),
                               .weight = gain == Gain::None ? nullptr : at.get<E>("weight"),
                               .rstd = at.get<A>("rstd"),
                               .dy = at.get<E>("dy"),
                               .dresidual = residual == Stream::None      ? nullptr
                                            : residual == Stream::InPlace ? at.get<E>("dx")
                                                                          : at.get<E>("dresidual"),
                               .dx = at.get<E>("dx"),
                               .dweight_chunks = gain == Gain::None ? nullptr : at.get<A>("dweight_chunks"),
                               .rows = rows,
                               .C = C,
                               .epsilon = A(epsilon),
                               .zero_centred = gain == Gain::ZeroCentred},
            {"case"});
        if (gain == Gain::None) return;
        launch(context, SumChunks<E>::teams(C),
               SumChunks<E>{.chunks = at.get<A>("dweight_chunks"),
                            .out = at.get<A>("dweight"),
                            .count = chunks,
                            .C = C,
                            .accumulate = false},
               {"case", -1, Phase::Backward, "dweight"});
    });
    c.reference = [=](const Named& operands) -> Named {
        const Named given = completed(operands, gain, C);
        const Values stream = any_of(given, {"dresidual", "dx"});
        Named result = rmsnorm_gradients(given.at("dy"), given.at("x"), given.at("weight"), stream, rows, C);
        const Values &weight = given.at("weight"), &dy = given.at("dy");
        double scale = 0;
        for (int64_t i = 0; i < rows * C; ++i)
            scale = std::max(scale, std::abs(dy[i] * weight[i % C] * given.at("rstd")[i / C]));
        result["|dx|"] = {scale + largest_magnitude(stream)};
        result["|dweight|"] = {largest_magnitude(dy)};
        if (gain == Gain::None) result.erase("dweight"), result.erase("|dweight|");
        return result;
    };
    set_naive(c, [=](const Named& given, auto zero) {
        Named result = naive_rmsnorm_backward<decltype(zero)>(completed(given, gain, C), rows, C);
        if (gain == Gain::None) result.erase("dweight");
        return result;
    });
    c.observed = {sees("output", "dx")};
    if (gain != Gain::None) c.observed.push_back(sees("output", "dweight"));
    c.matrix = "dx", c.columns = C;
    c.identities = [=](const Named& before) -> std::vector<ObservedIdentity> {
        return {rmsnorm_identity(completed(before, gain, C), rows, C)};
    };
    c.breaks = {"rstd"};
    return c;
}

/// Each sequence's own gradient of the gain, and its square.
KernelCase rmsnorm_examples(int64_t B, int64_t T, int64_t C) {
    KernelCase c;
    c.name = label("rmsnorm_examples", "B", B, "T", T, "C", C);
    c.terms = T + C + 8;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const Values x = random_values(seed + "x", B * T * C, 2, 0.5);
        return {in("x", x), in("rstd", rmsnorm_reference(x, {}, B * T, C).rstd, Kind::Sum),
                in("dy", random_values(seed + "dy", B * T * C)), out("workspace", B * C, Kind::Sum),
                in_out("squares", random_values(seed + "squares", B), Kind::Wide)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        launch(context, B,
               RMSNormExamples<E>{.x = at.get<E>("x"),
                                  .rstd = at.get<A>("rstd"),
                                  .dy = at.get<E>("dy"),
                                  .workspace = at.get<A>("workspace"),
                                  .squares = at.get<double>("squares"),
                                  .sequence = T,
                                  .C = C},
               {"case"});
    });
    const auto own = [=](const Named& given) {
        Values squares;
        for (int64_t b = 0; b < B; ++b) {
            const auto part = [&](const char* name) {
                const double* first = given.at(name).data() + b * T * C;
                return Values(first, first + T * C);
            };
            const Values ones(size_t(C), 1.0);
            const Named gradients = rmsnorm_gradients(part("dy"), part("x"), ones, {}, T, C);
            double sum = 0;
            for (double w : gradients.at("dweight")) sum += w * w;
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
        const auto rstd = naive::as<E>(given, {"rstd"});
        auto squares = naive::as<E>(given, {"squares"});
        for (int64_t b = 0; b < B; ++b) {
            for (int64_t i = 0; i < C; ++i) {
                E dweight = 0;
                for (int64_t t = b * T; t < (b + 1) * T; ++t)
                    dweight += dy[t * C + i] * (x[t * C + i] * rstd[t]);
                squares[size_t(b)] += dweight * dweight;
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

void add_rmsnorm_cases(std::vector<KernelCase>& table) {
    const int64_t norms[][2] = {{1, 1}, {17, 1}, {3, 7}, {15, 48}, {17, 200}, {99, 768}, {165, 48}};
    for (const auto& [rows, C] : norms) {
        table.push_back(rmsnorm_forward(rows, C));
        for (Stream stream : {Stream::None, Stream::Apart, Stream::InPlace})
            table.push_back(rmsnorm_backward(rows, C, stream));
    }
    for (Gain gain : {Gain::None, Gain::ZeroCentred}) {
        table.push_back(rmsnorm_forward(17, 50, gain));
        table.push_back(rmsnorm_backward(17, 50, Stream::None, gain));
        table.push_back(rmsnorm_backward(99, 21, Stream::InPlace, gain));
    }
    const int64_t sequences[][3] = {{1, 1, 1}, {3, 5, 7}, {5, 33, 48}, {2, 17, 200}};
    for (const auto& [B, T, C] : sequences) table.push_back(rmsnorm_examples(B, T, C));
}

}  // namespace wobble::test
