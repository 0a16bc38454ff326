// Weights rounded to bfloat16 by chance.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/round.h"
#include "probes/launch.h"

namespace wobble::test {

/// The mean of many roundings of neighbouring indices is the number itself, each is one of the two beside it.
TEST(StochasticRounding, IsRightInTheMean) {
    constexpr int64_t n = 1 << 16;
    Context context(2);
    for (const float x : {1.0f + 0x1p-9f, -3.1415926f, 1e-30f, 0x1.fep-130f, 65504.0f}) {
        const std::vector<float> master(n, x);
        std::vector<bf16> weight(n);
        launch(
            context, flat_rows(n),
            RoundWeights<bf16>{.master = master.data(), .weight = weight.data(), .n = n, .stochastic = true},
            {"case"});
        const float nearest = bf16(x);
        const double step = std::ldexp(1.0, std::max(std::ilogb(x), -126) - 7);
        double sum = 0;
        for (const bf16 w : weight) {
            EXPECT_LT(std::fabs(double(w) - double(x)), step);
            sum += double(w) - double(nearest);
        }
        // Five deviations of a coin's mean.
        EXPECT_NEAR(sum / n, double(x) - double(nearest), 5 * 0.5 * step / std::sqrt(double(n))) << x;
    }
    const std::vector<float> special = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1.5f};
    std::vector<bf16> weight(special.size());
    launch(context, 1,
           RoundWeights<bf16>{.master = special.data(), .weight = weight.data(), .n = 6, .stochastic = true},
           {"case"});
    for (size_t i = 0; i < special.size(); ++i) {
        if (std::isnan(special[i])) EXPECT_TRUE(std::isnan(float(weight[i])));
        else EXPECT_EQ(float(weight[i]), special[i]);
    }
}

}  // namespace wobble::test
