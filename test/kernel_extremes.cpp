// What a recorder sees of kernels whose inputs are not finite, zero, tiny or huge: nothing is hidden, and
// nothing is made up.
#include <algorithm>
#include <cmath>
#include <limits>

#include "test/kernel_test.h"
#include "test/tallies.h"

namespace wobble::test {
namespace {

class SmallKernels : public KernelTest {
  protected:
    /// Wherever the reference is not finite the kernel's output is not either (of NaN and infinity the two
    /// may have different ones: ∞ - ∞ depends on the order of a sum), and the recorder counts what is there.
    void expect_nothing_hidden(const std::vector<Operand>& operands, Precision precision) const {
        const Named given = Buffers(operands, precision).inputs();
        Recorder recorder{ProbePlan("full")};
        const Named found = run(operands, precision, 1, &recorder).values();
        for (const auto& [name, expected] : kernel.reference(given)) {
            if (name[0] == '|') continue;
            for (size_t i = 0; i < expected.size(); ++i) {
                const double x = found.at(name)[i];
                ASSERT_TRUE(std::isfinite(expected[i]) || !std::isfinite(x))
                    << name << " " << i << " is " << x << ", must be " << expected[i];
            }
        }
        const std::vector<Shown> expected = shown(kernel, precision, given, found);
        ASSERT_EQ(recorder.records().size(), expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
            const Values& seen = expected[i].values;
            EXPECT_EQ(recorder.records()[i].moments().nonfinite(),
                      std::count_if(seen.begin(), seen.end(), [](double x) { return !std::isfinite(x); }))
                << recorder.records()[i].channel;
        }
        const WatchedRun seen(kernel, recorder, given, found);
        expect_tallies_show_nonfinite(kernel, seen, false, given, found);
    }

    /// The case's operands with each floating-point input made by `make(its values)`; for a backward, what
    /// forward kept is made of such inputs.
    template <class F>
    std::vector<Operand> laden(Precision precision, F make) const {
        const auto change = [&](std::vector<Operand>& operands, bool gradients_only) {
            for (Operand& operand : operands) {
                if (operand.use == Use::Out || operand.kind == Kind::Index) continue;
                if (gradients_only && operand.name[0] != 'd') continue;
                Values& x = operand.initial;
                x = make(x);
                if (operand.name == "v")  // a mean of squares
                    for (double& value : x) value = std::abs(value);
            }
        };
        std::vector<Operand> operands;
        if (kernel.forward.empty() || kernel.forward == kernel.name) {
            operands = this->operands(precision);
            change(operands, !kernel.breaks.empty());
        } else {
            std::vector<Operand> inputs = operands_of(kernel_case(kernel.forward), precision);
            change(inputs, false);
            operands = after_forward(kernel, run_forward(kernel_case(kernel.forward), inputs, precision));
            change(operands, true);
        }
        return operands;
    }

