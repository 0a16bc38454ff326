// Kernel cases whose rows are positions: embedding, layer norm, classifier.
#include <algorithm>
#include <cmath>

#include "kernels/classifier.h"
#include "kernels/embedding.h"
#include "kernels/layernorm.h"
#include "kernels/reduce.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

using reference::Tokens;

Tokens tokens_of(const Named& given, const char* name) {
    const Values& values = given.at(name);
    return Tokens(values.begin(), values.end());
}

// ------------------------------------------------------------------------------------------------- embedding
KernelCase embedding_forward(int64_t B, int64_t T, int64_t C, int64_t V) {
    KernelCase c;
    c.name = label("embedding_forward", "B", B, "T", T, "C", C, "V", V);
    c.small = V < 1000;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("tokens", random_indices(label("tokens", "n", B * T, "V", V), B * T, V), Kind::Index),
                in("wte", random_values(seed + "wte", V * C)), in("wpe", random_values(seed + "wpe", T * C)),
                out("y", B * T * C)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, B * T,
               EmbeddingForward<E>{.tokens = at.get<int32_t>("tokens"),
                                   .wte = at.get<E>("wte"),
                                   .wpe = at.get<E>("wpe"),
                                   .y = at.get<E>("y"),
                                   .sequence = T,
                                   .C = C},
               {"case"});
    });
    c.reference = [=](const Named& given) -> Named {
        return {{"y", reference::embedding_forward(tokens_of(given, "tokens"), given.at("wte"),
                                                   given.at("wpe"), B, T, C)}};
    };
    set_naive(c, [=](const Named& given, auto zero) -> Named {
        using E = decltype(zero);
        const auto wte = naive::as<E>(given, {"wte"}), wpe = naive::as<E>(given, {"wpe"});
        const Tokens tokens = tokens_of(given, "tokens");
        auto y = naive::zeros<E>(B * T * C);
        for (int64_t i = 0; i < B * T * C; ++i) y[i] = wte[tokens[i / C] * C + i % C] + wpe[i % (T * C)];
        return {{"y", naive::back(y)}};
    });
    c.observed = {sees("output", "y")};
    return c;
}

KernelCase token_embedding_backward(int64_t B, int64_t T, int64_t C, int64_t V) {
    KernelCase c;
    c.name = label("token_embedding_backward", "B", B, "T", T, "C", C, "V", V);
    c.small = V < 1000;
    c.forward = label("embedding_forward", "B", B, "T", T, "C", C, "V", V);
    c.terms = B * T;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const Values tokens = random_indices(label("tokens", "n", B * T, "V", V), B * T, V);
        const std::vector<int32_t> ids(tokens.begin(), tokens.end());
        TokenIndex index;
        index.build(ids.data(), B * T, V);
        return {in("order", Values(index.order.begin(), index.order.end()), Kind::Index),
                in("starts", Values(index.starts.begin(), index.starts.end()), Kind::Index),
                in("dy", random_values(seed + "dy", B * T * C)),
                in_out("dwte", random_values(seed + "dwte", V * C), Kind::Sum)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, V,
               TokenEmbeddingBackward<E>{.order = at.get<int32_t>("order"),
                                         .starts = at.get<int32_t>("starts"),
                                         .dy = at.get<E>("dy"),
                                         .dwte = at.get<Accumulator<E>>("dwte"),
                                         .C = C},
               {"case"});
    });
    // The tokens are worked out from the seed again, not from the index under test.
    const auto tokens = [=] {
        const Values values = random_indices(label("tokens", "n", B * T, "V", V), B * T, V);
        return Tokens(values.begin(), values.end());
    };
    c.reference = [=](const Named& given) -> Named {
        Values dwte = reference::embedding_backward(tokens(), given.at("dy"), B, T, C, V).dwte;
        for (size_t i = 0; i < dwte.size(); ++i) dwte[i] += given.at("dwte")[i];
        return {{"dwte", dwte}};
    };
    set_naive(c, [=](const Named& given, auto zero) -> Named {
        using E = decltype(zero);
        auto dwte = naive::as<E>(given, {"dwte"});
        const auto dy = naive::as<E>(given, {"dy"});
        const Tokens ids = tokens();
        for (int64_t i = 0; i < B * T * C; ++i) dwte[ids[i / C] * C + i % C] += dy[i];
        return {{"dwte", naive::back(dwte)}};
    });
    c.observed = {{"output", [=](const Named&, const Named& after) {
                       // Rows of tokens that do not occur are not visited.
                       Tokens ids = tokens();
                       std::sort(ids.begin(), ids.end());
                       ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
                       Values seen;
                       for (int32_t id : ids) {
                           const double* row = after.at("dwte").data() + id * C;
                           seen.insert(seen.end(), row, row + C);
                       }
                       return seen;
                   }}};
    return c;
}

