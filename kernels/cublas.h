// Matrix products on CUDA: cuBLASLt, asked for row-major ones.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/bf16.h"
#include "kernels/context.h"

namespace wobble {

enum class CublasType { Float32, Bfloat16 };
template <class T>
constexpr CublasType cublas_type = std::is_same_v<T, bf16> ? CublasType::Bfloat16 : CublasType::Float32;

/// c = op(a) · op(b), or c += it; sums are float32. All of it is device memory, row-major without gaps.
struct CublasProduct {
    enum class Epilogue {
        None,
        Gelu,         // c = gelu(before), where before = op(a) · op(b) + bias is written beside
        GeluGradient  // c = gelu'(before) · (op(a) · op(b))
    };

    CublasType in, out;
    const void* a;  // [m, k], or [k, m] if transpose_a
    const void* b;  // [k, n], or [n, k] if transpose_b
    void* c;        // [m, n]
    int64_t m, n, k;
    bool transpose_a = false, transpose_b = false, accumulate = false;
    const void* bias = nullptr;  // [n] of the type of c
    Epilogue epilogue = Epilogue::None;
    void* before = nullptr;         // [m, n] of the type of c
    void* bias_gradient = nullptr;  // [n] of the type of c: Σ over k of op(b), beside a product without more

    /// Whether cuBLASLt can apply GELU: it wants rows of `before` to be whole packs.
    static bool gelu_fits(int64_t columns) { return columns % 8 == 0; }
};

/// What the library may use besides: what NVIDIA recommends for Hopper.
constexpr size_t cublas_workspace_bytes = size_t(32) << 20;

/// Puts the product into the stream. cuBLASLt's choice of an algorithm is kept, one for each shape.
void multiply_on_cuda(const Context& context, const CublasProduct& product);

}  // namespace wobble
