// What every kernel must do, at every shape of the table in kernel_cases.h and in every precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "test/kernel_test.h"

namespace wobble::test {
namespace {

class Kernels : public KernelTest {};

// --------------------------------------------------------------------------------------------------- results

double largest_difference(const Values& a, const Values& b) {
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double difference = std::abs(a[i] - b[i]);
        if (!(difference <= largest)) largest = difference;  // NaN too
    }
    return largest;
}

// A kernel may err by twice what naive evaluation in its own precision errs (in float64 by three times: the
// reference, being float64 itself, errs once as well). Where few numbers are compared, naive evaluation may
// be exact by luck, so a random walk of as many roundings as there are on the way to one element is allowed
// on top: √n units, relative to the output's scale, and 4 for the steps that follow a sum.
TEST_P(Kernels, MatchTheFloat64Reference) {
    for (Precision precision : precisions()) {
        SCOPED_TRACE(name_of(precision));
        const bool single = precision == Precision::Float32;
        const Buffers buffers = run(kernel.operands(), precision, 1);
        const Named given = Buffers(kernel.operands(), precision).inputs(), found = buffers.values();
        const Named expected = kernel.reference(given);
        const Named naive = (single ? kernel.naive_float32 : kernel.naive_float64)(given);
        const Named exact = (single ? kernel.naive_float64 : kernel.naive_extended)(given);
        const double u = unit_roundoff(kernel.wide_outputs ? Precision::Float64 : precision);
        for (const auto& [name, values] : expected) {
            if (name[0] == '|') continue;
            ASSERT_EQ(found.at(name).size(), values.size());
            ASSERT_EQ(naive.at(name).size(), values.size());
            const Values stated = any_of(expected, {("|" + name + "|").c_str()});
            const double scale = stated.empty() ? largest_magnitude(values) : stated[0];
            const double tolerance = (single ? 2 : 3) * largest_difference(naive.at(name), exact.at(name)) +
                                     (4 + std::sqrt(double(kernel.terms))) * u * scale;
            const double error = largest_difference(found.at(name), values);
            EXPECT_LE(error, tolerance) << name << ", whose scale is " << scale;
        }
    }
}

// In bfloat16 sums are made in float32, so that what it adds to the error of float32 arithmetic is the
// rounding of each stored value, 2^-8 of it; and of what was stored on the way.
TEST_P(Kernels, MatchTheFloat64ReferenceInBfloat16) {
    if (!kernel.run_bfloat16) return;  // it has no such storage
    const Buffers buffers = run(operands(Precision::Bfloat16), Precision::Bfloat16, 1);
    const Named given = Buffers(operands(Precision::Bfloat16), Precision::Bfloat16).inputs(),
                found = buffers.values();
    const Named expected = kernel.reference(given), naive = kernel.naive_float32(given),
                exact = kernel.naive_float64(given);
    for (const auto& [name, values] : expected) {
        if (name[0] == '|') continue;
        const Values stated = any_of(expected, {("|" + name + "|").c_str()});
        const double scale = stated.empty() ? largest_magnitude(values) : stated[0];
        const double arithmetic = 2 * largest_difference(naive.at(name), exact.at(name)) +
                                  (4 + std::sqrt(double(kernel.terms))) * 0x1p-24 * scale +
                                  double(kernel.narrow_roundings - 1) * 0x1p-8 * scale;
        const auto operands = kernel.operands();
        const bool narrow = std::any_of(operands.begin(), operands.end(), [&](const Operand& o) {
            return o.name == name && o.kind == Kind::Element;
        });
        for (size_t i = 0; i < values.size(); ++i) {
            const double rounding = narrow ? 0x1p-8 * (std::abs(values[i]) + arithmetic) : 0;
            ASSERT_NEAR(found.at(name)[i], values[i], arithmetic + rounding) << name << " " << i;
        }
    }
}

TEST_P(Kernels, StayInsideTheirBuffersAndLeaveInputsAlone) {
    for (Precision precision : every_precision()) {
        EXPECT_EQ(run(operands(precision), precision, 3).damage(), "") << name_of(precision);
    }
}

TEST_P(Kernels, GiveTheSameBitsAgainAndForEveryNumberOfThreads) {
    for (Precision precision : every_precision()) {
        const auto operands = this->operands(precision);
        const Buffers first = run(operands, precision, 1);
        EXPECT_EQ(first.damage(), "") << name_of(precision);
        // On CUDA they decide nothing; blocks run in another order each time where a seed decides on it.
        const std::vector<int> counts =
            tested_device() == Device::Cuda ? std::vector{1} : std::vector{1, 2, 3, 7};
        for (int threads : counts) {
            EXPECT_EQ(run(operands, precision, threads).difference(first), "")
                << name_of(precision) << ", " << threads << " threads";
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Table, Kernels, testing::ValuesIn(every_case()), test_name);

// ------------------------------------------------------------------------------------------------- gradients

/// Some elements of n: the first, the last and others spread over it.
std::vector<int64_t> sample(const std::string& seed, int64_t n, int64_t most) {
    std::vector<int64_t> elements{0, n - 1};
    for (double i : random_indices(seed, most - 2, n)) elements.push_back(int64_t(i));
    std::sort(elements.begin(), elements.end());
    elements.erase(std::unique(elements.begin(), elements.end()), elements.end());
    return elements;
}

class BackwardKernels : public Kernels {};

// The loss is a random projection of forward's outputs: Σ dy · y, dy being what backward is given. Its
// derivative by the five-point formula at step h errs by a multiple of h⁴; at step 2h by sixteen times as
// much. So the difference of the two estimates, fifteen errors wide, bounds the truncation, whatever the
// function. Rounding adds what an output is uncertain by, (4 + √n) units of its scale as above, times the
// formula's weights 18/12 over h; h = 2^-10 balances the two. The gradient itself is uncertain by as many
// units of its own scale.
TEST_P(BackwardKernels, AgreeWithFiniteDifferencesOfForward) {
    constexpr double h = 0x1p-10;
    const KernelCase& forward = kernel_case(kernel.forward);
    std::vector<Operand> operands = forward.operands();
    const Named outputs = run_forward(forward, operands, Precision::Float64);
    std::vector<Operand> given = after_forward(kernel, outputs);
    const Named gradients = run(given, Precision::Float64, 1).values();

    // What each output of forward weighs in the loss.
    Named weights;
    for (const Operand& output : operands) {
        const Operand* upstream = find(given, "d" + output.name);
        if (output.use == Use::In) continue;
        if (upstream && upstream->use == Use::In) weights[output.name] = upstream->initial;
        else if (output.name == (find(operands, "objectives") ? "objectives" : "losses"))
            weights[output.name] = Values(size_t(output.size), kernel.loss_weight);
    }
    ASSERT_FALSE(weights.empty());

    int64_t compared = 0;
    for (Operand& input : operands) {
        if (input.use != Use::In || input.kind == Kind::Index || !gradients.count("d" + input.name)) continue;
        const Values& gradient = gradients.at("d" + input.name);
        const double own = (4 + std::sqrt(double(kernel.terms))) * 0x1p-53 * largest_magnitude(gradient);
        for (int64_t i : sample(kernel.name + input.name, input.size, 16)) {
            const double here = input.initial[i];
            std::map<int, Named> at;
            for (int steps : {-4, -2, -1, 1, 2, 4}) {
                input.initial[i] = here + steps * h;
                at[steps] = run_forward(forward, operands, Precision::Float64);
            }
            input.initial[i] = here;

            double fine = 0, coarse = 0, uncertainty = 0;
            for (const auto& [name, weight] : weights) {
                const auto y = [&](int steps, size_t j) { return at.at(steps).at(name)[j]; };
                const double unsure = (4 + std::sqrt(double(forward.terms))) * 0x1p-53 *
                                      std::max(1.0, largest_magnitude(outputs.at(name)));
                for (size_t j = 0; j < weight.size(); ++j) {
                    const double by_1 = y(1, j) - y(-1, j), by_2 = y(2, j) - y(-2, j),
                                 by_4 = y(4, j) - y(-4, j);
                    fine += weight[j] * (8 * by_1 - by_2) / (12 * h);
                    coarse += weight[j] * (8 * by_2 - by_4) / (24 * h);
                    if (by_4 != 0) uncertainty += std::abs(weight[j]) * unsure * 1.5 / h;
                }
            }
            const double tolerance = std::abs(fine - coarse) + uncertainty + own;
            ASSERT_LE(tolerance, 1e-5 * std::max(1.0, largest_magnitude(gradient)))
                << "so wide a tolerance would show nothing";
            EXPECT_NEAR(gradient[i], fine, tolerance) << "d" << input.name << ", element " << i;
            ++compared;
        }
    }
    EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(Table, BackwardKernels, testing::ValuesIn(select([](const KernelCase& c) {
                             return !c.forward.empty() && c.small && c.terms * c.terms < 1'000'000;
                         })),
                         test_name);

}  // namespace
}  // namespace wobble::test
