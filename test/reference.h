// What the kernels are judged by: every step of a GPT-2 in double precision, written from its definition in
// plain loops.
//
// Nothing here shares text with kernels/ or model/, and nothing is blocked, vectorised or threaded: these
// functions are for reading. test/reference_test.cpp checks each backward against finite differences of its
// forward.
//
// Arrays are row-major; an array that is left out (no bias, no residual) is an empty vector.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace wobble::reference {

using Values = std::vector<double>;
using Tokens = std::vector<int32_t>;

/// A copy of n elements of any arithmetic type, or of one that converts to float, as doubles.
template <class T>
Values values(const T* data, int64_t n) {
    Values copy(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) {
        if constexpr (std::is_arithmetic_v<T>) copy[static_cast<size_t>(i)] = static_cast<double>(data[i]);
        else copy[static_cast<size_t>(i)] = static_cast<double>(static_cast<float>(data[i]));
    }
    return copy;
}

// ------------------------------------------------------------------------------------------------- embedding
/// out[b,t] = wte[token[b,t]] + wpe[t]. tokens [B,T], wte [V,C], wpe [at least T,C]; returns [B,T,C].
Values embedding_forward(const Tokens& tokens, const Values& wte, const Values& wpe, int64_t B, int64_t T,
                         int64_t C);

struct EmbeddingGradients {
    Values dwte;  // [V,C]
    Values dwpe;  // [T,C]
};
EmbeddingGradients embedding_backward(const Tokens& tokens, const Values& dout, int64_t B, int64_t T,
                                      int64_t C, int64_t V);

// ------------------------------------------------------------------------------------------------ layer norm
struct LayerNorm {
    Values y;     // [rows,C]
    Values mean;  // [rows]
    Values rstd;  // [rows] 1 / sqrt(variance + epsilon), the variance being that of the population (divided
                  // by C)
};
/// y = (x - mean) · rstd · weight + bias. x [rows,C]; weight [C] or empty (ones); bias [C] or empty (zeros).
LayerNorm layer_norm_forward(const Values& x, const Values& weight, const Values& bias, int64_t rows,
                             int64_t C, double epsilon);

struct LayerNormGradients {
    Values dx;       // [rows,C]
    Values dweight;  // [C]
    Values dbias;    // [C]
};
/// Mean and rstd are computed again from x.
LayerNormGradients layer_norm_backward(const Values& dout, const Values& x, const Values& weight,
                                       int64_t rows, int64_t C, double epsilon);

// ------------------------------------------------------------------------------------------- matrix products
enum class Activation { None, Gelu };

struct ProductShape {
    int64_t M = 0, N = 0, K = 0;
    bool transpose_a = false;  // A is stored [K,M] and not [M,K]
    bool transpose_b = false;  // B is stored [N,K] and not [K,N]
    Activation activation = Activation::None;
};
struct Product {
    Values output;         // [M,N] activation(preactivation) + residual
    Values preactivation;  // [M,N] op(A) op(B) + accumulated + bias
};
/// accumulated [M,N], bias [N] and residual [M,N] may each be empty.
Product product(const ProductShape& shape, const Values& A, const Values& B, const Values& accumulated = {},
                const Values& bias = {}, const Values& residual = {});

struct LinearGradients {
    Values dx;       // [rows,in]
    Values dweight;  // [in,out]
    Values dbias;    // [out]
};
/// Backward of y = x W + b with W [in,out], x [rows,in], dout [rows,out].
LinearGradients linear_backward(const Values& dout, const Values& x, const Values& weight, int64_t rows,
                                int64_t in, int64_t out);

// ------------------------------------------------------------------------------------------------------ GELU
/// x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))). Infinities give the limits (0 and ∞); NaN gives NaN.
double gelu(double x);
/// Its derivative; 0 at -∞ and 1 at ∞; NaN gives NaN.
double gelu_derivative(double x);

