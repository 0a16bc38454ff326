// Kernel cases of the matrix product and of the linear layers made of it.
#include <algorithm>
#include <cmath>

#include "kernels/product.h"
#include "kernels/reduce.h"
#include "probes/launch.h"
#include "test/naive.h"

namespace wobble::test {

namespace {

/// What a product is joined with.
struct Fused {
    bool accumulate = false, bias = false, gelu = false;
    enum { None, Apart, InPlace } residual = None;
};

KernelCase product(const std::string& transposes, int64_t M, int64_t N, int64_t K, Fused fused = {}) {
    KernelCase c;
    std::string what = "product_" + transposes;
    if (fused.accumulate) what += "_accumulate";
    if (fused.bias) what += "_bias";
    if (fused.gelu) what += "_gelu";
    if (fused.residual == Fused::Apart) what += "_residual";
    if (fused.residual == Fused::InPlace) what += "_residual_in_place";
    c.name = label(what, "M", M, "N", N, "K", K);
    c.terms = K + 8;
    // On CUDA what is added to a residual has been stored before, and so may have been what GELU is taken of.
    const bool on_cuda = tested_device() == Device::Cuda;
    if (on_cuda) c.narrow_roundings += int(fused.residual == Fused::Apart) + int(fused.gelu && N % 8 != 0);
    c.small = M * N * K < 1'000'000;
    const reference::ProductShape shape{
        .M = M,
        .N = N,
        .K = K,
        .transpose_a = transposes[0] == 'T',
        .transpose_b = transposes[1] == 'T',
        .activation = fused.gelu ? reference::Activation::Gelu : reference::Activation::None};
    const bool written_before = fused.accumulate || fused.residual == Fused::InPlace;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        std::vector<Operand> operands{
            in("a", random_values(seed + "a", M * K)), in("b", random_values(seed + "b", K * N)),
            written_before ? in_out("c", random_values(seed + "c", M * N)) : out("c", M * N)};
        if (fused.bias) operands.push_back(in("bias", random_values(seed + "bias", N)));
        if (fused.gelu) operands.push_back(out("before_activation", M * N));
        if (fused.residual == Fused::Apart)
            operands.push_back(in("residual", random_values(seed + "residual", M * N)));
        return operands;
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context,
               Product<E>{.a = at.get<E>("a"),
                          .b = at.get<E>("b"),
                          .c = at.get<E>("c"),
                          .m = M,
                          .n = N,
                          .k = K,
                          .transpose_a = shape.transpose_a,
                          .transpose_b = shape.transpose_b,
                          .accumulate = fused.accumulate,
                          .bias = fused.bias ? at.get<E>("bias") : nullptr,
                          .activation = fused.gelu ? Epilogue::Gelu : Epilogue::None,
                          .before_activation = fused.gelu ? at.get<E>("before_activation") : nullptr,
                          .residual = fused.residual == Fused::Apart     ? at.get<E>("residual")
                                      : fused.residual == Fused::InPlace ? at.get<E>("c")
                                                                         : nullptr},
               {"case"});
    });
    c.reference = [=](const Named& given) -> Named {
        const auto expected = reference::product(
            shape, given.at("a"), given.at("b"), fused.accumulate ? given.at("c") : Values{},
            any_of(given, {"bias"}), fused.accumulate ? Values{} : any_of(given, {"residual", "c"}));
        Named result{{"c", expected.output}};
        if (fused.gelu) result["before_activation"] = expected.preactivation;
        return result;
    };
    set_naive(c, [=](const Named& given, auto zero) {
        return naive::product<decltype(zero)>(given, shape, fused.accumulate);
    });
    c.observed = {sees("output", "c")};
    c.matrix = "c", c.columns = N;
    if (fused.residual == Fused::Apart) {
        // What the branch writes is what the product is without its residual.
        c.pair = [=](const Named& given) -> ObservedPair {
            const auto branch =
                reference::product(shape, given.at("a"), given.at("b"), {}, any_of(given, {"bias"}), {});
            return {branch.output, given.at("residual"), 4 + std::sqrt(double(K + 8)), on_cuda};
        };
    }
    return c;
}

