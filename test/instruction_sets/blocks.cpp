// Product and attention on the CPU as another processor of the family would run them: compiled for the
// instruction set that the build names, compared in float64 with plain loops and with attention's row
// kernels. Register tiles, panels and packs have other sizes there than where the rest of the tests runs.
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "kernels/attention_blocks.h"
#include "kernels/product.h"

namespace wobble {
namespace {

double next_value() {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return double(state >> 8) / (1 << 24) - 0.5;
}

template <class T>
std::vector<T> values(int64_t n, double scale) {
    std::vector<T> x(static_cast<size_t>(n));
    for (T& value : x) value = T(Accumulator<T>(scale * next_value()));
    return x;
}

/// What a result that is stored as T may be off, in units of its scale: of a stored value, and of
/// probabilities.
template <class T>
constexpr double tolerance = std::is_same_v<T, double>  ? 1e-13
                             : std::is_same_v<T, float> ? 2e-6
                                                        : 0x1p-6;

int failures = 0;

void expect_small(double error, double bound, const char* what, size_t bytes) {
    if (error <= bound) return;
    std::printf("%s with elements of %zu bytes is off by %g, more than %g\n", what, bytes, error, bound);
    ++failures;
}

template <class T>
void check_product(Context& context, int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b) {
    const auto a = values<T>(m * k, 1), b = values<T>(k * n, 1);
    std::vector<T> c(size_t(m * n));
    NoWatch nobody;
    Product<T>{.a = a.data(),
               .b = b.data(),
               .c = c.data(),
               .m = m,
               .n = n,
               .k = k,
               .transpose_a = transpose_a,
               .transpose_b = transpose_b}(context, nobody);
    double worst = 0;
    for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            double sum = 0, size = 0;
            for (int64_t q = 0; q < k; ++q) {
                const double term = double(a[size_t(transpose_a ? q * m + i : i * k + q)]) *
                                    double(b[size_t(transpose_b ? j * k + q : q * n + j)]);
                sum += term, size += std::fabs(term);
            }
            worst = std::max(worst, std::fabs(double(c[size_t(i * n + j)]) - sum) / (size + 1e-30));
        }
    }
    expect_small(worst, tolerance<T>, "product", sizeof(T));
}

template <class T>
void check_attention(Context& context, const AttentionShape& shape, const AttentionOptions& options) {
    using A = Accumulator<T>;
    const int64_t rows = shape.batch * shape.sequence, statistics = rows * shape.heads;
    const auto qkv = values<T>(rows * shape.qkv_channels(), 3), dout = values<T>(rows * shape.channels(), 1);
    std::vector<T> out(dout.size()), dqkv(qkv.size());
    std::vector<A> lse(static_cast<size_t>(statistics));
    NoWatch nobody;
    AttentionForward<T>{
        .qkv = qkv.data(), .out = out.data(), .lse = lse.data(), .shape = shape, .options = options}(context,
                                                                                                     nobody);
    AttentionBackward<T>{.qkv = qkv.data(),
                         .out = out.data(),
                         .dout = dout.data(),
                         .lse = lse.data(),
                         .dqkv = dqkv.data(),
                         .shape = shape,
                         .options = options}(context, nobody);

    const std::vector<double> qkv64(qkv.begin(), qkv.end()), dout64(dout.begin(), dout.end());
    std::vector<double> out64(out.size()), dqkv64(dqkv.size()), lse64(lse.size()), delta64(lse.size());
    NoProbe probe;
    const AttentionForward<double> forward{
        .qkv = qkv64.data(), .out = out64.data(), .lse = lse64.data(), .shape = shape, .options = options};
    for (int64_t row = 0; row < shape.rows(); ++row) forward(Lane{}, row, probe);
    const AttentionBackwardQuery<double> queries{.qkv = qkv64.data(),
                                                 .out = out64.data(),
                                                 .dout = dout64.data(),
                                                 .lse = lse64.data(),
                                                 .delta = delta64.data(),
                                                 .dqkv = dqkv64.data(),
                                                 .shape = shape,
                                                 .options = options};
    for (int64_t row = 0; row < shape.rows(); ++row) queries(Lane{}, row, probe);
    const AttentionBackwardKey<double> keys{.qkv = qkv64.data(),
                                            .dout = dout64.data(),
                                            .lse = lse64.data(),
                                            .delta = delta64.data(),
                                            .dqkv = dqkv64.data(),
                                            .shape = shape,
                                            .options = options};
    for (int64_t row = 0; row < shape.key_rows(); ++row) keys(Lane{}, row, probe);

    const auto worst = [](const std::vector<T>& found, const std::vector<double>& expected) {
        double error = 0, size = 0;
        for (size_t i = 0; i < found.size(); ++i) {
            const double difference = std::fabs(double(found[i]) - expected[i]);
            error = difference <= error ? error : difference;  // NaN stays
            size = std::max(size, std::fabs(expected[i]));
        }
        return error / size;
    };
    expect_small(worst(out, out64), tolerance<T>, "attention", sizeof(T));
    expect_small(worst(dqkv, dqkv64), tolerance<T>, "attention's gradient", sizeof(T));
}

template <class T>
void check(Context& context) {
    for (const auto& [m, n, k] :
         {std::array<int64_t, 3>{5, 7, 3}, {33, 70, 48}, {97, 130, 201}, {12, 32, 2500}, {50, 6, 9}}) {
        for (const bool transpose_a : {false, true})
            for (const bool transpose_b : {false, true})
                check_product<T>(context, m, n, k, transpose_a, transpose_b);
    }
    for (const auto& [batch, sequence, heads, key_heads, head_size, window] :
         {std::array<int64_t, 6>{2, 5, 2, 2, 8, 0},
          {1, 130, 2, 1, 20, 0},
          {1, 77, 2, 2, 33, 40},
          {2, 64, 4, 2, 16, 0},
          {1, 203, 1, 1, 7, 21}}) {
        check_attention<T>(context,
                           {.batch = batch,
                            .sequence = sequence,
                            .heads = heads,
                            .head_size = head_size,
                            .queries = sequence,
                            .kv_heads = key_heads},
                           {.window = window});
    }
}

}  // namespace
}  // namespace wobble

int main() {
    wobble::Context context(2);
    context.least_parallel = 0;
    wobble::check<float>(context);
    wobble::check<double>(context);
    wobble::check<wobble::bf16>(context);
    return wobble::failures > 0;
}
