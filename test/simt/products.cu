// The epilogues of products that kernel cases do not reach: GELU's gradient and the bias's.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/cublas.h"
#include "kernels/device.h"

namespace wobble {
namespace {

/// Numbers in the device's memory, and what they are there.
template <class T>
struct Numbers {
    std::vector<T> values;
    T* on_device;

    explicit Numbers(int64_t n) : Numbers(std::vector<T>(size_t(n))) {}
    Numbers(int64_t n, unsigned seed) : Numbers(drawn(n, seed)) {}
    explicit Numbers(std::vector<T> given)
        : values(std::move(given)),
          on_device(static_cast<T*>(detail::cuda_allocate(values.size() * sizeof(T)))) {
        copy_in(Device::Cuda, on_device, values.data(), int64_t(values.size()));
    }
    Numbers(const Numbers&) = delete;
    ~Numbers() { detail::cuda_release(on_device); }

    void read() { copy_out(Device::Cuda, values.data(), on_device, int64_t(values.size())); }
    double operator[](int64_t i) const { return double(float(values[size_t(i)])); }

  private:
    static std::vector<T> drawn(int64_t n, unsigned seed) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        std::vector<T> result;
        for (int64_t i = 0; i < n; ++i) result.push_back(T(normal(random)));
        return result;
    }
};

/// The slope of x Φ(x) in its tanh form, by a difference.
double gelu_slope(double x) {
    const auto gelu = [](double v) {
        return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    };
    return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5;
}

TEST(SoftwareMachineProducts, MultiplyByTheSlopeOfGelu) {
    // dx = gelu'(before) · (dy Wᵀ): as in the backward of a layer behind GELU.
    const int64_t m = 9, n = 24, k = 17;
    const Numbers<bf16> dy(m * k, 1), w(n * k, 2);
    Numbers<bf16> before(m * n, 3), dx(m * n);
    multiply_on_cuda(Context(1), {.in = CublasType::Bfloat16,
                                  .out = CublasType::Bfloat16,
                                  .a = dy.on_device,
                                  .b = w.on_device,
                                  .c = dx.on_device,
                                  .m = m,
                                  .n = n,
                                  .k = k,
                                  .transpose_b = true,
                                  .epilogue = CublasProduct::Epilogue::GeluGradient,
                                  .before = before.on_device});
    dx.read();
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (int64_t l = 0; l < k; ++l) sum += dy[i * k + l] * w[j * k + l];
            const double expected = sum * gelu_slope(before[i * n + j]);
            EXPECT_NEAR(dx[i * n + j], expected, 0x1p-8 * std::abs(expected) + 1e-4) << i << " " << j;
        }
    }
}

TEST(SoftwareMachineProducts, AddUpTheGradientOfABias) {
    // dW = xᵀ dy and, beside it, db = Σ over rows of dy.
    const int64_t rows = 19, in = 7, out = 12;
    const Numbers<bf16> x(rows * in, 4), dy(rows * out, 5);
    Numbers<float> dw(in * out), db(out);
    multiply_on_cuda(Context(1), {.in = CublasType::Bfloat16,
                                  .out = CublasType::Float32,
                                  .a = x.on_device,
                                  .b = dy.on_device,
                                  .c = dw.on_device,
                                  .m = in,
                                  .n = out,
                                  .k = rows,
                                  .transpose_a = true,
                                  .bias_gradient = db.on_device});
    dw.read(), db.read();
    for (int64_t j = 0; j < out; ++j) {
        double sum = 0;
        for (int64_t r = 0; r < rows; ++r) sum += dy[r * out + j];
        EXPECT_NEAR(db[j], sum, 1e-5);
        for (int64_t i = 0; i < in; ++i) {
            double product = 0;
            for (int64_t r = 0; r < rows; ++r) product += x[r * in + i] * dy[r * out + j];
            EXPECT_NEAR(dw[i * out + j], product, 1e-5);
        }
    }
}

}  // namespace
}  // namespace wobble
