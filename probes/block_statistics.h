// Statistics of values that come in blocks: one pass over a few kilobytes in the first-level cache.
#pragma once

#include <limits>
#include <utility>

#include "kernels/team.h"
#include "probes/statistics.h"

namespace wobble {

/// Values in memory: `rows` rows of `columns` values, `stride` apart, that stand at `row`, `column` of what
/// is observed.
template <class T>
struct Region {
    const T* p;
    int64_t stride, row, column, rows, columns;
};

/// Moments of values that come in blocks of some thousands; more are cut up.
///
/// Power sums are taken about a shift near the mean, in units of a power of two near the largest value, so
/// that neither a mean of a thousand spreads cancels nor a fourth power overflows or vanishes. Shift and unit
/// come from the first block and serve as long as they suit the ones that follow, so a block costs one pass.
/// Within a block the sums are made in T, a lane for each sixteenth element; across blocks in float64.
template <class T>
class RunningMoments {
  public:
    /// Adds the values of some regions, one block. When one of them is not finite they are gone through one
    /// by one.
    void add(const Region<T>* regions, int count);

    /// Everything that was added, merged into `moments`.
    void finish(Moments& moments) {
        settle();
        moments.merge(settled_);
        settled_ = {};
    }

  private:
    static constexpr int width = Lane::width;
    static constexpr int64_t most_in_a_block = 4096;  // values

    void add_block(const Region<T>* regions, int count);
    void guess_shift(const Region<T>& region);
    bool choose_shift(const Region<T>* regions, int count);
    bool pass(const Region<T>* regions, int count, bool any_shift);
    /// Moves what stands in power sums to `settled_`.
    void settle();

    Moments settled_;
    bool has_shift_ = false;
    T per_unit_ = 1, shift_ = 0;  // a deviation is x · per_unit + shift
    int exponent_ = 0;            // a unit is 2^exponent
    T suits_up_to_ = 0;           // the largest magnitude that the unit is fit for

    // The power sums.
    int64_t count_ = 0, zeros_ = 0, subnormals_ = 0;
    Pack<double, width> sums_[4] = {};
    double tails_[4] = {};
    T min_ = std::numeric_limits<T>::infinity(), max_ = -std::numeric_limits<T>::infinity();
};

/// Adds the values of a block to `moments`, as above.
template <class T>
void add_block(const Region<T>& block, Moments& moments) {
    RunningMoments<T> running;
    running.add(&block, 1);
    running.finish(moments);
}

/// Adds n values to a histogram.
void add_block(const float* values, int n, Histogram& histogram);
void add_block(const double* values, int n, Histogram& histogram);

extern template class RunningMoments<float>;
extern template class RunningMoments<double>;

}  // namespace wobble
