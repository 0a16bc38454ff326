// The whole model: loss and gradients against the float64 reference and finite differences, micro-batches,
// the key-value cache, and the same bits whatever the threads and whoever looks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/gpt.h"
#include "optim/optimizer.h"
#include "probes/recorder.h"
#include "test/kernel_cases.h"

namespace wobble::test {
namespace {

struct Shape {
    int64_t V, T, L, H, C;  // T: the longest context
    int64_t B, length;      // of the batch

    ModelConfig config() const { return {.vocab = V, .context = T, .layers = L, .heads = H, .channels = C}; }
    std::string name() const {
        return label("model", "V", V, "T", T, "L", L, "H", H, "C", C, "B", B, "length", length);
    }
};

const Shape shapes[] = {{.V = 2, .T = 1, .L = 1, .H = 1, .C = 7, .B = 1, .length = 1},
                        {.V = 11, .T = 5, .L = 1, .H = 1, .C = 7, .B = 3, .length = 5},
                        {.V = 65, .T = 40, .L = 2, .H = 6, .C = 48, .B = 3, .length = 33},
                        {.V = 257, .T = 6, .L = 3, .H = 4, .C = 40, .B = 1, .length = 5}};

/// A reference model, a batch with some targets left out, and the model under test with the same weights.
template <class T>
struct Pair {
    Shape shape;
    reference::Gpt2 expected;
    reference::Tokens tokens, targets;
    double scale;  // 1 / targets
    Gpt<T> model;

    explicit Pair(const Shape& s)
        : shape(s), expected{s.V, s.T, s.L, s.H, s.C, {}}, model(s.config(), s.B, true) {
        expected.initialise(17, 0.2);
        for (const Parameter& p : model.table().parameters) {
            Values& values = expected.parameters.at(p.name);
            for (double& x : values) x = double(float(x));
            std::copy(values.begin(), values.end(), model.weights() + p.offset);
        }
        const int64_t rows = s.B * s.length;
        const Values in = random_indices(s.name(), rows, s.V),
                     out = random_indices(s.name() + "+1", rows, s.V);
        tokens.assign(in.begin(), in.end());
        targets.assign(out.begin(), out.end());
        for (size_t i = 2; i < targets.size(); i += 7) targets[i] = -1;
        scale = 1 / double(std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; }));
    }

    double forward(Context& context, double gradient_scale, bool accumulate = false) {
        model.forward(context, tokens.data(), targets.data(), shape.B, shape.length, gradient_scale,
                      accumulate);
        return model.loss();
    }
    Values gradient(const Parameter& p) { return reference::values(model.gradients() + p.offset, p.size); }
    /// Roundings on the longest way through the model and back: the sums of each layer one after the other.
    double roundings() const {
        const double layer = double(9 * shape.C + shape.C / shape.H + shape.length);
        return 2 * double(shape.L) * layer + double(shape.V + shape.C + shape.B * shape.length);
    }
};

double largest_difference(const Values& a, const Values& b) {
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
}

// ------------------------------------------------------------------------------------------------- reference
/// Loss and every gradient within `tolerance`, relative to the largest gradient of the tensor.
template <class T>
void expect_reference(Pair<T>& pair, double tolerance) {
    SCOPED_TRACE(pair.shape.name());
    const auto expected = pair.expected.gradient(pair.tokens, pair.targets, pair.shape.B, pair.shape.length);
    Context context(1);
    const double loss = pair.forward(context, pair.scale) * pair.scale;
    EXPECT_NEAR(loss, expected.loss, tolerance * expected.loss);
    pair.model.backward(context);
    for (const Parameter& p : pair.model.table().parameters) {
        const Values& gradient = expected.parameters.at(p.name);
        EXPECT_LE(largest_difference(pair.gradient(p), gradient), tolerance * largest_magnitude(gradient))
            << p.name;
    }
}

TEST(Model, Float64LossAndGradientsAreThoseOfTheReference) {
    for (const Shape& shape : shapes) {
        Pair<double> pair(shape);
        expect_reference(pair, 1e-10);
    }
}

// n roundings that are as good as independent err by no more than λ √n units, but for a chance of about
// 2 exp(-λ²/2) (Higham & Mary 2019); λ = 4.
TEST(Model, Float32LossAndGradientsAreThoseOfTheReference) {
    for (const Shape& shape : shapes) {
        Pair<float> pair(shape);
        expect_reference(pair, 4 * std::sqrt(pair.roundings()) * 0x1p-24);
    }
}

TEST(Model, TakesTheMemoryThatItsPlanSays) {
    ModelConfig config = shapes[0].config();
    for (const bool recompute : {false, true}) {
        config.recompute = recompute;
        for (const auto precision : {wobble::Precision::Float32, wobble::Precision::Bfloat16}) {
            for (const bool training : {false, true}) {
                size_t planned = 0;
                for (const Memory::Section& section : plan_model(config, precision, 3, training, Device::Cpu))
                    planned += section.bytes;
                EXPECT_EQ(planned, make_model(config, precision, 3, training)->bytes());
            }
        }
    }
}

