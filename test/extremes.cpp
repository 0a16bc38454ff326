// Kernels at the edge of what numbers hold: activations far out, logits in the thousands, means that dwarf
// the spread, gradients near the largest float. Inputs that are extreme but finite give finite, right
// results.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "probes/recorder.h"
#include "test/kernel_cases.h"

namespace wobble::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double largest_float = std::numeric_limits<float>::max();
constexpr Precision precisions[] = {Precision::Float32, Precision::Float64};

double unit_roundoff(Precision precision) {
    return precision == Precision::Float32 ? 0x1p-24 : 0x1p-53;
}

/// A case of the table, run with other inputs.
class Extreme {
  public:
    Extreme(const std::string& name, Precision precision)
        : case_(kernel_case(name)), precision_(precision), operands_(case_.operands()) {}

    Values& operand(const std::string& name) {
        for (Operand& operand : operands_)
            if (operand.name == name) return operand.initial;
        throw std::logic_error("no operand " + name);
    }
    /// Cycles through `some` in an operand.
    void repeat(const std::string& name, const Values& some) {
        Values& values = operand(name);
        for (size_t i = 0; i < values.size(); ++i) values[i] = some[i % some.size()];
    }
    /// The operands' values after rounding, and after a run.
    Named given() const { return Buffers(operands_, precision_).inputs(); }
    Named expected() const { return case_.reference(given()); }
    Named run(Recorder* recorder = nullptr) const {
        Buffers buffers(operands_, precision_);
        Context context(1);
        context.recorder = recorder;
        case_.run(context, buffers, precision_);
        EXPECT_EQ(buffers.damage(), "");
        return buffers.values();
    }

  private:
    const KernelCase& case_;
    Precision precision_;
    std::vector<Operand> operands_;
};

void expect_near(const Values& found, const Values& expected, double tolerance, const char* what) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], tolerance) << what << ", element " << i;
}

// ------------------------------------------------------------------------------------------------------ GELU

// 21 values, so that each of them meets every position of a pack and the tail of a row.
const Values far_out{0.0,     1e-8,           -1e-8,         10,        -10,    88,    -88,
                     1e4,     -1e4,           largest_float, 1e-40,     -1e-40, -0.0,  9.9999,
                     -9.9999, -largest_float, infinity,      -infinity, 1e20,   -1e20, std::nan("")};

TEST(Extremes, GeluIsRightFarOutAndKeepsNan) {
    for (Precision precision : precisions) {
        Extreme gelu("activation_forward/n4097", precision);
        gelu.repeat("x", far_out);
        const Values x = gelu.given().at("x"), y = gelu.run().at("y");
        for (size_t i = 0; i < x.size(); ++i) {
            const double tolerance = 4 * unit_roundoff(precision) * std::abs(x[i]);
            if (std::isnan(x[i])) {
                ASSERT_TRUE(std::isnan(y[i])) << i;
            } else if (std::isinf(x[i])) {
                ASSERT_EQ(y[i], x[i] > 0 ? infinity : 0) << i;
            } else {
                ASSERT_NEAR(y[i], reference::gelu(x[i]), tolerance) << x[i];
            }
        }
    }
}