/// y = x W + b, for its gradients.
KernelCase linear_forward(int64_t rows, int64_t in_size, int64_t out_size) {
    KernelCase c;
    c.name = label("linear_forward", "rows", rows, "in", in_size, "out", out_size);
    c.terms = in_size + 1;
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("x", random_values(seed + "x", rows * in_size)),
                in("weight", random_values(seed + "weight", in_size * out_size)),
                in("bias", random_values(seed + "bias", out_size)), out("y", rows * out_size)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        launch(context,
               Product<E>{.a = at.get<E>("x"),
                          .b = at.get<E>("weight"),
                          .c = at.get<E>("y"),
                          .m = rows,
                          .n = out_size,
                          .k = in_size,
                          .bias = at.get<E>("bias")},
               {"case"});
    });
    const reference::ProductShape shape{.M = rows, .N = out_size, .K = in_size};
    c.reference = [=](const Named& given) -> Named {
        return {
            {"y", reference::product(shape, given.at("x"), given.at("weight"), {}, given.at("bias")).output}};
    };
    set_naive(c, [=](const Named& given, auto zero) -> Named {
        Named renamed{{"a", given.at("x")}, {"b", given.at("weight")}, {"bias", given.at("bias")}};
        return {{"y", naive::product<decltype(zero)>(renamed, shape, false).at("c")}};
    });
    c.observed = {sees("output", "y")};
    c.matrix = "y", c.columns = out_size;
    return c;
}

KernelCase linear_backward(int64_t rows, int64_t in_size, int64_t out_size) {
    KernelCase c;
    c.name = label("linear_backward", "rows", rows, "in", in_size, "out", out_size);
    c.forward = label("linear_forward", "rows", rows, "in", in_size, "out", out_size);
    c.terms = std::max({rows, in_size, out_size});
    const int64_t chunks = chunk_count(rows);
    c.operands = [=, seed = c.name]() -> std::vector<Operand> {
        return {in("x", random_values(seed + "x", rows * in_size)),
                in("weight", random_values(seed + "weight", in_size * out_size)),
                in("dy", random_values(seed + "dy", rows * out_size)),
                out("dx", rows * in_size),
                out("dweight", in_size * out_size, Kind::Sum),
                out("dbias", out_size, Kind::Sum),
                out("chunks", chunks * out_size, Kind::Sum)};
    };
    set_run(c, [=](Context& context, Buffers& at, auto zero) {
        using E = decltype(zero);
        using A = Accumulator<E>;
        launch(context,
               Product<E, A>{.a = at.get<E>("x"),
                             .b = at.get<E>("dy"),
                             .c = at.get<A>("dweight"),
                             .m = in_size,
                             .n = out_size,
                             .k = rows,
                             .transpose_a = true},
               {"case", -1, Phase::Backward, ".weight"});
        launch(context, chunks,
               ColumnSum<E>{.x = at.get<E>("dy"), .chunks = at.get<A>("chunks"), .rows = rows, .C = out_size},
               {"case"});
        launch(context, SumChunks<E>::teams(out_size),
               SumChunks<E>{.chunks = at.get<A>("chunks"),
                            .out = at.get<A>("dbias"),
                            .count = chunks,
                            .C = out_size,
                            .accumulate = false},
               {"case"});
        launch(context,
               Product<E>{.a = at.get<E>("dy"),
                          .b = at.get<E>("weight"),
                          .c = at.get<E>("dx"),
                          .m = rows,
                          .n = in_size,
                          .k = out_size,
                          .transpose_b = true},
               {"case"});
    });
    c.reference = [=](const Named& given) -> Named {
        const auto gradients = reference::linear_backward(given.at("dy"), given.at("x"), given.at("weight"),
                                                          rows, in_size, out_size);
        return {{"dx", gradients.dx}, {"dweight", gradients.dweight}, {"dbias", gradients.dbias}};
    };
    set_naive(c, [=](const Named& given, auto zero) {
        return naive::linear_backward<decltype(zero)>(given, rows, in_size, out_size);
    });
    c.observed = {sees("output", "dweight"), sees("output", "chunks"), sees("output", "dbias"),
                  sees("output", "dx")};
    c.matrix = "dweight", c.columns = out_size;
    return c;
}

}  // namespace

