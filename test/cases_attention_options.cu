// Kernel cases of attention where something is not as in GPT-2: fewer key heads than heads, another scale, a
// cap on the logits, a window, sinks. In both texts.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention.h"
#include "kernels/attention_blocks.h"
#include "kernels/reduce.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

struct Variant {
    const char* name;
    int64_t B, T, H, K, D, queries;
    AttentionOptions options;
    bool sinks;

    AttentionShape shape() const { return {B, T, H, D, queries, K == H ? 0 : K}; }
    int64_t columns() const { return (H + 2 * K) * D; }
    int64_t rows() const { return B * queries; }
    int64_t query(int64_t b, int64_t t, int64_t h) const { return (b * T + t) * columns() + h * D; }
    int64_t key(int64_t b, int64_t t, int64_t h) const { return query(b, t, H + h / (H / K)); }
    int64_t value(int64_t b, int64_t t, int64_t h) const { return query(b, t, H + K + h / (H / K)); }
    int64_t first_key(int64_t t) const {
        return options.window == 0 ? 0 : std::max<int64_t>(0, t - options.window + 1);
    }
    template <class T>
    T scale() const {
        return options.scale == 0 ? 1 / std::sqrt(T(D)) : T(options.scale);
    }
};

template <class T>
T product(const T* x, const T* y, int64_t n) {
    T sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
    return sum;
}

/// One query: its logits after the cap, its probabilities, and what its head's sink takes of them. The first
/// of each is of key first_key(t).
template <class T>
struct Query {
    std::vector<T> logits, p;
    T lse, sink;

    Query(const Variant& s, const std::vector<T>& qkv, const std::vector<T>& sinks, int64_t b, int64_t t,
          int64_t h) {
        const T scale = s.scale<T>(), cap = T(s.options.softcap);
        for (int64_t j = s.first_key(t); j <= t; ++j) {
            T logit = product(&qkv[s.query(b, t, h)], &qkv[s.key(b, j, h)], s.D) * scale;
            if (cap > 0) logit = std::tanh(logit / cap) * cap;
            logits.push_back(logit);
        }
        T maximum = -std::numeric_limits<T>::infinity(), sum = 0;
        for (T logit : logits) maximum = std::max(maximum, logit);
        if (s.sinks) maximum = std::max(maximum, sinks[h]), sum = std::exp(sinks[h] - maximum);
        for (T logit : logits) sum += std::exp(logit - maximum);
        lse = maximum + std::log(sum);
        for (T logit : logits) p.push_back(std::exp(logit - maximum) / sum);
        sink = s.sinks ? std::exp(sinks[h] - maximum) / sum : T(0);
    }
};

/// use(b, position, index among the queries, head) for each query.
template <class F>
void for_each_query(const Variant& s, F use) {
    for (int64_t b = 0; b < s.B; ++b)
        for (int64_t i = 0; i < s.queries; ++i)
            for (int64_t h = 0; h < s.H; ++h) use(b, s.T - s.queries + i, i, h);
}

template <class T>
Named forward_of(const Named& given, const Variant& s) {
    const auto qkv = naive::as<T>(given, {"qkv"}), sinks = naive::as<T>(given, {"sinks"});
    auto out = naive::zeros<T>(s.rows() * s.H * s.D), lse = naive::zeros<T>(s.rows() * s.H);
    for_each_query(s, [&](int64_t b, int64_t t, int64_t i, int64_t h) {
        const Query<T> query(s, qkv, sinks, b, t, h);
        lse[(b * s.H + h) * s.queries + i] = query.lse;
        T* o = &out[((b * s.queries + i) * s.H + h) * s.D];
        for (size_t j = 0; j < query.p.size(); ++j)
            for (int64_t d = 0; d < s.D; ++d)
                o[d] += query.p[j] * qkv[s.value(b, s.first_key(t) + int64_t(j), h) + d];
    });
    return {{"out", naive::back(out)}, {"lse", naive::back(lse)}};
}

