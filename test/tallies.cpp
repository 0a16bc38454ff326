#include "test/tallies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "test/kernel_test.h"

namespace wobble::test {

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
        result.push_back(
            {c.channel, std::move(values), c.roundings * unit_roundoff(precision) * size, c.wide});
    }
    return result;
}

WatchedRun::WatchedRun(const KernelCase& kernel, Recorder& recorder, const Named& before,
                       const Named& after) {
    if (const double* found = recorder.sums({"case"}); found && kernel.sums)
        sums.assign(found, found + kernel.sums(before, after).size());
    observation = recorder.take();
}

const ResidualRow* WatchedRun::find(const ObservedIdentity& identity) const {
    for (const ResidualRow& row : observation.residuals)
        if (row.kernel == identity.kernel && row.identity == identity.identity) return &row;
    return nullptr;
}

ResidualSums add_up(const ObservedIdentity& identity) {
    ResidualSums sums;
    for (size_t r = 0; r < identity.residuals.size(); ++r) {
        const double residual = identity.residuals[r], scale = identity.scales[r];
        sums.value += std::abs(residual), sums.bias += residual, sums.scale += scale;
        sums.uncertainty += identity.uncertainties[r];
        if (scale > 0) sums.worst = std::max(sums.worst, std::abs(residual) / scale);
    }
    return sums;
}

ExpectedHead expected_head(const std::vector<ObservedQuery>& queries, double unit) {
    ExpectedHead e{};
    HeadRow& row = e.row;
    row.max_logit = row.abs_logit = -INFINITY;
    row.entropy_min = INFINITY;
    double wide = 0;
    for (const ObservedQuery& query : queries) {
        const Values& s = query.logits;
        const double n = double(s.size());
        double maximum = -INFINITY, largest = 0, sum = 0;
        for (double x : s) maximum = x > maximum ? x : maximum, largest = std::max(largest, std::abs(x));
        for (double x : s) sum += std::exp(x - maximum);
        double entropy = 0, spread = 0;
        for (double x : s) {
            const double d = x - maximum, p = std::exp(d) / sum;
            if (p != 0) entropy -= p * (d - std::log(sum)), spread += p * std::abs(d) * (1 + std::abs(d));
        }
        row.max_logit = std::max(row.max_logit, maximum), row.abs_logit = std::max(row.abs_logit, largest);
        row.entropy += entropy;
        if (query.sees_first) row.sink += std::exp(s[0] - maximum) / sum;
        // dH/ds_j = -p_j (log p_j + H); what the sums lose is relative to what they are made of.
        const double sums = (8 + std::sqrt(n)) * (1 + std::log(n) + spread);
        e.max_uncertainty = std::max(e.max_uncertainty, query.uncertainty);
        e.entropy_uncertainty += 2 * (entropy + 1) * query.uncertainty + sums;
        e.sink_uncertainty += 2 * query.uncertainty + 8 + std::sqrt(n);
        if (n < 2) continue;
        ++wide;
        row.entropy_min = std::min(row.entropy_min, entropy);
        const auto ties = std::count(s.begin(), s.end(), maximum);
        const auto close = std::count_if(s.begin(), s.end(), [&](double x) {
            return x >= maximum - 2 * unit * (query.uncertainty + std::abs(maximum));
        });
        row.ties += ties > 1, e.close_to_tie |= close > ties;
        row.saturated += sum - 1 < unit / 2, e.close_to_saturated |= sum - 1 > 0 && sum - 1 < 4 * n * unit;
    }
    const double n = double(queries.size());
    row.entropy /= n, row.sink /= n, e.entropy_uncertainty /= n, e.sink_uncertainty /= n;
    if (wide == 0) row.entropy_min = row.ties = row.saturated = NAN;
    else row.ties /= wide, row.saturated /= wide;
    return e;
}