// 300 rows of 70,000 logits are made 256 at a time, which does not end with a sequence.
TEST(Model, LogitsOfALargeVocabularyAreHeldSomeRowsAtATime) {
    const Shape shape{.V = 70000, .T = 150, .L = 1, .H = 1, .C = 6, .B = 2, .length = 150};
    Pair<double> exact(shape);
    EXPECT_LT(exact.model.bytes(), size_t(shape.B * shape.length * shape.V) * sizeof(double));
    expect_reference(exact, 1e-10);
    Pair<float> pair(shape);
    expect_reference(pair, 4 * std::sqrt(pair.roundings()) * 0x1p-24);

    // To those who look, rows are those of the batch, and the matrix's gradient is seen once, when it is
    // whole.
    const auto expect_row = [&](const char* site, Phase phase, const char* kernel, const char* channel) {
        Context context(1);
        Recorder recorder{ProbePlan("moments")};
        recorder.inject({site, phase, kernel, channel, 280, 5, NAN});
        context.recorder = &recorder;
        pair.forward(context, pair.scale);
        const Record* first = recorder.first_nonfinite();
        ASSERT_TRUE(first);
        EXPECT_EQ(first->site, site);
        EXPECT_EQ(std::string(first->channel), channel);
        EXPECT_EQ(first->moments().first_row, 280);
        const Moments& matrix = recorder.find({"head", -1, Phase::Backward, ".weight"}, "product")->moments();
        EXPECT_EQ(matrix.count + matrix.nonfinite(), shape.V * shape.C);
    };
    expect_row("head", Phase::Forward, "product", "output");
    expect_row("loss", Phase::Forward, "softmax_cross_entropy", "gradient");
    expect_row("head", Phase::Backward, "product", "output");
}

// The tolerance is that of the kernels' finite differences: the difference of the estimates at two steps
// bounds the truncation, and rounding of a loss of about ln V is amplified by 18/12 over h.
TEST(Model, Float64GradientAgreesWithFiniteDifferences) {
    constexpr double h = 0x1p-10;
    for (const Shape& shape : shapes) {
        SCOPED_TRACE(shape.name());
        Pair<double> pair(shape);
        Context context(1);
        const double loss = pair.forward(context, pair.scale) * pair.scale;
        pair.model.backward(context);
        const double rounding = std::sqrt(pair.roundings()) * 0x1p-53 * loss * 1.5 / h;
        for (const Parameter& p : pair.model.table().parameters) {
            const Values gradient = pair.gradient(p);
            for (double chosen : random_indices(p.name, 3, p.size)) {
                double& weight = pair.model.weights()[p.offset + int64_t(chosen)];
                const double here = weight;
                const auto difference = [&](int steps) {
                    weight = here + steps * h;
                    const double above = pair.forward(context, 0);
                    weight = here - steps * h;
                    const double below = pair.forward(context, 0);
                    weight = here;
                    return (above - below) * pair.scale;
                };
                const double by_1 = difference(1), by_2 = difference(2), by_4 = difference(4);
                const double fine = (8 * by_1 - by_2) / (12 * h), coarse = (8 * by_2 - by_4) / (24 * h);
                const double tolerance = std::abs(fine - coarse) + rounding;
                ASSERT_LE(tolerance, 1e-5) << "so wide a tolerance would show nothing";
                EXPECT_NEAR(gradient[size_t(chosen)], fine, tolerance) << p.name << ", element " << chosen;
            }
        }
    }
}

// --------------------------------------------------------------------------------------------- micro-batches
TEST(Model, GradientsOfMicroBatchesAddUpToThoseOfTheBatch) {
    for (const Shape& shape : shapes) {
        SCOPED_TRACE(shape.name());
        Pair<float> pair(shape);
        Context context(1);
        const double loss = pair.forward(context, pair.scale);
        pair.model.backward(context);
        std::vector<Values> whole;
        for (const Parameter& p : pair.model.table().parameters) whole.push_back(pair.gradient(p));

        for (int64_t b = 0; b < shape.B; ++b) {
            const int64_t first = b * shape.length;
            pair.model.forward(context, pair.tokens.data() + first, pair.targets.data() + first, 1,
                               shape.length, pair.scale, b > 0);
            pair.model.backward(context);
        }
        EXPECT_NEAR(pair.model.loss(), loss, 1e-6 * loss);
        for (size_t i = 0; i < whole.size(); ++i) {
            const Parameter& p = pair.model.table().parameters[i];
            EXPECT_LE(largest_difference(pair.gradient(p), whole[i]), 1e-6 * largest_magnitude(whole[i]))
                << p.name;
        }
    }
}

TEST(Model, GapsBetweenTensorsStayZero) {
    Pair<float> pair(shapes[1]);
    Context context(1);
    pair.forward(context, pair.scale);
    pair.model.backward(context);
    const ParameterTable& table = pair.model.table();
    int64_t gaps = 0, end = 0;
    const auto expect_zeros = [&](int64_t to) {
        for (; end < to; ++end, ++gaps) EXPECT_EQ(pair.model.gradients()[end], 0) << end;
    };
    for (const Parameter& p : table.parameters) {
        expect_zeros(p.offset);
        end = p.offset + p.size;
    }
    expect_zeros(table.buffer_size);
    EXPECT_GT(gaps, 0);
}