// ------------------------------------------------------------------------------------------ causal attention
struct Attention {
    Values out;  // [B,T,C]
    Values lse;  // [B,H,T] log of the sum of exp(scaled score) over the visible keys
};
/// qkv [B,T,3C]: q, then k, then v, each of H heads of D = C/H. Scores are scaled by 1/√D; token t sees 0..t.
Attention attention_forward(const Values& qkv, int64_t B, int64_t T, int64_t C, int64_t H);
/// Returns dqkv [B,T,3C] for dout [B,T,C].
Values attention_backward(const Values& dout, const Values& qkv, int64_t B, int64_t T, int64_t C, int64_t H);

// --------------------------------------------------------------------------------------------- cross-entropy
struct CrossEntropy {
    Values loss;       // [rows] -log softmax(logits)[target]; 0 where the target is -1
    Values logsumexp;  // [rows]
    Values dlogits;    // [rows,V] (softmax - onehot) · scale; 0 where the target is -1
};
/// logits [rows,V], targets [rows] in [0,V) or -1 for "not counted". Losses far below one keep their relative
/// accuracy.
CrossEntropy cross_entropy(const Values& logits, const Tokens& targets, int64_t rows, int64_t V,
                           double scale);

// ------------------------------------------------------------------------------------------------- optimizer
struct AdamW {
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
};
/// One step, counted from 1 (Loshchilov and Hutter, as in PyTorch): w loses lr · weight_decay · w, then
/// lr · m̂ / (√v̂ + epsilon), with m̂ = m / (1 - beta1^step) and v̂ = v / (1 - beta2^step).
void adamw_step(const AdamW& options, int64_t step, const Values& gradient, Values& weight, Values& m,
                Values& v);

/// √ of the sum of squares over all tensors.
double global_norm(const std::vector<Values>& tensors);
/// Scales all tensors by maximum / norm when norm > maximum; returns the norm from before.
double clip_by_global_norm(std::vector<Values>& tensors, double maximum);

// ------------------------------------------------------------------------------------------------- schedules
enum class Schedule { Constant, Linear, Cosine, WarmupStableDecay, InverseSqrt };

struct ScheduleOptions {
    double lr = 0;         // the highest rate
    double minimum = 0;    // where linear, cosine and WSD end; constant and inverse square root have no end
    int64_t steps = 0;     // of the whole run
    int64_t warmup = 0;    // steps 0..warmup-1 have lr · (step + 1) / warmup
    int64_t cooldown = 0;  // the last steps of WSD, over which the rate falls as 1 - √progress
};
/// The rate of a step counted from 0. After warm-up, with progress = (step - warmup) / (steps - warmup):
///   linear  lr - progress · (lr - minimum)
///   cosine  minimum + (1 + cos(π · progress)) / 2 · (lr - minimum)            Loshchilov and Hutter 2017
///   WSD     lr until steps - cooldown, then with progress through the cooldown
///           minimum + (1 - √progress) · (lr - minimum)                        Hägele et al. 2024
///   inverse square root  lr · √(warmup / (step + 1)), warmup at least 1       Vaswani et al. 2017
/// Progress stays at 1 after the end.
double learning_rate(Schedule schedule, const ScheduleOptions& options, int64_t step);

// ----------------------------------------------------------------------------------------------------- GPT-2
/// GPT-2 with learned positions, pre-norm blocks, biases, tied embeddings, tanh GELU, and layer norm epsilon
/// 1e-5. Linear layers compute y = x W + b with W [in,out].
struct Gpt2 {
    int64_t V, T, L, H, C;  // T is the longest context
    std::map<std::string, Values> parameters;

    /// Name and shape of every parameter, in the order of the forward pass.
    std::vector<std::pair<std::string, std::vector<int64_t>>> shapes() const;

    /// Fills every parameter: N(0, deviation), gains of norms around 1. The same seed gives the same values.
    void initialise(uint64_t seed, double deviation);

    /// Logits [B,length,V]; length ≤ T.
    Values logits(const Tokens& tokens, int64_t B, int64_t length) const;

    /// Mean loss over the targets that are not -1 (0 when there are none). tokens, targets [B,length].
    double loss(const Tokens& tokens, const Tokens& targets, int64_t B, int64_t length) const;

    struct Gradient {
        double loss;
        std::map<std::string, Values> parameters;  // names and shapes of Gpt2::parameters
    };
    Gradient gradient(const Tokens& tokens, const Tokens& targets, int64_t B, int64_t length) const;
};

}  // namespace wobble::reference
