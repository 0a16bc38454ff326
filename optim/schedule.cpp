#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/error.h"

namespace wobble {

namespace {

/// How much of [begin, end) has passed, in [0, 1].
double progress(int64_t step, int64_t begin, int64_t end) {
    if (end <= begin) return 0;
    return std::clamp(double(step - begin) / double(end - begin), 0.0, 1.0);
}

}  // namespace

double Schedule::at(int64_t step) const {
    if (step < warmup) return lr * double(step + 1) / double(warmup);
    const double range = lr - minimum;
    switch (shape) {
        case Shape::Constant:
            return lr;
        case Shape::Linear:
            return lr - range * progress(step, warmup, steps);
        case Shape::Cosine:
            return minimum + range * (1 + std::cos(std::numbers::pi * progress(step, warmup, steps))) / 2;
        case Shape::Wsd:
            return minimum + range * (1 - std::sqrt(progress(step, steps - cooldown, steps)));
        case Shape::InverseSqrt:
            return lr * std::sqrt(double(std::max<int64_t>(warmup, 1)) / double(step + 1));
    }
    return lr;
}

Shape schedule_shape(const std::string& name) {
    if (name == "constant") return Shape::Constant;
    if (name == "linear") return Shape::Linear;
    if (name == "cosine") return Shape::Cosine;
    if (name == "wsd") return Shape::Wsd;
    if (name == "inverse_sqrt") return Shape::InverseSqrt;
    throw UserError("--schedule " + name +
                    " is unknown; expected constant, linear, cosine, wsd or inverse_sqrt");
}

}  // namespace wobble
