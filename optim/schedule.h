// Learning-rate schedules. Each is a pure function of the step, counted from 0.
//
//   warm-up       lr · (step + 1) / warmup                                  while step < warmup
//   constant      lr
//   linear        from lr to minimum, in a straight line over the remaining steps
//   cosine        minimum + (lr - minimum) · (1 + cos(π progress)) / 2      (Loshchilov & Hutter 2017)
//   wsd           lr, then over the last `cooldown` steps  minimum + (lr - minimum) · (1 - sqrt(progress))
//                                                                           (Hägele et al. 2024)
//   inverse_sqrt  lr · sqrt(warmup / (step + 1))                            (Vaswani et al. 2017)
#pragma once

#include <cstdint>
#include <string>

namespace wobble {

enum class Shape { Constant, Linear, Cosine, Wsd, InverseSqrt };

struct Schedule {
    Shape shape = Shape::Cosine;
    double lr = 1e-3;      // the highest
    double minimum = 0;    // the last
    int64_t steps = 1;     // of the whole plan
    int64_t warmup = 0;    // steps
    int64_t cooldown = 0;  // steps, for wsd

    double at(int64_t step) const;
};

/// The shape of that name; UserError listing the names otherwise.
Shape schedule_shape(const std::string& name);

}  // namespace wobble