    void expect_right(const std::vector<Operand>& operands, Precision precision) const {
        const Buffers bare = run(operands, precision, 1);
        EXPECT_EQ(bare.damage(), "");
        Recorder recorder{ProbePlan("full")};
        EXPECT_EQ(run(operands, precision, 3, &recorder).difference(bare), "");
        const Named before = Buffers(operands, precision).inputs(), after = bare.values();
        const std::vector<Shown> expected = shown(kernel, precision, before, after);
        ASSERT_EQ(recorder.records().size(), expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
            const Moments& moments = recorder.records()[i].moments();
            SCOPED_TRACE(expected[i].channel);
            EXPECT_EQ(moments.count, int64_t(expected[i].values.size()));
            EXPECT_EQ(moments.nonfinite(), 0);
            if (expected[i].uncertainty != 0) continue;
            int64_t zeros = 0, subnormals = 0;
            const bool single = precision != Precision::Float64 && !expected[i].wide;
            const double normal =
                single ? double(std::numeric_limits<float>::min()) : std::numeric_limits<double>::min();
            for (double x : expected[i].values) zeros += x == 0, subnormals += x != 0 && std::abs(x) < normal;
            EXPECT_EQ(moments.zeros, zeros);
            EXPECT_EQ(moments.subnormals, subnormals);
        }
        const WatchedRun seen(kernel, recorder, before, after);
        expect_tallies_show_nonfinite(kernel, seen, true, before, after);
    }
};

TEST_P(SmallKernels, NeverHideNanOrInfinity) {
    for (Precision precision : every_precision()) {
        for (double poison :
             {std::numeric_limits<double>::quiet_NaN(), double(INFINITY), -double(INFINITY)}) {
            SCOPED_TRACE(std::string(name_of(precision)) + ", an input of " + std::to_string(poison));
            std::vector<Operand> operands = this->operands(precision);
            const bool keeps = find(operands, "rstd") || find(operands, "lse");
            for (Operand& operand : operands) {
                const bool gradient = operand.name[0] == 'd';
                // What statistics were made of is poisoned below, where forward makes them again.
                if (operand.use == Use::Out || operand.kind == Kind::Index || (keeps && !gradient)) continue;
                SCOPED_TRACE(operand.name);
                double& element = operand.initial[size_t(operand.size / 2)];
                std::swap(element, poison);
                expect_nothing_hidden(operands, precision);
                std::swap(element, poison);
            }
            if (kernel.forward.empty()) continue;
            const KernelCase& forward = kernel_case(kernel.forward);
            std::vector<Operand> inputs = operands_of(forward, precision);
            for (Operand& operand : inputs) {
                if (operand.use != Use::In || operand.kind == Kind::Index) continue;
                SCOPED_TRACE("forward's " + operand.name);
                double& element = operand.initial[size_t(operand.size / 2)];
                std::swap(element, poison);
                expect_nothing_hidden(after_forward(kernel, run_forward(forward, inputs, precision)),
                                      precision);
                std::swap(element, poison);
            }
        }
    }
}

// Their coordinates in a kernel's calls of its probe are those of the matrix in memory.
TEST_P(SmallKernels, KeepTheRowsThatAreSampled) {
    // Attention's backward is two kernels by rows, each of which writes some columns.
    if (kernel.matrix.empty() || kernel.name.starts_with("attention_backward")) return;
    for (Precision precision : every_precision()) {
        const auto operands = this->operands(precision);
        Recorder recorder{ProbePlan("full"), "*"};
        const Values matrix = run(operands, precision, 3, &recorder).values().at(kernel.matrix);
        const auto first = std::find_if(recorder.records().begin(), recorder.records().end(),
                                        [](const Record& r) { return r.phase == Phase::Forward; });
        ASSERT_NE(first, recorder.records().end());
        if (first != recorder.records().begin()) continue;  // the matrix is of another phase
        const SampledRows* sample = first->statistics.sample.get();
        ASSERT_TRUE(sample);
        const int64_t C = kernel.columns, rows = int64_t(matrix.size()) / C, step = (rows + 127) / 128;
        ASSERT_EQ(sample->columns, C);
        ASSERT_EQ(sample->rows, (rows + step - 1) / step);
        for (int64_t row = 0; row < sample->rows; ++row)
            for (int64_t c = 0; c < C; ++c)
                ASSERT_EQ(sample->values[size_t(row * C + c)], float(matrix[size_t(row * step * C + c)]));
    }
}

// Nothing here overflows, so nothing may be other than finite.
TEST_P(SmallKernels, AreRightForZerosTinyAndHugeInputs) {
    const auto scaled = [](double factor) {
        return [=](Values x) {
            for (double& value : x) value *= factor;
            return x;
        };
    };
    const auto with_negative_zeros = [](Values x) {
        for (size_t i = 0; i < x.size(); i += 2) x[i] = -0.0;
        return x;
    };
    for (Precision precision : every_precision()) {
        SCOPED_TRACE(name_of(precision));
        // Logits that are larger still would be known to less than 1, and probabilities not at all.
        const double huge = kernel.name.starts_with("attention") ? 1e3 : 1e9;
        for (double factor : {0.0, -0.0, 1e-40, 1e-30, 1e-15, huge}) {
            SCOPED_TRACE("times " + testing::PrintToString(factor));
            expect_right(laden(precision, scaled(factor)), precision);
        }
        expect_right(laden(precision, with_negative_zeros), precision);
    }
}

INSTANTIATE_TEST_SUITE_P(Table, SmallKernels,
                         testing::ValuesIn(select([](const KernelCase& c) { return c.small; })), test_name);

}  // namespace
}  // namespace wobble::test
