// What tensors start as, and which factors the parametrizations give them.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/error.h"
#include "model/parameters.h"

namespace wobble::test {
namespace {

ModelConfig small() {
    return {.vocab = 50, .context = 16, .layers = 3, .heads = 2, .channels = 48};
}

std::vector<double> drawn(const ModelConfig& config, const std::string& name, uint64_t seed = 3) {
    const ParameterTable table(config);
    std::vector<double> all(size_t(table.buffer_size));
    initialise(table, seed, all.data());
    const Parameter& p = table.at(name);
    return {all.begin() + p.offset, all.begin() + p.offset + p.size};
}

double deviation(const std::vector<double>& x) {
    double squares = 0;
    for (double value : x) squares += value * value;
    return std::sqrt(squares / double(x.size()));
}

/// n numbers' deviation is within 4 standard errors, 1 / sqrt(2n) each.
void expect_deviation(const std::vector<double>& x, double expected) {
    EXPECT_NEAR(deviation(x), expected, 4 * expected / std::sqrt(2.0 * double(x.size())));
}

TEST(Initialise, GivesGpt2sDeviations) {
    expect_deviation(drawn(small(), "h.1.mlp.fc.weight"), 0.02);
    expect_deviation(drawn(small(), "h.2.attn.proj.weight"), 0.02 / std::sqrt(6.0));
    expect_deviation(drawn(small(), "wte.weight"), 0.02);
    for (double x : drawn(small(), "h.0.ln_1.weight")) EXPECT_EQ(x, 1);
    for (double x : drawn(small(), "h.0.mlp.fc.bias")) EXPECT_EQ(x, 0);
}

TEST(Initialise, TruncatesAtThreeDeviations) {
    ModelConfig config = small();
    config.channels = 192, config.init = Init::Truncated;
    const std::vector<double> x = drawn(config, "h.0.mlp.fc.weight");
    double largest = 0;
    for (double value : x) largest = std::max(largest, std::abs(value));
    EXPECT_LE(largest, 3 * 0.02);
    EXPECT_GT(largest, 2.9 * 0.02);
    // What is left of the variance: 1 - 6 φ(3) / (2 Φ(3) - 1).
    const double phi = std::exp(-4.5) / std::sqrt(2 * M_PI), inside = std::erf(3 / std::sqrt(2.0));
    expect_deviation(x, 0.02 * std::sqrt(1 - 6 * phi / inside));
}

TEST(Initialise, FanInFollowsTheNumberOfInputs) {
    ModelConfig config = small();
    config.init = Init::FanIn, config.residual_init = ResidualInit::Same;
    expect_deviation(drawn(config, "h.0.attn.qkv.weight"), 1 / std::sqrt(48.0));
    expect_deviation(drawn(config, "h.0.mlp.proj.weight"), 1 / std::sqrt(192.0));
    expect_deviation(drawn(config, "wte.weight"), 1 / std::sqrt(48.0));
    config.base_channels = 12, config.parametrization = Parametrization::MuP;
    expect_deviation(drawn(config, "wte.weight"), 1 / std::sqrt(12.0));
}

TEST(Initialise, OrthogonalMatricesAreSo) {
    ModelConfig config = small();
    config.init = Init::Orthogonal, config.residual_init = ResidualInit::Same;
    for (const auto& [name, rows, columns] : {std::tuple{"h.0.attn.qkv.weight", 48, 144},
                                              {"h.1.attn.proj.weight", 48, 48},
                                              {"h.2.mlp.proj.weight", 192, 48}}) {
        const std::vector<double> w = drawn(config, name);
        const bool wide = rows <= columns;
        const int count = std::min(rows, columns), length = std::max(rows, columns);
        const auto at = [&](int vector, int k) {
            return w[size_t(wide ? vector * columns + k : k * columns + vector)];
        };
        for (int i = 0; i < count; ++i) {
            for (int j = 0; j <= i; ++j) {
                double dot = 0;
                for (int k = 0; k < length; ++k) dot += at(i, k) * at(j, k);
                ASSERT_NEAR(dot, i == j, 1e-14) << name << " " << i << " " << j;
            }
        }
    }
}

TEST(Initialise, ProjectionsFollowResidualInit) {
    ModelConfig config = small();
    config.residual_init = ResidualInit::Depth;
    expect_deviation(drawn(config, "h.0.mlp.proj.weight"), 0.02 / std::sqrt(2.0));
    expect_deviation(drawn(config, "h.2.mlp.proj.weight"), 0.02 / std::sqrt(6.0));
    config.residual_init = ResidualInit::Zero;
    EXPECT_EQ(deviation(drawn(config, "h.1.attn.proj.weight")), 0);
    expect_deviation(drawn(config, "h.1.attn.qkv.weight"), 0.02);
}

TEST(Initialise, ScalesByPatternTheFirstThatMatches) {
    ModelConfig config = small();
    config.init_scale = "h.1.attn.qkv=8,h.*.attn.*=0.5,h.2.ln_1.weight=3";
    const std::vector<double> plain = drawn(small(), "h.1.attn.qkv.weight"),
                              scaled = drawn(config, "h.1.attn.qkv.weight");
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(scaled[i], 8 * plain[i], 1e-15);
    expect_deviation(drawn(config, "h.0.attn.qkv.weight"), 0.01);
    expect_deviation(drawn(config, "h.1.mlp.fc.weight"), 0.02);
    for (double x : drawn(config, "h.2.ln_1.weight")) EXPECT_EQ(x, 3);
    for (const char* bad : {"h.9.attn.qkv=2", "h.0.attn.qkv", "wte=", "wte=big", "wte=2x"}) {
        config.init_scale = bad;
        EXPECT_THROW(ParameterTable{config}, UserError) << bad;
    }
}

TEST(Initialise, EachTensorKeepsItsNumbersWhateverElseChanges) {
    ModelConfig deeper = small();
    deeper.layers = 5, deeper.residual_init = ResidualInit::Same, deeper.bias = false;
    EXPECT_EQ(drawn(small(), "h.1.mlp.fc.weight"), drawn(deeper, "h.1.mlp.fc.weight"));
    EXPECT_NE(drawn(small(), "h.1.mlp.fc.weight"), drawn(small(), "h.1.mlp.fc.weight", 4));
}

// The factors of Yang et al. 2022, table 8, for Adam, and of Dey et al. 2025, table 1 at alpha 1.
TEST(Parametrization, GivesEachRoleItsFactors) {
    ModelConfig config = small();
    config.base_channels = 12, config.base_layers = 1,
    config.tied = false;  // 4 times as wide, 3 times as deep
    config.parametrization = Parametrization::MuP;
    const ParameterTable mup(config);
    EXPECT_EQ(mup.at("h.0.mlp.fc.weight").lr_factor, 0.25);
    EXPECT_NEAR(mup.at("h.0.mlp.fc.weight").init_std, 0.01, 1e-15);
    EXPECT_EQ(mup.at("head.weight").multiplier, 0.25);
    for (const char* name : {"wte.weight", "head.weight", "h.0.mlp.fc.bias", "h.0.ln_1.weight"})
        EXPECT_EQ(mup.at(name).lr_factor, 1) << name;
    EXPECT_EQ(mup.at("h.0.mlp.proj.weight").multiplier, 1);

    config.parametrization = Parametrization::CompleteP;
    const ParameterTable complete(config);
    const Parameter& p = complete.at("h.2.mlp.proj.weight");
    EXPECT_EQ(p.lr_factor, 0.25);
    EXPECT_EQ(p.decay_factor, 4);
    EXPECT_NEAR(p.epsilon_factor, 1 / 12.0, 1e-15);
    EXPECT_NEAR(p.multiplier, 1 / 3.0, 1e-15);
    EXPECT_NEAR(p.init_std, 0.01, 1e-15);
    EXPECT_NEAR(complete.at("h.2.ln_1.weight").epsilon_factor, 1 / 3.0, 1e-15);
    EXPECT_EQ(complete.at("ln_f.weight").epsilon_factor, 1);
}

TEST(Parametrization, ChangesNothingAtItsBase) {
    ModelConfig config = small();
    config.base_channels = 48, config.base_layers = 3, config.residual_init = ResidualInit::Same;
    const ParameterTable standard(config);
    for (Parametrization other : {Parametrization::MuP, Parametrization::CompleteP}) {
        config.parametrization = other;
        const ParameterTable table(config);
        for (size_t i = 0; i < standard.parameters.size(); ++i) {
            const Parameter &a = standard.parameters[i], &b = table.parameters[i];
            EXPECT_EQ(a.init_std, b.init_std) << a.name;
            EXPECT_EQ(b.lr_factor * b.decay_factor * b.epsilon_factor * b.multiplier, 1) << a.name;
        }
    }
}

}  // namespace
}  // namespace wobble::test
