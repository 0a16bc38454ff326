// What a recorder must have of a kernel: the channels that show, sums, residuals of identities, heads, what a
// branch wrote. Judged by float64 formulas of the test's own.
#pragma once

#include "probes/recorder.h"
#include "test/kernel_cases.h"

namespace wobble::test {

/// The channels of a case that have values, which are the ones that must show.
struct Shown {
    std::string channel;
    Values values;
    double uncertainty;  // of each of them
    bool wide;           // they are float64 in both precisions
};

std::vector<Shown> shown(const KernelCase& kernel, Precision precision, const Named& before,
                         const Named& after);

/// Everything a recorder saw of a run.
struct WatchedRun {
    wobble::Observation observation;
    Values sums;  // of the case's site, if it has any

    WatchedRun(const KernelCase& kernel, Recorder& recorder, const Named& before, const Named& after);
    const ResidualRow* find(const ObservedIdentity& identity) const;
};

/// Sums, residuals, heads and pair are those of the reference, to what rounding in units of `unit` may do.
void expect_tallies(const KernelCase& kernel, const WatchedRun& seen, Precision precision,
                    const Named& before, const Named& after);

/// Where the reference has a value that is not finite, so has the row; where its value is finite and
/// `all_finite`, so is the row's.
void expect_tallies_show_nonfinite(const KernelCase& kernel, const WatchedRun& seen, bool all_finite,
                                   const Named& before, const Named& after);

/// What an identity's rows add up to.
struct ResidualSums {
    double value = 0, bias = 0, scale = 0, worst = 0, uncertainty = 0;
};
ResidualSums add_up(const ObservedIdentity& identity);

/// The row of one head by the definitions of its columns, and how far roundings may move each, in units.
struct ExpectedHead {
    HeadRow row;
    double max_uncertainty, entropy_uncertainty, sink_uncertainty;
    bool close_to_tie, close_to_saturated;  // rounding may decide
};
ExpectedHead expected_head(const std::vector<ObservedQuery>& queries, double unit);

}  // namespace wobble::test
