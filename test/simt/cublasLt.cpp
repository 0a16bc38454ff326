// cuBLASLt in plain loops.
#include "cublasLt.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/bf16.h"

using wobble::bf16;

/// What a choice of algorithm is told.
struct SimtPreference {
    cublasLtMatmulAlgo_t alignments{256, 256, 256, 256};
    uint32_t reductions = 0;
    uint64_t workspace = 0;
};

namespace {

float read(const void* p, cudaDataType_t type, int64_t i) {
    return type == CUDA_R_16BF ? float(static_cast<const bf16*>(p)[i]) : static_cast<const float*>(p)[i];
}
void write(void* p, cudaDataType_t type, int64_t i, float value) {
    if (type == CUDA_R_16BF) static_cast<bf16*>(p)[i] = bf16(value);
    else static_cast<float*>(p)[i] = value;
}

/// As the product's factors are rounded first: TF32 has 11 significant bits.
float factor(float x, cublasComputeType_t compute) {
    if (compute == CUBLAS_COMPUTE_32F_FAST_16BF) return float(bf16(x));
    if (compute != CUBLAS_COMPUTE_32F_FAST_TF32 || !std::isfinite(x)) return x;
    int exponent;
    const double fraction = std::frexp(double(x), &exponent);
    return float(std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11));
}

/// GELU in its tanh form, and its slope.
double gelu(double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double gelu_slope(double x) {
    const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = std::tanh(u);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

/// op(X) in float32, [rows, columns], row after row.
std::vector<float> operand(const void* p, const SimtLayout& layout, bool transpose,
                           cublasComputeType_t compute) {
    const int64_t rows = transpose ? layout.columns : layout.rows;
    const int64_t columns = transpose ? layout.rows : layout.columns;
    std::vector<float> values(size_t(rows * columns));
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
            values[size_t(i * columns + j)] = factor(
                read(p, layout.type, transpose ? i * layout.stride + j : j * layout.stride + i), compute);
    return values;
}

struct Call {
    SimtMatmul operation;
    const void *a, *b;
    void* d;
    SimtLayout a_layout, b_layout, d_layout;
    float alpha, beta;

    int64_t depth() const { return operation.transpose_a == CUBLAS_OP_T ? a_layout.rows : a_layout.columns; }
    void run() const {
        const std::vector<float> left =
            operand(a, a_layout, operation.transpose_a == CUBLAS_OP_T, operation.compute);
        // Its columns are wanted: rows of the transpose.
        const std::vector<float> right =
            operand(b, b_layout, operation.transpose_b != CUBLAS_OP_T, operation.compute);
        const int64_t k = depth(), rows = d_layout.rows;
        for (int64_t j = 0; j < d_layout.columns; ++j) {
            for (int64_t i = 0; i < rows; ++i) {
                const float *x = left.data() + i * k, *y = right.data() + j * k;
                float sums[8] = {};  // as many as would be in registers
                for (int64_t l = 0; l < k; ++l) sums[l % 8] = std::fma(x[l], y[l], sums[l % 8]);
                const float sum =
                    ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
                finish(i, j, sum);
            }
        }
        if (operation.epilogue == CUBLASLT_EPILOGUE_BGRADA) {
            for (int64_t i = 0; i < rows; ++i) {
                float sum = 0;
                for (int64_t l = 0; l < k; ++l) sum += left[size_t(i * k + l)];
                write(operation.bias, d_layout.type, i, sum);
            }
        }
    }

  private:
    void finish(int64_t i, int64_t j, float sum) const {
        const int64_t at = j * d_layout.stride + i, aux_at = j * operation.aux_stride + i;
        float value = alpha * sum;
        if (beta != 0) value += beta * read(d, d_layout.type, at);
        const int epilogue = operation.epilogue;
        if (epilogue & 4) value += read(operation.bias, d_layout.type, i);
        if (epilogue & 32) {
            write(operation.aux, d_layout.type, aux_at, value);
            value = float(gelu(value));
        }
        if (epilogue & 64) value *= float(gelu_slope(read(operation.aux, d_layout.type, aux_at)));
        write(d, d_layout.type, at, value);
    }
};

bool is_aligned(const void* p, uint32_t bytes) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

template <class Value>
cublasStatus_t take(Value& to, const void* value, size_t bytes) {
    if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    *handle = nullptr;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    *made = new SimtMatmul{.compute = compute};
    return scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
    delete description;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t bytes) {
    switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA:
            return take(d->transpose_a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB:
            return take(d->transpose_b, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE:
            return take(d->epilogue, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
            return take(d->bias, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
            return take(d->aux, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
            return take(d->aux_stride, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
    if (stride < int64_t(rows)) return CUBLAS_STATUS_INVALID_VALUE;
    *made = new SimtLayout{type, int64_t(rows), int64_t(columns), stride};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
    *made = new SimtPreference;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
    switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
            return take(p->workspace, value, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
            return take(p->reductions, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
            return take(p->alignments.alignment_a, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
            return take(p->alignments.alignment_b, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
            return take(p->alignments.alignment_c, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
            return take(p->alignments.alignment_d, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
    const bool ta = operation->transpose_a == CUBLAS_OP_T, tb = operation->transpose_b == CUBLAS_OP_T;
    const int64_t k = ta ? a->rows : a->columns;
    *found = 0;
    if ((ta ? a->columns : a->rows) != d->rows || (tb ? b->columns : b->rows) != k ||
        (tb ? b->rows : b->columns) != d->columns || c->rows != d->rows || c->columns != d->columns ||
        a->type != b->type || wanted < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((operation->epilogue & 128) && operation->aux_stride % 8 != 0) return CUBLAS_STATUS_NOT_SUPPORTED;
    results[0] = {preference->alignments};
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t, cudaStream_t) {
    // One object describes every call; it may change before the stream comes to this one.
    const Call call{*operation,
                    a,
                    b,
                    d,
                    *a_layout,
                    *b_layout,
                    *d_layout,
                    *static_cast<const float*>(alpha),
                    *static_cast<const float*>(beta)};
    const bool needs_bias = (operation->epilogue & (4 | 256)) != 0,
               needs_aux = (operation->epilogue & 128) != 0;
    const void* const touched[] = {
        a, b, c, d, workspace, needs_bias ? operation->bias : d, needs_aux ? operation->aux : d};
    for (const void* p : touched)
        if (!simt::is_device(p)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_aligned(a, algorithm->alignment_a) || !is_aligned(b, algorithm->alignment_b) ||
        !is_aligned(c, algorithm->alignment_c) || !is_aligned(d, algorithm->alignment_d) || c != d)
        return CUBLAS_STATUS_INVALID_VALUE;
    simt::enqueue([call] { call.run(); });
    return CUBLAS_STATUS_SUCCESS;
}
