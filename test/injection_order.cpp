// What an --inject says, and what it leaves open.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/bf16.h"
#include "run/injection.h"

namespace wobble {
namespace {

TEST(InjectionOrder, SaysWhatWhenAndWhere) {
    const InjectionOrder nan = parse_injection("nan@step=50,site=h.2.mlp.fc,row=3");
    EXPECT_EQ(nan.step, 50);
    EXPECT_EQ(nan.injection.site, "h.2.mlp.fc");
    EXPECT_EQ(nan.injection.row, 3);
    EXPECT_EQ(nan.injection.column, 0);
    EXPECT_TRUE(nan.any_phase);
    EXPECT_TRUE(std::isnan(nan.injection.change.of(1.0f)));

    const InjectionOrder flip = parse_injection(
        "bitflip@site=ln_f,step=2,phase=backward,bit=23,micro=1,column=7,kernel=layernorm_backward,channel="
        "output");
    EXPECT_EQ(flip.injection.phase, Phase::Backward);
    EXPECT_FALSE(flip.any_phase);
    EXPECT_EQ(flip.injection.micro, 1);
    EXPECT_EQ(flip.injection.column, 7);
    EXPECT_EQ(flip.injection.kernel, "layernorm_backward");
    EXPECT_EQ(flip.injection.channel, "output");
    EXPECT_EQ(flip.injection.change.of(1.0f), 0.5f);  // the lowest bit of the exponent

    // A factor concerns everything that is not ruled out.
    const InjectionOrder scale = parse_injection("scale=-2.5@step=1,site=head");
    EXPECT_EQ(scale.injection.row, Fault::every);
    EXPECT_EQ(scale.injection.column, Fault::every);
    EXPECT_EQ(scale.injection.change.of(2.0), -5.0);
    EXPECT_EQ(parse_injection("scale=3@step=1,site=head,row=2").injection.row, 2);
    EXPECT_EQ(parse_injection("inf@step=1,site=head").injection.change.of(0.0f), INFINITY);
    EXPECT_EQ(parse_injection("-inf@step=1,site=head").injection.change.of(0.0f), -INFINITY);
}

TEST(InjectionOrder, FlipsTheHighestBitOfTheExponentWhereNoneIsNamed) {
    const Change flip = parse_injection("bitflip@step=1,site=head").injection.change;
    EXPECT_EQ(flip.of(0.0f), 2.0f);
    EXPECT_EQ(flip.of(flip.of(0.3f)), 0.3f);
    EXPECT_GT(flip.of(0.3f), 1e37f);
    EXPECT_GT(float(bf16(flip.of(float(bf16(0.3f))))), 1e37f);
    EXPECT_EQ(Change(Change::Flip, 31).of(1.5f), -1.5f);
    EXPECT_EQ(Change(Change::Flip, 0).of(1.0f), 1.0f + std::numeric_limits<float>::epsilon());
}

TEST(Fault, HitsItsPlaceItsRowItsColumnOrAll) {
    const Fault one{1, 3, 5, 2.0}, row{1, 3, Fault::every, 2.0}, column{1, Fault::every, 5, 2.0},
        all{1, Fault::every, Fault::every, 2.0};
    for (int64_t r = 0; r < 5; ++r) {
        for (int64_t c = 0; c < 8; ++c) {
            EXPECT_EQ(one.hits(1, r, c, 1), r == 3 && c == 5);
            EXPECT_EQ(row.hits(1, r, c, 1), r == 3);
            EXPECT_EQ(column.hits(1, r, c, 1), c == 5);
            EXPECT_TRUE(all.hits(1, r, c, 1));
            EXPECT_FALSE(all.hits(0, r, c, 1));
        }
    }
    EXPECT_TRUE(one.hits(1, 3, 2, 4));   // columns 2 to 5
    EXPECT_FALSE(one.hits(1, 3, 2, 3));  // columns 2 to 4
}

}  // namespace
}  // namespace wobble
