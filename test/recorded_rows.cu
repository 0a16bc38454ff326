// Residuals, streams and columns, merged from any parts, and the rows made of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/product.h"
#include "probes/launch.h"
#include "probes/spectrum.h"

namespace wobble {
namespace {

/// A kernel that exists to be observed.
struct Watched {
    using Element = double;
    static constexpr const char* name = "watched";
    static constexpr const char* channels[] = {"output"};
    static constexpr const char* identities[2] = {"left", "right"};
};

// ------------------------------------------------------------------------------------------------ residuals

struct Residual {
    double value, scale;
};

ResidualTally tally_of(const std::vector<Residual>& rows, size_t begin = 0, size_t end = SIZE_MAX) {
    ResidualTally tally;
    for (size_t i = begin; i < std::min(end, rows.size()); ++i)
        tally.add(int64_t(i), rows[i].value, rows[i].scale);
    return tally;
}

TEST(ResidualTally, AddsUpRowsAndKnowsTheWorst) {
    const ResidualTally tally = tally_of({{1, 8}, {-3, 16}, {2, 4}, {-1, 2}, {0, 0}, {0, 1}});
    EXPECT_EQ(tally.rows, 6);
    EXPECT_EQ(tally.value, 7);
    EXPECT_EQ(tally.bias, -1);
    EXPECT_EQ(tally.scale, 31);
    EXPECT_EQ(tally.worst, 0.5);
    EXPECT_EQ(tally.worst_row, 2);  // the first of two
}

TEST(ResidualTally, OfRowsWithoutScaleHasNoShareButOfNaN) {
    const ResidualTally zeros = tally_of({{0, 0}, {0, 0}});
    EXPECT_EQ(zeros.worst, 0);
    EXPECT_EQ(zeros.worst_row, 0);
    EXPECT_EQ(tally_of({{0, 0}, {1, 0}, {1, 64}}).worst_row, 2);
    EXPECT_TRUE(std::isnan(tally_of({{1, 2}, {NAN, 0}}).worst));
}

TEST(ResidualTally, HoldsNaNForTheWorstOfAll) {
    const double inf = INFINITY;
    for (const Residual bad : {Residual{NAN, 1}, {NAN, NAN}, {NAN, inf}, {inf, inf}}) {
        for (size_t place : {size_t(0), size_t(1), size_t(3)}) {
            std::vector<Residual> rows{{1, 2}, {1, 1}, {-inf, 1}};
            rows.insert(rows.begin() + int64_t(place), bad);
            rows.push_back({NAN, 1});
            for (size_t split = 0; split <= rows.size(); ++split) {
                ResidualTally tally = tally_of(rows, 0, split);
                tally.merge(tally_of(rows, split));
                EXPECT_TRUE(std::isnan(tally.worst));
                EXPECT_EQ(tally.worst_row, int64_t(place));
                EXPECT_EQ(tally.rows, 5);
                EXPECT_TRUE(std::isnan(tally.bias));
            }
        }
    }
    const ResidualTally infinite = tally_of({{1, 2}, {-inf, 1}, {3, 1}});
    EXPECT_EQ(infinite.worst, inf);
    EXPECT_EQ(infinite.worst_row, 1);
    EXPECT_EQ(infinite.bias, -inf);
}

TEST(ResidualTally, MergedFromAnySplitIsThatOfTheWhole) {
    std::vector<Residual> rows;
    for (int i = 0; i < 40; ++i) rows.push_back({double((i * 7) % 13 - 6), double((i * 5) % 9)});
    const ResidualTally whole = tally_of(rows);
    for (size_t first = 0; first <= rows.size(); ++first) {
        for (size_t second : {first, (first + 40) / 2, size_t(40)}) {
            ResidualTally merged = tally_of(rows, 0, first);
            merged.merge(tally_of(rows, first, second));
            merged.merge(tally_of(rows, second));
            EXPECT_EQ(merged.rows, whole.rows);
            EXPECT_EQ(merged.value, whole.value);  // sums of small whole numbers
            EXPECT_EQ(merged.bias, whole.bias);
            EXPECT_EQ(merged.scale, whole.scale);
            EXPECT_EQ(merged.worst, whole.worst);
            EXPECT_EQ(merged.worst_row, whole.worst_row);
        }
    }
}

TEST(ResidualRows, AreOneForEachIdentityThatHadRows) {
    Recorder recorder{ProbePlan("full")};
    for (double micro : {1.0, 2.0}) {
        Seen<Watched> seen;
        seen.residuals[1].add(5, -micro, 4);
        recorder.record({"ln_1", 3, Phase::Backward}, std::move(seen));
    }
    ResidualTally tally;
    tally.add(0, 1, 2);
    recorder.record({"attn.qkv", 1, Phase::Backward}, "several", "a = b", tally);
    const Observation all = recorder.take();
    ASSERT_EQ(all.residuals.size(), 2u);
    const ResidualRow& row = all.residuals[0];
    EXPECT_EQ(row.site, "h.3.ln_1");
    EXPECT_EQ(row.layer, 3);
    EXPECT_EQ(row.phase, Phase::Backward);
    EXPECT_EQ(row.kernel, "watched");
    EXPECT_EQ(row.identity, "right");
    EXPECT_EQ(row.rows, 2);
    EXPECT_EQ(row.value, 3);
    EXPECT_EQ(row.bias, -3);
    EXPECT_EQ(row.scale, 8);
    EXPECT_EQ(row.worst, 0.5);
    EXPECT_EQ(row.worst_row, 5);
    EXPECT_EQ(all.residuals[1].kernel, "several");
    EXPECT_EQ(all.residuals[1].identity, "a = b");
    EXPECT_EQ(all.residuals[1].worst, 0.5);
}

// -------------------------------------------------------------------------------------------------- streams

TEST(PairTally, OfPartsAddUp) {
    PairTally a{true, 1, 2, 3}, none;
    none.merge({});
    EXPECT_FALSE(none.any);
    none.merge(a);
    a.merge({});
    for (const PairTally& t : {a, none}) {
        EXPECT_TRUE(t.any);
        EXPECT_EQ(t.dot, 1);
        EXPECT_EQ(t.squares, 2);
        EXPECT_EQ(t.beside_squares, 3);
    }
    a.merge(none);
    EXPECT_EQ(a.dot, 2);
}

/// A product of small whole numbers [m, k] · [k, n] with a bias, in which nothing is rounded, and what it
/// writes beside a residual of such numbers.
struct Branch {
    int64_t m, n, k;
    std::vector<float> a, b, bias, stream, write, y;

