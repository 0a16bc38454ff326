// The steps of a GPT-2 in double precision; see reference.h for what each computes.
#include "test/reference.h"

#include <cmath>
#include <limits>
#include <numbers>

namespace wobble::reference {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

Values zeros(int64_t n) {
    return Values(static_cast<size_t>(n), 0.0);
}

// ∑ exp(x[j] - max) and the maximum itself. A NaN never is the maximum, but always reaches the sum.
struct SumOfExponentials {
    double max = -infinity;
    double sum = 0;
};
SumOfExponentials sum_of_exponentials(const double* x, int64_t n) {
    SumOfExponentials result;
    for (int64_t j = 0; j < n; j++)
        if (x[j] > result.max) result.max = x[j];
    for (int64_t j = 0; j < n; j++) result.sum += std::exp(x[j] - result.max);
    return result;
}

double sigmoid(double x) {
    return 1 / (1 + std::exp(-x));
}

// Scaled scores of query t of one head with keys 0..t.
Values scores(const Values& qkv, int64_t b, int64_t t, int64_t h, int64_t T, int64_t C, int64_t D) {
    Values result = zeros(t + 1);
    const double* q = &qkv[(b * T + t) * 3 * C + h * D];
    for (int64_t s = 0; s <= t; s++) {
        const double* k = &qkv[(b * T + s) * 3 * C + C + h * D];
        for (int64_t d = 0; d < D; d++) result[s] += q[d] * k[d];
        result[s] /= std::sqrt(static_cast<double>(D));
    }
    return result;
}

}  // namespace

// ------------------------------------------------------------------------------------------------- embedding
Values embedding_forward(const Tokens& tokens, const Values& wte, const Values& wpe, int64_t B, int64_t T,
                         int64_t C) {
    Values out = zeros(B * T * C);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < C; c++)
                out[(b * T + t) * C + c] = wte[tokens[b * T + t] * C + c] + wpe[t * C + c];
    return out;
}

EmbeddingGradients embedding_backward(const Tokens& tokens, const Values& dout, int64_t B, int64_t T,
                                      int64_t C, int64_t V) {
    EmbeddingGradients gradients{.dwte = zeros(V * C), .dwpe = zeros(T * C)};
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < C; c++) {
                gradients.dwte[tokens[b * T + t] * C + c] += dout[(b * T + t) * C + c];
                gradients.dwpe[t * C + c] += dout[(b * T + t) * C + c];
            }
    return gradients;
}

// ------------------------------------------------------------------------------------------------ layer norm
LayerNorm layer_norm_forward(const Values& x, const Values& weight, const Values& bias, int64_t rows,
                             int64_t C, double epsilon) {
    LayerNorm result{.y = zeros(rows * C), .mean = zeros(rows), .rstd = zeros(rows)};
    for (int64_t row = 0; row < rows; row++) {
        double mean = 0;
        for (int64_t c = 0; c < C; c++) mean += x[row * C + c];
        mean /= static_cast<double>(C);

        double variance = 0;
        for (int64_t c = 0; c < C; c++) variance += (x[row * C + c] - mean) * (x[row * C + c] - mean);
        variance /= static_cast<double>(C);

        const double rstd = 1 / std::sqrt(variance + epsilon);
        for (int64_t c = 0; c < C; c++) {
            const double normalised = (x[row * C + c] - mean) * rstd;
            result.y[row * C + c] =
                normalised * (weight.empty() ? 1 : weight[c]) + (bias.empty() ? 0 : bias[c]);
        }
        result.mean[row] = mean;
        result.rstd[row] = rstd;
    }
    return result;
}

LayerNormGradients layer_norm_backward(const Values& dout, const Values& x, const Values& weight,
                                       int64_t rows, int64_t C, double epsilon) {
    // With n = (x - mean) · rstd and g = dout · weight, both the mean and rstd depending on x:
    //   dx = rstd · (g - mean(g) - n · mean(g · n))
    const auto [normalised, mean, rstd] = layer_norm_forward(x, {}, {}, rows, C, epsilon);
    LayerNormGradients gradients{.dx = zeros(rows * C), .dweight = zeros(C), .dbias = zeros(C)};
    for (int64_t row = 0; row < rows; row++) {
        double mean_g = 0, mean_gn = 0;
        for (int64_t c = 0; c < C; c++) {
            const double g = dout[row * C + c] * (weight.empty() ? 1 : weight[c]);
            mean_g += g / static_cast<double>(C);
            mean_gn += g * normalised[row * C + c] / static_cast<double>(C);
        }
        for (int64_t c = 0; c < C; c++) {
            const double g = dout[row * C + c] * (weight.empty() ? 1 : weight[c]);
            gradients.dx[row * C + c] = rstd[row] * (g - mean_g - normalised[row * C + c] * mean_gn);
            gradients.dweight[c] += dout[row * C + c] * normalised[row * C + c];
            gradients.dbias[c] += dout[row * C + c];
        }
    }
    return gradients;
}

