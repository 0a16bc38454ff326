// Kernel cases whose rows are positions: embedding, classifier.
#include <algorithm>
#include <cmath>

#include "kernels/classifier.h"
#include "kernels/embedding.h"
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
/// What the family makes of an embedding: token vectors scaled, and no position added.
std::string embedding_label(const char* kernel, bool scaled, int64_t B, int64_t T, int64_t C, int64_t V) {
    return label(scaled ? std::string(kernel) + "_scaled" : kernel, "B", B, "T", T, "C", C, "V", V);
}
constexpr double embedding_scale = 3;

KernelCase embedding_forward(int64_t B, int64_t T, int64_t C, int64_t V, bool scaled = false) {
    KernelCase c;
    c.name = embedding_label("embedding_forward", scaled, B, T, C, V);
    c.small = V < 1000;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        std::vector<Operand> operands{
            in("tokens", random_indices(label("tokens", "n", B * T, "V", V), B * T, V), Kind::Index),
            in("wte", random_values(seed + "wte", V * C))};
        if (!scaled) operands.push_back(in("wpe", random_values(seed + "wpe", T * C)));
        operands.push_back(out("y", B * T * C));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, B * T,
               EmbeddingForward<E>{.tokens = at.get<int32_t>("tokens"),
                                   .wte = at.get<E>("wte"),
                                   .wpe = scaled ? nullptr : at.get<E>("wpe"),
                                   .y = at.get<E>("y"),
                                   .sequence = T,
                                   .C = C,
                                   .scale = E(scaled ? embedding_scale : 1)},
               {"case"});
    });
    c.reference = [=](const Named& given) -> Named {
        Values wte = given.at("wte");
        if (scaled) {
            for (double& w : wte) w *= embedding_scale;
        }
        return {
            {"y", reference::embedding_forward(tokens_of(given, "tokens"), wte,
                                               scaled ? Values(size_t(T * C)) : given.at("wpe"), B, T, C)}};
    };
    set_naive(c, [=](const Named& given, auto zero) -> Named {
        using E = decltype(zero);
        const auto wte = naive::as<E>(given, {"wte"});
        const auto wpe = scaled ? naive::zeros<E>(T * C) : naive::as<E>(given, {"wpe"});
        const E factor = E(scaled ? embedding_scale : 1);
        const Tokens tokens = tokens_of(given, "tokens");
        auto y = naive::zeros<E>(B * T * C);
        for (int64_t i = 0; i < B * T * C; ++i)
            y[i] = factor * wte[tokens[i / C] * C + i % C] + wpe[i % (T * C)];
        return {{"y", naive::back(y)}};
    });
    c.observed = {sees("output", "y")};
    c.matrix = "y", c.columns = C;
    return c;
}

