// Training on the software machine: the steps are those of the CPU, whoever looks on, and they repeat.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "run/trainer.h"

namespace wobble {
namespace {

Options two_layers(const std::string& device, Precision precision, const std::string& probes = "off") {
    Options o;
    o.data = "synthetic:markov?order=1&vocab=37&seed=1";
    o.holdout = 0.05;
    o.model.layers = 2, o.model.heads = 2, o.model.channels = 64, o.model.context = 16;
    o.batch = 2, o.accum = 2, o.steps = 5, o.warmup = 0, o.threads = 1, o.eval_sequences = 4;
    o.device = device, o.precision = precision;
    o.probes = probes, o.probe_every = 1, o.spectra = probes == "off" ? "" : "h.*";
    return o;
}

/// What a rounding may make of a number of a step: float32 adds some hundred up, bfloat16 stores some dozen.
double tolerance(Precision precision) {
    return precision == Precision::Float32 ? 1e-5 : 2e-2;
}

void expect_near(const StepRow& found, const StepRow& expected, double share) {
    EXPECT_TRUE(found.applied);
    EXPECT_NEAR(found.loss, expected.loss, share * expected.loss);
    EXPECT_NEAR(found.grad_norm, expected.grad_norm, share * expected.grad_norm);
    EXPECT_NEAR(found.weight_norm, expected.weight_norm, share * expected.weight_norm);
    // Adam divides each gradient by its own size: that of one near 0 is rounding.
    EXPECT_NEAR(found.update_norm, expected.update_norm, 10 * share * expected.update_norm);
}
void expect_equal(const StepRow& found, const StepRow& expected) {
    EXPECT_EQ(found.loss, expected.loss);
    EXPECT_EQ(found.grad_norm, expected.grad_norm);
    EXPECT_EQ(found.weight_norm, expected.weight_norm);
    EXPECT_EQ(found.update_norm, expected.update_norm);
}

class SoftwareMachineTraining : public testing::TestWithParam<Precision> {};

TEST_P(SoftwareMachineTraining, TakesTheStepsOfTheCpuAndShowsTheSame) {
    const double share = tolerance(GetParam());
    Trainer cpu(two_layers("cpu", GetParam(), "full")), cuda(two_layers("cuda", GetParam(), "full"));
    for (int step = 0; step < 5; ++step) {
        SCOPED_TRACE(step);
        const StepRow expected = cpu.step(), found = cuda.step();
        expect_near(found, expected, share);
        const Observation on_cpu = cpu.take_observation(), on_cuda = cuda.take_observation();

        std::map<std::string, const Record*> records;
        const auto key = [](const auto& r) {
            return r.site + " " + phase_name(r.phase) + " " + r.kernel + " ";
        };
        for (const Record& r : on_cuda.records) records[key(r) + r.channel] = &r;
        EXPECT_EQ(records.size(), on_cpu.records.size());
        for (const Record& r : on_cpu.records) {
            SCOPED_TRACE(key(r) + r.channel);
            ASSERT_TRUE(records.contains(key(r) + r.channel));
            const Moments &a = r.moments(), &b = records[key(r) + r.channel]->moments();
            EXPECT_EQ(b.count, a.count);
            if (r.kernel == std::string("column_totals")) continue;  // what rounding leaves of zeros
            EXPECT_NEAR(b.rms(), a.rms(), 10 * share * a.rms() + 1e-12);
            EXPECT_NEAR(b.absmax(), a.absmax(), 10 * share * a.absmax() + 1e-12);
        }
        ASSERT_EQ(on_cuda.tensors.size(), on_cpu.tensors.size());
        for (size_t i = 0; i < on_cpu.tensors.size(); ++i) {
            const TensorRow &a = on_cpu.tensors[i], &b = on_cuda.tensors[i];
            EXPECT_NEAR(b.grad_rms, a.grad_rms, 4 * share * a.grad_rms) << a.name;
            EXPECT_NEAR(b.weight_rms, a.weight_rms, 4 * share * a.weight_rms) << a.name;
        }
        ASSERT_EQ(on_cuda.heads.size(), on_cpu.heads.size());
        for (size_t i = 0; i < on_cpu.heads.size(); ++i) {
            EXPECT_NEAR(on_cuda.heads[i].entropy, on_cpu.heads[i].entropy, 0.1 * share + 1e-5);
            EXPECT_NEAR(on_cuda.heads[i].abs_logit, on_cpu.heads[i].abs_logit, 4 * share);
        }
        ASSERT_EQ(on_cuda.streams.size(), on_cpu.streams.size());
        for (size_t i = 0; i < on_cpu.streams.size(); ++i)
            EXPECT_NEAR(on_cuda.streams[i].ratio, on_cpu.streams[i].ratio, 4 * share);
        ASSERT_EQ(on_cuda.channels.size(), on_cpu.channels.size());
        for (size_t i = 0; i < on_cpu.channels.size(); ++i) {
            const ChannelRow &a = on_cpu.channels[i], &b = on_cuda.channels[i];
            EXPECT_EQ(b.columns, a.columns);
            EXPECT_EQ(b.sampled_rows, a.sampled_rows);
            if (a.sampled_rows > 0) {
                EXPECT_NEAR(b.effective_rank, a.effective_rank, 10 * share * a.effective_rank) << a.site;
            }
            EXPECT_NEAR(b.largest_rms, a.largest_rms, 10 * share * a.largest_rms)
                << a.site << " " << a.kernel;
        }
        EXPECT_EQ(on_cuda.residuals.size(), on_cpu.residuals.size());
        EXPECT_EQ(on_cuda.losses.size(), on_cpu.losses.size());
        EXPECT_EQ(on_cuda.embeddings.size(), on_cpu.embeddings.size());
    }
}

TEST_P(SoftwareMachineTraining, TakesTheSameStepsWhoeverLooksOn) {
    Trainer bare(two_layers("cuda", GetParam()));
    std::vector<StepRow> steps;
    for (int step = 0; step < 3; ++step) steps.push_back(bare.step());
    for (const char* probes : {"off", "moments", "full"}) {
        SCOPED_TRACE(probes);
        Trainer watched(two_layers("cuda", GetParam(), probes));
        for (const StepRow& expected : steps) expect_equal(watched.step(), expected);
    }
}

TEST_P(SoftwareMachineTraining, TakesTheSameStepsAsGraphs) {
    Options options = two_layers("cuda", GetParam(), "full");
    options.probe_every = 2;
    Trainer plain(options);
    options.cuda_graph = true;
    Trainer graphs(options);
    for (int step = 0; step < 6; ++step) {
        SCOPED_TRACE(step);
        expect_equal(graphs.step(), plain.step());
        const Observation expected = plain.take_observation(), found = graphs.take_observation();
        ASSERT_EQ(found.records.size(), expected.records.size());
        for (size_t i = 0; i < found.records.size(); ++i) {
            const Moments &a = expected.records[i].moments(), &b = found.records[i].moments();
            EXPECT_EQ(std::memcmp(&a, &b, sizeof a), 0) << found.records[i].site;
        }
    }
}

TEST_P(SoftwareMachineTraining, GoesOnFromACheckpoint) {
    const std::string run = testing::TempDir() + "software_machine_run." + std::to_string(getpid());
    std::filesystem::remove_all(run);
    std::filesystem::create_directories(run);
    Trainer whole(two_layers("cuda", GetParam()));
    for (int step = 0; step < 2; ++step) whole.step();
    whole.write_checkpoint(run, 0);
    const StepRow expected = whole.step();
    Trainer resumed(two_layers("cuda", GetParam()));
    EXPECT_TRUE(resumed.resume(run).empty());
    expect_equal(resumed.step(), expected);
    EXPECT_NEAR(resumed.evaluate().at(0).loss, whole.evaluate().at(0).loss, 1e-6);
    std::filesystem::remove_all(run);
}

INSTANTIATE_TEST_SUITE_P(Precisions, SoftwareMachineTraining,
                         testing::Values(Precision::Float32, Precision::Bfloat16),
                         [](const testing::TestParamInfo<Precision>& precision) -> std::string {
                             return precision.param == Precision::Float32 ? "fp32" : "bf16";
                         });

// Every option of the model family that launches a kernel of its own.
TEST(SoftwareMachineFamily, TakesTheStepsOfTheCpu) {
    const auto step_with = [](auto choose) {
        Options on_cpu = two_layers("cpu", Precision::Float32),
                on_cuda = two_layers("cuda", Precision::Float32);
        choose(on_cpu), choose(on_cuda);
        Trainer cpu(on_cpu), cuda(on_cuda);
        for (int step = 0; step < 2; ++step) {
            const StepRow expected = cpu.step();
            expect_near(cuda.step(), expected, tolerance(Precision::Float32));
        }
    };
    step_with([](Options& o) {
        o.model.norm = NormKind::RMSNorm;
        o.model.position = Position::Rotary, o.model.gated = true, o.model.activation = Activation::Silu;
        o.model.kv_heads = 1, o.model.qk_norm = QkNorm::RMSNorm, o.model.tied = false;
    });
    step_with([](Options& o) {
        o.model.norm_placement = Placement::Peri, o.model.norm_depth_scaling = true;
        o.model.attention_softcap = 20, o.model.logit_softcap = 15, o.model.window = 5, o.model.sink = true;
        o.model.z_loss = 1e-3, o.model.label_smoothing = 0.1, o.model.value_residual = 0.5;
    });
    step_with([](Options& o) {
        o.model.norm_placement = Placement::Post, o.model.recompute = true;
        o.model.activation = Activation::ReluSquared, o.model.embedding_norm = true;
        o.distance_from_init = true, o.noise_scale = true, o.example_norms = true;
        o.model.channels = 30, o.model.heads = 3;  // no whole packs
    });
}

}  // namespace
}  // namespace wobble
