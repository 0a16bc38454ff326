// make bench: matrix products and whole training steps, each as a share of the multiply-add peak that this
// machine shows in the same run.

#include <benchmark/benchmark.h>

#include <string>

#include "bench/roof.h"
#include "kernels/product.h"
#include "model/gpt.h"
#include "optim/optimizer.h"
#include "probes/recorder.h"
#include "run/machine.h"

namespace wobble::bench {

namespace {

/// FLOP/s and their share of the roof, which is measured right before and right after, as clocks and
/// neighbours drift.
void report(benchmark::State& state, double flops, int threads, double roof_before) {
    const double roof = std::max(roof_before, multiply_add_peak(threads));
    state.counters["GFLOP/s"] =
        benchmark::Counter(flops * 1e-9 * double(state.iterations()), benchmark::Counter::kIsRate);
    state.counters["roof_GFLOP/s"] = roof * 1e-9;
    state.counters["of_roof"] =
        benchmark::Counter(flops / roof * double(state.iterations()), benchmark::Counter::kIsRate);
}

struct ProductShape {
    const char* name;
    int64_t m, n, k;
};

void product(benchmark::State& state, ProductShape shape, bool transpose_a, bool transpose_b, int threads) {
    const auto [name, m, n, k] = shape;
    const double roof = multiply_add_peak(threads);
    Context context(threads);
    std::vector<float> a(size_t(m * k), 0.5f), b(size_t(k * n), 0.25f), c(size_t(m * n));
    const Product<float> p{.a = a.data(),
                           .b = b.data(),
                           .c = c.data(),
                           .m = m,
                           .n = n,
                           .k = k,
                           .transpose_a = transpose_a,
                           .transpose_b = transpose_b};
    NoWatch nobody;
    for (auto _ : state) p(context, nobody);
    report(state, 2.0 * double(m) * double(n) * double(k), threads, roof);
}

/// Forward, backward and update of one batch. FLOPs: 6 for each weight and token (2 forward, 4 backward; the
/// position table multiplies nothing), and causal attention's 6 · T · C a token and layer.
void step(benchmark::State& state, ModelConfig config, int64_t batch, int threads, const char* probes) {
    const double roof = multiply_add_peak(threads);
    Context context(threads);
    Gpt<float> model(config, batch, true);
    Optimizer<float> optimizer(model.table(), {});
    initialise(model.table(), 1, model.weights());
    std::vector<int32_t> tokens(size_t(batch * config.context));
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(i * 7919 % size_t(config.vocab));
    const double rows = double(tokens.size());
    int64_t n = 0;
    const auto one_step = [&] {
        model.forward(context, tokens.data(), tokens.data(), batch, config.context, 1 / rows);
        model.backward(context, false);
        optimizer.step(context, model.weights(), model.gradients(), 1e-4, ++n, OnNonfinite::Stop);
    };
    Recorder recorder{ProbePlan(probes)};
    if (ProbePlan(probes).looks()) context.recorder = &recorder;
    one_step();  // the first one waits for memory to be handed out
    for (auto _ : state) {
        recorder.clear();
        one_step();
    }
    const double weights = double(model.table().count() - config.context * config.channels);
    const double attention = 6.0 * double(config.layers * config.context * config.channels);
    report(state, (6 * weights + attention) * rows, threads, roof);
    state.counters["tokens/s"] =
        benchmark::Counter(rows * double(state.iterations()), benchmark::Counter::kIsRate);
}

void add_all() {
    const int cores = usable_cores();
    for (const int threads : {1, cores}) {
        const std::string suffix = "/threads:" + std::to_string(threads);
        for (const ProductShape s : {ProductShape{"1024^3", 1024, 1024, 1024},
                                     {"4096x1152x384", 4096, 1152, 384},
                                     {"768x512x128", 768, 512, 128},
                                     {"384x1536x4096", 384, 1536, 4096}}) {
            for (const int mode : {0, 1, 2}) {
                const std::string name = std::string("product/") + s.name +
                                         (mode == 0   ? "/NN"
                                          : mode == 1 ? "/NT"
                                                      : "/TN");
                benchmark::RegisterBenchmark((name + suffix).c_str(), [=](benchmark::State& state) {
                    product(state, s, mode == 2, mode == 1, threads);
                })->UseRealTime();
            }
        }
        const auto whole = [&](const std::string& name, ModelConfig config, int64_t batch) {
            for (const char* probes : {"off", "moments", "full"}) {
                const std::string full_name = "step/" + name + "/probes:" + probes + suffix;
                benchmark::RegisterBenchmark(
                    full_name.c_str(),
                    [=](benchmark::State& state) { step(state, config, batch, threads, probes); })
                    ->UseRealTime()
                    ->Unit(benchmark::kMillisecond);
            }
        };
        whole("L4_H4_C128_T64_V256_B12",
              {.vocab = 256, .context = 64, .layers = 4, .heads = 4, .channels = 128}, 12);
        whole("L6_H6_C384_T256_V256_B16",
              {.vocab = 256, .context = 256, .layers = 6, .heads = 6, .channels = 384}, 16);
        if (cores == 1) break;
    }
}

}  // namespace

}  // namespace wobble::bench

int main(int argc, char** argv) {
    wobble::sleep_while_waiting(argv);
    benchmark::Initialize(&argc, argv);
    wobble::bench::add_all();
    benchmark::RunSpecifiedBenchmarks();
}
