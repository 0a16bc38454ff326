// Kernel cases of norms by a rule, with dynamic tanh as the rule.
#include <algorithm>
#include <cmath>

#include "kernels/dyt.h"
#include "kernels/reduce.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

enum class Stream { None, Apart, InPlace };

/// Which parameters there are.
struct Has {
    bool weight = true, bias = true, zero_centred = false;

    std::string suffix() const {
        return std::string(zero_centred ? "_centred" : "") + (weight ? "" : "_without_weight") +
               (bias ? "" : "_without_bias");
    }
    Operand operand(const std::string& seed, int64_t C) const {
        return in("weight", random_values(seed + "weight", C, 0.5, zero_centred ? 0 : 1));
    }
    template <class T>
    std::vector<T> gain(const Named& given, int64_t C) const {
        std::vector<T> gain = weight ? naive::as<T>(given, {"weight"}) : std::vector<T>(size_t(C), T(1));
        if (weight && zero_centred)
            for (T& value : gain) value += T(1);
        return gain;
    }
    template <class E>
    RuleOperands<E> operands(Buffers& at, int64_t C) const {
        return {.x = at.get<E>("x"),
                .alpha = at.get<E>("alpha"),
                .weight = weight ? at.get<E>("weight") : nullptr,
                .bias = bias ? at.get<E>("bias") : nullptr,
                .C = C,
                .epsilon = 0,
                .zero_centred = zero_centred};
    }
    void drop_missing(Named& gradients) const {
        if (!weight) gradients.erase("dweight");
        if (!bias) gradients.erase("dbias");
    }
};

Operand alpha_operand() {
    return in("alpha", {0.625});
}

/// The formulas one after the other; in float64 they are the reference.
template <class T>
Named forward_of(const Named& given, const Has& has, int64_t rows, int64_t C) {
    const auto x = naive::as<T>(given, {"x"}), gain = has.gain<T>(given, C);
    const auto bias = has.bias ? naive::as<T>(given, {"bias"}) : naive::zeros<T>(C);
    const T alpha = T(given.at("alpha")[0]);
    auto y = naive::zeros<T>(rows * C);
    for (int64_t i = 0; i < rows * C; ++i) y[i] = std::tanh(alpha * x[i]) * gain[i % C] + bias[i % C];
    return {{"y", naive::back(y)}};
}

/// d tanh(u)/du = 1 / cosh² u.
template <class T>
Named gradients_of(const Named& given, const Has& has, int64_t rows, int64_t C) {
    const auto x = naive::as<T>(given, {"x"}), dy = naive::as<T>(given, {"dy"});
    const auto residual = naive::as<T>(given, {"dresidual", "dx"}), gain = has.gain<T>(given, C);
    const T alpha = T(given.at("alpha")[0]);
    auto dx = naive::zeros<T>(rows * C), dweight = naive::zeros<T>(C), dbias = dweight;
    T dalpha = 0;
    for (int64_t i = 0; i < rows * C; ++i) {
        const T slope = 1 / (std::cosh(alpha * x[i]) * std::cosh(alpha * x[i]));
        const T within = dy[i] * gain[i % C] * slope;
        dx[i] = alpha * within + (residual.empty() ? T(0) : residual[i]);
        dalpha += within * x[i];
        dweight[i % C] += dy[i] * std::tanh(alpha * x[i]);
        dbias[i % C] += dy[i];
    }
    Named gradients{{"dx", naive::back(dx)},
                    {"dweight", naive::back(dweight)},
                    {"dbias", naive::back(dbias)},
                    {"dalpha", {double(dalpha)}}};
    has.drop_missing(gradients);
    return gradients;
}

KernelCase norm_forward(int64_t rows, int64_t C, Has has) {
    KernelCase c;
    c.name = label("norm_forward" + has.suffix(), "rows", rows, "C", C);
    c.terms = 8;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        std::vector<Operand> operands{in("x", random_values(seed + "x", rows * C, 2, 0.5)), alpha_operand()};
        if (has.weight) operands.push_back(has.operand(seed, C));
        if (has.bias) operands.push_back(in("bias", random_values(seed + "bias", C)));
        operands.push_back(out("y", rows * C));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, rows, NormForward<E, DynamicTanh>{.in = has.operands<E>(at, C), .y = at.get<E>("y")},
               {"case"});
    });
    set_naive(c,
              [=](const Named& given, auto zero) { return forward_of<decltype(zero)>(given, has, rows, C); });
    c.reference = c.naive_float64;
    c.observed = {sees("output", "y")};
    c.matrix = "y", c.columns = C;
    return c;
}