namespace {

/// NaN where NaN is expected, near otherwise.
void expect_near(double found, double expected, double tolerance, const std::string& what) {
    if (std::isnan(expected) && std::isnan(found)) return;
    EXPECT_NEAR(found, expected, tolerance) << what;
}

void expect_heads(const KernelCase& kernel, const WatchedRun& seen, double unit, const Named& before) {
    if (!kernel.heads) {
        EXPECT_TRUE(seen.observation.heads.empty());
        return;
    }
    const ObservedHeads heads = kernel.heads(before);
    ASSERT_EQ(seen.observation.heads.size(), heads.size());
    for (size_t h = 0; h < heads.size(); ++h) {
        const ExpectedHead e = expected_head(heads[h], unit);
        const HeadRow& row = seen.observation.heads[h];
        const std::string which = "head " + std::to_string(h) + "'s ";
        EXPECT_EQ(row.head, int64_t(h));
        EXPECT_EQ(row.site, "case");
        expect_near(row.max_logit, e.row.max_logit, unit * e.max_uncertainty, which + "max_logit");
        expect_near(row.abs_logit, e.row.abs_logit, unit * e.max_uncertainty, which + "abs_logit");
        expect_near(row.entropy, e.row.entropy, unit * e.entropy_uncertainty, which + "entropy");
        // One query's may be off by all of what the mean is off by together.
        expect_near(row.entropy_min, e.row.entropy_min,
                    unit * e.entropy_uncertainty * double(heads[h].size()), which + "entropy_min");
        expect_near(row.sink, e.row.sink, unit * e.sink_uncertainty, which + "sink");
        if (!e.close_to_tie) expect_near(row.ties, e.row.ties, 1e-15, which + "ties");
        if (!e.close_to_saturated) expect_near(row.saturated, e.row.saturated, 1e-15, which + "saturated");
    }
}

void expect_identities(const KernelCase& kernel, const WatchedRun& seen, double unit, const Named& before) {
    const auto identities = kernel.identities ? kernel.identities(before) : std::vector<ObservedIdentity>{};
    EXPECT_EQ(seen.observation.residuals.size(), identities.size());
    for (const ObservedIdentity& identity : identities) {
        SCOPED_TRACE(identity.kernel + ", " + identity.identity);
        const ResidualRow* row = seen.find(identity);
        ASSERT_TRUE(row);
        const ResidualSums expected = add_up(identity);
        const int64_t rows = int64_t(identity.residuals.size());
        // The reference errs too, by as many units of float64.
        const double tolerance = (unit + 0x1p-53) * expected.uncertainty;
        EXPECT_EQ(row->rows, rows);
        EXPECT_NEAR(row->value, expected.value, tolerance);
        EXPECT_NEAR(row->bias, expected.bias, tolerance);
        EXPECT_LE(std::abs(row->bias), row->value * (1 + double(rows) * 0x1p-53));
        EXPECT_NEAR(row->scale, expected.scale, tolerance + double(rows) * unit * expected.scale);
        ASSERT_GE(row->worst_row, 0);
        ASSERT_LT(row->worst_row, rows);
        double unsure = 0;  // of a row's |residual| / scale
        for (size_t r = 0; r < size_t(rows); ++r)
            if (identity.scales[r] > 0)
                unsure = std::max(unsure, (unit + 0x1p-53) * identity.uncertainties[r] / identity.scales[r]);
        EXPECT_NEAR(row->worst, expected.worst, unsure + 64 * unit * expected.worst);
        const size_t worst = size_t(row->worst_row);
        if (identity.scales[worst] > 0) {
            EXPECT_GE(std::abs(identity.residuals[worst]) / identity.scales[worst],
                      expected.worst - 2 * unsure - 64 * unit * expected.worst);
        }
    }
}

StreamRow stream_row(const ObservedPair& pair) {
    double dot = 0, squares = 0, stream_squares = 0;
    for (size_t i = 0; i < pair.write.size(); ++i) {
        dot += pair.write[i] * pair.stream[i];
        squares += pair.write[i] * pair.write[i], stream_squares += pair.stream[i] * pair.stream[i];
    }
    const double n = double(pair.write.size());
    return {.site = "case",
            .layer = -1,
            .stream_rms = std::sqrt(stream_squares / n),
            .write_rms = std::sqrt(squares / n),
            .ratio = std::sqrt(squares / stream_squares),
            .cosine = dot / std::sqrt(squares * stream_squares)};
}

}  // namespace

