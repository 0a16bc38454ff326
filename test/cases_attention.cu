// Kernel cases of attention, in both texts: one row per team, and blocks on the product's tiles.
#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/attention_blocks.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

using naive::AttentionSizes;

std::string shape_label(const char* kernel, const AttentionSizes& s) {
    return s.queries == s.T ? label(kernel, "B", s.B, "T", s.T, "H", s.H, "D", s.D)
                            : label(kernel, "B", s.B, "T", s.T, "H", s.H, "D", s.D, "queries", s.queries);
}

AttentionShape shape_of(const AttentionSizes& s) {
    return {s.B, s.T, s.H, s.D, s.queries};
}

/// Reference outputs of the last `queries` positions.
Named last_queries(const reference::Attention& all, const AttentionSizes& s) {
    Named result{{"out", {}}, {"lse", {}}};
    for (int64_t b = 0; b < s.B; ++b) {
        const double* end = all.out.data() + (b + 1) * s.T * s.H * s.D;
        result["out"].insert(result["out"].end(), end - s.queries * s.H * s.D, end);
        for (int64_t h = 0; h < s.H; ++h) {
            const double* row = all.lse.data() + (b * s.H + h + 1) * s.T;
            result["lse"].insert(result["lse"].end(), row - s.queries, row);
        }
    }
    return result;
}

/// Σ_d |x_d y_d|: what a dot product of D terms is made of.
double magnitude_of_products(const double* x, const double* y, int64_t D) {
    double sum = 0;
    for (int64_t d = 0; d < D; ++d) sum += std::abs(x[d] * y[d]);
    return sum;
}
double dot_product(const double* x, const double* y, int64_t D) {
    double sum = 0;
    for (int64_t d = 0; d < D; ++d) sum += x[d] * y[d];
    return sum;
}

/// The logits of each query of each head.
ObservedHeads logits(const Values& qkv, const AttentionSizes& s) {
    ObservedHeads heads(static_cast<size_t>(s.H));
    const double scale = 1 / std::sqrt(double(s.D));
    for (int64_t h = 0; h < s.H; ++h) {
        for (int64_t b = 0; b < s.B; ++b) {
            for (int64_t t = s.T - s.queries; t < s.T; ++t) {
                const double* q = qkv.data() + s.qkv(b, t, h, 0);
                ObservedQuery query{{}, 0};
                for (int64_t j = 0; j <= t; ++j) {
                    const double* k = qkv.data() + s.qkv(b, j, h, 1);
                    query.logits.push_back(dot_product(q, k, s.D) * scale);
                    query.uncertainty =
                        std::max(query.uncertainty,
                                 (4 + std::sqrt(double(s.D))) * magnitude_of_products(q, k, s.D) * scale);
                }
                heads[size_t(h)].push_back(query);
            }
        }
    }
    return heads;
}

/// Σ_j ds_ij of each query, from out and lse as they are given; rows are [B, H, T].
ObservedIdentity sum_of_ds(const Named& given, const AttentionSizes& s) {
    ObservedIdentity sum{"attention_backward", "sum dS", {}, {}, {}};
    const Values& qkv = given.at("qkv");
    const double scale = 1 / std::sqrt(double(s.D)), roundings = 4 + std::sqrt(double(s.D));
    for (int64_t row = 0; row < s.B * s.T * s.H; ++row) {
        const int64_t b = row / s.H / s.T, h = row / s.T % s.H, t = row % s.T;
        const double* q = qkv.data() + s.qkv(b, t, h, 0);
        const double* grad = given.at("dout").data() + ((b * s.T + t) * s.H + h) * s.D;
        const double* out = given.at("out").data() + ((b * s.T + t) * s.H + h) * s.D;
        const double lse = given.at("lse")[(b * s.H + h) * s.T + t];
        const double delta = dot_product(grad, out, s.D);
        double total = 0, size = 0, unsure = 0;
        for (int64_t j = 0; j <= t; ++j) {
            const double* k = qkv.data() + s.qkv(b, j, h, 1);
            const double* v = qkv.data() + s.qkv(b, j, h, 2);
            const double logit = dot_product(q, k, s.D) * scale, dp = dot_product(grad, v, s.D);
            const double p = std::exp(logit - lse);
            total += p * (dp - delta) * scale;
            size += p * (std::abs(dp) + std::abs(delta)) * scale;
            // p errs as its exponent does, dp and delta as dot products.
            const double exponent = roundings * magnitude_of_products(q, k, s.D) * scale + std::abs(lse) + 4;
            const double products =
                magnitude_of_products(grad, v, s.D) + magnitude_of_products(grad, out, s.D);
            unsure += p * scale * (exponent * std::abs(dp - delta) + 2 * roundings * products);
        }
        sum.residuals.push_back(total), sum.scales.push_back(size), sum.uncertainties.push_back(unsure);
    }
    return sum;
}