template <class T>
Named backward_of(const Named& given, const Variant& s) {
    const auto qkv = naive::as<T>(given, {"qkv"}), sinks = naive::as<T>(given, {"sinks"});
    const auto dout = naive::as<T>(given, {"dout"});
    auto dqkv = naive::zeros<T>(s.B * s.T * s.columns()), dsinks = naive::zeros<T>(s.H);
    const T scale = s.scale<T>(), cap = T(s.options.softcap);
    for_each_query(s, [&](int64_t b, int64_t t, int64_t i, int64_t h) {
        const Query<T> query(s, qkv, sinks, b, t, h);
        const T* grad = &dout[((b * s.T + i) * s.H + h) * s.D];
        std::vector<T> dp;
        T delta = 0;
        for (size_t j = 0; j < query.p.size(); ++j) {
            dp.push_back(product(grad, &qkv[s.value(b, s.first_key(t) + int64_t(j), h)], s.D));
            delta += query.p[j] * dp[j];
        }
        if (s.sinks) dsinks[h] -= query.sink * delta;
        for (size_t j = 0; j < query.p.size(); ++j) {
            const int64_t position = s.first_key(t) + int64_t(j), q = s.query(b, t, h),
                          k = s.key(b, position, h), v = s.value(b, position, h);
            T ds = query.p[j] * (dp[j] - delta) * scale;
            if (cap > 0) ds *= 1 - (query.logits[j] / cap) * (query.logits[j] / cap);
            for (int64_t d = 0; d < s.D; ++d) {
                dqkv[q + d] += ds * qkv[k + d];
                dqkv[k + d] += ds * qkv[q + d];
                dqkv[v + d] += query.p[j] * grad[d];
            }
        }
    });
    Named result{{"dqkv", naive::back(dqkv)}};
    if (s.sinks) result["dsinks"] = naive::back(dsinks);
    return result;
}

/// Σ_d |x_d y_d| of D terms, and what their sum may be off by, in units.
double magnitude_of_products(const double* x, const double* y, int64_t D) {
    double sum = 0;
    for (int64_t d = 0; d < D; ++d) sum += std::abs(x[d] * y[d]);
    return sum;
}
double units_of_products(const double* x, const double* y, int64_t D) {
    return (4 + std::sqrt(double(D))) * magnitude_of_products(x, y, D);
}

/// What a capped logit may be off by, in units: the cap never steepens, but has roundings of its own.
double units_of_logit(const Variant& s, const Values& qkv, int64_t b, int64_t t, int64_t j, int64_t h,
                      double logit) {
    const double own = units_of_products(&qkv[s.query(b, t, h)], &qkv[s.key(b, j, h)], s.D);
    return own * std::abs(s.scale<double>()) + (s.options.softcap > 0 ? 8 * std::abs(logit) : 0);
}

ObservedHeads observed_heads(const Named& given, const Variant& s) {
    ObservedHeads heads(static_cast<size_t>(s.H));
    const Values &qkv = given.at("qkv"), sinks = any_of(given, {"sinks"});
    for_each_query(s, [&](int64_t b, int64_t t, int64_t, int64_t h) {
        ObservedQuery query{Query<double>(s, qkv, sinks, b, t, h).logits, 0, s.first_key(t) == 0};
        for (size_t j = 0; j < query.logits.size(); ++j)
            query.uncertainty =
                std::max(query.uncertainty,
                         units_of_logit(s, qkv, b, t, s.first_key(t) + int64_t(j), h, query.logits[j]));
        heads[size_t(h)].push_back(query);
    });
    return heads;
}

/// Σ_j ds_ij of each query without the slopes of the cap, a sink's own counted, from out and lse as they are
/// given; rows are [B, H, T].
ObservedIdentity sum_of_ds(const Named& given, const Variant& s) {
    const size_t count = size_t(s.B * s.T * s.H);
    ObservedIdentity sum{"attention_backward", "sum dS", Values(count), Values(count), Values(count)};
    const Values &qkv = given.at("qkv"), sinks = any_of(given, {"sinks"});
    const double scale = s.scale<double>();
    for_each_query(s, [&](int64_t b, int64_t t, int64_t i, int64_t h) {
        const double* grad = &given.at("dout")[((b * s.T + i) * s.H + h) * s.D];
        const double* out = &given.at("out")[((b * s.T + i) * s.H + h) * s.D];
        const size_t row = size_t((b * s.H + h) * s.T + i);
        const double lse = given.at("lse")[row], delta = product(grad, out, s.D);
        const double unsure_delta = units_of_products(grad, out, s.D);
        const Query<double> query(s, qkv, sinks, b, t, h);
        double total = 0, size = 0, unsure = 0;
        for (size_t j = 0; j < query.logits.size(); ++j) {
            const int64_t position = s.first_key(t) + int64_t(j);
            const double* v = &qkv[s.value(b, position, h)];
            const double dp = product(grad, v, s.D), p = std::exp(query.logits[j] - lse);
            total += p * (dp - delta) * scale;
            size += p * (std::abs(dp) + std::abs(delta)) * scale;
            // p errs as its exponent does, dp and delta as dot products.
            const double exponent =
                units_of_logit(s, qkv, b, t, position, h, query.logits[j]) + std::abs(lse) + 4;
            unsure +=
                p * scale *
                (exponent * std::abs(dp - delta) + 2 * (units_of_products(grad, v, s.D) + unsure_delta));
        }
        if (s.sinks) {
            const double p = std::exp(sinks[h] - lse);
            total -= p * delta * scale, size += p * std::abs(delta) * scale;
            unsure += p * scale * ((std::abs(lse) + std::abs(sinks[h]) + 8) * std::abs(delta) + unsure_delta);
        }
        sum.residuals[row] = total, sum.scales[row] = size, sum.uncertainties[row] = unsure;
    });
    return sum;
}

