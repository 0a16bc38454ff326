// Kernel cases of the norms of queries and keys.
#include <algorithm>
#include <cmath>

#include "kernels/head_norm.h"
#include "kernels/reduce.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

constexpr double epsilon = 1e-5;

/// Rows of H heads, and of one more that stays as it is.
struct Heads {
    int64_t rows, H, D;
    bool centred, has_gain;
    int64_t count() const { return rows * H; }
    int64_t stride() const { return (H + 1) * D; }
    int64_t offset(int64_t i) const { return i / H * stride() + i % H * D; }  // of head i of count()
};

/// The heads of every row, one after the other.
Values normed_part(const Values& x, const Heads& s) {
    Values heads;
    for (int64_t row = 0; row < s.rows; ++row) {
        const double* first = x.data() + row * s.stride();
        heads.insert(heads.end(), first, first + s.H * s.D);
    }
    return heads;
}

/// What is computed of one head: outputs and statistics forward, gradients backward (which add to dgain).
template <class T>
struct Head {
    int64_t D;
    bool centred;
    const T* gain;  // or null

    T times_gain(T value, int64_t d) const { return gain ? value * gain[d] : value; }

    void forward(const T* x, T* y, T& mean, T& rstd) const {
        T sum = 0, squares = 0;
        for (int64_t d = 0; d < D; ++d) sum += x[d];
        mean = centred ? sum / T(D) : T(0);
        for (int64_t d = 0; d < D; ++d) squares += (x[d] - mean) * (x[d] - mean);
        rstd = 1 / std::sqrt(squares / T(D) + T(epsilon));
        for (int64_t d = 0; d < D; ++d) y[d] = times_gain((x[d] - mean) * rstd, d);
    }
    void backward(const T* x, const T* dy, T mean, T rstd, T* dx, T* dgain) const {
        T sum_g = 0, sum_gx = 0;
        for (int64_t d = 0; d < D; ++d) {
            sum_g += times_gain(dy[d], d);
            sum_gx += times_gain(dy[d], d) * ((x[d] - mean) * rstd);
        }
        if (!centred) sum_g = 0;
        for (int64_t d = 0; d < D; ++d) {
            const T normalised = (x[d] - mean) * rstd;
            dx[d] = (times_gain(dy[d], d) - sum_g / T(D) - normalised * (sum_gx / T(D))) * rstd;
            dgain[d] += dy[d] * normalised;
        }
    }
};

template <class T>
Named forward_of(const Named& given, const Heads& s) {
    const auto x = naive::as<T>(given, {"x"}), gain = naive::as<T>(given, {"gain"});
    auto y = x, kept = naive::zeros<T>(s.count() * s.D), mean = naive::zeros<T>(s.count()), rstd = mean;
    const Head<T> head{s.D, s.centred, s.has_gain ? gain.data() : nullptr};
    for (int64_t i = 0; i < s.count(); ++i) {
        const T* in = &x[s.offset(i)];
        std::copy(in, in + s.D, &kept[i * s.D]);
        head.forward(in, &y[s.offset(i)], mean[i], rstd[i]);
    }
    Named result{{"y", naive::back(y)}, {"kept", naive::back(kept)}, {"rstd", naive::back(rstd)}};
    if (s.centred) result["mean"] = naive::back(mean);
    return result;
}

/// `given_statistics`: from the mean and rstd that are given, as the kernel does it, not from the inputs.
template <class T>
Named backward_of(const Named& given, const Heads& s, bool given_statistics) {
    const auto kept = naive::as<T>(given, {"kept"}), dy = naive::as<T>(given, {"dy"});
    const auto gain = naive::as<T>(given, {"gain"});
    const auto means = naive::as<T>(given, {"mean"}), rstds = naive::as<T>(given, {"rstd"});
    auto dx = dy, dgain = naive::zeros<T>(s.D), unused = dgain;
    const Head<T> head{s.D, s.centred, s.has_gain ? gain.data() : nullptr};
    for (int64_t i = 0; i < s.count(); ++i) {
        T mean, rstd;
        head.forward(&kept[i * s.D], unused.data(), mean, rstd);
        if (given_statistics) mean = s.centred ? means[i] : T(0), rstd = rstds[i];
        head.backward(&kept[i * s.D], &dy[s.offset(i)], mean, rstd, &dx[s.offset(i)], dgain.data());
    }
    Named result{{"dx", naive::back(dx)}};
    if (s.has_gain) result["dgain"] = naive::back(dgain);
    return result;
}

std::string name_of_case(const char* kernel, const Heads& s) {
    const std::string full =
        std::string(kernel) + (s.centred ? "_layernorm" : "_rmsnorm") + (s.has_gain ? "" : "_no_gain");
    return label(full, "rows", s.rows, "H", s.H, "D", s.D);
}

void add_gain(std::vector<Operand>& operands, const std::string& seed, const Heads& s) {
    if (s.has_gain) operands.push_back(in("gain", random_values(seed + "gain", s.D, 0.5, 1)));
}