TEST(Extremes, GeluBackwardIsZeroOrTheIncomingGradientFarOut) {
    for (Precision precision : precisions) {
        Extreme gelu("activation_backward/n4097", precision);
        gelu.repeat("x", far_out);
        const Named given = gelu.given();
        const Values &x = given.at("x"), &dy = given.at("dy"), dx = gelu.run().at("dx");
        for (size_t i = 0; i < x.size(); ++i) {
            const double tolerance = 8 * unit_roundoff(precision) * std::abs(dy[i]);
            if (std::isnan(x[i])) {
                ASSERT_TRUE(std::isnan(dx[i])) << i;
            } else if (x[i] >= 10) {
                ASSERT_EQ(dx[i], dy[i]) << "x " << x[i];
            } else {
                ASSERT_NEAR(dx[i], dy[i] * reference::gelu_derivative(x[i]), tolerance) << "x " << x[i];
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------ classifier

// exp(z - max) errs by |z - max| units; beyond 104 it is zero in float32, beyond 745 in float64.
TEST(Extremes, ClassifierIsRightForLogitsInTheThousandsAndTheSameInPlace) {
    const Values patterns[] = {
        {90, -90, 90, 0, -90}, {1e4, -1e4, 1e4 - 1, 0}, {-1e4, -1e4 - 0.5, -1e4}, {1e30, 0}};
    for (Precision precision : precisions) {
        for (const Values& logits : patterns) {
            Extreme apart("classifier/rows15_V65", precision),
                in_place("classifier_in_place/rows15_V65", precision);
            apart.repeat("logits", logits);
            in_place.repeat("dlogits", logits);
            in_place.operand("targets") = apart.operand("targets");
            const Named found = apart.run(), expected = apart.expected(), also = in_place.run();
            EXPECT_EQ(found.at("losses"), also.at("losses"));
            EXPECT_EQ(found.at("dlogits"), also.at("dlogits"));
            const double u = unit_roundoff(precision), far = precision == Precision::Float32 ? 104 : 745;
            expect_near(found.at("losses"), expected.at("losses"),
                        (4 + std::sqrt(65.0)) * u * expected.at("|losses|")[0], "loss");
            expect_near(found.at("dlogits"), expected.at("dlogits"),
                        (4 + std::sqrt(65.0) + far) * u * expected.at("|dlogits|")[0], "gradient");
        }
    }
}

// ------------------------------------------------------------------------------------------------ layer norm

/// Norms of several widths; the float64 reference would itself lose digits that float64 kernels keep, so only
/// float32 is judged where the mean is large.
constexpr int64_t norms[][2] = {{3, 7}, {15, 48}, {17, 200}, {99, 768}};

std::string norm_case(const char* kernel, const int64_t (&shape)[2]) {
    return label(kernel, "rows", shape[0], "C", shape[1]);
}

TEST(Extremes, LayerNormKeepsItsDigitsUnderAMeanThousandsOfTimesTheSpread) {
    for (const auto& shape : norms) {
        Extreme norm(norm_case("layernorm_forward", shape), Precision::Float32);
        Values& x = norm.operand("x");
        x = random_values("shifted", int64_t(x.size()), 1, 5000);
        const Named found = norm.run(), expected = norm.expected();
        const double units = (4 + std::sqrt(double(shape[1]))) * 0x1p-24;
        expect_near(found.at("y"), expected.at("y"), units * largest_magnitude(expected.at("y")), "y");
        expect_near(found.at("rstd"), expected.at("rstd"), units * largest_magnitude(expected.at("rstd")),
                    "rstd");
        expect_near(found.at("mean"), expected.at("mean"), 2 * 0x1p-24 * 5100,
                    "mean");  // one rounding and a half
    }
}

// Backward takes the mean as forward kept it, rounded: x̂ errs by |mean| · rstd units.
TEST(Extremes, LayerNormBackwardLosesNoMoreThanTheRoundedMean) {
    for (const auto& shape : norms) {
        Extreme norm(norm_case("layernorm_backward", shape), Precision::Float32);
        Values& x = norm.operand("x");
        x = random_values("shifted", int64_t(x.size()), 1, 5000);
        const auto kept = reference::layer_norm_forward(x, {}, {}, shape[0], shape[1], 1e-5);
        norm.operand("mean") = kept.mean, norm.operand("rstd") = kept.rstd;
        const Named found = norm.run(), expected = norm.expected();
        const double rstd = largest_magnitude(kept.rstd);
        const double units = (4 + std::sqrt(double(shape[1])) + 5000 * rstd) * 0x1p-24;
        expect_near(found.at("dx"), expected.at("dx"), units * expected.at("|dx|")[0], "dx");
        expect_near(found.at("dweight"), expected.at("dweight"),
                    units * double(shape[0]) * expected.at("|dweight|")[0], "dweight");
    }
}

TEST(Extremes, LayerNormOfAConstantRowIsItsBias) {
    for (Precision precision : precisions) {
        for (const auto& shape : norms) {
            for (double value : {0.0, 0.1, -3.0, 1000.0}) {
                Extreme norm(norm_case("layernorm_forward", shape), precision);
                norm.repeat("x", {value});
                const Named given = norm.given(), found = norm.run();
                const double u = unit_roundoff(precision), limit = 1 / std::sqrt(1e-5);
                for (double rstd : found.at("rstd")) ASSERT_NEAR(rstd, limit, 4 * u * limit) << value;
                // What is left of a constant after two means are taken out: C units of a unit of it.
                const double left = double(shape[1]) * u * u * std::abs(value) * limit;
                for (size_t i = 0; i < found.at("y").size(); ++i)
                    ASSERT_NEAR(found.at("y")[i], given.at("bias")[i % size_t(shape[1])], 2 * left + u)
                        << value;
            }
        }
    }
}

TEST(Extremes, LayerNormIsRightForHugeAndTinyValues) {
    for (Precision precision : precisions) {
        for (const auto& shape : norms) {
            for (double size : {1e18, 1e-3, 1e-18, 1e-38}) {
                SCOPED_TRACE(norm_case("", shape) + " of " + std::to_string(size));
                Extreme norm(norm_case("layernorm_forward", shape), precision);
                Values& x = norm.operand("x");
                x = random_values("sized", int64_t(x.size()), size);
                const Named found = norm.run(), expected = norm.expected();
                const double units = (4 + std::sqrt(double(shape[1]))) * unit_roundoff(precision);
                expect_near(found.at("y"), expected.at("y"), units * largest_magnitude(expected.at("y")),
                            "y");
                expect_near(found.at("rstd"), expected.at("rstd"),
                            units * largest_magnitude(expected.at("rstd")), "rstd");
            }
        }
    }
}

TEST(Extremes, LayerNormHasNoKurtosisOfAConstantRow) {
    for (Precision precision : precisions) {
        for (const auto& shape : norms) {
            for (double value : {0.0, 0.1, -3.0, 1000.0, 1e18}) {
                Extreme norm(norm_case("layernorm_forward", shape), precision);
                norm.repeat("x", {value});
                Recorder recorder{ProbePlan("moments")};
                norm.run(&recorder);
                for (const Record& record : recorder.records())
                    EXPECT_STRNE(record.channel, "kurtosis") << value << ", " << record.moments().mean;
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------- RMS norm
TEST(Extremes, RMSNormIsRightForHugeAndTinyValues) {
    for (Precision precision : precisions) {
        for (const auto& shape : norms) {
            for (double size : {1e18, 1e-3, 1e-18, 1e-38}) {
                SCOPED_TRACE(norm_case("", shape) + " of " + testing::PrintToString(size));
                Extreme norm(norm_case("rmsnorm_forward", shape), precision);
                Values& x = norm.operand("x");
                x = random_values("sized", int64_t(x.size()), size);
                const Named found = norm.run(), expected = norm.expected();
                const double units = (4 + std::sqrt(double(shape[1]))) * unit_roundoff(precision);
                // Below the normal numbers a unit is that of the smallest of them.
                const double least = precision == Precision::Float32 ? 0x1p-149 : 0;
                expect_near(found.at("y"), expected.at("y"),
                            units * largest_magnitude(expected.at("y")) + least, "y");
                expect_near(found.at("rstd"), expected.at("rstd"),
                            units * largest_magnitude(expected.at("rstd")), "rstd");
            }
        }
    }
}

TEST(Extremes, RMSNormOfZerosIsZeroAndItsBackwardFinite) {
    for (Precision precision : precisions) {
        for (const auto& shape : norms) {
            Extreme forward(norm_case("rmsnorm_forward", shape), precision);
            forward.repeat("x", {0, -0.0});
            const double limit = 1 / std::sqrt(1e-5), u = unit_roundoff(precision);
            const Named found = forward.run();
            for (double y : found.at("y")) ASSERT_EQ(y, 0);
            for (double rstd : found.at("rstd")) ASSERT_NEAR(rstd, limit, 4 * u * limit);

            Extreme backward(norm_case("rmsnorm_backward", shape), precision);
            backward.repeat("x", {0, -0.0});
            backward.operand("rstd") = found.at("rstd");
            Recorder recorder{ProbePlan("full")};
            const Named gradients = backward.run(&recorder), expected = backward.expected();
            expect_near(gradients.at("dx"), expected.at("dx"), 8 * u * expected.at("|dx|")[0], "dx");
            const ResidualRow row = recorder.take().residuals.at(0);
            EXPECT_EQ(row.value, 0);
            EXPECT_EQ(row.worst, 0) << "nothing was to cancel";
        }
    }
}

// ------------------------------------------------------------------------------------------------- attention

// Scores are exact here: q and k are integers and √D is a power of two. So probabilities must be as good as
// ever forward; backward has them from a log-sum-exp that was rounded at the size of the scores.
TEST(Extremes, AttentionIsRightForScoresOfTensOfThousands) {
    for (Precision precision : precisions) {
        for (const char* text : {"", "_blocks"}) {
            const std::pair<const char*, int64_t> shapes[] = {{"/B1_T5_H12_D64", 128},
                                                              {"/B3_T203_H1_D1", 101}};
            for (const auto& [shape, below] : shapes) {
                Extreme forward("attention_forward" + std::string(text) + shape, precision);
                Values& qkv = forward.operand("qkv");
                const Values integers = random_indices("scores", int64_t(qkv.size()), 2 * below - 1);
                for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = integers[i] - double(below - 1);
                const Named found = forward.run(), expected = forward.expected();
                const double largest = largest_magnitude(expected.at("lse")), u = unit_roundoff(precision);
                EXPECT_GT(largest, 9e3);
                const double units = (4 + std::sqrt(203.0) + 104) * u;  // 104: see the classifier
                expect_near(found.at("out"), expected.at("out"), units * double(below), "out");
                expect_near(found.at("lse"), expected.at("lse"), 4 * u * largest, "lse");

                Extreme backward("attention_backward" + std::string(text) + shape, precision);
                backward.operand("qkv") = qkv;
                backward.operand("out") = expected.at("out"), backward.operand("lse") = expected.at("lse");
                const Values dqkv = backward.expected().at("dqkv");
                expect_near(backward.run().at("dqkv"), dqkv,
                            (units + 4 * u * largest) * largest_magnitude(dqkv), "dqkv");
            }
        }
    }
}

// --------------------------------------------------------------------------------------------- sums, updates
TEST(Extremes, SquaredSumNeitherOverflowsNorVanishesNearTheLimitsOfFloat) {
    for (Precision precision : precisions) {
        for (double size : {largest_float, 1e20, 1e-20, 1e-40}) {
            Extreme squares("squared_sum/n4097", precision);
            squares.repeat("x", {size, -size});
            const double square = squares.given().at("x")[0] * squares.given().at("x")[0];
            const Values partials = squares.run().at("partials");
            EXPECT_NEAR(partials[0], 4096 * square, 4096 * 0x1p-53 * 4096 * square);
            EXPECT_EQ(partials[1], square);
        }
    }
}

/// A sum of AdamW's by its place among them.
enum Sum { Gg, Gm, Mm, Wg, Ww, Ratio, BelowEpsilon, Updated };

TEST(Extremes, AdamWWithoutAnyGradientOnlyDecays) {
    for (Precision precision : precisions) {
        Extreme adamw("adamw/n4097_step1", precision);
        adamw.repeat("gradient", {0});
        Recorder recorder{ProbePlan("moments")};
        const Named given = adamw.given(), found = adamw.run(&recorder);
        const double* sums = recorder.sums({"case"});
        for (int which : {Gg, Gm, Mm, Wg, Ratio}) EXPECT_EQ(sums[which], 0) << "0 / 0 is none of g² / v̂";
        EXPECT_EQ(sums[BelowEpsilon], 4097);
        EXPECT_EQ(sums[Updated], 4097);
        for (size_t i = 0; i < found.at("weight").size(); ++i) {
            const double before = given.at("weight")[i];
            ASSERT_NEAR(found.at("weight")[i], before * (1 - 1e-2 * 0.1),
                        2 * unit_roundoff(precision) * std::abs(before));
            ASSERT_EQ(found.at("m")[i], 0);
            ASSERT_EQ(found.at("v")[i], 0);
        }
    }
}

// Gradients a thousand times below ε, whose squares are below any float32: the update is theirs over ε.
TEST(Extremes, AdamWKnowsWhereEpsilonDominates) {
    for (Precision precision : precisions) {
        Extreme adamw("adamw/n4097_step1", precision);
        adamw.repeat("gradient", {1e-11, -1e-11});
        for (size_t i = 0; i < 97; ++i) adamw.operand("gradient")[i] = 1;
        Recorder recorder{ProbePlan("moments")};
        adamw.run(&recorder);
        const double* sums = recorder.sums({"case"});
        EXPECT_EQ(sums[BelowEpsilon], 4000);
        // g / sqrt(v̂) is 1 at the first step.
        EXPECT_NEAR(sums[Ratio], 97 + 4000 * 1e-6, 97 * 80 * unit_roundoff(precision));
    }
}

// 1e18: its square still fits float32; the first update is lr · sign(g) whatever the size, as long as it
// dwarfs ε.
TEST(Extremes, AdamWStepsByTheLearningRateForHugeGradients) {
    for (Precision precision : precisions) {
        Extreme adamw("adamw/n4097_step1", precision);
        adamw.repeat("gradient", {1e18, -1e18, 1e-2});
        const Named found = adamw.run(), expected = adamw.expected();
        expect_near(found.at("weight"), expected.at("weight"),
                    16 * unit_roundoff(precision) * largest_magnitude(expected.at("weight")), "weight");
    }
}

}  // namespace
}  // namespace wobble::test