void add_product_cases(std::vector<KernelCase>& table) {
    constexpr int64_t deep = 2 * Tile<float>::KC + 1;  // three blocks of K in float32, five in float64
    constexpr int64_t wide = 4200;                     // more than a group of panels holds
    static_assert(wide > Tile<float>::most_columns);
    static_assert(deep > Tile<float>::KC && deep > Tile<double>::KC);

    const int64_t shapes[][3] = {{1, 1, 1}, {3, 7, 1}, {15, 48, 7}, {17, 65, 48}, {33, 8, 200}};
    for (const char* transposes : {"NN", "NT", "TN", "TT"}) {
        for (const auto& [M, N, K] : shapes) table.push_back(product(transposes, M, N, K));
        table.push_back(product(transposes, 25, 35, deep));
        table.push_back(product(transposes, wide, 17, 5));
        table.push_back(product(transposes, 13, wide, 5));
    }
    table.push_back(product("NN", 1, 257, 1));
    table.push_back(product("NN", 257, 1, 1));
    table.push_back(product("NN", 200, 768, 48));
    table.push_back(product("NT", 13, wide, deep));
    table.push_back(product("TN", wide, 17, deep, {.accumulate = true}));
    table.push_back(product("TN", 48, 144, 99, {.accumulate = true}));
    table.push_back(product("TN", 7, 3, deep, {.accumulate = true}));
    table.push_back(product("NN", 33, 200, 48, {.bias = true}));
    table.push_back(product("NN", 99, 192, 48, {.bias = true, .gelu = true}));
    table.push_back(product("NN", 5, 21, deep, {.bias = true, .gelu = true}));
    table.push_back(product("NN", 99, 48, 192, {.bias = true, .residual = Fused::Apart}));
    table.push_back(product("NN", 99, 48, 192, {.bias = true, .residual = Fused::InPlace}));
    table.push_back(product("NN", 15, 33, 48, {.bias = true, .gelu = true, .residual = Fused::Apart}));
    // The residual lies where the partial sums of earlier blocks of K would be kept.
    table.push_back(product("NN", 15, 33, deep, {.bias = true, .residual = Fused::Apart}));
    table.push_back(product("NN", 15, 33, deep, {.bias = true, .residual = Fused::InPlace}));

    // A single row: several chunks of K, and strips of columns of which the last is ragged.
    for (const char* transposes : {"NN", "NT", "TN", "TT"}) {
        table.push_back(product(transposes, 1, 600, 203));
        table.push_back(product(transposes, 1, 600, 203, {.accumulate = true}));
    }
    table.push_back(product("NN", 1, 35, deep, {.bias = true}));
    table.push_back(product("NT", 1, 35, deep));
    table.push_back(product("NN", 1, 600, 203, {.bias = true, .gelu = true}));
    table.push_back(product("NN", 1, 600, 203, {.bias = true, .residual = Fused::Apart}));
    table.push_back(product("NN", 1, 600, 203, {.bias = true, .residual = Fused::InPlace}));

    const int64_t layers[][3] = {{1, 1, 1}, {15, 7, 48}, {3, 48, 200}, {99, 48, 40}};
    for (const auto& [rows, in_size, out_size] : layers) {
        table.push_back(linear_forward(rows, in_size, out_size));
        table.push_back(linear_backward(rows, in_size, out_size));
    }
}

}  // namespace wobble::test
