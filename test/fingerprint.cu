// Two arrays have the same fingerprint when they have the same bits, and no other time.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "kernels/fingerprint.h"
#include "probes/launch.h"
#include "run/weight_hash.h"

namespace wobble {
namespace {

/// Written from the definition: the finaliser of MurmurHash3 of bits + index · golden ratio, as a signed
/// number, summed over rows of 4,096.
std::vector<double> expected(const std::vector<float>& x) {
    std::vector<double> rows((x.size() + 4095) / 4096);
    for (size_t i = 0; i < x.size(); ++i) {
        uint32_t h = std::bit_cast<uint32_t>(x[i]) + uint32_t(i) * 2654435769u;
        h ^= h >> 16, h *= 2246822507u, h ^= h >> 13, h *= 3266489909u, h ^= h >> 16;
        rows[i / 4096] += double(static_cast<int32_t>(h));
    }
    return rows;
}

std::vector<float> numbers(size_t n) {
    std::vector<float> x(n);
    for (size_t i = 0; i < n; ++i) x[i] = std::sin(float(i)) * 3;
    if (n > 4) x[1] = NAN, x[2] = -0.0f, x[3] = INFINITY, x[4] = 1e-42f;
    return x;
}

TEST(Fingerprint, IsWhatItsDefinitionSays) {
    for (const size_t n : {1, 7, 4095, 4096, 4097, 9000}) {
        const std::vector<float> x = numbers(n);
        for (int threads : {1, 3}) {
            Context context(threads);
            context.least_parallel = 0;
            std::vector<double> partials(static_cast<size_t>(flat_rows(int64_t(n))));
            run_bare(context, flat_rows(int64_t(n)),
                     Fingerprint{.x = x.data(), .partials = partials.data(), .n = int64_t(n)});
            EXPECT_EQ(partials, expected(x)) << n;
        }
    }
}

TEST(Fingerprint, OfWeightsFollowsEveryBitAndEveryPlace) {
    const int64_t n = 5000;
    Context context(1);
    std::vector<float> x = numbers(size_t(n));
    WeightHash hash(n, Device::Cpu);
    const auto of = [&] {
        hash.launch(context, x.data());
        return hash.value();
    };
    const uint64_t before = of();
    EXPECT_EQ(of(), before);
    for (const size_t i : {0, 1, 2, 4095, 4096, 4999}) {
        for (int bit = 0; bit < 32; ++bit) {
            const float kept = x[i];
            x[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(kept) ^ 1u << bit);
            EXPECT_NE(of(), before) << i << ", bit " << bit;
            x[i] = kept;
        }
    }
    std::swap(x[10], x[11]);
    EXPECT_NE(of(), before);
    std::swap(x[10], x[11]);
    EXPECT_EQ(of(), before);
}

TEST(Fingerprint, OfABatchFollowsEveryToken) {
    Batch batch{.inputs = {1, 2, 3, 4}, .targets = {2, 3, 4, -1}, .provenance = {}};
    const uint64_t before = hash_of(batch);
    std::swap(batch.inputs[0], batch.inputs[1]);
    EXPECT_NE(hash_of(batch), before);
    std::swap(batch.inputs[0], batch.inputs[1]);
    batch.targets[3] = 5;
    EXPECT_NE(hash_of(batch), before);
    batch.targets[3] = -1;
    EXPECT_EQ(hash_of(batch), before);
}

}  // namespace
}  // namespace wobble