    Branch(int64_t rows, int64_t columns, int64_t depth) : m(rows), n(columns), k(depth) {
        const auto fill = [](std::vector<float>& x, int64_t count, int64_t factor) {
            for (int64_t i = 0; i < count; ++i) x.push_back(float(i * factor % 7 - 3));
        };
        fill(a, m * k, 3), fill(b, k * n, 5), fill(bias, n, 4), fill(stream, m * n, 2);
        y.resize(size_t(m * n));
        for (int64_t i = 0; i < m * n; ++i) {
            write.push_back(bias[size_t(i % n)]);
            for (int64_t j = 0; j < k; ++j)
                write.back() += a[size_t(i / n * k + j)] * b[size_t(j * n + i % n)];
        }
    }
    Product<float> product(const float* residual) {
        Product<float> p;
        p.a = a.data(), p.b = b.data(), p.c = y.data(), p.m = m, p.n = n, p.k = k, p.bias = bias.data();
        p.residual = residual;
        return p;
    }
};

TEST(StreamRows, TellWhatAProductWroteBesideTheStream) {
    // Within and beyond a register tile, and deeper than a block of K.
    for (const auto& [m, n, k] :
         {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {5, 40, 3}, {30, 100, 7}, {3, 33, 1100}}) {
        for (int threads : {1, 2}) {
            SCOPED_TRACE(testing::Message() << m << ", " << n << ", " << k << ", " << threads << " threads");
            Branch branch(m, n, k);
            Context context(threads);
            context.least_parallel = 0;
            Recorder recorder{ProbePlan("moments")};
            context.recorder = &recorder;
            for (int micro = 0; micro < 2; ++micro)
                launch(context, branch.product(branch.stream.data()), {"mlp.proj", 1});
            double dot = 0, squares = 0, stream_squares = 0;
            for (size_t i = 0; i < branch.write.size(); ++i) {
                const double w = branch.write[i], s = branch.stream[i];
                ASSERT_EQ(branch.y[i], w + s);
                dot += w * s, squares += w * w, stream_squares += s * s;
            }
            // Sums of 64 squares are whole numbers below 2^24 but in the deep case: there each may be
            // rounded.
            const double count = double(m * n), u = 0x1p-53 * 8 + (k > 1000 ? 64 * 0x1p-24 : 0);
            const Observation all = recorder.take();
            ASSERT_EQ(all.streams.size(), 1u);
            const StreamRow& row = all.streams[0];
            EXPECT_EQ(row.site, "h.1.mlp.proj");
            EXPECT_EQ(row.layer, 1);
            const double write_rms = std::sqrt(squares / count), rms = std::sqrt(stream_squares / count);
            EXPECT_NEAR(row.write_rms, write_rms, u * write_rms);
            EXPECT_NEAR(row.stream_rms, rms, u * rms);
            EXPECT_NEAR(row.ratio, write_rms / rms, 2 * u * write_rms / rms);
            EXPECT_NEAR(row.cosine, dot / std::sqrt(squares * stream_squares), 2 * u);
        }
    }
}

TEST(StreamRows, OfAWriteThatTakesHalfTheStreamAwayAreAnOpposite) {
    Branch branch(4, 20, 1);
    std::vector<float> twice;
    for (float w : branch.write) twice.push_back(-2 * w);
    Context context(1);
    Recorder recorder{ProbePlan("moments")};
    context.recorder = &recorder;
    launch(context, branch.product(twice.data()), {"mlp.proj", 0});
    const Observation all = recorder.take();
    ASSERT_EQ(all.streams.size(), 1u);
    EXPECT_EQ(all.streams[0].ratio, 0.5);
    EXPECT_NEAR(all.streams[0].cosine, -1, 4 * 0x1p-53);
}

TEST(StreamRows, AreMadeOfBranchesAlone) {
    Branch branch(4, 20, 3);
    Context context(1);
    Recorder recorder{ProbePlan("full")};
    context.recorder = &recorder;
    launch(context, branch.product(nullptr), {"mlp.fc", 0});
    // A residual that C already holds is not looked at.
    branch.y = branch.stream;
    launch(context, branch.product(branch.y.data()), {"mlp.proj", 0});
    EXPECT_TRUE(recorder.take().streams.empty());
}

// ------------------------------------------------------------------------------------------------- channels

/// The row of channels that these rows of columns make.
ChannelRow channels_of(const std::vector<std::vector<double>>& rows, const SampledRows* sample = nullptr) {
    Recorder recorder{ProbePlan("full")};
    Statistics s;
    s.columns = std::make_unique<Columns>();
    for (size_t r = 0; r < rows.size(); ++r) {
        s.columns->add(0, rows[r].data(), int64_t(rows[r].size()));
        for (size_t c = 0; c < rows[r].size(); ++c) s.moments.add(rows[r][c], int64_t(r), int64_t(c), 0);
    }
    if (sample) s.sample = std::make_unique<SampledRows>(*sample);
    recorder.record({"mlp.fc", 2}, "product", "output", std::move(s));
    Observation all = recorder.take();
    EXPECT_EQ(all.channels.size(), 1u);
    return all.channels.at(0);
}

TEST(ChannelRows, HaveTheKurtosisOfNeuronSizes) {
    // s² of the columns: 4, 1, 0, 25.
    const ChannelRow row = channels_of({{2, -1, 0, 7}, {-2, 1, 0, 1}});
    EXPECT_EQ(row.site, "h.2.mlp.fc");
    EXPECT_EQ(row.layer, 2);
    EXPECT_EQ(row.phase, Phase::Forward);
    EXPECT_STREQ(row.kernel, "product");
    EXPECT_STREQ(row.channel, "output");
    EXPECT_EQ(row.columns, 4);
    EXPECT_NEAR(row.kurtosis, (16 + 1 + 625) / 4.0 / (30.0 / 4 * 30 / 4), 4 * 0x1p-53 * row.kurtosis);
    EXPECT_EQ(row.dead, 0.25);
    EXPECT_EQ(row.largest, 3);
    EXPECT_EQ(row.largest_rms, 5);
    EXPECT_EQ(row.sampled_rows, 0);
    EXPECT_TRUE(std::isnan(row.effective_rank) && std::isnan(row.stable_rank));
}

TEST(ChannelRows, OfEqualChannelsHaveKurtosisOneAndOfASingleOneTheirNumber) {
    EXPECT_EQ(channels_of({{1, -1, 1, 1}, {2, 2, -2, 2}}).kurtosis, 1);
    EXPECT_EQ(channels_of({{0, 0, 3, 0}}).kurtosis, 4);
    EXPECT_EQ(channels_of({{5}}).kurtosis, 1);
    // Sizes near either end of float32, to the fourth power.
    EXPECT_NEAR(channels_of({{1e38, 1e38}}).kurtosis, 1, 4 * 0x1p-53);
    EXPECT_NEAR(channels_of({{1e-44, 1e-44}}).kurtosis, 1, 4 * 0x1p-53);
}

TEST(ChannelRows, CountChannelsBelowAFortiethOfTheAverageSizeAsDormant) {
    // Mean sizes 1, 1, 1, x: the average is (3 + x) / 4. x = 1/53 is 0.025 times that but for rounding.
    for (const auto& [x, dormant] : {std::pair(0.0, 0.25), {0.0188, 0.25}, {0.0189, 0.0}, {1.0, 0.0}})
        EXPECT_EQ(channels_of({{1, -1, 1, x}, {-1, 1, 1, -x}}).dormant, dormant) << x;
    EXPECT_EQ(channels_of({{1, -1, 1, 0.01}}).dead, 0);
}

TEST(ChannelRows, OfZerosAreAllDead) {
    const ChannelRow row = channels_of({{0, -0.0, 0}, {0, 0, 0}});
    EXPECT_EQ(row.dead, 1);
    EXPECT_EQ(row.dormant, 1);
    EXPECT_EQ(row.largest_rms, 0);
    EXPECT_TRUE(std::isnan(row.kurtosis));
}

TEST(ChannelRows, DoNotHideWhatIsNotFinite) {
    for (double bad : {double(NAN), double(INFINITY)}) {
        EXPECT_TRUE(std::isnan(channels_of({{1, bad, 2}, {1, 1, 1}}).kurtosis));
        EXPECT_TRUE(std::isnan(channels_of({{bad, 1, 2}, {1, 1, 1}}).kurtosis));
    }
}

TEST(ChannelRows, NumberTheLargestChannelOfTheModelWhereverTheColumnsBegin) {
    Recorder recorder{ProbePlan("full")};
    Statistics s;
    s.columns = std::make_unique<Columns>();
    const double values[] = {1, 3, 2};
    s.columns->add(10, values, 3);
    for (double x : values) s.moments.add(x, 0, 0, 0);
    recorder.record({"a"}, "k", "output", std::move(s));
    EXPECT_EQ(recorder.take().channels.at(0).largest, 11);
}

TEST(ChannelRows, HaveTheSpectrumOfTheSampledRows) {
    SampledRows sample{3, 2, {3, 0, 0, 4, 0, 0}};  // singular values 4 and 3
    const ChannelRow row = channels_of({{1, 2}}, &sample);
    const Spectrum expected = spectrum(sample.values.data(), 3, 2);
    EXPECT_EQ(row.sampled_rows, 3);
    EXPECT_EQ(row.effective_rank, expected.effective_rank);
    EXPECT_EQ(row.stable_rank, expected.stable_rank);
    EXPECT_NEAR(row.stable_rank, 25.0 / 16, 1e-14);
    const double p = 3.0 / 7, q = 4.0 / 7;
    EXPECT_NEAR(row.effective_rank, std::exp(-p * std::log(p) - q * std::log(q)), 1e-14);
}

TEST(ChannelRows, OfALaunchAreThoseOfItsOutput) {
    Branch branch(50, 70, 3);
    for (int threads : {1, 2}) {
        for (const char* sampled : {"", "h.?.mlp.*"}) {
            Context context(threads);
            context.least_parallel = 0;
            Recorder recorder(ProbePlan("full"), sampled);
            context.recorder = &recorder;
            launch(context, branch.product(nullptr), {"mlp.fc", 2});
            const Observation all = recorder.take();
            std::vector<std::vector<double>> rows;
            for (int64_t r = 0; r < 50; ++r)
                rows.emplace_back(&branch.y[size_t(r * 70)], &branch.y[size_t(r * 70)] + 70);
            const SampledRows sample{50, 70, branch.y};
            const ChannelRow expected = channels_of(rows, &sample);
            ASSERT_EQ(all.channels.size(), 1u);
            const ChannelRow& row = all.channels[0];
            EXPECT_EQ(row.columns, 70);
            EXPECT_EQ(row.kurtosis, expected.kurtosis);  // sums of whole numbers
            EXPECT_EQ(row.dormant, expected.dormant);
            EXPECT_EQ(row.dead, expected.dead);
            EXPECT_EQ(row.largest, expected.largest);
            EXPECT_EQ(row.largest_rms, expected.largest_rms);
            EXPECT_EQ(row.sampled_rows, *sampled ? 50 : 0);
            if (*sampled) EXPECT_EQ(row.effective_rank, expected.effective_rank);
            else EXPECT_TRUE(std::isnan(row.effective_rank));
        }
    }
}

}  // namespace
}  // namespace wobble