KernelCase position_embedding_backward(int64_t B, int64_t T, int64_t C, int64_t V, bool accumulate) {
    KernelCase c;
    c.name = label(accumulate ? "position_embedding_backward_accumulate" : "position_embedding_backward", "B",
                   B, "T", T, "C", C);
    if (!accumulate) c.forward = label("embedding_forward", "B", B, "T", T, "C", C, "V", V);
    c.terms = B;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("dy", random_values(seed + "dy", B * T * C)),
                accumulate ? in_out("dwpe", random_values(seed + "dwpe", T * C), Kind::Sum)
                           : out("dwpe", T * C, Kind::Sum)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, T,
               PositionEmbeddingBackward<E>{.dy = at.get<E>("dy"),
                                            .dwpe = at.get<Accumulator<E>>("dwpe"),
                                            .batch = B,
                                            .sequence = T,
                                            .C = C,
                                            .accumulate = accumulate},
               {"case"});
    });
    c.reference = [=](const Named& given) -> Named {
        Values dwpe =
            reference::embedding_backward(Tokens(size_t(B * T), 0), given.at("dy"), B, T, C, 1).dwpe;
        if (accumulate)
            for (size_t i = 0; i < dwpe.size(); ++i) dwpe[i] += given.at("dwpe")[i];
        return {{"dwpe", dwpe}};
    };
    set_naive(c, [=](const Named& given, auto zero) -> Named {
        using E = decltype(zero);
        auto sums = naive::column_sums(naive::as<E>(given, {"dy"}), T * C);
        const auto before = naive::as<E>(given, {"dwpe"});
        for (size_t i = 0; i < before.size(); ++i) sums[i] += before[i];
        return {{"dwpe", naive::back(sums)}};
    });
    c.observed = {sees("output", "dwpe")};
    return c;
}

// ------------------------------------------------------------------------------------------------ layer norm
constexpr double epsilon = 1e-5;

KernelCase layernorm_forward(int64_t rows, int64_t C) {
    KernelCase c;
    c.name = label("layernorm_forward", "rows", rows, "C", C);
    c.terms = C;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("x", random_values(seed + "x", rows * C, 2, 0.5)),
                in("weight", random_values(seed + "weight", C, 0.5, 1)),
                in("bias", random_values(seed + "bias", C)),
                out("y", rows * C),
                out("mean", rows, Kind::Sum),
                out("rstd", rows, Kind::Sum)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        launch(context, rows,
               LayerNormForward<E>{.x = at.get<E>("x"),
                                   .weight = at.get<E>("weight"),
                                   .bias = at.get<E>("bias"),
                                   .y = at.get<E>("y"),
                                   .mean = at.get<A>("mean"),
                                   .rstd = at.get<A>("rstd"),
                                   .C = C,
                                   .epsilon = A(epsilon)},
               {"case"});
    });
    c.reference = [=](const Named& given) -> Named {
        const auto norm = reference::layer_norm_forward(given.at("x"), given.at("weight"), given.at("bias"),
                                                        rows, C, epsilon);
        return {{"y", norm.y},
                {"mean", norm.mean},
                {"|mean|", {largest_magnitude(given.at("x"))}},  // it is made of numbers of this size
                {"rstd", norm.rstd}};
    };
    set_naive(c, [=](const Named& given, auto zero) {
        return naive::layer_norm_forward<decltype(zero)>(given, rows, C, epsilon);
    });
    c.observed = {sees("output", "y"), sees("rstd", "rstd")};
    return c;
}

enum class Stream { None, Apart, InPlace };

