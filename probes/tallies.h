// What is kept besides the statistics of values: sums that a kernel makes itself, residuals of identities,
// what attention's queries saw. Like the statistics, the tallies of parts are merged in order.
#pragma once

#include "kernels/probe.h"

namespace wobble {

/// Residuals of one identity over the rows of a kernel.
struct ResidualTally {
    int64_t rows = 0, worst_row = -1;
    double value = 0, bias = 0, scale = 0;  // Σ |residual|, Σ residual, Σ scale
    double worst = 0;                       // largest |residual| / scale

    HD void add(int64_t row, double residual, double its_scale) {
        const double size = residual < 0 ? -residual : residual;
        ++rows, value += size, bias += residual, scale += its_scale;
        // What has no scale has nothing that could fail to cancel; a NaN is the worst of all.
        const double share = its_scale > 0 || size != size ? size / its_scale : 0;
        if (worst_row < 0 || share > worst || (share != share && worst == worst))
            worst = share, worst_row = row;
    }
    HD void merge(const ResidualTally& other) {
        if (other.rows == 0) return;
        if (rows == 0 || other.worst > worst || (other.worst != other.worst && worst == worst))
            worst = other.worst, worst_row = other.worst_row;
        rows += other.rows, value += other.value, bias += other.bias, scale += other.scale;
    }
};

/// What a branch writes, beside the stream that it is added to.
struct PairTally {
    bool any = false;
    double dot = 0, squares = 0, beside_squares = 0;  // Σ value · beside, Σ value², Σ beside²

    HD void merge(const PairTally& other) {
        any = any || other.any;
        dot += other.dot, squares += other.squares, beside_squares += other.beside_squares;
    }
};

/// The queries of one attention head.
struct HeadTally {
    int64_t queries = 0, wide = 0;  // wide: with at least two keys
    int64_t ties = 0, saturated = 0;
    double max_logit = -INFINITY, abs_logit = -INFINITY;
    double entropy = 0, entropy_min = INFINITY, sink = 0;  // Σ, min over wide, Σ

    /// `one`: the sum of exponentials at which the top probability 1 / sum still rounds to 1, in the
    /// precision in which the kernel keeps it.
    HD void add(const QueryStatistics& q, double one) {
        const double h = q.entropy();
        ++queries, entropy += h, sink += q.first / q.sum;
        max_logit = larger(max_logit, q.max_logit), abs_logit = larger(abs_logit, q.abs_logit);
        if (q.keys < 2) return;
        ++wide, ties += q.at_maximum > 1, saturated += q.sum <= one;
        if (h < entropy_min) entropy_min = h;
    }
    HD void merge(const HeadTally& o) {
        queries += o.queries, wide += o.wide, ties += o.ties, saturated += o.saturated;
        entropy += o.entropy, sink += o.sink;
        max_logit = larger(max_logit, o.max_logit), abs_logit = larger(abs_logit, o.abs_logit);
        if (o.entropy_min < entropy_min) entropy_min = o.entropy_min;
    }
};

}  // namespace wobble