KernelCase token_embedding_backward(int64_t B, int64_t T, int64_t C, int64_t V, bool scaled = false) {
    KernelCase c;
    c.name = embedding_label("token_embedding_backward", scaled, B, T, C, V);
    c.small = V < 1000;
    c.forward = embedding_label("embedding_forward", scaled, B, T, C, V);
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
                                         .C = C,
                                         .scale = E(scaled ? embedding_scale : 1)},
               {"case"});
    });
    // The tokens are worked out from the seed again, not from the index under test.
    const auto tokens = [=] {
        const Values values = random_indices(label("tokens", "n", B * T, "V", V), B * T, V);
        return Tokens(values.begin(), values.end());
    };
    c.reference = [=](const Named& given) -> Named {
        Values dwte = reference::embedding_backward(tokens(), given.at("dy"), B, T, C, V).dwte;
        for (size_t i = 0; i < dwte.size(); ++i)
            dwte[i] = (scaled ? embedding_scale : 1) * dwte[i] + given.at("dwte")[i];
        return {{"dwte", dwte}};
    };
    set_naive(c, [=](const Named& given, auto zero) -> Named {
        using E = decltype(zero);
        auto dwte = naive::as<E>(given, {"dwte"});
        const auto dy = naive::as<E>(given, {"dy"});
        const Tokens ids = tokens();
        const E factor = E(scaled ? embedding_scale : 1);
        for (int64_t i = 0; i < B * T * C; ++i) dwte[ids[i / C] * C + i % C] += factor * dy[i];
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
    c.visited_row = int64_t(random_indices(label("tokens", "n", B * T, "V", V), B * T, V)[0]);
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
    const auto logits = [](const Named& before) { return any_of(before, {"logits", "dlogits"}); };
    const auto of_rows = [=](auto f) {
        return [=](const Named& before, const Named&) {
            Values seen;
            const Values z = logits(before);
            for (int64_t r = 0; r < rows; ++r) seen.push_back(f(z.data() + r * V));
            return seen;
        };
    };
    const auto largest = [=](const double* z) {
        double most = -INFINITY;
        for (int64_t v = 0; v < V; ++v) most = z[v] > most ? z[v] : most;  // a NaN is passed over
        return most;
    };
    const double roundings = 4 + std::sqrt(double(V));
    c.observed = {
        {"loss",
         [](const Named& before, const Named& after) {
             Values counted;
             for (size_t r = 0; r < after.at("losses").size(); ++r)
                 if (before.at("targets")[r] >= 0) counted.push_back(after.at("losses")[r]);
             return counted;
         }},
        {"log_z", [=](const Named& before, const Named&) { return expected(before).logsumexp; }, roundings},
        {"gradient",
         [=](const Named&, const Named& after) {
             return gradient == Gradient::None ? Values{} : after.at("dlogits");
         }},
        {"max_logit", of_rows(largest)},
        {"mean_logit", of_rows([=](const double* z) {
             double sum = 0;
             for (int64_t v = 0; v < V; ++v) sum += z[v] / double(V);
             return sum;
         }),
         roundings, [=](const Named& before, const Named&) { return largest_magnitude(logits(before)); }},
        // Exponentials err by a unit each and by the rounding of what they are of, a few.
        {"top_probability", of_rows([=](const double* z) {
             const double most = largest(z);
             double sum = 0;
             for (int64_t v = 0; v < V; ++v) sum += std::exp(z[v] - most);
             return 1 / sum;
         }),
         8 + roundings}};
    c.identities = [=](const Named& before) -> std::vector<ObservedIdentity> {
        if (gradient == Gradient::None) return {};
        ObservedIdentity sum{"softmax_cross_entropy", "sum dlogits", {}, {}, {}};
        const Tokens targets = tokens_of(before, "targets");
        const Values dlogits = expected(before).dlogits;
        for (int64_t r = 0; r < rows; ++r) {
            double residual = 0, size = 0;
            for (int64_t v = 0; v < V; ++v) residual += dlogits[r * V + v];
            // All probabilities, and the target's one.
            if (targets[size_t(r)] >= 0) size = 2 * scale;
            sum.residuals.push_back(residual), sum.scales.push_back(size);
            // The probabilities add up to `scale` and err as the sum of exponentials does.
            sum.uncertainties.push_back(targets[size_t(r)] < 0 ? 0 : 2 * (8 + roundings) * scale);
        }
        return {sum};
    };
    return c;
}

}  // namespace

void add_row_cases(std::vector<KernelCase>& table) {
    const int64_t embeddings[][4] = {{1, 1, 1, 2},     {3, 5, 7, 65},    {3, 33, 48, 257},
                                     {1, 33, 200, 65}, {3, 5, 768, 257}, {3, 33, 7, 50257}};
    for (const auto& [B, T, C, V] : embeddings) {
        table.push_back(embedding_forward(B, T, C, V));
        table.push_back(token_embedding_backward(B, T, C, V));
        if (V < 1000) {
            table.push_back(embedding_forward(B, T, C, V, true));
            table.push_back(token_embedding_backward(B, T, C, V, true));
        }
        table.push_back(position_embedding_backward(B, T, C, V, false));
        if (B > 1) table.push_back(position_embedding_backward(B, T, C, V, true));
    }
    const int64_t classifiers[][2] = {{1, 1},   {3, 2},     {15, 65}, {17, 257},
                                      {99, 65}, {3, 50257}, {5, 512}};  // the last in packs
    for (const auto& [rows, V] : classifiers) {
        table.push_back(classifier(rows, V, Gradient::Apart));
        table.push_back(classifier(rows, V, Gradient::InPlace));
        table.push_back(classifier(rows, V, Gradient::None));
    }
}

}  // namespace wobble::test