KernelCase layernorm_backward(int64_t rows, int64_t C, Stream residual) {
    KernelCase c;
    c.name = label(residual == Stream::None    ? "layernorm_backward"
                   : residual == Stream::Apart ? "layernorm_backward_residual"
                                               : "layernorm_backward_in_place",
                   "rows", rows, "C", C);
    if (residual == Stream::None) c.forward = label("layernorm_forward", "rows", rows, "C", C);
    c.terms = std::max(rows, C);
    const int64_t chunks = chunk_count(rows);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const Values x = random_values(seed + "x", rows * C, 2, 0.5);
        const auto norm = reference::layer_norm_forward(x, {}, {}, rows, C, epsilon);
        const Values stream = random_values(seed + "dresidual", rows * C);
        std::vector<Operand> operands{in("x", x),
                                      in("weight", random_values(seed + "weight", C, 0.5, 1)),
                                      in("mean", norm.mean, Kind::Sum),
                                      in("rstd", norm.rstd, Kind::Sum),
                                      in("dy", random_values(seed + "dy", rows * C)),
                                      out("dweight_chunks", chunks * C, Kind::Sum),
                                      out("dbias_chunks", chunks * C, Kind::Sum),
                                      out("dweight", C, Kind::Sum),
                                      out("dbias", C, Kind::Sum)};
        if (residual == Stream::Apart) operands.push_back(in("dresidual", stream));
        operands.push_back(residual == Stream::InPlace ? in_out("dx", stream) : out("dx", rows * C));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        launch(context, chunks,
               LayerNormBackward<E>{.x = at.get<E>("x"),
                                    .weight = at.get<E>("weight"),
                                    .mean = at.get<A>("mean"),
                                    .rstd = at.get<A>("rstd"),
                                    .dy = at.get<E>("dy"),
                                    .dresidual = residual == Stream::None      ? nullptr
                                                 : residual == Stream::InPlace ? at.get<E>("dx")
                                                                               : at.get<E>("dresidual"),
                                    .dx = at.get<E>("dx"),
                                    .dweight_chunks = at.get<A>("dweight_chunks"),
                                    .dbias_chunks = at.get<A>("dbias_chunks"),
                                    .rows = rows,
                                    .C = C},
               {"case"});
        for (const char* name : {"dweight", "dbias"}) {
            launch(context, SumChunks<E>::teams(C),
                   SumChunks<E>{.chunks = at.get<A>(std::string(name) + "_chunks"),
                                .out = at.get<A>(name),
                                .count = chunks,
                                .C = C,
                                .accumulate = false},
                   {"case", -1, Phase::Backward, name});
        }
    });
    c.reference = [=](const Named& given) -> Named {
        const Values &weight = given.at("weight"), &dy = given.at("dy");
        auto gradients = reference::layer_norm_backward(dy, given.at("x"), weight, rows, C, epsilon);
        // dx is what is left of the incoming gradient when its mean and its part along x̂ are taken out.
        double scale = 0;
        for (int64_t i = 0; i < rows * C; ++i)
            scale = std::max(scale, std::abs(dy[i] * weight[i % C] * given.at("rstd")[i / C]));
        const Values stream = any_of(given, {"dresidual", "dx"});
        for (size_t i = 0; i < stream.size(); ++i) gradients.dx[i] += stream[i];
        return {{"dx", gradients.dx},
                {"|dx|", {scale + largest_magnitude(stream)}},
                {"dweight", gradients.dweight},
                {"|dweight|", {largest_magnitude(dy)}},
                {"dbias", gradients.dbias}};
    };
    set_naive(c, [=](const Named& given, auto zero) {
        return naive::layer_norm_backward<decltype(zero)>(given, rows, C);
    });
    c.observed = {sees("output", "dx"), sees("output", "dweight"), sees("output", "dbias")};
    return c;
}

// ------------------------------------------------------------------------------------------------ classifier
enum class Gradient { Apart, InPlace, None };

