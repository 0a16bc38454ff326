// Kernel cases of the value residual.
#include <algorithm>

#include "kernels/value_residual.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

/// Rows of `width` values with others beside them: the layer's own in rows twice as wide, those of the first
/// layer in rows one wider.
struct Mix {
    int64_t rows, width;
    double lambda;
    int64_t stride() const { return 2 * width; }
    int64_t first_stride() const { return width + 1; }
};

/// The first `width` elements of each row.
Values values_of_rows(const Values& x, int64_t stride, const Mix& s) {
    Values result;
    for (int64_t row = 0; row < s.rows; ++row)
        result.insert(result.end(), x.data() + row * stride, x.data() + row * stride + s.width);
    return result;
}

template <class T>
Named forward_of(const Named& given, const Mix& s) {
    const auto first = naive::as<T>(given, {"v_first"});
    auto y = naive::as<T>(given, {"v"});
    for (int64_t row = 0; row < s.rows; ++row)
        for (int64_t c = 0; c < s.width; ++c) {
            T& value = y[row * s.stride() + c];
            value = (1 - T(s.lambda)) * value + T(s.lambda) * first[row * s.first_stride() + c];
        }
    return {{"y", naive::back(y)}};
}

template <class T>
Named backward_of(const Named& given, const Mix& s) {
    const auto dy = naive::as<T>(given, {"dy"}), before = naive::as<T>(given, {"dv_first"});
    auto dv = dy, first = before.empty() ? naive::zeros<T>(s.rows * s.first_stride()) : before;
    for (int64_t row = 0; row < s.rows; ++row)
        for (int64_t c = 0; c < s.width; ++c) {
            const T grad = dy[row * s.stride() + c];
            dv[row * s.stride() + c] = (1 - T(s.lambda)) * grad;
            first[row * s.first_stride() + c] += T(s.lambda) * grad;
        }
    return {{"dv", naive::back(dv)}, {"dv_first", naive::back(first)}};
}

KernelCase value_residual_forward(const Mix& s) {
    KernelCase c;
    c.name = label("value_residual_forward", "rows", s.rows, "C", s.width);
    c.terms = 3;
    const int64_t n = s.rows * s.stride();
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("v", random_values(seed + "v", n)),
                in("v_first", random_values(seed + "first", s.rows * s.first_stride())), out("y", n)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        copy_within(context.device, at.get<E>("y"), at.get<E>("v"), n);
        launch(context, s.rows,
               ValueResidualForward<E>{.v = at.get<E>("y"),
                                       .v_first = at.get<E>("v_first"),
                                       .stride = s.stride(),
                                       .first_stride = s.first_stride(),
                                       .width = s.width,
                                       .lambda = Accumulator<E>(s.lambda)},
               {"case"});
    });
    c.reference = [=](const Named& given) { return forward_of<double>(given, s); };
    set_naive(c, [=](const Named& given, auto zero) { return forward_of<decltype(zero)>(given, s); });
    c.observed = {{"output", [=](const Named&, const Named& after) {
                       return values_of_rows(after.at("y"), s.stride(), s);
                   }}};
    return c;
}

KernelCase value_residual_backward(const Mix& s, bool accumulate) {
    KernelCase c;
    c.name = label(accumulate ? "value_residual_backward_add" : "value_residual_backward", "rows", s.rows,
                   "C", s.width);
    c.forward = label("value_residual_forward", "rows", s.rows, "C", s.width);
    c.terms = 3;
    const int64_t n = s.rows * s.stride(), first_n = s.rows * s.first_stride();
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("dy", random_values(seed + "dy", n)), out("dv", n),
                in_out("dv_first",
                       accumulate ? random_values(seed + "first", first_n) : Values(size_t(first_n), 0.0))};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        copy_within(context.device, at.get<E>("dv"), at.get<E>("dy"), n);
        launch(context, s.rows,
               ValueResidualBackward<E>{.dv = at.get<E>("dv"),
                                        .dv_first = at.get<E>("dv_first"),
                                        .stride = s.stride(),
                                        .first_stride = s.first_stride(),
                                        .width = s.width,
                                        .lambda = Accumulator<E>(s.lambda),
                                        .accumulate = accumulate},
               {"case"});
    });
    const auto evaluate = [=](const Named& given, auto zero) {
        Named started = given;
        if (!accumulate) {  // what lies there is not read
            for (int64_t row = 0; row < s.rows; ++row)
                for (int64_t c_ = 0; c_ < s.width; ++c_)
                    started["dv_first"][size_t(row * s.first_stride() + c_)] = 0;
        }
        return backward_of<decltype(zero)>(started, s);
    };
    c.reference = [=](const Named& given) { return evaluate(given, double{}); };
    set_naive(c, evaluate);
    c.observed = {
        {"output",
         [=](const Named&, const Named& after) { return values_of_rows(after.at("dv"), s.stride(), s); }},
        {"first", [=](const Named&, const Named& after) {
             return values_of_rows(after.at("dv_first"), s.first_stride(), s);
         }}};
    return c;
}

}  // namespace

void add_value_residual_cases(std::vector<KernelCase>& table) {
    const Mix shapes[] = {{1, 1, 0.5}, {3, 7, 0.25}, {33, 40, 0.5}, {2, 130, 1}};
    for (const Mix& s : shapes) {
        table.push_back(value_residual_forward(s));
        for (bool accumulate : {false, true}) table.push_back(value_residual_backward(s, accumulate));
    }
}

}  // namespace wobble::test