// ------------------------------------------------------------------------------------------- matrix products
Product product(const ProductShape& shape, const Values& A, const Values& B, const Values& accumulated,
                const Values& bias, const Values& residual) {
    const auto [M, N, K, transpose_a, transpose_b, activation] = shape;
    Product result{.output = zeros(M * N), .preactivation = zeros(M * N)};
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++)
                sum += A[transpose_a ? k * M + i : i * K + k] * B[transpose_b ? j * K + k : k * N + j];
            if (!accumulated.empty()) sum += accumulated[i * N + j];
            if (!bias.empty()) sum += bias[j];
            result.preactivation[i * N + j] = sum;
            if (activation == Activation::Gelu) sum = gelu(sum);
            if (!residual.empty()) sum += residual[i * N + j];
            result.output[i * N + j] = sum;
        }
    return result;
}

LinearGradients linear_backward(const Values& dout, const Values& x, const Values& weight, int64_t rows,
                                int64_t in, int64_t out) {
    LinearGradients gradients;
    gradients.dx = product({.M = rows, .N = in, .K = out, .transpose_b = true}, dout, weight).output;
    gradients.dweight = product({.M = in, .N = out, .K = rows, .transpose_a = true}, x, dout).output;
    gradients.dbias = zeros(out);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t o = 0; o < out; o++) gradients.dbias[o] += dout[row * out + o];
    return gradients;
}

// ------ GELU (1 + tanh u) / 2 = sigmoid(2u), which unlike the left side keeps its relative accuracy for very
// negative u.
double gelu(double x) {
    if (x == -infinity) return 0;
    const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    return x * sigmoid(2 * u);
}

double gelu_derivative(double x) {
    if (x > 100) return 1;   // both limits are reached to the last bit of a double long before; from here on
    if (x < -100) return 0;  // the products below would become ∞ · 0
    const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
    const double du = std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
    return sigmoid(2 * u) + x * 2 * du * sigmoid(2 * u) * sigmoid(-2 * u);
}

// ------------------------------------------------------------------------------------------ causal attention
Attention attention_forward(const Values& qkv, int64_t B, int64_t T, int64_t C, int64_t H) {
    const int64_t D = C / H;
    Attention result{.out = zeros(B * T * C), .lse = zeros(B * H * T)};
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t t = 0; t < T; t++) {
                const Values score = scores(qkv, b, t, h, T, C, D);
                const auto [max, sum] = sum_of_exponentials(score.data(), t + 1);
                result.lse[(b * H + h) * T + t] = max + std::log(sum);
                for (int64_t s = 0; s <= t; s++) {
                    const double weight = std::exp(score[s] - max) / sum;
                    for (int64_t d = 0; d < D; d++)
                        result.out[(b * T + t) * C + h * D + d] +=
                            weight * qkv[(b * T + s) * 3 * C + 2 * C + h * D + d];
                }
            }
    return result;
}

Values attention_backward(const Values& dout, const Values& qkv, int64_t B, int64_t T, int64_t C, int64_t H) {
    const int64_t D = C / H;
    Values dqkv = zeros(B * T * 3 * C);
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t t = 0; t < T; t++) {
                const Values score = scores(qkv, b, t, h, T, C, D);
                const auto [max, sum] = sum_of_exponentials(score.data(), t + 1);
                Values weight = zeros(t + 1), dweight = zeros(t + 1);
                double mean_dweight = 0;  // weighted by the attention weights
                for (int64_t s = 0; s <= t; s++) {
                    weight[s] = std::exp(score[s] - max) / sum;
                    for (int64_t d = 0; d < D; d++)
                        dweight[s] +=
                            dout[(b * T + t) * C + h * D + d] * qkv[(b * T + s) * 3 * C + 2 * C + h * D + d];
                    mean_dweight += weight[s] * dweight[s];
                }
                for (int64_t s = 0; s <= t; s++) {
                    // of the unscaled product of q and k
                    const double dscore =
                        weight[s] * (dweight[s] - mean_dweight) / std::sqrt(static_cast<double>(D));
                    for (int64_t d = 0; d < D; d++) {
                        const int64_t q = (b * T + t) * 3 * C + h * D + d;
                        const int64_t k = (b * T + s) * 3 * C + C + h * D + d;
                        const int64_t v = (b * T + s) * 3 * C + 2 * C + h * D + d;
                        dqkv[q] += dscore * qkv[k];
                        dqkv[k] += dscore * qkv[q];
                        dqkv[v] += weight[s] * dout[(b * T + t) * C + h * D + d];
                    }
                }
            }
    return dqkv;
}

