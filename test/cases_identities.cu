// Kernel cases of the sums over parts of a matrix that identities are checked with.
#include <cmath>

#include "kernels/identities.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

KernelCase column_totals(int64_t rows, int64_t C) {
    KernelCase c;
    c.name = label("column_totals", "rows", rows, "C", C);
    c.terms = rows;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("x", random_values(seed + "x", rows * C)), out("totals", C, Kind::Sum)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using Kernel = ColumnTotals<E>;
        launch(context, Kernel::teams(C),
               Kernel{.x = at.get<E>("x"), .out = at.get<Accumulator<E>>("totals"), .rows = rows, .C = C},
               {"case"});
    });
    const auto sum = [=](const Named& given, auto zero) -> Named {
        return {{"totals", naive::back(naive::column_sums(naive::as<decltype(zero)>(given, {"x"}), C))}};
    };
    c.reference = [=](const Named& given) { return sum(given, double{}); };
    set_naive(c, sum);
    c.observed = {sees("output", "totals")};
    // Of a random matrix nothing cancels: the residual is the sum.
    c.identities = [=](const Named& given) -> std::vector<ObservedIdentity> {
        ObservedIdentity balance{"column_totals", "sum over rows", sum(given, double{}).at("totals"), {}, {}};
        for (int64_t column = 0; column < C; ++column) {
            double size = 0;
            for (int64_t row = 0; row < rows; ++row) size += std::abs(given.at("x")[row * C + column]);
            balance.scales.push_back(size);
            balance.uncertainties.push_back((4 + std::sqrt(double(rows))) * size);
        }
        return {balance};
    };
    return c;
}

KernelCase block_dots(int64_t down, int64_t across, int64_t height, int64_t width) {
    KernelCase c;
    const int64_t rows = down * height, C = across * width, blocks = down * across;
    c.name = label("block_dots", "rows", rows, "C", C, "height", height, "width", width);
    c.wide_outputs = true;
    c.terms = height * width;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("x", random_values(seed + "x", rows * C)),
                in("y", random_values(seed + "y", rows * C), Kind::Sum), out("dots", blocks, Kind::Wide),
                out("sizes", blocks, Kind::Wide)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context, blocks,
               BlockDots<E>{.x = at.get<E>("x"),
                            .y = at.get<Accumulator<E>>("y"),
                            .dots = at.get<double>("dots"),
                            .sizes = at.get<double>("sizes"),
                            .C = C,
                            .height = height,
                            .width = width},
               {"case"});
    });
    const auto sums = [=](const Named& given) -> Named {
        Values dots(size_t(blocks), 0.0), sizes(size_t(blocks), 0.0);
        for (int64_t i = 0; i < rows * C; ++i) {
            const size_t block = size_t(i / C / height * across + i % C / width);
            const double product = given.at("x")[i] * given.at("y")[i];
            dots[block] += product, sizes[block] += std::abs(product);
        }
        return {{"dots", dots}, {"|dots|", {largest_magnitude(sizes)}}, {"sizes", sizes}};
    };
    c.reference = sums;
    set_naive(c, [=](const Named& given, auto) { return sums(given); });
    c.observed = {sees("output", "dots")};
    c.observed[0].wide = true;
    return c;
}

}  // namespace

void add_identity_cases(std::vector<KernelCase>& table) {
    const int64_t totals[][2] = {{1, 1}, {3, 7}, {65, 48}, {17, 257}, {257, 768}};
    for (const auto& [rows, C] : totals) table.push_back(column_totals(rows, C));
    const int64_t blocks[][4] = {{1, 1, 1, 1}, {1, 6, 48, 8}, {3, 2, 5, 7}, {6, 1, 8, 48}, {2, 3, 33, 40}};
    for (const auto& [down, across, height, width] : blocks)
        table.push_back(block_dots(down, across, height, width));
}

}  // namespace wobble::test