void expect_tallies(const KernelCase& kernel, const WatchedRun& seen, Precision precision,
                    const Named& before, const Named& after) {
    const double unit = unit_roundoff(precision);
    const auto sums = kernel.sums ? kernel.sums(before, after) : std::vector<ObservedSum>{};
    ASSERT_EQ(seen.sums.size(), sums.size());
    for (size_t i = 0; i < sums.size(); ++i) {
        // Sums are made in float64.
        const double tolerance = unit * sums[i].uncertainty + 1e-12 * std::abs(sums[i].value);
        EXPECT_NEAR(seen.sums[i], sums[i].value, tolerance) << sums[i].name;
    }
    expect_heads(kernel, seen, unit, before);
    expect_identities(kernel, seen, unit, before);
    if (!kernel.pair) {
        EXPECT_TRUE(seen.observation.streams.empty());
        return;
    }
    ASSERT_EQ(seen.observation.streams.size(), 1u);
    const StreamRow& row = seen.observation.streams[0];
    const ObservedPair pair = kernel.pair(before);
    const StreamRow expected = stream_row(pair);
    // Up to 256 values of a lane, and the lanes, are added up in the kernel's precision.
    const double sum = 272 * unit, storage = pair.stored && precision == Precision::Bfloat16 ? 0x1p-9 : 0,
                 write = (pair.roundings * unit + storage) * largest_magnitude(pair.write);
    EXPECT_NEAR(row.stream_rms, expected.stream_rms, sum * expected.stream_rms);
    EXPECT_NEAR(row.write_rms, expected.write_rms, sum * expected.write_rms + write);
    const double relative = 2 * sum + write / expected.write_rms;
    EXPECT_NEAR(row.ratio, expected.ratio, relative * expected.ratio);
    EXPECT_NEAR(row.cosine, expected.cosine, 2 * relative);
}

void expect_tallies_show_nonfinite(const KernelCase& kernel, const WatchedRun& seen, bool all_finite,
                                   const Named& before, const Named& after) {
    const auto expect = [&](double found, double reference, const std::string& what) {
        if (std::isfinite(found) == std::isfinite(reference)) return;
        if (std::isfinite(reference) && !all_finite) return;
        ADD_FAILURE() << what << " is " << found << ", must be " << reference;
    };
    if (kernel.sums) {
        const auto sums = kernel.sums(before, after);
        ASSERT_EQ(seen.sums.size(), sums.size());
        for (size_t i = 0; i < sums.size(); ++i) expect(seen.sums[i], sums[i].value, sums[i].name);
    }
    if (kernel.heads) {
        // A maximum passes over NaN, as does a count; the mean entropy and the mean of the first key do not.
        const ObservedHeads heads = kernel.heads(before);
        ASSERT_EQ(seen.observation.heads.size(), heads.size());
        for (size_t h = 0; h < heads.size(); ++h) {
            const HeadRow reference = expected_head(heads[h], 0).row, &row = seen.observation.heads[h];
            expect(row.entropy, reference.entropy, "entropy");
            expect(row.sink, reference.sink, "sink");
        }
    }
    if (kernel.identities) {
        for (const ObservedIdentity& identity : kernel.identities(before)) {
            const ResidualRow* row = seen.find(identity);
            ASSERT_TRUE(row);
            const ResidualSums reference = add_up(identity);
            EXPECT_EQ(row->rows, int64_t(identity.residuals.size()));
            expect(row->value, reference.value, identity.identity);
            expect(row->bias, reference.bias, identity.identity);
            EXPECT_TRUE(!std::isnan(reference.value) || std::isnan(row->worst)) << identity.identity;
        }
    }
    if (kernel.pair) {
        ASSERT_EQ(seen.observation.streams.size(), 1u);
        const StreamRow &row = seen.observation.streams[0], reference = stream_row(kernel.pair(before));
        expect(row.stream_rms, reference.stream_rms, "stream_rms");
        expect(row.write_rms, reference.write_rms, "write_rms");
        expect(row.ratio, reference.ratio, "ratio");
        expect(row.cosine, reference.cosine, "cosine");
    }
}

}  // namespace wobble::test