KernelCase attention_forward(const AttentionSizes& s, bool blocks) {
    KernelCase c;
    c.name = shape_label(blocks ? "attention_forward_blocks" : "attention_forward", s);
    c.terms = s.T + s.D + 8;
    c.narrow_roundings = blocks ? 2 : 1;  // of the output; of blocks, of probabilities too
    const int64_t C = s.H * s.D;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("qkv", random_values(seed + "qkv", s.B * s.T * 3 * C)), out("out", s.B * s.queries * C),
                out("lse", s.B * s.H * s.queries, Kind::Sum)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        const AttentionForward<E> kernel{.qkv = at.get<E>("qkv"),
                                         .out = at.get<E>("out"),
                                         .lse = at.get<Accumulator<E>>("lse"),
                                         .shape = shape_of(s)};
        if (blocks) launch(context, kernel, {"case"});
        else launch(context, kernel.shape.rows(), kernel, {"case"});
    });
    c.reference = [=](const Named& given) {
        return last_queries(reference::attention_forward(given.at("qkv"), s.B, s.T, C, s.H), s);
    };
    set_naive(
        c, [=](const Named& given, auto zero) { return naive::attention_forward<decltype(zero)>(given, s); });
    c.observed = {sees("output", "out")};
    c.heads = [=](const Named& given) { return logits(given.at("qkv"), s); };
    c.matrix = "out", c.columns = C;
    return c;
}

KernelCase attention_backward(const AttentionSizes& s, bool blocks) {
    KernelCase c;
    c.name = shape_label(blocks ? "attention_backward_blocks" : "attention_backward", s);
    c.forward = shape_label(blocks ? "attention_forward_blocks" : "attention_forward", s);
    c.terms = 2 * (s.T + s.D + 8);
    c.narrow_roundings = 4;  // delta is made of an output that was rounded
    const int64_t C = s.H * s.D, rows = s.B * s.T;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        const Values qkv = random_values(seed + "qkv", rows * 3 * C);
        const auto forward = reference::attention_forward(qkv, s.B, s.T, C, s.H);
        std::vector<Operand> operands{in("qkv", qkv),
                                      in("out", forward.out),
                                      in("lse", forward.lse, Kind::Sum),
                                      in("dout", random_values(seed + "dout", rows * C)),
                                      out("dqkv", rows * 3 * C),
                                      out("delta", s.B * s.H * s.T, Kind::Sum)};
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        const AttentionShape shape = shape_of(s);
        if (blocks) {
            launch(context,
                   AttentionBackward<E>{.qkv = at.get<E>("qkv"),
                                        .out = at.get<E>("out"),
                                        .dout = at.get<E>("dout"),
                                        .lse = at.get<A>("lse"),
                                        .dqkv = at.get<E>("dqkv"),
                                        .delta = at.get<A>("delta"),
                                        .shape = shape},
                   {"case"});
            return;
        }
        launch(context, shape.rows(),
               AttentionBackwardQuery<E>{.qkv = at.get<E>("qkv"),
                                         .out = at.get<E>("out"),
                                         .dout = at.get<E>("dout"),
                                         .lse = at.get<A>("lse"),
                                         .delta = at.get<A>("delta"),
                                         .dqkv = at.get<E>("dqkv"),
                                         .shape = shape},
               {"case"});
        launch(context, shape.rows(),
               AttentionBackwardKey<E>{.qkv = at.get<E>("qkv"),
                                       .dout = at.get<E>("dout"),
                                       .lse = at.get<A>("lse"),
                                       .delta = at.get<A>("delta"),
                                       .dqkv = at.get<E>("dqkv"),
                                       .shape = shape},
               {"case"});
    });
    c.reference = [=](const Named& given) -> Named {
        return {{"dqkv", reference::attention_backward(given.at("dout"), given.at("qkv"), s.B, s.T, C, s.H)}};
    };
    set_naive(c, [=](const Named& given, auto zero) {
        return naive::attention_backward<decltype(zero)>(given, s);
    });
    c.observed = {sees("output", "dqkv")};
    c.matrix = "dqkv", c.columns = 3 * C;
    c.identities = [=](const Named& given) -> std::vector<ObservedIdentity> { return {sum_of_ds(given, s)}; };
    c.breaks = {"out"};
    return c;
}

}  // namespace

void add_attention_cases(std::vector<KernelCase>& table) {
    // B, T, H, D. The last ones are longer than a block of queries, whatever the register tile.
    const int64_t shapes[][4] = {{1, 1, 1, 1},   {3, 5, 1, 7},   {3, 5, 2, 8},   {1, 33, 5, 40},
                                 {3, 33, 1, 48}, {1, 5, 12, 64}, {1, 33, 2, 80}, {1, 5, 1, 111},
                                 {1, 130, 2, 8}, {3, 203, 1, 1}};
    for (const auto& [B, T, H, D] : shapes) {
        const AttentionSizes s{B, T, H, D, T};
        for (bool blocks : {false, true}) {
            if (!has_text(blocks, T, D)) continue;
            table.push_back(attention_forward(s, blocks));
            table.push_back(attention_backward(s, blocks));
        }
    }
    // Heads that CUDA works on in tiles, longer than one.
    const int64_t tiled[][4] = {{1, 150, 2, 32}, {2, 130, 1, 64}, {1, 70, 1, 128}, {1, 65, 2, 104}};
    for (const auto& [B, T, H, D] : tiled) {
        const AttentionSizes s{B, T, H, D, T};
        table.push_back(attention_forward(s, true));
        table.push_back(attention_backward(s, true));
    }
    // As when tokens are added to a cache.
    const int64_t added[][5] = {{1, 33, 2, 8, 1}, {3, 33, 1, 40, 5}, {1, 130, 2, 8, 60}, {2, 100, 1, 48, 30}};
    for (const auto& [B, T, H, D, queries] : added) {
        const AttentionSizes s{B, T, H, D, queries};
        for (bool blocks : {false, true})
            if (has_text(blocks, T, D)) table.push_back(attention_forward(s, blocks));
    }
}

}  // namespace wobble::test
