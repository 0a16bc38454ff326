// Learning rates against their definitions.
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include "kernels/error.h"
#include "test/reference.h"

namespace wobble {
namespace {

struct Pair {
    const char* name;
    reference::Schedule expected;
};
constexpr Pair shapes[] = {{"constant", reference::Schedule::Constant},
                           {"linear", reference::Schedule::Linear},
                           {"cosine", reference::Schedule::Cosine},
                           {"wsd", reference::Schedule::WarmupStableDecay},
                           {"inverse_sqrt", reference::Schedule::InverseSqrt}};

// Both are a handful of float64 operations; a cosine near its end is a difference of numbers of the size of
// lr.
TEST(Schedule, FollowsItsDefinitionAtEveryStep) {
    constexpr double lr = 3e-3;
    for (const Pair& shape : shapes) {
        for (int64_t steps : {1, 2, 40, 1000}) {
            for (int64_t warmup : {0, 1, 7}) {
                for (int64_t cooldown : {0, 1, 13}) {
                    for (double minimum : {0.0, 3e-4}) {
                        const Schedule schedule{.shape = schedule_shape(shape.name),
                                                .lr = lr,
                                                .minimum = minimum,
                                                .steps = steps,
                                                .warmup = warmup,
                                                .cooldown = cooldown};
                        for (int64_t step = 0; step < steps; ++step) {
                            const double expected = reference::learning_rate(
                                shape.expected, {lr, minimum, steps, warmup, cooldown}, step);
                            ASSERT_NEAR(schedule.at(step), expected, 8 * 0x1p-53 * lr)
                                << shape.name << ", step " << step << " of " << steps << ", warm-up "
                                << warmup << ", cooldown " << cooldown;
                        }
                    }
                }
            }
        }
    }
}

TEST(Schedule, WarmUpReachesTheHighestRateInItsLastStep) {
    const Schedule schedule{.shape = Shape::Cosine, .lr = 1, .steps = 100, .warmup = 4};
    EXPECT_EQ(schedule.at(0), 0.25);
    EXPECT_EQ(schedule.at(3), 1);
    EXPECT_EQ(schedule.at(4), 1);
    EXPECT_LT(schedule.at(5), 1);
}

TEST(Schedule, CooldownTakesTheLastSteps) {
    const Schedule schedule{.shape = Shape::Wsd, .lr = 1, .steps = 100, .cooldown = 16};
    EXPECT_EQ(schedule.at(83), 1);
    EXPECT_EQ(schedule.at(84), 1);
    EXPECT_EQ(schedule.at(85), 0.75) << "1 - sqrt(1/16)";
    EXPECT_EQ(schedule.at(88), 0.5);
    EXPECT_EQ(schedule.at(100), 0);
}

TEST(Schedule, StaysAtItsMinimumAfterTheEnd) {
    for (Shape shape : {Shape::Linear, Shape::Cosine, Shape::Wsd}) {
        const Schedule schedule{
            .shape = shape, .lr = 1, .minimum = 0.125, .steps = 10, .warmup = 2, .cooldown = 3};
        EXPECT_EQ(schedule.at(10), 0.125);
        EXPECT_EQ(schedule.at(1000), 0.125);
    }
}

TEST(Schedule, OfAnUnknownNameIsAUserErrorThatListsTheNames) {
    try {
        schedule_shape("cosinus");
        FAIL();
    } catch (const UserError& error) {
        const std::string message = error.what();
        EXPECT_NE(message.find("cosinus"), std::string::npos);
        for (const Pair& shape : shapes) EXPECT_NE(message.find(shape.name), std::string::npos) << shape.name;
        EXPECT_EQ(message.find('\n'), std::string::npos);
    }
}

}  // namespace
}  // namespace wobble
