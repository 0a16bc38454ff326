// The formulas of the kernels in a precision of choice, one operation after the other, in plain loops.
//
// This is a yardstick, not a reference: what is right is said by reference.h. The difference of two
// precisions of it is the error that the arithmetic of the smaller one makes when nobody is clever, and a
// kernel may err by twice as much.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "test/kernel_cases.h"

namespace wobble::test::naive {

template <class T>
std::vector<T> as(const Values& x) {
    return std::vector<T>(x.begin(), x.end());
}
template <class T>
std::vector<T> as(const Named& given, std::initializer_list<const char*> names) {
    return as<T>(any_of(given, names));
}
template <class T>
Values back(const std::vector<T>& x) {
    Values result;
    for (T value : x) result.push_back(double(value));
    return result;
}
template <class T>
std::vector<T> zeros(int64_t n) {
    return std::vector<T>(size_t(n), T(0));
}

template <class T>
Named layer_norm_forward(const Named& given, int64_t rows, int64_t C, double epsilon) {
    const auto x = as<T>(given, {"x"}), weight = as<T>(given, {"weight"}), bias = as<T>(given, {"bias"});
    auto y = zeros<T>(rows * C), mean = zeros<T>(rows), rstd = zeros<T>(rows);
    for (int64_t r = 0; r < rows; ++r) {
        T sum = 0, squares = 0;
        for (int64_t c = 0; c < C; ++c) sum += x[r * C + c];
        mean[r] = sum / T(C);
        for (int64_t c = 0; c < C; ++c) squares += (x[r * C + c] - mean[r]) * (x[r * C + c] - mean[r]);
        rstd[r] = 1 / std::sqrt(squares / T(C) + T(epsilon));
        for (int64_t c = 0; c < C; ++c)
            y[r * C + c] = (x[r * C + c] - mean[r]) * rstd[r] * weight[c] + bias[c];
    }
    return {{"y", back(y)}, {"mean", back(mean)}, {"rstd", back(rstd)}};
}

template <class T>
Named layer_norm_backward(const Named& given, int64_t rows, int64_t C) {
    const auto x = as<T>(given, {"x"}), weight = as<T>(given, {"weight"}), dy = as<T>(given, {"dy"});
    const auto mean = as<T>(given, {"mean"}), rstd = as<T>(given, {"rstd"});
    const auto residual = as<T>(given, {"dresidual", "dx"});
    auto dx = zeros<T>(rows * C), dweight = zeros<T>(C), dbias = zeros<T>(C);
    for (int64_t r = 0; r < rows; ++r) {
        T sum_g = 0, sum_gx = 0;
        for (int64_t c = 0; c < C; ++c) {
            const T g = dy[r * C + c] * weight[c];
            sum_g += g;
            sum_gx += g * ((x[r * C + c] - mean[r]) * rstd[r]);
        }
        for (int64_t c = 0; c < C; ++c) {
            const T normalised = (x[r * C + c] - mean[r]) * rstd[r];
            const T g = dy[r * C + c] * weight[c];
            dx[r * C + c] = (g - sum_g / T(C) - normalised * (sum_gx / T(C))) * rstd[r];
            if (!residual.empty()) dx[r * C + c] += residual[r * C + c];
            dweight[c] += dy[r * C + c] * normalised;
            dbias[c] += dy[r * C + c];
        }
    }
    return {{"dx", back(dx)}, {"dweight", back(dweight)}, {"dbias", back(dbias)}};
}

template <class T>
T gelu(T x) {
    const T u = (x + x * x * x * T(0.044715)) * T(0.79788456080286535588L);
    return x / (1 + std::exp(-2 * u));
}
template <class T>
T gelu_derivative(T x) {
    const T u = (x + x * x * x * T(0.044715)) * T(0.79788456080286535588L);
    const T du = (1 + x * x * T(3 * 0.044715L)) * T(0.79788456080286535588L);
    const T sigmoid = 1 / (1 + std::exp(-2 * u));
    return sigmoid + x * sigmoid * (1 - sigmoid) * 2 * du;
}

/// op(a) op(b) [M, N]
template <class T>
std::vector<T> multiply(const std::vector<T>& a, const std::vector<T>& b, const reference::ProductShape& s) {
    auto c = zeros<T>(s.M * s.N);
    for (int64_t i = 0; i < s.M; ++i)
        for (int64_t k = 0; k < s.K; ++k) {
            const T scalar = a[s.transpose_a ? k * s.M + i : i * s.K + k];
            const T* row = &b[s.transpose_b ? k : k * s.N];
            const int64_t stride = s.transpose_b ? s.K : 1;
            for (int64_t j = 0; j < s.N; ++j) c[i * s.N + j] += scalar * row[j * stride];
        }
    return c;
}

/// `accumulate`: the operand c is added to, otherwise it is the residual if it has a value before the run.
template <class T>
Named product(const Named& given, const reference::ProductShape& s, bool accumulate) {
    const auto before = as<T>(given, {"c"}), bias = as<T>(given, {"bias"});
    const auto residual = accumulate ? std::vector<T>{} : as<T>(given, {"residual", "c"});
    auto c = multiply(as<T>(given, {"a"}), as<T>(given, {"b"}), s), kept = c;
    for (int64_t i = 0; i < s.M * s.N; ++i) {
        if (accumulate) c[i] += before[i];
        if (!bias.empty()) c[i] += bias[i % s.N];
        kept[i] = c[i];
        if (s.activation == reference::Activation::Gelu) c[i] = gelu(c[i]);
        if (!residual.empty()) c[i] += residual[i];
    }
    Named result{{"c", back(c)}};
    if (s.activation == reference::Activation::Gelu) result["before_activation"] = back(kept);
    return result;
}

template <class T>
std::vector<T> column_sums(const std::vector<T>& x, int64_t C) {
    auto sums = zeros<T>(C);
    for (size_t i = 0; i < x.size(); ++i) sums[i % size_t(C)] += x[i];
    return sums;
}

template <class T>
Named linear_backward(const Named& given, int64_t rows, int64_t in, int64_t out) {
    const auto x = as<T>(given, {"x"}), weight = as<T>(given, {"weight"}), dy = as<T>(given, {"dy"});
    return {{"dx", back(multiply(dy, weight, {.M = rows, .N = in, .K = out, .transpose_b = true}))},
            {"dweight", back(multiply(x, dy, {.M = in, .N = out, .K = rows, .transpose_a = true}))},
            {"dbias", back(column_sums(dy, out))}};
}

struct AttentionSizes {
    int64_t B, T, H, D, queries;
    int64_t qkv(int64_t b, int64_t t, int64_t h, int64_t part) const {
        return ((b * T + t) * 3 + part) * H * D + h * D;
    }
};

/// Probabilities of query t over keys 0..t, and the logarithm of their sum.
template <class T>
std::vector<T> attend(const std::vector<T>& qkv, const AttentionSizes& s, int64_t b, int64_t t, int64_t h,
                      T& lse) {
    auto p = zeros<T>(t + 1);
    T maximum = -std::numeric_limits<T>::infinity(), sum = 0;
    for (int64_t j = 0; j <= t; ++j) {
        for (int64_t d = 0; d < s.D; ++d) p[j] += qkv[s.qkv(b, t, h, 0) + d] * qkv[s.qkv(b, j, h, 1) + d];
        p[j] /= std::sqrt(T(s.D));
        maximum = std::max(maximum, p[j]);
    }
    for (T& score : p) sum += std::exp(score - maximum);
    lse = maximum + std::log(sum);
    for (T& score : p) score = std::exp(score - lse);
    return p;
}

template <class T>
Named attention_forward(const Named& given, const AttentionSizes& s) {
    const auto qkv = as<T>(given, {"qkv"});
    auto out = zeros<T>(s.B * s.queries * s.H * s.D), lse = zeros<T>(s.B * s.H * s.queries);
    for (int64_t b = 0; b < s.B; ++b)
        for (int64_t h = 0; h < s.H; ++h)
            for (int64_t i = 0; i < s.queries; ++i) {
                const int64_t t = s.T - s.queries + i;
                const auto p = attend(qkv, s, b, t, h, lse[(b * s.H + h) * s.queries + i]);
                for (int64_t j = 0; j <= t; ++j)
                    for (int64_t d = 0; d < s.D; ++d)
                        out[((b * s.queries + i) * s.H + h) * s.D + d] += p[j] * qkv[s.qkv(b, j, h, 2) + d];
            }
    return {{"out", back(out)}, {"lse", back(lse)}};
}

template <class T>
Named attention_backward(const Named& given, const AttentionSizes& s) {
    const auto qkv = as<T>(given, {"qkv"}), dout = as<T>(given, {"dout"});
    auto dqkv = zeros<T>(s.B * s.T * 3 * s.H * s.D);
    for (int64_t b = 0; b < s.B; ++b)
        for (int64_t h = 0; h < s.H; ++h)
            for (int64_t t = 0; t < s.T; ++t) {
                T lse, delta = 0;
                const auto p = attend(qkv, s, b, t, h, lse);
                auto dp = zeros<T>(t + 1);
                const T* grad = &dout[((b * s.T + t) * s.H + h) * s.D];
                for (int64_t j = 0; j <= t; ++j) {
                    for (int64_t d = 0; d < s.D; ++d) dp[j] += grad[d] * qkv[s.qkv(b, j, h, 2) + d];
                    delta += p[j] * dp[j];
                }
                for (int64_t j = 0; j <= t; ++j) {
                    const T ds = p[j] * (dp[j] - delta) / std::sqrt(T(s.D));
                    for (int64_t d = 0; d < s.D; ++d) {
                        dqkv[s.qkv(b, t, h, 0) + d] += ds * qkv[s.qkv(b, j, h, 1) + d];
                        dqkv[s.qkv(b, j, h, 1) + d] += ds * qkv[s.qkv(b, t, h, 0) + d];
                        dqkv[s.qkv(b, j, h, 2) + d] += p[j] * grad[d];
                    }
                }
            }
    return {{"dqkv", back(dqkv)}};
}

template <class T>
Named cross_entropy(const Named& given, int64_t rows, int64_t V, double scale) {
    auto z = as<T>(given, {"logits", "dlogits"});
    const Values& targets = given.at("targets");
    auto losses = zeros<T>(rows);
    for (int64_t r = 0; r < rows; ++r) {
        T maximum = z[r * V], sum = 0;
        for (int64_t v = 1; v < V; ++v) maximum = std::max(maximum, z[r * V + v]);
        for (int64_t v = 0; v < V; ++v) sum += std::exp(z[r * V + v] - maximum);
        const int64_t target = int64_t(targets[r]);
        if (target >= 0) losses[r] = maximum + std::log(sum) - z[r * V + target];
        for (int64_t v = 0; v < V; ++v) {
            const T p = std::exp(z[r * V + v] - maximum) / sum;
            z[r * V + v] = target < 0 ? T(0) : (p - T(v == target)) * T(scale);
        }
    }
    return {{"losses", back(losses)}, {"dlogits", back(z)}};
}

template <class T>
Named adamw(const Named& given, const reference::AdamW& o, int64_t step, double clip) {
    const auto gradient = as<T>(given, {"gradient"});
    auto weight = as<T>(given, {"weight"}), m = as<T>(given, {"m"}), v = as<T>(given, {"v"});
    const T bias1 = T(1 / (1 - std::pow(o.beta1, double(step))));
    const T bias2 = T(1 / (1 - std::pow(o.beta2, double(step))));
    constexpr size_t row = 4096;  // sums of squares are kept row by row
    auto updates = zeros<T>(int64_t((weight.size() + row - 1) / row)), weights = updates;
    for (size_t i = 0; i < weight.size(); ++i) {
        const T g = gradient[i] * T(clip);
        m[i] = T(o.beta1) * m[i] + T(1 - o.beta1) * g;
        v[i] = T(o.beta2) * v[i] + T(1 - o.beta2) * g * g;
        const T adapted = m[i] * bias1 / (std::sqrt(v[i] * bias2) + T(o.epsilon));
        const T update = T(o.lr) * (adapted + T(o.weight_decay) * weight[i]);
        weight[i] -= update;
        updates[i / row] += update * update;
        weights[i / row] += weight[i] * weight[i];
    }
    return {{"weight", back(weight)},
            {"m", back(m)},
            {"v", back(v)},
            {"update_squares", back(updates)},
            {"weight_squares", back(weights)}};
}

}  // namespace wobble::test::naive