std::string name_of_case(const Variant& s, const char* direction, bool blocks) {
    const std::string kernel = std::string("attention_") + direction + (blocks ? "_blocks_" : "_") + s.name;
    return label(kernel, "B", s.B, "T", s.T, "H", s.H, "K", s.K, "D", s.D, "queries", s.queries);
}

KernelCase attention_forward(const Variant& s, bool blocks) {
    KernelCase c;
    c.name = name_of_case(s, "forward", blocks);
    c.terms = s.T + s.D + 8;
    c.narrow_roundings = blocks ? 2 : 1;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        std::vector<Operand> operands{in("qkv", random_values(seed + "qkv", s.B * s.T * s.columns(), 1.5)),
                                      out("out", s.rows() * s.H * s.D),
                                      out("lse", s.rows() * s.H, Kind::Sum)};
        if (s.sinks) operands.push_back(in("sinks", random_values(seed + "sinks", s.H)));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        const AttentionForward<E> kernel{.qkv = at.get<E>("qkv"),
                                         .out = at.get<E>("out"),
                                         .lse = at.get<Accumulator<E>>("lse"),
                                         .shape = s.shape(),
                                         .options = s.options,
                                         .sinks = s.sinks ? at.get<E>("sinks") : nullptr};
        if (blocks) launch(context, kernel, {"case"});
        else launch(context, kernel.shape.rows(), kernel, {"case"});
    });
    c.reference = [=](const Named& given) { return forward_of<double>(given, s); };
    set_naive(c, [=](const Named& given, auto zero) { return forward_of<decltype(zero)>(given, s); });
    c.observed = {sees("output", "out")};
    c.heads = [=](const Named& given) { return observed_heads(given, s); };
    c.matrix = "out", c.columns = s.H * s.D;
    return c;
}

template <class E>
void run_backward(Context& context, Buffers& at, const Variant& s, bool blocks) {
    using A = Accumulator<E>;
    const AttentionShape shape = s.shape();
    E* shares = s.sinks ? at.get<E>("dsink_shares") : nullptr;
    if (blocks) {
        launch(context,
               AttentionBackward<E>{.qkv = at.get<E>("qkv"),
                                    .out = at.get<E>("out"),
                                    .dout = at.get<E>("dout"),
                                    .lse = at.get<A>("lse"),
                                    .dqkv = at.get<E>("dqkv"),
                                    .delta = at.get<A>("delta"),
                                    .shape = shape,
                                    .options = s.options,
                                    .sinks = s.sinks ? at.get<E>("sinks") : nullptr,
                                    .dsinks = shares},
               {"case"});
    } else {
        launch(context, shape.rows(),
               AttentionBackwardQuery<E>{.qkv = at.get<E>("qkv"),
                                         .out = at.get<E>("out"),
                                         .dout = at.get<E>("dout"),
                                         .lse = at.get<A>("lse"),
                                         .delta = at.get<A>("delta"),
                                         .dqkv = at.get<E>("dqkv"),
                                         .shape = shape,
                                         .options = s.options,
                                         .sinks = s.sinks ? at.get<E>("sinks") : nullptr,
                                         .dsinks = shares},
               {"case"});
        launch(context, shape.key_rows(),
               AttentionBackwardKey<E>{.qkv = at.get<E>("qkv"),
                                       .dout = at.get<E>("dout"),
                                       .lse = at.get<A>("lse"),
                                       .delta = at.get<A>("delta"),
                                       .dqkv = at.get<E>("dqkv"),
                                       .shape = shape,
                                       .options = s.options},
               {"case"});
    }
    if (!s.sinks) return;
    const int64_t chunks = chunk_count(s.rows());
    launch(context, chunks,
           ColumnSum<E>{.x = shares, .chunks = at.get<A>("dsink_chunks"), .rows = s.rows(), .C = s.H},
           {"case", -1, Phase::Backward, "chunks"});
    launch(context, SumChunks<E>::teams(s.H),
           SumChunks<E>{.chunks = at.get<A>("dsink_chunks"),
                        .out = at.get<A>("dsinks"),
                        .count = chunks,
                        .C = s.H,
                        .accumulate = false},
           {"case", -1, Phase::Backward, "dsinks"});
}