KernelCase head_norm_forward(const Heads& s) {
    KernelCase c;
    c.name = name_of_case("head_norm_forward", s);
    c.terms = s.D;
    const int64_t n = s.rows * s.stride();
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        std::vector<Operand> operands{in("x", random_values(seed + "x", n, 2, 0.5)), out("y", n),
                                      out("kept", s.count() * s.D), out("rstd", s.count(), Kind::Sum)};
        if (s.centred) operands.push_back(out("mean", s.count(), Kind::Sum));
        add_gain(operands, seed, s);
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        copy_within(context.device, at.get<E>("y"), at.get<E>("x"), n);
        launch(context, s.rows,
               HeadNormForward<E>{.x = at.get<E>("y"),
                                  .gain = s.has_gain ? at.get<E>("gain") : nullptr,
                                  .kept = at.get<E>("kept"),
                                  .mean = s.centred ? at.get<A>("mean") : nullptr,
                                  .rstd = at.get<A>("rstd"),
                                  .row_stride = s.stride(),
                                  .heads = s.H,
                                  .head_size = s.D,
                                  .epsilon = A(epsilon),
                                  .centred = s.centred},
               {"case"});
    });
    c.reference = [=](const Named& given) { return forward_of<double>(given, s); };
    set_naive(c, [=](const Named& given, auto zero) { return forward_of<decltype(zero)>(given, s); });
    c.observed = {{"output", [=](const Named&, const Named& after) { return normed_part(after.at("y"), s); }},
                  sees("rstd", "rstd")};
    return c;
}

KernelCase head_norm_backward(const Heads& s) {
    KernelCase c;
    c.name = name_of_case("head_norm_backward", s);
    c.forward = name_of_case("head_norm_forward", s);
    c.terms = std::max(s.count(), s.D);
    const int64_t n = s.rows * s.stride(), chunks = chunk_count(s.rows);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        std::vector<Operand> operands;
        add_gain(operands, seed, s);
        Named given{{"x", random_values(seed + "x", n, 2, 0.5)}};
        for (const Operand& gain : operands) given[gain.name] = gain.initial;
        const Named forward = forward_of<double>(given, s);
        operands.push_back(in("kept", forward.at("kept")));
        operands.push_back(in("rstd", forward.at("rstd"), Kind::Sum));
        if (s.centred) operands.push_back(in("mean", forward.at("mean"), Kind::Sum));
        operands.push_back(in("dy", random_values(seed + "dy", n)));
        operands.push_back(out("dx", n));
        if (!s.has_gain) return operands;
        operands.push_back(out("dgain_chunks", chunks * s.D, Kind::Sum));
        operands.push_back(out("dgain", s.D, Kind::Sum));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        copy_within(context.device, at.get<E>("dx"), at.get<E>("dy"), n);
        launch(context, chunks,
               HeadNormBackward<E>{.kept = at.get<E>("kept"),
                                   .mean = s.centred ? at.get<A>("mean") : nullptr,
                                   .rstd = at.get<A>("rstd"),
                                   .gain = s.has_gain ? at.get<E>("gain") : nullptr,
                                   .dx = at.get<E>("dx"),
                                   .dgain_chunks = s.has_gain ? at.get<A>("dgain_chunks") : nullptr,
                                   .row_stride = s.stride(),
                                   .rows = s.rows,
                                   .heads = s.H,
                                   .head_size = s.D,
                                   .centred = s.centred},
               {"case"});
        if (!s.has_gain) return;
        launch(context, SumChunks<E>::teams(s.D),
               SumChunks<E>{.chunks = at.get<A>("dgain_chunks"),
                            .out = at.get<A>("dgain"),
                            .count = chunks,
                            .C = s.D,
                            .accumulate = false},
               {"case", -1, Phase::Backward, "dgain"});
    });
    c.reference = [=](const Named& given) {
        Named result = backward_of<double>(given, s, false);
        // dx is a small difference where D is small, and dgain is a sum.
        const Values &rstd = given.at("rstd"), &dy = given.at("dy"), gain = any_of(given, {"gain"});
        double scale = largest_magnitude(dy);
        for (int64_t i = 0; i < s.count(); ++i) {
            for (int64_t d = 0; d < s.D; ++d) {
                const double g = dy[s.offset(i) + d] * (s.has_gain ? gain[d] : 1);
                scale = std::max(scale, std::abs(g * rstd[i]));
            }
        }
        result["|dx|"] = {scale};
        if (s.has_gain) result["|dgain|"] = {largest_magnitude(dy)};
        return result;
    };
    set_naive(c, [=](const Named& given, auto zero) { return backward_of<decltype(zero)>(given, s, true); });
    c.observed = {
        {"output", [=](const Named&, const Named& after) { return normed_part(after.at("dx"), s); }}};
    if (s.has_gain) c.observed.push_back(sees("output", "dgain"));
    return c;
}

}  // namespace

void add_head_norm_cases(std::vector<KernelCase>& table) {
    const Heads shapes[] = {{1, 1, 2, true, true},    {17, 1, 1, false, true}, {3, 4, 7, true, true},
                            {3, 4, 7, false, true},   {33, 2, 40, true, true}, {70, 3, 16, false, true},
                            {5, 2, 64, false, false}, {5, 3, 20, true, false}};
    for (const Heads& s : shapes) {
        table.push_back(head_norm_forward(s));
        table.push_back(head_norm_backward(s));
    }
}

}  // namespace wobble::test
