// The classifier on the software machine where its one pass for maximum and sum of exponentials is hard: a
// maximum that rises at every step or never, logits of -infinity in part or all of what a lane sees, and
// what is not finite at any place.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "kernels/classifier.h"
#include "kernels/run.h"
#include "model/memory.h"

namespace wobble {
namespace {

constexpr int32_t target = 3;

struct Result {
    float loss;
    std::vector<float> gradient;
};

/// In place, as the model does.
Result classified(const std::vector<float>& logits, CudaTeam team) {
    const auto V = int64_t(logits.size());
    float *z = nullptr, *loss = nullptr;
    int32_t* targets = nullptr;
    Memory memory;
    memory.plan(Device::Cuda, [&](Memory& m) {
        z = m.take<float>(V), loss = m.take<float>(1), targets = m.take<int32_t>(1);
    });
    copy_in(Device::Cuda, z, logits.data(), V);
    copy_in(Device::Cuda, targets, &target, 1);
    Context context(1);
    context.device = Device::Cuda, context.cuda_team = team;
    run_bare(context, 1,
             SoftmaxCrossEntropy<float>{
                 .logits = z, .targets = targets, .losses = loss, .dlogits = z, .V = V, .scale = 1});
    Result result{0, std::vector<float>(logits.size())};
    copy_out(Device::Cuda, &result.loss, loss, 1);
    copy_out(Device::Cuda, result.gradient.data(), z, V);
    return result;
}

/// In two passes, with numbers of a type.
template <class Real>
std::vector<double> loss_and_gradient(const std::vector<float>& logits) {
    Real maximum = -INFINITY, sum = 0;
    for (const float z : logits) maximum = std::max(maximum, Real(z));
    for (const float z : logits) sum += std::exp(Real(z) - maximum);
    std::vector<double> all{double(maximum + std::log(sum) - Real(logits[target]))};
    for (size_t v = 0; v < logits.size(); ++v)
        all.push_back(double(std::exp(Real(logits[v]) - maximum) / sum - Real(v == target)));
    return all;
}

void expect_right(const std::vector<float>& logits) {
    const std::vector<double> exact = loss_and_gradient<double>(logits),
                              rounded = loss_and_gradient<float>(logits);
    double largest = 0;  // what the loss is a difference of
    for (const float z : logits) largest = std::max(largest, std::isinf(z) ? 0 : std::fabs(double(z)));
    for (const CudaTeam team : {CudaTeam::Warp, CudaTeam::Block}) {
        SCOPED_TRACE(team == CudaTeam::Warp ? "warp" : "block");
        const Result found = classified(logits, team);
        ASSERT_TRUE(std::isfinite(exact[0]));
        for (size_t i = 0; i < exact.size(); ++i) {
            const double size = i == 0 ? std::max(1.0, largest) : std::max(0x1p-20, std::fabs(exact[i]));
            const double unit = 0x1p-22 * size, value = i == 0 ? found.loss : found.gradient[i - 1];
            EXPECT_NEAR(value, exact[i], 2 * std::max(unit, std::fabs(rounded[i] - exact[i])))
                << "number " << i;
        }
    }
}

std::vector<float> row(int64_t V, const std::function<double(int64_t)>& logit) {
    std::vector<float> logits;
    for (int64_t v = 0; v < V; ++v) logits.push_back(float(logit(v)));
    return logits;
}

// Vocabularies that packs divide and do not, longer and shorter than a block.
constexpr int64_t vocabularies[] = {67, 512, 2049, 4096};

TEST(SoftwareMachineClassifier, IsRightWhereTheMaximumRisesAtEveryStepOrNever) {
    for (const int64_t V : vocabularies) {
        SCOPED_TRACE(V);
        for (const double slope : {1.0, -1.0, 1e-3, -1e-3, 30.0, -30.0})
            expect_right(row(V, [&](int64_t v) { return slope * double(v); }));
        expect_right(row(V, [](int64_t v) { return v % 2 == 0 ? 1e4 : -1e4; }));
        expect_right(row(V, [](int64_t v) { return v % 3 == 0 ? 90 : -90; }));
        expect_right(row(V, [](int64_t) { return 3e38; }));
        expect_right(row(V, [](int64_t) { return -3e38; }));
    }
}

TEST(SoftwareMachineClassifier, TakesLogitsOfMinusInfinityForImpossibleTokens) {
    for (const int64_t V : vocabularies) {
        SCOPED_TRACE(V);
        expect_right(row(V, [](int64_t v) { return v == target ? -2 : -INFINITY; }));
        expect_right(
            row(V, [&](int64_t v) { return v == target || v == V - 1 ? double(v % 5) : -INFINITY; }));
        expect_right(row(V, [](int64_t v) { return v % 64 < 32 ? 0.5 * double(v % 7) : -INFINITY; }));
    }
}

TEST(SoftwareMachineClassifier, HidesNothingThatIsNotFinite) {
    for (const int64_t V : vocabularies) {
        SCOPED_TRACE(V);
        for (const CudaTeam team : {CudaTeam::Warp, CudaTeam::Block}) {
            for (const double bad : {double(NAN), double(INFINITY)}) {
                for (const double others : {0.0, double(-INFINITY), 1e4}) {
                    for (const int64_t place : {int64_t(0), int64_t(31), V / 2, V - 1}) {
                        const Result found =
                            classified(row(V, [&](int64_t v) { return v == place ? bad : others; }), team);
                        EXPECT_TRUE(std::isnan(found.loss)) << bad << " at " << place << " among " << others;
                    }
                }
            }
            EXPECT_TRUE(std::isnan(classified(row(V, [](int64_t) { return -INFINITY; }), team).loss));
        }
    }
}

}  // namespace
}  // namespace wobble