// --------------------------------------------------------------------------------------------- cross-entropy
CrossEntropy cross_entropy(const Values& logits, const Tokens& targets, int64_t rows, int64_t V,
                           double scale) {
    CrossEntropy result{.loss = zeros(rows), .logsumexp = zeros(rows), .dlogits = zeros(rows * V)};
    for (int64_t row = 0; row < rows; row++) {
        const double* x = &logits[row * V];
        const auto [max, sum] = sum_of_exponentials(x, V);
        result.logsumexp[row] = max + std::log(sum);
        const int64_t target = targets[row];
        if (target == -1) continue;

        double others =
            0;  // the sum without the target: 1 - p and a small loss come from it without cancellation
        for (int64_t j = 0; j < V; j++)
            if (j != target) others += std::exp(x[j] - max);
        result.loss[row] = x[target] == max ? std::log1p(others) : (max - x[target]) + std::log(sum);
        if (std::isnan(sum)) result.loss[row] = sum;
        for (int64_t j = 0; j < V; j++)
            result.dlogits[row * V + j] = (j == target ? -others / sum : std::exp(x[j] - max) / sum) * scale;
    }
    return result;
}

// ------------------------------------------------------------------------------------------------- optimizer
void adamw_step(const AdamW& options, int64_t step, const Values& gradient, Values& weight, Values& m,
                Values& v) {
    const auto [lr, beta1, beta2, epsilon, weight_decay] = options;
    const double t = static_cast<double>(step);
    for (size_t i = 0; i < weight.size(); i++) {
        m[i] = beta1 * m[i] + (1 - beta1) * gradient[i];
        v[i] = beta2 * v[i] + (1 - beta2) * gradient[i] * gradient[i];
        const double m_hat = m[i] / (1 - std::pow(beta1, t));
        const double v_hat = v[i] / (1 - std::pow(beta2, t));
        weight[i] -= lr * weight_decay * weight[i];
        weight[i] -= lr * m_hat / (std::sqrt(v_hat) + epsilon);
    }
}

double global_norm(const std::vector<Values>& tensors) {
    double sum = 0;
    for (const Values& tensor : tensors)
        for (double x : tensor) sum += x * x;
    return std::sqrt(sum);
}

double clip_by_global_norm(std::vector<Values>& tensors, double maximum) {
    const double norm = global_norm(tensors);
    if (norm > maximum)
        for (Values& tensor : tensors)
            for (double& x : tensor) x *= maximum / norm;
    return norm;
}

// ------------------------------------------------------------------------------------------------- schedules
double learning_rate(Schedule schedule, const ScheduleOptions& options, int64_t step) {
    const auto [lr, minimum, steps, warmup, cooldown] = options;
    if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);

    // How far `step` is from `begin` to `end`; an empty interval has been passed through.
    const auto progress = [step](int64_t begin, int64_t end) {
        if (step >= end) return 1.0;
        if (step <= begin) return 0.0;
        return static_cast<double>(step - begin) / static_cast<double>(end - begin);
    };
    switch (schedule) {
        case Schedule::Constant:
            return lr;
        case Schedule::Linear:
            return lr - progress(warmup, steps) * (lr - minimum);
        case Schedule::Cosine:
            return minimum + (1 + std::cos(std::numbers::pi * progress(warmup, steps))) / 2 * (lr - minimum);
        case Schedule::WarmupStableDecay:
            if (step < steps - cooldown) return lr;
            return minimum + (1 - std::sqrt(progress(steps - cooldown, steps))) * (lr - minimum);
        case Schedule::InverseSqrt:
            return lr *
                   std::sqrt(static_cast<double>(warmup > 0 ? warmup : 1) / static_cast<double>(step + 1));
    }
    return 0;
}

}  // namespace wobble::reference
