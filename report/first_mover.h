// What moved first: of many series that lead up to an event, which left their own past, and when.
//
// A series is looked at in the logarithm where it is positive. Each of its values has a past, the `window`
// values before it, n of them, with median m and scale s = 1.4826 median |x - m| (the standard deviation of a
// normal distribution), at least 0.01: a change of one per cent is never much. The value has left its past
// when |x - m| > 6 (1 + 10 / n) s and the series stays out, on the same side of that past by more than 4 s:
// at the event, and in two thirds of what lies between. A ramp has the same median and scale wherever it is
// looked at, and its next value is 1.4 s away; so steady growth is no departure, and growth that gathers pace
// is one. Five scales would do for one series, but there are thousands of them over tens of steps, and the
// earliest is what is asked for. A short past asks for more, since its scale is a guess.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace wobble {

/// A recorded quantity up to an event, which its last value belongs to. NaN: not finite.
struct Lead {
    std::string name;      // h.3.attn.qkv
    std::string quantity;  // rms
    bool positive;         // looked at in the logarithm
    std::vector<int64_t> steps;
    std::vector<double> values;  // as many
};

struct Departure {
    size_t index;     // of the first value outside
    double score;     // (x - m) / s there; infinite when it is not finite
    double baseline;  // m, as a value of the series
};

constexpr size_t mover_window = 24, mover_past = 5;

/// The first departure; nothing when the series stays within its past, or has fewer than `mover_past` values
/// before. A value that is not finite, after a finite past, has left.
std::optional<Departure> departure(const std::vector<double>& values, bool positive,
                                   size_t window = mover_window);

struct Mover {
    size_t lead;  // number in the list
    Departure departure;
    int64_t step;
};

/// All that left, by step, and within one by how far.
std::vector<Mover> first_movers(const std::vector<Lead>& leads);

}  // namespace wobble
