// Kernel cases of the rotary position embedding, and what its tables hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/rotary.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

/// Rows of `heads` heads that turn and one that does not, B sequences of T positions from `first` on.
struct Turns {
    int64_t B, T, heads, D, R, first;
    int64_t rows() const { return B * T; }
    int64_t stride() const { return (heads + 1) * D; }
    int64_t context() const { return first + T; }
};

/// y is x, turned pair by pair.
template <class T>
std::vector<T> turned(const std::vector<T>& x, const std::vector<T>& cosine, const std::vector<T>& sine,
                      const Turns& s, bool inverse) {
    std::vector<T> y = x;
    for (int64_t row = 0; row < s.rows(); ++row) {
        for (int64_t h = 0; h < s.heads; ++h) {
            for (int64_t i = 0; i < s.R / 2; ++i) {
                const int64_t a = row * s.stride() + h * s.D + i, b = a + s.R / 2;
                const int64_t angle = (s.first + row % s.T) * (s.R / 2) + i;
                const T sin = inverse ? -sine[angle] : sine[angle];
                y[a] = x[a] * cosine[angle] - x[b] * sin;
                y[b] = x[b] * cosine[angle] + x[a] * sin;
            }
        }
    }
    return y;
}

KernelCase rotary(const Turns& s, bool backward) {
    KernelCase c;
    const auto named = [&](const char* kernel) {
        return label(kernel, "B", s.B, "T", s.T, "H", s.heads, "D", s.D, "R", s.R, "first", s.first);
    };
    c.name = named(backward ? "rotary_backward" : "rotary");
    if (backward) c.forward = named("rotary");
    const char* from = backward ? "dy" : "x";
    const char* to = backward ? "dx" : "y";
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        Values cosine(size_t(s.context() * s.R / 2)), sine = cosine;
        fill_rotary(cosine.data(), sine.data(), s.context(), s.R, 10000);
        return {in(from, random_values(seed + from, s.rows() * s.stride())), in("cosine", cosine, Kind::Sum),
                in("sine", sine, Kind::Sum), out(to, s.rows() * s.stride())};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        copy_within(context.device, at.get<E>(to), at.get<E>(from), s.rows() * s.stride());
        launch(context, s.rows(),
               Rotary<E>{.x = at.get<E>(to),
                         .cosine = at.get<A>("cosine"),
                         .sine = at.get<A>("sine"),
                         .row_stride = s.stride(),
                         .heads = s.heads,
                         .head_size = s.D,
                         .rotated = s.R,
                         .first = s.first,
                         .sequence = s.T,
                         .inverse = backward},
               {"case"});
    });
    const auto evaluate = [=](const Named& given, auto zero) -> Named {
        using E = decltype(zero);
        const auto y = turned<E>(naive::as<E>(given, {from}), naive::as<E>(given, {"cosine"}),
                                 naive::as<E>(given, {"sine"}), s, backward);
        return {{to, naive::back(y)}};
    };
    c.reference = [=](const Named& given) { return evaluate(given, double{}); };
    set_naive(c, evaluate);
    c.observed = {{"output", [=](const Named&, const Named& after) {
                       Values seen;
                       for (int64_t row = 0; row < s.rows(); ++row) {
                           for (int64_t h = 0; h < s.heads; ++h) {
                               const double* head = after.at(to).data() + row * s.stride() + h * s.D;
                               seen.insert(seen.end(), head, head + s.R);
                           }
                       }
                       return seen;
                   }}};
    return c;
}

// The tables are those of the formula, and what they are for holds: the product of a query and a key that
// were turned depends on the distance of their positions alone.
TEST(RotaryTables, TurnByTheAngleOfThePosition) {
    constexpr int64_t context = 300, R = 10;
    Values cosine(context * R / 2), sine = cosine;
    fill_rotary(cosine.data(), sine.data(), context, R, 500);
    for (int64_t position : {0, 1, 7, 299}) {
        for (int64_t i = 0; i < R / 2; ++i) {
            const double angle = double(position) / std::pow(500.0, double(i) / 5);
            const double unsure = 0x1p-50 * (1 + angle);
            EXPECT_NEAR(cosine[position * R / 2 + i], std::cos(angle), unsure);
            EXPECT_NEAR(sine[position * R / 2 + i], std::sin(angle), unsure);
        }
    }
    const Values q = random_values("q", 2 * R), k = random_values("k", 2 * R);
    const auto product = [&](int64_t query, int64_t key) {
        const Values a = turned(q, cosine, sine, {1, 1, 1, R, R, query}, false);
        const Values b = turned(k, cosine, sine, {1, 1, 1, R, R, key}, false);
        double sum = 0;
        for (int64_t d = 0; d < R; ++d) sum += a[d] * b[d];
        return sum;
    };
    EXPECT_NEAR(product(250, 240), product(10, 0), 1e-12);
    EXPECT_GT(std::abs(product(250, 240) - product(250, 241)), 1e-3);
}

}  // namespace

void add_rotary_cases(std::vector<KernelCase>& table) {
    // Heads that turn whole and in part, of even and odd size, and positions that begin within a sequence.
    const Turns shapes[] = {{1, 1, 1, 2, 2, 0},    {3, 5, 2, 7, 4, 0},    {2, 9, 3, 8, 8, 4},
                            {1, 33, 4, 40, 20, 0}, {1, 17, 2, 64, 64, 0}, {2, 3, 1, 128, 64, 30}};
    for (const Turns& s : shapes) {
        table.push_back(rotary(s, false));
        table.push_back(rotary(s, true));
    }
}

}  // namespace wobble::test
