// What the norm computes, against its formula in float64. Its gradient, in a model and beside every other
// choice, is that of test/family.cu, which is part of the same program.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "probes/launch.h"
#include "test/example_norm/l4norm.h"

namespace wobble::test {
namespace {

template <class T>
void expect_formula(int64_t rows, int64_t C, double tolerance) {
    std::mt19937_64 generator(1);
    std::normal_distribution<double> normal;
    std::vector<T> x(size_t(rows * C), T(0)), weight(size_t(C), T(0)), y = x;
    for (T& value : x) value = T(normal(generator));
    for (T& value : weight) value = T(normal(generator));
    Context context(1);
    launch(context, rows,
           NormForward<T, L4Norm>{.in = {.x = x.data(),
                                         .alpha = nullptr,
                                         .weight = weight.data(),
                                         .bias = nullptr,
                                         .C = C,
                                         .epsilon = Accumulator<T>(1e-5)},
                                  .y = y.data()},
           {"case"});
    for (int64_t row = 0; row < rows; ++row) {
        double fourths = 0;
        for (int64_t c = 0; c < C; ++c) fourths += std::pow(double(x[size_t(row * C + c)]), 4) / double(C);
        for (int64_t c = 0; c < C; ++c) {
            const size_t i = size_t(row * C + c);
            const double expected = double(x[i]) / std::pow(fourths + 1e-5, 0.25) * double(weight[size_t(c)]);
            EXPECT_NEAR(double(y[i]), expected, tolerance * (1 + std::abs(expected)));
        }
    }
}

TEST(L4Norm, IsItsFormula) {
    for (const auto& [rows, C] : {std::pair{1, 1}, {3, 7}, {5, 48}, {2, 200}}) {
        expect_formula<float>(rows, C, 1e-6);
        expect_formula<double>(rows, C, 1e-14);
    }
}

}  // namespace
}  // namespace wobble::test
