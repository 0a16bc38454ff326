#include "test/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace wobble::test {

namespace {

/// SplitMix64 (Steele, Lea & Flood 2014), started from the FNV-1a hash of a name.
class Stream {
  public:
    explicit Stream(const std::string& seed) {
        for (char c : seed) state_ = (state_ ^ uint64_t(uint8_t(c))) * 0x100000001b3u;
    }
    uint64_t next() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        return z ^ z >> 31;
    }

  private:
    uint64_t state_ = 0xcbf29ce484222325u;
};

}  // namespace

namespace {
bool narrow_inputs = false;
}

NarrowInputs::NarrowInputs(bool narrow) {
    narrow_inputs = narrow;
}
NarrowInputs::~NarrowInputs() {
    narrow_inputs = false;
}

Values random_values(const std::string& seed, int64_t n, double deviation, double mean) {
    Stream stream(seed);
    Values result(static_cast<size_t>(n));
    for (double& x : result) {
        // The sum of four uniform numbers of 16 bits: near enough to normal, with deviation 1 / sqrt(3).
        const uint64_t bits = stream.next();
        double sum = 0;
        for (int part = 0; part < 64; part += 16) sum += double(bits >> part & 0xffff) / 65536 - 0.5;
        const float value = float(mean + deviation * std::sqrt(3.0) * sum);
        x = double(narrow_inputs ? float(bf16(value)) : value);
    }
    return result;
}

Values random_indices(const std::string& seed, int64_t n, int64_t below) {
    Stream stream(seed);
    Values result(static_cast<size_t>(n));
    for (double& x : result) x = double(stream.next() % uint64_t(below));
    return result;
}

ObservedChannel sees(const std::string& channel, const std::string& operand) {
    return {channel, [operand](const Named&, const Named& after) { return after.at(operand); }};
}

Values any_of(const Named& given, std::initializer_list<const char*> names) {
    for (const char* name : names)
        if (const auto found = given.find(name); found != given.end()) return found->second;
    return {};
}

double largest_magnitude(const Values& values) {
    double largest = 0;
    for (double x : values) largest = std::max(largest, std::abs(x));
    return largest;
}

Values kurtosis_of_rows(const Values& x, int64_t rows, int64_t C, bool about_mean, double epsilon) {
    Values result;
    for (int64_t r = 0; r < rows; ++r) {
        const double* row = x.data() + r * C;
        double mean = 0, second = 0, fourth = 0;
        for (int64_t c = 0; c < C && about_mean; ++c) mean += row[c] / double(C);
        for (int64_t c = 0; c < C; ++c) {
            const double square = (row[c] - mean) * (row[c] - mean);
            second += square, fourth += square * square;
        }
        const double normalised = second / (second / double(C) + epsilon);  // Σ x̂²
        if (normalised > 1e-12 * double(C)) result.push_back(double(C) * fourth / (second * second));
    }
    return result;
}

const std::vector<KernelCase>& kernel_cases() {
    static const std::vector<KernelCase> table = [] {
        std::vector<KernelCase> cases;
        add_row_cases(cases);
        add_objective_cases(cases);
        add_layernorm_cases(cases);
        add_rmsnorm_cases(cases);
        add_norm_rule_cases(cases);
        add_product_cases(cases);
        add_attention_cases(cases);
        add_attention_option_cases(cases);
        add_rotary_cases(cases);
        add_value_residual_cases(cases);
        add_head_norm_cases(cases);
        add_flat_cases(cases);
        add_activation_cases(cases);
        add_identity_cases(cases);
        return cases;
    }();
    return table;
}

const KernelCase& kernel_case(const std::string& name) {
    for (const KernelCase& c : kernel_cases())
        if (c.name == name) return c;
    throw std::logic_error("no kernel case " + name);
}

}  // namespace wobble::test
