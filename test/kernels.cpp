// What every kernel must do, at every shape of the table in kernel_cases.h and in both precisions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "probes/recorder.h"
#include "test/kernel_cases.h"
#include "test/tallies.h"

namespace wobble::test {
namespace {

constexpr Precision precisions[] = {Precision::Float32, Precision::Float64};

const char* name_of(Precision precision) {
    return precision == Precision::Float32 ? "float32" : "float64";
}

/// Half the distance from 1 to the next number: the largest relative error of one rounding.
double unit_roundoff(Precision precision) {
    return precision == Precision::Float32 ? 0x1p-24 : 0x1p-53;
}

class Kernels : public testing::TestWithParam<const KernelCase*> {
  protected:
    const KernelCase& kernel = *GetParam();

    /// The buffers after a run with `threads` threads.
    Buffers run(const std::vector<Operand>& operands, Precision precision, int threads,
                Recorder* recorder = nullptr) const {
        Buffers buffers(operands, precision);
        Context context(threads);
        context.least_parallel = 0;  // share out the smallest work too
        context.recorder = recorder;
        kernel.run(context, buffers, precision);
        return buffers;
    }
};

std::vector<const KernelCase*> select(bool (*wanted)(const KernelCase&)) {
    std::vector<const KernelCase*> selected;
    for (const KernelCase& c : kernel_cases())
        if (wanted(c)) selected.push_back(&c);
    return selected;
}

std::string test_name(const testing::TestParamInfo<const KernelCase*>& info) {
    std::string name = info.param->name;
    std::replace(name.begin(), name.end(), '/', '_');
    return name;
}

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
    for (Precision precision : precisions) {
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

TEST_P(Kernels, StayInsideTheirBuffersAndLeaveInputsAlone) {
    for (Precision precision : precisions) {
        EXPECT_EQ(run(kernel.operands(), precision, 3).damage(), "") << name_of(precision);
    }
}

TEST_P(Kernels, GiveTheSameBitsAgainAndForEveryNumberOfThreads) {
    for (Precision precision : precisions) {
        const auto operands = kernel.operands();
        const Buffers first = run(operands, precision, 1);
        for (int threads : {1, 2, 3, 7}) {
            EXPECT_EQ(run(operands, precision, threads).difference(first), "")
                << name_of(precision) << ", " << threads << " threads";
        }
    }
}

// ---------------------------------------------------------------------------------------------------- probes

/// The channels of a case that have values, which are the ones that must show.
struct Shown {
    std::string channel;
    Values values;
    double uncertainty;  // of each of them
};

std::vector<Shown> shown(const KernelCase& kernel, Precision precision, const Named& before,
                         const Named& after) {
    std::vector<Shown> result;
    for (const ObservedChannel& c : kernel.observed) {
        Values values = c.values(before, after);
        if (values.empty()) continue;
        double size = 0;
        for (double x : values)
            if (std::isfinite(x)) size = std::max(size, std::abs(x));
        if (c.scale) size = c.scale(before, after);
        result.push_back({c.channel, std::move(values), c.roundings * unit_roundoff(precision) * size});
    }
    return result;
}

/// What the recorder has of a run against the same statistics of the outputs, in extended precision.
///
/// A block of a few thousand values is summed in the kernel's precision, a lane for each sixteenth of them,
/// as deviations of at most 2 · largest: the k-th power sum errs by at most λ √n units of n (2 · largest)^k,
/// n being the values of a lane and λ = 4 (Higham & Mary 2019), and by some for the folds. Blocks are merged
/// in float64.
void expect_statistics(const KernelCase& kernel, Precision precision, const std::vector<Record>& records,
                       const Named& before, const Named& after) {
    const std::vector<Shown> expected = shown(kernel, precision, before, after);
    ASSERT_EQ(records.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
        const Moments& moments = records[i].moments();
        SCOPED_TRACE(std::string(records[i].kernel) + " " + records[i].channel);
        EXPECT_EQ(records[i].channel, expected[i].channel);
        EXPECT_EQ(records[i].site.substr(0, 4), "case");

        int64_t count = 0, zeros = 0, nans = 0, positive_infinities = 0, negative_infinities = 0;
        long double sum = 0, squares = 0;
        double min = INFINITY, max = -INFINITY;
        for (double x : expected[i].values) {
            nans += std::isnan(x);
            positive_infinities += x == INFINITY, negative_infinities += x == -INFINITY;
            if (!std::isfinite(x)) continue;
            ++count, zeros += x == 0;
            sum += x, squares += (long double)(x)*x;
            min = std::min(min, x), max = std::max(max, x);
        }
        const double each = expected[i].uncertainty;
        EXPECT_EQ(moments.count, count);
        EXPECT_EQ(moments.nonfinite(), nans + positive_infinities + negative_infinities);
        if (each == 0) {  // the very bits
            EXPECT_EQ(moments.nans, nans);
            EXPECT_EQ(moments.positive_infinities, positive_infinities);
            EXPECT_EQ(moments.negative_infinities, negative_infinities);
            EXPECT_EQ(moments.zeros, zeros);
        }
        if (count == 0) continue;
        const double largest = std::max(std::abs(min), std::abs(max));
        const double in_lane = double(std::min<int64_t>(count, 4096 + kernel.terms)) / 16;
        const double gamma =
            (4 * std::sqrt(in_lane) + 8) * unit_roundoff(precision) + double(count + 8) * 0x1p-53;
        EXPECT_NEAR(moments.min, min, each);
        EXPECT_NEAR(moments.max, max, each);
        EXPECT_NEAR(moments.mean, double(sum / count), each + gamma * 2 * largest);
        EXPECT_NEAR(moments.rms() * moments.rms(), double(squares / count),
                    2 * each * largest + gamma * 8 * largest * largest);
    }
}

/// One column of a matrix over its rows: what the recorder's row of columns is made of.
void expect_columns(const KernelCase& kernel, const wobble::Observation& seen, const Named& after) {
    if (kernel.matrix.empty()) {
        EXPECT_TRUE(seen.channels.empty());
        return;
    }
    ASSERT_EQ(seen.channels.size(), 1u + (kernel.name.starts_with("linear_backward") ? 1u : 0u));
    const ChannelRow& row = seen.channels[0];
    const Values& values = after.at(kernel.matrix);
    const int64_t C = kernel.columns, rows = int64_t(values.size()) / C;
    ASSERT_EQ(row.columns, C);
    EXPECT_EQ(row.channel, kernel.observed[0].channel);
    Values squares(size_t(C), 0.0), sizes(size_t(C), 0.0);
    for (size_t i = 0; i < values.size(); ++i) {
        squares[i % size_t(C)] += values[i] * values[i];
        sizes[i % size_t(C)] += std::abs(values[i]);
    }
    double seconds = 0, fourths = 0, mean = 0;
    int64_t dead = 0, dormant = 0;
    for (size_t c = 0; c < size_t(C); ++c) {
        seconds += squares[c], fourths += squares[c] * squares[c];
        mean += sizes[c] / double(C);
        dead += sizes[c] == 0;
    }
    for (double size : sizes) dormant += size <= 0.025 * mean;
    const auto largest = std::max_element(squares.begin(), squares.end());
    const double gamma = double(rows + C + 8) * 0x1p-52;
    EXPECT_NEAR(row.kurtosis, double(C) * fourths / (seconds * seconds), gamma * double(C));
    EXPECT_EQ(row.dead, double(dead) / double(C));
    EXPECT_EQ(row.dormant, double(dormant) / double(C));
    EXPECT_EQ(row.largest, largest - squares.begin());
    EXPECT_NEAR(row.largest_rms, std::sqrt(*largest / double(rows)),
                gamma * std::sqrt(*largest / double(rows)));
}

TEST_P(Kernels, GiveTheSameBitsWhenWatchedAndTheStatisticsAreThoseOfTheOutputs) {
    for (Precision precision : precisions) {
        SCOPED_TRACE(name_of(precision));
        const auto operands = kernel.operands();
        const Buffers bare = run(operands, precision, 1);
        Recorder one{ProbePlan("moments")}, three{ProbePlan("full")};
        EXPECT_EQ(run(operands, precision, 1, &one).difference(bare), "");
        EXPECT_EQ(run(operands, precision, 3, &three).difference(bare), "");
        const Named before = Buffers(operands, precision).inputs(), after = bare.values();
        expect_statistics(kernel, precision, one.records(), before, after);

        ASSERT_EQ(one.records().size(), three.records().size());
        for (size_t i = 0; i < one.records().size(); ++i) {
            const Moments &a = one.records()[i].moments(), &b = three.records()[i].moments();
            EXPECT_EQ(std::memcmp(&a, &b, sizeof a), 0)
                << one.records()[i].channel << ": statistics depend on the number of threads";
        }
        expect_columns(kernel, three.take(), after);
    }
}

TEST_P(Kernels, DoNotReportToARecorderThatLooksAway) {
    Recorder recorder{ProbePlan("off")};
    run(kernel.operands(), Precision::Float32, 1, &recorder);
    const wobble::Observation seen = recorder.take();
    EXPECT_TRUE(seen.records.empty() && seen.heads.empty() && seen.residuals.empty() && seen.streams.empty());
}

INSTANTIATE_TEST_SUITE_P(Table, Kernels, testing::ValuesIn(select([](const KernelCase&) { return true; })),
                         test_name);

// ------------------------------------------------------------------------------------------------- gradients

Operand* find(std::vector<Operand>& operands, const std::string& name) {
    for (Operand& operand : operands)
        if (operand.name == name) return &operand;
    return nullptr;
}

Named run_forward(const KernelCase& forward, const std::vector<Operand>& operands, Precision precision) {
    Buffers buffers(operands, precision);
    Context context(1);
    forward.run(context, buffers, precision);
    return buffers.values();
}

/// The backward's operands, with what forward read and kept as it is in `forward`; gradients that are added
/// to start at zero.
std::vector<Operand> after_forward(const KernelCase& backward, const Named& forward) {
    std::vector<Operand> operands = backward.operands();
    for (Operand& operand : operands) {
        if (operand.use == Use::InOut) std::fill(operand.initial.begin(), operand.initial.end(), 0.0);
        if (const auto kept = forward.find(operand.name); operand.use == Use::In && kept != forward.end())
            operand.initial = kept->second;
    }
    return operands;
}

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
        else if (output.name == "losses")
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

// ----------------------------------------------------------------------------------------------- non-finite

class SmallKernels : public Kernels {
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
        expect_tallies_show_nonfinite(kernel, recorder, given, found);
    }
};

TEST_P(SmallKernels, NeverHideNanOrInfinity) {
    for (Precision precision : precisions) {
        for (double poison :
             {std::numeric_limits<double>::quiet_NaN(), double(INFINITY), -double(INFINITY)}) {
            SCOPED_TRACE(std::string(name_of(precision)) + ", an input of " + std::to_string(poison));
            std::vector<Operand> operands = kernel.operands();
            const bool keeps = find(operands, "mean") || find(operands, "lse");
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
            std::vector<Operand> inputs = forward.operands();
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

INSTANTIATE_TEST_SUITE_P(Table, SmallKernels,
                         testing::ValuesIn(select([](const KernelCase& c) { return c.small; })), test_name);

}  // namespace
}  // namespace wobble::test