KernelCase attention_backward(const Variant& s, bool blocks) {
    KernelCase c;
    c.name = name_of_case(s, "backward", blocks);
    c.forward = name_of_case(s, "forward", blocks);
    c.terms = 2 * (s.T * s.H / s.K + s.D + 8);
    c.narrow_roundings = 4;
    if (s.sinks) c.terms = std::max(c.terms, s.B * s.T), c.narrow_roundings += s.B * s.T;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        Named given{{"qkv", random_values(seed + "qkv", s.B * s.T * s.columns(), 1.5)}};
        if (s.sinks) given["sinks"] = random_values(seed + "sinks", s.H);
        const Named forward = forward_of<double>(given, s);
        std::vector<Operand> operands{in("qkv", given.at("qkv")),
                                      in("out", forward.at("out")),
                                      in("lse", forward.at("lse"), Kind::Sum),
                                      in("dout", random_values(seed + "dout", s.rows() * s.H * s.D)),
                                      out("dqkv", s.B * s.T * s.columns()),
                                      out("delta", s.rows() * s.H, Kind::Sum)};
        if (s.sinks) {
            operands.push_back(in("sinks", given.at("sinks")));
            operands.push_back(out("dsink_shares", s.rows() * s.H));
            operands.push_back(out("dsink_chunks", chunk_count(s.rows()) * s.H, Kind::Sum));
            operands.push_back(out("dsinks", s.H, Kind::Sum));
        }
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        run_backward<decltype(zero)>(context, at, s, blocks);
    });
    c.reference = [=](const Named& given) {
        Named result = backward_of<double>(given, s);
        if (s.sinks) result["|dsinks|"] = {largest_magnitude(given.at("dout"))};
        return result;
    };
    set_naive(c, [=](const Named& given, auto zero) { return backward_of<decltype(zero)>(given, s); });
    c.observed = {sees("output", "dqkv")};
    c.matrix = "dqkv", c.columns = s.columns();
    if (s.sinks) {
        c.observed.push_back(sees("output", "dsink_chunks"));
        c.observed.push_back(sees("output", "dsinks"));
    }
    c.identities = [=](const Named& given) -> std::vector<ObservedIdentity> { return {sum_of_ds(given, s)}; };
    c.breaks = {"out"};
    return c;
}

}  // namespace

void add_attention_option_cases(std::vector<KernelCase>& table) {
    // Windows that are longer than a sequence, end within a block and leave whole panels of keys out.
    const Variant trained[] = {
        {"grouped", 2, 33, 4, 2, 8, 33, {}, false},
        {"one_key_head", 1, 70, 3, 1, 7, 70, {}, false},
        {"scale", 1, 17, 2, 2, 16, 17, {.scale = 0.0625}, false},
        {"softcap", 3, 33, 1, 1, 8, 33, {.softcap = 2}, false},
        {"window", 1, 203, 1, 1, 5, 203, {.window = 20}, false},
        {"window", 2, 33, 2, 2, 8, 33, {.window = 1}, false},
        {"window", 1, 9, 1, 1, 4, 9, {.window = 40}, false},
        {"sinks", 2, 33, 3, 3, 8, 33, {}, true},
        {"all", 2, 130, 4, 2, 7, 130, {.scale = 0.5, .softcap = 3, .window = 50}, true},
    };
    for (const Variant& s : trained) {
        for (bool blocks : {false, true}) {
            if (!has_text(blocks, s.T, s.D)) continue;
            table.push_back(attention_forward(s, blocks));
            table.push_back(attention_backward(s, blocks));
        }
    }
    // Heads that CUDA works on in tiles, some of which nobody sees.
    const Variant tiled[] = {
        {"grouped", 1, 70, 4, 2, 40, 70, {}, false},
        {"softcap", 1, 33, 1, 1, 64, 33, {.softcap = 2}, false},
        {"window", 1, 203, 1, 1, 32, 203, {.window = 20}, false},
        {"sinks", 1, 33, 2, 2, 128, 33, {}, true},
        {"all", 2, 150, 4, 2, 32, 150, {.scale = 0.5, .softcap = 3, .window = 70}, true},
    };
    for (const Variant& s : tiled) {
        table.push_back(attention_forward(s, true));
        table.push_back(attention_backward(s, true));
    }
    // As when tokens are added to a cache.
    const Variant added[] = {
        {"grouped", 3, 33, 4, 1, 8, 5, {}, false},
        {"all", 2, 130, 4, 2, 8, 60, {.scale = 0.5, .softcap = 3, .window = 30}, true},
        {"all", 1, 130, 4, 2, 64, 60, {.scale = 0.5, .softcap = 3, .window = 30}, true},
    };
    for (const Variant& s : added)
        for (bool blocks : {false, true})
            if (has_text(blocks, s.T, s.D)) table.push_back(attention_forward(s, blocks));
}

}  // namespace wobble::test
