// Fewer points that look the same: of a long series those are kept that its picture shows. A chart draws the
// lowest and the highest value in each column of pixels, so these are what a bucket of steps keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace wobble {

/// Which rows to keep of columns that share their rows, ascending. Rows are cut into `buckets` equal ones.
/// Each keeps, for every column, the row of the smallest and of the largest finite value, and the first row
/// that is not finite, so that a gap stays a gap. The first row, the last one and those of `always`
/// (ascending or not, each less than the number of rows) are kept too. All rows are kept where there are at
/// most two a bucket.
std::vector<size_t> kept_rows(const std::vector<const std::vector<double>*>& columns, size_t rows,
                              size_t buckets, const std::vector<size_t>& always = {});

/// The values at these rows.
std::vector<double> at_rows(const std::vector<double>& column, const std::vector<size_t>& rows);

}  // namespace wobble