KernelCase classifier(int64_t rows, int64_t V, Gradient gradient) {
    KernelCase c;
    c.name = label(gradient == Gradient::Apart     ? "classifier"
                   : gradient == Gradient::InPlace ? "classifier_in_place"
                                                   : "classifier_loss_only",
                   "rows", rows, "V", V);
    const double scale = 0.25;  // a power of two, so that it rounds alike everywhere
    c.small = V < 1000;
    c.terms = V;
    if (gradient == Gradient::Apart) c.forward = c.name;
    c.loss_weight = scale;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const Values logits = random_values(seed + "logits", rows * V, 3);
        Values targets = random_indices(seed + "targets", rows, V);
        for (int64_t r = 1; r < rows; r += 4) targets[r] = -1;
        std::vector<Operand> operands{in("targets", targets, Kind::Index), out("losses", rows, Kind::Sum)};
        if (gradient != Gradient::InPlace) operands.push_back(in("logits", logits));
        if (gradient == Gradient::InPlace) operands.push_back(in_out("dlogits", logits));
        if (gradient == Gradient::Apart) operands.push_back(out("dlogits", rows * V));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        launch(
            context, rows,
            SoftmaxCrossEntropy<E>{.logits = at.get<E>(gradient == Gradient::InPlace ? "dlogits" : "logits"),
                                   .targets = at.get<int32_t>("targets"),
                                   .losses = at.get<A>("losses"),
                                   .dlogits = gradient == Gradient::None ? nullptr : at.get<E>("dlogits"),
                                   .V = V,
                                   .scale = A(scale)},
            {"case"});
    });
    const auto expected = [=](const Named& given) {
        return reference::cross_entropy(any_of(given, {"logits", "dlogits"}), tokens_of(given, "targets"),
                                        rows, V, scale);
    };
    c.reference = [=](const Named& given) -> Named {
        const auto classified = expected(given);
        // A loss is the difference of log-sum-exp and a logit; the target's gradient that of p and 1.
        Named result{{"losses", classified.loss},
                     {"|losses|",
                      {std::max(largest_magnitude(classified.logsumexp),
                                largest_magnitude(any_of(given, {"logits", "dlogits"})))}}};
        if (gradient != Gradient::None) {
            result["dlogits"] = classified.dlogits;
            result["|dlogits|"] = {scale};
        }
        return result;
    };
    set_naive(c, [=](const Named& given, auto zero) {
        Named result = naive::cross_entropy<decltype(zero)>(given, rows, V, scale);
        if (gradient == Gradient::None) result.erase("dlogits");
        return result;
    });
    c.observed = {{"loss",
                   [](const Named& before, const Named& after) {
                       Values counted;
                       for (size_t r = 0; r < after.at("losses").size(); ++r)
                           if (before.at("targets")[r] >= 0) counted.push_back(after.at("losses")[r]);
                       return counted;
                   }},
                  {"log_z", [=](const Named& before, const Named&) { return expected(before).logsumexp; },
                   4 + std::sqrt(double(V))},
                  {"gradient", [=](const Named&, const Named& after) {
                       return gradient == Gradient::None ? Values{} : after.at("dlogits");
                   }}};
    return c;
}

}  // namespace

void add_row_cases(std::vector<KernelCase>& table) {
    const int64_t embeddings[][4] = {{1, 1, 1, 2},     {3, 5, 7, 65},    {3, 33, 48, 257},
                                     {1, 33, 200, 65}, {3, 5, 768, 257}, {3, 33, 7, 50257}};
    for (const auto& [B, T, C, V] : embeddings) {
        table.push_back(embedding_forward(B, T, C, V));
        table.push_back(token_embedding_backward(B, T, C, V));
        table.push_back(position_embedding_backward(B, T, C, V, false));
        if (B > 1) table.push_back(position_embedding_backward(B, T, C, V, true));
    }
    const int64_t norms[][2] = {{1, 1}, {17, 1}, {3, 7}, {15, 48}, {17, 200}, {1, 768}, {99, 768}, {165, 48}};
    for (const auto& [rows, C] : norms) {
        table.push_back(layernorm_forward(rows, C));
        table.push_back(layernorm_backward(rows, C, Stream::None));
        table.push_back(layernorm_backward(rows, C, Stream::Apart));
        table.push_back(layernorm_backward(rows, C, Stream::InPlace));
    }
    const int64_t classifiers[][2] = {{1, 1}, {3, 2}, {15, 65}, {17, 257}, {99, 65}, {3, 50257}};
    for (const auto& [rows, V] : classifiers) {
        table.push_back(classifier(rows, V, Gradient::Apart));
        table.push_back(classifier(rows, V, Gradient::InPlace));
        table.push_back(classifier(rows, V, Gradient::None));
    }
}

}  // namespace wobble::test
