#include "kernels/cublas.h"
#include "kernels/cuda.h"

#ifdef WOBBLE_CUDA

#include <cublasLt.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "kernels/device.h"
#include "kernels/error.h"
#include "kernels/stream.h"

namespace wobble {

namespace {

void check(cublasStatus_t status, const CublasProduct& p, const char* what) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw std::runtime_error("cuBLASLt, " + std::string(what) + " of a product of " + std::to_string(p.m) +
                             " x " + std::to_string(p.k) + " with " + std::to_string(p.k) + " x " +
                             std::to_string(p.n) + ": status " + std::to_string(int(status)));
}

cudaDataType_t type_of(CublasType type) {
    return type == CublasType::Bfloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

cublasComputeType_t compute_type(CublasType in, MatmulPrecision precision) {
    if (in == CublasType::Bfloat16) return CUBLAS_COMPUTE_32F;
    switch (precision) {
        case MatmulPrecision::Tf32:
            return CUBLAS_COMPUTE_32F_FAST_TF32;
        case MatmulPrecision::Bfloat16:
            return CUBLAS_COMPUTE_32F_FAST_16BF;
        case MatmulPrecision::Float32:
            break;
    }
    return CUBLAS_COMPUTE_32F;
}

/// The alignment of an address, as far as cuBLASLt cares.
uint32_t alignment(const void* p) {
    const auto address = reinterpret_cast<uintptr_t>(p);
    uint32_t bytes = 256;
    while (address % bytes != 0) bytes /= 2;
    return bytes;
}

/// What a choice of algorithm depends on.
auto key(const CublasProduct& p, MatmulPrecision precision) {
    return std::tuple(p.in, p.out, p.m, p.n, p.k, p.transpose_a, p.transpose_b, p.accumulate,
                      p.bias != nullptr, p.epilogue, p.bias_gradient != nullptr, precision, alignment(p.a),
                      alignment(p.b), alignment(p.c));
}
using Key = decltype(key(std::declval<CublasProduct>(), MatmulPrecision()));

/// cuBLASLt's objects for one product. It counts columns first: a row-major matrix is the transpose of what
/// it sees, and so a · b is made as bᵀ · aᵀ.
class Plan {
  public:
    Plan(const CublasProduct& p, MatmulPrecision precision) : product_(p) {
        check(cublasLtMatmulDescCreate(&operation_, compute_type(p.in, precision), CUDA_R_32F), p,
              "description");
        set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue());
        if (p.epilogue != CublasProduct::Epilogue::None)
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(p.n));
        left_ = layout(p.in, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k);
        right_ = layout(p.in, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m);
        result_ = layout(p.out, p.n, p.m);
    }
    Plan(const Plan&) = delete;
    Plan& operator=(const Plan&) = delete;
    ~Plan() {
        for (cublasLtMatrixLayout_t made : {left_, right_, result_})
            if (made) cublasLtMatrixLayoutDestroy(made);
        if (operation_) cublasLtMatmulDescDestroy(operation_);
    }

    cublasLtMatmulAlgo_t choose(cublasLtHandle_t handle, size_t workspace) const {
        cublasLtMatmulPreference_t preference = nullptr;
        check(cublasLtMatmulPreferenceCreate(&preference), product_, "preference");
        const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
            check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), product_,
                  "preference");
        };
        prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
        // Where k is split, the parts are added up beside the result, in their order: in place they would be
        // in that of their arrival.
        prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(product_.b));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(product_.a));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(product_.c));
        prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(product_.c));
        cublasLtMatmulHeuristicResult_t best{};
        int found = 0;
        const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
            handle, operation_, left_, right_, result_, result_, preference, 1, &best, &found);
        cublasLtMatmulPreferenceDestroy(preference);
        check(found == 0 && status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status, product_,
              "algorithm");
        return best.algo;
    }

    void run(cublasLtHandle_t handle, const CublasProduct& p, const cublasLtMatmulAlgo_t& algorithm,
             void* workspace, size_t bytes) const {
        if (p.bias || p.bias_gradient)
            set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias ? p.bias : p.bias_gradient);
        if (p.before) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.before);
        const float one = 1, kept = p.accumulate ? 1 : 0;
        check(cublasLtMatmul(handle, operation_, &one, p.b, left_, p.a, right_, &kept, p.c, result_, p.c,
                             result_, &algorithm, workspace, bytes, cuda_stream()),
              p, "launch");
    }

  private:
    template <class Value>
    void set(cublasLtMatmulDescAttributes_t attribute, Value value) const {
        check(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value), product_,
              "description");
    }
    /// Of a matrix of `rows` rows as cuBLASLt counts them, one column after the other.
    cublasLtMatrixLayout_t layout(CublasType type, int64_t rows, int64_t columns) const {
        cublasLtMatrixLayout_t made = nullptr;
        check(cublasLtMatrixLayoutCreate(&made, type_of(type), uint64_t(rows), uint64_t(columns), rows),
              product_, "layout");
        return made;
    }
    cublasLtEpilogue_t epilogue() const {
        const CublasProduct& p = product_;
        if (p.bias_gradient) return CUBLASLT_EPILOGUE_BGRADA;
        switch (p.epilogue) {
            case CublasProduct::Epilogue::Gelu:
                return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
            case CublasProduct::Epilogue::GeluGradient:
                return CUBLASLT_EPILOGUE_DGELU;
            case CublasProduct::Epilogue::None:
                break;
        }
        return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    }

    CublasProduct product_;
    cublasLtMatmulDesc_t operation_ = nullptr;
    cublasLtMatrixLayout_t left_ = nullptr, right_ = nullptr, result_ = nullptr;
};

/// The library's handle and workspace, and the algorithms it chose.
struct Library {
    cublasLtHandle_t handle = nullptr;
    void* workspace = nullptr;
    struct Choice {
        std::unique_ptr<Plan> plan;
        cublasLtMatmulAlgo_t algorithm;
    };
    std::map<Key, Choice> choices;

    explicit Library(const CublasProduct& first) {
        check(cublasLtCreate(&handle), first, "start");
        workspace = detail::cuda_allocate(cublas_workspace_bytes);
    }
    static Library& instance(const CublasProduct& first) {
        static Library library(first);
        return library;
    }
};

}  // namespace

void multiply_on_cuda(const Context& context, const CublasProduct& product) {
    Library& library = Library::instance(product);
    Library::Choice& choice = library.choices[key(product, context.matmul_precision)];
    if (!choice.plan) {
        auto plan = std::make_unique<Plan>(product, context.matmul_precision);
        choice.algorithm = plan->choose(library.handle, cublas_workspace_bytes);
        choice.plan = std::move(plan);
    }
    choice.plan->run(library.handle, product, choice.algorithm, library.workspace, cublas_workspace_bytes);
}

}  // namespace wobble

#endif
