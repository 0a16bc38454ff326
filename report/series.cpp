#include "report/series.h"

#include <algorithm>
#include <cmath>

namespace wobble {

std::vector<size_t> kept_rows(const std::vector<const std::vector<double>*>& columns, size_t rows,
                              size_t buckets, const std::vector<size_t>& always) {
    std::vector<size_t> kept;
    if (rows <= 2 * std::max<size_t>(buckets, 1)) {
        for (size_t i = 0; i < rows; ++i) kept.push_back(i);
        return kept;
    }
    for (size_t b = 0; b < buckets; ++b) {
        const size_t begin = rows * b / buckets, end = rows * (b + 1) / buckets;
        for (const std::vector<double>* column : columns) {
            size_t least = end, most = end, gap = end;
            for (size_t i = begin; i < end; ++i) {
                const double x = (*column)[i];
                if (!std::isfinite(x)) {
                    if (gap == end) gap = i;
                    continue;
                }
                if (least == end || x < (*column)[least]) least = i;
                if (most == end || x > (*column)[most]) most = i;
            }
            for (const size_t i : {least, most, gap})
                if (i < end) kept.push_back(i);
        }
    }
    kept.push_back(0), kept.push_back(rows - 1);
    kept.insert(kept.end(), always.begin(), always.end());
    std::sort(kept.begin(), kept.end());
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
    return kept;
}

std::vector<double> at_rows(const std::vector<double>& column, const std::vector<size_t>& rows) {
    std::vector<double> values;
    values.reserve(rows.size());
    for (const size_t i : rows) values.push_back(column[i]);
    return values;
}

}  // namespace wobble