// ----------------------------------------------------------------------------------------------------- cache

/// log Σ e^z - z[target]
template <class T>
double loss_of(const T* z, int64_t V, int64_t target) {
    double sum = 0;
    const double largest = double(*std::max_element(z, z + V));
    for (int64_t v = 0; v < V; ++v) sum += std::exp(double(z[v]) - largest);
    return largest + std::log(sum) - double(z[target]);
}

/// Appends a sequence token by token; the loss of each possible next token at each position is that of
/// forward.
template <class T>
void expect_append_is_forward(const Shape& shape, double unit) {
    SCOPED_TRACE(shape.name());
    Pair<T> pair(shape);
    Context context(1);
    const int64_t V = shape.V, n = shape.length;
    std::vector<std::vector<T>> appended;
    for (int64_t t = 0; t < n; ++t) {
        const T* logits = pair.model.append(context, pair.tokens[size_t(t)], t);
        appended.emplace_back(logits, logits + V);
    }
    const Values expected = pair.expected.logits(pair.tokens, 1, n);
    const double scale = largest_magnitude(expected);
    const double tolerance = 4 * std::sqrt(pair.roundings()) * unit * scale;
    for (int64_t v = 0; v < V; ++v) {
        const reference::Tokens targets(static_cast<size_t>(n), static_cast<int32_t>(v));
        pair.model.forward(context, pair.tokens.data(), targets.data(), 1, n, 0);
        for (int64_t t = 0; t < n; ++t) {
            ASSERT_NEAR(double(appended[size_t(t)][size_t(v)]), expected[size_t(t * V + v)], tolerance);
            ASSERT_NEAR(double(pair.model.losses()[t]), loss_of(appended[size_t(t)].data(), V, v),
                        2 * tolerance)
                << "token " << v << " after position " << t;
        }
    }
}

TEST(Model, AppendingTokenByTokenGivesTheLogitsOfTheWholeSequence) {
    for (const Shape& shape : shapes) {
        expect_append_is_forward<float>(shape, 0x1p-24);
        expect_append_is_forward<double>(shape, 0x1p-53);
    }
}

TEST(Model, AppendingAtPositionZeroForgetsWhatWasThere) {
    Pair<float> pair(shapes[1]);
    Context context(1);
    const auto last = [&](std::initializer_list<int32_t> tokens) {
        const float* logits = nullptr;
        int64_t position = 0;
        for (int32_t token : tokens) logits = pair.model.append(context, token, position++);
        return std::vector<float>(logits, logits + shapes[1].V);
    };
    const auto fresh = last({3, 1});
    last({5, 7, 2, 2});
    EXPECT_EQ(last({3, 1}), fresh);
    EXPECT_NE(last({4, 1}), fresh);
}

// ------------------------------------------------------------------------------------------------------ bits
/// Weights and moments after two steps of two micro-batches each.
template <class T>
std::vector<T> train(int threads, Recorder* recorder) {
    Pair<T> pair(shapes[2]);
    Optimizer<T> optimizer(pair.model.table(), {});
    Context context(threads);
    context.least_parallel = 0;  // share out the smallest work too
    context.recorder = recorder;
    const int64_t n = pair.model.table().buffer_size;
    std::vector<T> result;
    for (int64_t step = 1; step <= 2; ++step) {
        for (bool accumulate : {false, true}) {
            pair.forward(context, pair.scale / 2, accumulate);
            pair.model.backward(context);
            std::rotate(pair.tokens.begin(), pair.tokens.begin() + 1, pair.tokens.end());
        }
        EXPECT_TRUE(
            optimizer
                .step(context, pair.model.weights(), pair.model.gradients(), 1e-2, step, OnNonfinite::Stop)
                .applied);
    }
    for (const T* part : {pair.model.weights(), optimizer.m(), optimizer.v()})
        result.insert(result.end(), part, part + n);
    return result;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
void expect_one_result() {
    const auto first = train<T>(1, nullptr);
    EXPECT_TRUE(same_bits(train<T>(1, nullptr), first)) << "again";
    for (int threads : {2, 3, 7})
        EXPECT_TRUE(same_bits(train<T>(threads, nullptr), first)) << threads << " threads";
    for (int threads : {1, 3}) {
        Recorder recorder{ProbePlan("full:h.1.*,moments")};
        EXPECT_TRUE(same_bits(train<T>(threads, &recorder), first)) << "watched, " << threads << " threads";
        EXPECT_FALSE(recorder.records().empty());
        for (const Record& r : recorder.records()) EXPECT_EQ(r.moments().nonfinite(), 0) << r.site;
    }
}

TEST(Model, TrainsToTheSameBitsForEveryNumberOfThreadsWatchedOrNot) {
    expect_one_result<float>();
    expect_one_result<double>();
}

}  // namespace
}  // namespace wobble::test
