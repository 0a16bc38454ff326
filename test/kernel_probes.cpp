// What a recorder sees of every kernel of the table in kernel_cases.h: the statistics of each channel, sums,
// residuals, heads and columns, what a wrong operand leaves in the residuals, and faults put in on purpose.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "test/kernel_test.h"
#include "test/tallies.h"

namespace wobble::test {
namespace {

class WatchedKernels : public KernelTest {};

// -------------------------------------------------------------------------------------- on common inputs
/// Values by exponent, and those that formats have no number for, against the very values.
void expect_histogram(const Histogram& found, const Values& values) {
    Histogram expected;
    for (const double x : values) {
        if (!std::isfinite(x) || x == 0) continue;
        const int bin = std::ilogb(x) - Histogram::lowest;
        ++expected.by_exponent[size_t(std::clamp(bin, 0, Histogram::bins - 1))];
        for (size_t f = 0; f < format_count; ++f) {
            expected.flushed[f] += std::abs(x) <= formats[f].smallest / 2;
            expected.overflowed[f] += std::abs(x) >= formats[f].largest;
        }
    }
    EXPECT_EQ(found.by_exponent, expected.by_exponent);
    EXPECT_EQ(found.flushed, expected.flushed);
    EXPECT_EQ(found.overflowed, expected.overflowed);
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
        long double cubes = 0, fourths = 0;
        for (double x : expected[i].values) {
            const long double d = std::isfinite(x) ? x - sum / count : 0;
            cubes += d * d * d, fourths += d * d * d * d;
        }
        const double far = 2 * largest, share = 4 * each / largest + gamma;
        if (far * far * far * far * double(count) > 1e300 || largest == 0) continue;
        EXPECT_NEAR(moments.m3 / double(count), double(cubes / count), share * far * far * far);
        EXPECT_NEAR(moments.m4 / double(count), double(fourths / count), share * far * far * far * far);
        const auto& histogram = records[i].statistics.histogram;
        if (each == 0 && histogram) expect_histogram(*histogram, expected[i].values);
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
    if (seconds == 0) {
        EXPECT_TRUE(std::isnan(row.kurtosis));
    } else {
        EXPECT_NEAR(row.kurtosis, double(C) * fourths / (seconds * seconds), gamma * double(C));
    }
    EXPECT_EQ(row.dead, double(dead) / double(C));
    EXPECT_EQ(row.dormant, double(dormant) / double(C));
    EXPECT_EQ(row.largest, largest - squares.begin());
    EXPECT_NEAR(row.largest_rms, std::sqrt(*largest / double(rows)),
                gamma * std::sqrt(*largest / double(rows)));
}

TEST_P(WatchedKernels, GiveTheSameBitsAndShowTheStatisticsOfTheirOutputs) {
    for (Precision precision : every_precision()) {
        SCOPED_TRACE(name_of(precision));
        const auto operands = this->operands(precision);
        const Buffers bare = run(operands, precision, 1);
        Recorder one{ProbePlan("moments")}, three{ProbePlan("full")};
        EXPECT_EQ(run(operands, precision, 1, &one).difference(bare), "");
        EXPECT_EQ(run(operands, precision, 3, &three).difference(bare), "");
        const Named before = Buffers(operands, precision).inputs(), after = bare.values();
        expect_statistics(kernel, precision, one.records(), before, after);
        expect_statistics(kernel, precision, three.records(), before, after);

        ASSERT_EQ(one.records().size(), three.records().size());
        for (size_t i = 0; i < one.records().size(); ++i) {
            const Moments &a = one.records()[i].moments(), &b = three.records()[i].moments();
            EXPECT_EQ(std::memcmp(&a, &b, sizeof a), 0)
                << one.records()[i].channel << ": statistics depend on the number of threads";
        }
        const WatchedRun seen(kernel, three, before, after);
        expect_tallies(kernel, seen, precision, before, after);
        expect_columns(kernel, seen.observation, after);
    }
}

TEST_P(WatchedKernels, ShowTheSameTalliesForEveryNumberOfThreads) {
    if (!kernel.sums && !kernel.identities && !kernel.heads && !kernel.pair) return;
    for (Precision precision : every_precision()) {
        const auto operands = this->operands(precision);
        const auto numbers = [&](int threads) {
            Recorder recorder{ProbePlan("full")};
            const Named before = Buffers(operands, precision).inputs();
            const Named after = run(operands, precision, threads, &recorder).values();
            const WatchedRun seen(kernel, recorder, before, after);
            Values all = seen.sums;
            const auto add = [&](std::initializer_list<double> some) { all.insert(all.end(), some); };
            for (const ResidualRow& r : seen.observation.residuals)
                add({r.value, r.bias, r.scale, r.worst, double(r.worst_row), double(r.rows)});
            for (const HeadRow& h : seen.observation.heads)
                add({h.max_logit, h.abs_logit, h.entropy, h.entropy_min, h.sink, h.ties, h.saturated});
            for (const StreamRow& s : seen.observation.streams)
                add({s.stream_rms, s.write_rms, s.ratio, s.cosine});
            return all;
        };
        const Values one = numbers(1), three = numbers(3);
        ASSERT_EQ(one.size(), three.size());
        EXPECT_TRUE(one.empty() || std::memcmp(one.data(), three.data(), one.size() * sizeof(double)) == 0)
            << name_of(precision);
    }
}

TEST_P(WatchedKernels, DoNotReportToARecorderThatLooksAway) {
    Recorder recorder{ProbePlan("off")};
    run(kernel.operands(), Precision::Float32, 1, &recorder);
    const wobble::Observation seen = recorder.take();
    EXPECT_TRUE(seen.records.empty() && seen.heads.empty() && seen.residuals.empty() && seen.streams.empty());
}

TEST_P(WatchedKernels, HaveNoResidualsWhereOnlyMomentsAreWanted) {
    Recorder recorder{ProbePlan("moments")};
    run(kernel.operands(), Precision::Float32, 1, &recorder);
    const wobble::Observation seen = recorder.take();
    EXPECT_TRUE(seen.residuals.empty() && seen.channels.empty());
    EXPECT_EQ(seen.heads.empty(), !kernel.heads) << "heads cost little: they are of every tier";
    for (const Record& record : seen.records) EXPECT_FALSE(record.statistics.histogram);
}

INSTANTIATE_TEST_SUITE_P(Table, WatchedKernels, testing::ValuesIn(every_case()), test_name);

// ---------------------------------------------------------------------------------------- broken identities
class KernelsWithIdentities : public WatchedKernels {};

// A gradient that was made of a wrong mean, output or inverse deviation is a wrong one, and shows: the
// residuals are as large as the formulas say, not as rounding would have it.
TEST_P(KernelsWithIdentities, ShowAWrongOperandInTheirResiduals) {
    for (Precision precision : every_precision()) {
        for (const std::string& name : kernel.breaks) {
            SCOPED_TRACE(std::string(name_of(precision)) + ", " + name + " off by a thousandth");
            std::vector<Operand> operands = this->operands(precision);
            for (double& x : find(operands, name)->initial) x += 1e-3 * (1 + std::abs(x));
            const Named before = Buffers(operands, precision).inputs();
            Recorder recorder{ProbePlan("full")};
            const Named after = run(operands, precision, 1, &recorder).values();
            const WatchedRun seen(kernel, recorder, before, after);
            expect_tallies(kernel, seen, precision, before, after);
            if (kernel.columns < 7) continue;  // one channel alone has no mean to be wrong about
            double share = 0;
            for (const ResidualRow& row : seen.observation.residuals)
                share = std::max(share, row.value / row.scale);
            EXPECT_GT(share, 16 * unit_roundoff(precision)) << "it could be rounding";
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Table, KernelsWithIdentities,
                         testing::ValuesIn(select([](const KernelCase& c) { return !c.breaks.empty(); })),
                         test_name);

// --------------------------------------------------------------------------------------------------- faults

/// Where a NaN is put.
struct Place {
    int64_t row, column;
};

class KernelsWithFaults : public WatchedKernels {
  protected:
    /// Some places of a channel: its first value, and the last one where it is a matrix.
    std::vector<Place> places(bool is_matrix) const {
        std::vector<Place> places{{kernel.visited_row, 0}};
        if (is_matrix && !kernel.matrix.empty()) {
            for (const Operand& operand : kernel.operands())
                if (operand.name == kernel.matrix)
                    places.push_back({operand.size / kernel.columns - 1, kernel.columns - 1});
        }
        return places;
    }
};

TEST_P(KernelsWithFaults, AreSeenFirstWhereTheFaultIs) {
    for (Precision precision : every_precision()) {
        Recorder healthy{ProbePlan("moments")};
        const auto operands = this->operands(precision);
        const Buffers bare = run(operands, precision, 1, &healthy);
        for (size_t i = 0; i < healthy.records().size(); ++i) {
            const Record& channel = healthy.records()[i];
            for (const Place fault : places(i == 0)) {
                SCOPED_TRACE(testing::Message()
                             << name_of(precision) << ", NaN in " << channel.kernel << "'s "
                             << channel.channel << " at row " << fault.row << ", column " << fault.column);
                const Injection injection{channel.site, channel.phase, channel.kernel, channel.channel,
                                          fault.row,    fault.column,  std::nan("")};
                for (const char* plan : {"moments", "full"}) {
                    Recorder recorder{ProbePlan(plan)};
                    recorder.inject(injection);
                    run(operands, precision, 3, &recorder);
                    const Record* first = recorder.first_nonfinite();
                    ASSERT_TRUE(first) << "it was not seen";
                    EXPECT_EQ(std::string(first->kernel) + " " + first->channel,
                              std::string(channel.kernel) + " " + channel.channel);
                    EXPECT_EQ(first->site, channel.site);
                    EXPECT_EQ(first->moments().nans, 1);
                    EXPECT_EQ(first->moments().first_row, fault.row);
                    EXPECT_EQ(first->moments().first_column, fault.column);
                }
                // And done where nobody looks: what only probes know of does not lie in memory.
                Recorder blind{ProbePlan("off")};
                blind.inject(injection);
                const Named found = run(operands, precision, 1, &blind).values(), before = bare.values();
                EXPECT_TRUE(blind.records().empty());
                const std::string memory = i == 0 ? kernel.matrix : "";
                if (memory.empty()) continue;
                for (size_t j = 0; j < before.at(memory).size(); ++j) {
                    if (int64_t(j) == fault.row * kernel.columns + fault.column) {
                        EXPECT_TRUE(std::isnan(found.at(memory)[j]));
                    } else {
                        ASSERT_EQ(found.at(memory)[j], before.at(memory)[j]) << j;
                    }
                }
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Table, KernelsWithFaults,
                         testing::ValuesIn(select([](const KernelCase& c) { return c.small; })), test_name);

}  // namespace
}  // namespace wobble::test