KernelCase norm_backward(int64_t rows, int64_t C, Stream residual, Has has) {
    KernelCase c;
    const std::string kernel = residual == Stream::None    ? "norm_backward"
                               : residual == Stream::Apart ? "norm_backward_residual"
                                                           : "norm_backward_in_place";
    c.name = label(kernel + has.suffix(), "rows", rows, "C", C);
    if (residual == Stream::None) c.forward = label("norm_forward" + has.suffix(), "rows", rows, "C", C);
    c.terms = rows * C + 8;  // those of dalpha
    const int64_t chunks = chunk_count(rows);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const Values stream = random_values(seed + "dresidual", rows * C);
        std::vector<Operand> operands{in("x", random_values(seed + "x", rows * C, 2, 0.5)), alpha_operand(),
                                      in("dy", random_values(seed + "dy", rows * C)),
                                      out("dalpha_chunks", chunks, Kind::Sum), out("dalpha", 1, Kind::Sum)};
        if (has.weight) {
            operands.push_back(has.operand(seed, C));
            operands.push_back(out("dweight_chunks", chunks * C, Kind::Sum));
            operands.push_back(out("dweight", C, Kind::Sum));
        }
        if (has.bias) {
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
        Has given = has;
        given.bias = false;  // backward has no use for its values
        launch(
            context, chunks,
            NormBackward<E, DynamicTanh>{.in = given.operands<E>(at, C),
                                         .dy = at.get<E>("dy"),
                                         .dresidual = residual == Stream::None      ? nullptr
                                                      : residual == Stream::InPlace ? at.get<E>("dx")
                                                                                    : at.get<E>("dresidual"),
                                         .dx = at.get<E>("dx"),
                                         .dweight_chunks = has.weight ? at.get<A>("dweight_chunks") : nullptr,
                                         .dbias_chunks = has.bias ? at.get<A>("dbias_chunks") : nullptr,
                                         .dalpha_chunks = at.get<A>("dalpha_chunks"),
                                         .rows = rows},
            {"case"});
        const auto add_up = [&](const char* name, int64_t columns) {
            launch(context, SumChunks<E>::teams(columns),
                   SumChunks<E>{.chunks = at.get<A>(std::string(name) + "_chunks"),
                                .out = at.get<A>(name),
                                .count = chunks,
                                .C = columns,
                                .accumulate = false},
                   {"case", -1, Phase::Backward, name});
        };
        add_up("dalpha", 1);
        if (has.weight) add_up("dweight", C);
        if (has.bias) add_up("dbias", C);
    });
    c.reference = [=](const Named& given) -> Named {
        Named result = gradients_of<double>(given, has, rows, C);
        // The size of what cancels in the one sum over everything.
        const Values gain = has.gain<double>(given, C), &x = given.at("x"), &dy = given.at("dy");
        double size = 0;
        for (int64_t i = 0; i < rows * C; ++i) {
            const double cosh = std::cosh(given.at("alpha")[0] * x[i]);
            size = std::max(size, std::abs(dy[i] * gain[i % C] * x[i] / (cosh * cosh)));
        }
        result["|dalpha|"] = {size * std::sqrt(double(rows * C))};
        return result;
    };
    set_naive(
        c, [=](const Named& given, auto zero) { return gradients_of<decltype(zero)>(given, has, rows, C); });
    c.observed = {sees("output", "dx"), sees("output", "dalpha")};
    if (has.weight) c.observed.push_back(sees("output", "dweight"));
    if (has.bias) c.observed.push_back(sees("output", "dbias"));
    c.matrix = "dx", c.columns = C;
    return c;
}

/// Each sequence's own gradient of alpha, gain and bias, and its square.
KernelCase norm_examples(int64_t B, int64_t T, int64_t C, Has has) {
    KernelCase c;
    c.name = label("norm_examples" + has.suffix(), "B", B, "T", T, "C", C);
    c.terms = T * C + 8;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        std::vector<Operand> operands{in("x", random_values(seed + "x", B * T * C, 2, 0.5)), alpha_operand(),
                                      in("dy", random_values(seed + "dy", B * T * C)),
                                      out("workspace", 2 * B * C, Kind::Sum),
                                      in_out("squares", random_values(seed + "squares", B), Kind::Wide)};
        if (has.weight) operands.push_back(has.operand(seed, C));
        if (has.bias) operands.push_back(in("bias", random_values(seed + "bias", C)));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, B,
               NormExamples<E, DynamicTanh>{.in = has.operands<E>(at, C),
                                            .dy = at.get<E>("dy"),
                                            .workspace = at.get<Accumulator<E>>("workspace"),
                                            .squares = at.get<double>("squares"),
                                            .sequence = T},
               {"case"});
    });
    const auto own = [=](const Named& given, auto zero) {
        Values squares;
        for (int64_t b = 0; b < B; ++b) {
            Named part = given;
            for (const char* name : {"x", "dy"}) {
                const double* first = given.at(name).data() + b * T * C;
                part[name] = Values(first, first + T * C);
            }
            double sum = 0;
            const Named gradients = gradients_of<decltype(zero)>(part, has, T, C);
            for (const char* name : {"dalpha", "dweight", "dbias"})
                for (double g : any_of(gradients, {name})) sum += g * g;
            squares.push_back(sum);
        }
        return squares;
    };
    set_naive(c, [=](const Named& given, auto zero) -> Named {
        Values squares = own(given, zero);
        for (size_t b = 0; b < squares.size(); ++b) squares[b] += given.at("squares")[b];
        return {{"squares", squares}};
    });
    c.reference = c.naive_float64;
    c.observed = {{"output", [=](const Named& before, const Named&) { return own(before, double{}); },
                   2 * (4 + std::sqrt(double(T * C)))}};
    c.observed[0].wide = true;
    return c;
}

}  // namespace

void add_norm_rule_cases(std::vector<KernelCase>& table) {
    const int64_t shapes[][2] = {{1, 1}, {3, 7}, {17, 200}, {165, 48}};
    for (const auto& [rows, C] : shapes) {
        table.push_back(norm_forward(rows, C, {}));
        for (Stream stream : {Stream::None, Stream::Apart, Stream::InPlace})
            table.push_back(norm_backward(rows, C, stream, {}));
    }
    const Has others[] = {{.zero_centred = true}, {.weight = false, .bias = false}, {.bias = false}};
    for (const Has& has : others) {
        table.push_back(norm_forward(15, 48, has));
        table.push_back(norm_backward(15, 48, Stream::None, has));
        table.push_back(norm_backward(15, 48, Stream::InPlace, has));
        table.push_back(norm_examples(3, 5, 7, has));
    }
    const int64_t sequences[][3] = {{1, 1, 1}, {3, 5, 7}, {5, 33, 48}};
    for (const auto& [B, T, C] : sequences) table.push_back(norm_examples(B, T, C, {}));
}

}  // namespace wobble::test
