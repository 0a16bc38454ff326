// The table of kernel cases: one kernel at one shape, with inputs from a seed, a way to run it in each
// precision, the float64 reference of what it must give, and what a recorder must see of it.
//
// Tests, gradient checks, probe checks and benches all walk this table; a kernel that is added here gets them
// all.
#pragma once

#include <cstdlib>
#include <functional>

#include "test/buffers.h"

namespace wobble::test {

/// What a channel must have seen.
struct ObservedChannel {
    std::string channel;
    std::function<Values(const Named& before, const Named& after)> values;
    /// 0 where the values are the bits that the kernel stored; otherwise how many roundings lie between what
    /// the channel saw and what `values` works out.
    double roundings = 0;
    /// Of what size the roundings are; null: of the largest value's.
    std::function<double(const Named& before, const Named& after)> scale = nullptr;
    bool wide = false;  // what it sees is float64 in both precisions
};

/// One of a kernel's sums.
struct ObservedSum {
    std::string name;
    double value;
    double uncertainty;  // in units of one rounding; 0: the value is exact
};

/// One of a kernel's identities: by row, what arithmetic without roundings leaves, and the magnitudes that
/// cancel in it. What rounding leaves is at most `uncertainty` units.
struct ObservedIdentity {
    std::string kernel, identity;
    Values residuals, scales, uncertainties;  // [rows]
};

/// What one query of attention saw: its logits, and how far they may be off, in units.
struct ObservedQuery {
    Values logits;  // [keys]
    double uncertainty;
    bool sees_first = true;  // logits[0] is of the sequence's first key
};
using ObservedHeads = std::vector<std::vector<ObservedQuery>>;  // [H][queries of all sequences]

/// What a branch wrote, and what it was added to.
struct ObservedPair {
    Values write, stream;
    double roundings;     // on the way to one element of `write`, of the size of the largest
    bool stored = false;  // each element was rounded to the storage type before it was added
};

/// Where the kernels under test run: on the CPU, or where WOBBLE_TEST_DEVICE says.
inline Device tested_device() {
    static const char* const device = std::getenv("WOBBLE_TEST_DEVICE");
    return device && std::string(device) == "cuda" ? Device::Cuda : Device::Cpu;
}

struct KernelCase {
    std::string name;  // kernel/shape
    std::function<std::vector<Operand>()> operands;
    std::function<void(Context&, Buffers&)> run_bfloat16, run_float32,
        run_float64;  // the first may be missing

    /// Outputs by operand name, from the operands that the kernel reads (as they are after rounding to its
    /// precision). An entry "|x|" is the scale of output x, for outputs that are small differences of larger
    /// numbers; without it the scale is the output's largest magnitude.
    std::function<Named(const Named&)> reference;
    /// The same formulas, evaluated one operation after the other in each precision: what the arithmetic
    /// loses when nobody is clever. The yardstick of the kernel's own error.
    std::function<Named(const Named&)> naive_float32, naive_float64, naive_extended;
    int64_t narrow_roundings =
        1;                      // of those that bfloat16 storage makes, on the way to an output of its size
    int64_t terms = 1;          // roundings on the longest way from an input to an output
    bool wide_outputs = false;  // sums are made in float64 whatever the element type

    /// In the order of launches and, in a launch, of channels. One that has no values must not show.
    std::vector<ObservedChannel> observed;
    /// What else a recorder must have, from the operands before and after the run; null: nothing.
    std::function<std::vector<ObservedSum>(const Named&, const Named&)> sums;
    std::function<std::vector<ObservedIdentity>(const Named&)> identities;
    std::function<ObservedHeads(const Named&)> heads;
    std::function<ObservedPair(const Named&)> pair;
    /// The matrix [·, columns] that channel 0 of the first launch observes; empty: it is none.
    std::string matrix;
    int64_t columns = 0;
    /// A row of channel 0 that is visited: not every token occurs.
    int64_t visited_row = 0;
    /// Operands that break an identity when they are off.
    std::vector<std::string> breaks;

    /// For a backward: the case whose gradient it computes. Operands are tied by name: `x` and `dx`, and what
    /// forward keeps has one name in both.
    std::string forward;
    double loss_weight = 0;  // what each loss counts in the gradient, where no operand says so
    bool small = true;       // cheap enough for checks that run it many times

    Buffers make(Precision precision) const { return Buffers(operands(), precision); }
    void run(Context& context, Buffers& buffers, Precision precision) const {
        const auto& run = precision == Precision::Bfloat16  ? run_bfloat16
                          : precision == Precision::Float32 ? run_float32
                                                            : run_float64;
        run(context, buffers);
    }
};

/// Whether attention's second text, in blocks, is another than its first on the device under test: CUDA has
/// one for heads of 32 channels and more. Long rows, one key after the other, take the software machine too
/// long.
inline bool has_text(bool blocks, int64_t sequence, int64_t head_size) {
    if (tested_device() == Device::Cpu) return true;
    return blocks ? head_size >= 32 && head_size % 8 == 0 : sequence <= 100;
}

const std::vector<KernelCase>& kernel_cases();
/// The case of that name, which must exist.
const KernelCase& kernel_case(const std::string& name);

// What the table is made of, by kernel.
void add_row_cases(std::vector<KernelCase>& table);        // embedding, classifier
void add_objective_cases(std::vector<KernelCase>& table);  // the classifier's options, capped logits
void add_layernorm_cases(std::vector<KernelCase>& table);
void add_rmsnorm_cases(std::vector<KernelCase>& table);
void add_norm_rule_cases(std::vector<KernelCase>& table);  // norms by a rule: dynamic tanh
void add_product_cases(std::vector<KernelCase>& table);    // products, linear layers
void add_attention_cases(std::vector<KernelCase>& table);  // attention, both texts
void add_attention_option_cases(std::vector<KernelCase>& table);
void add_value_residual_cases(std::vector<KernelCase>& table);
void add_rotary_cases(std::vector<KernelCase>& table);
void add_head_norm_cases(std::vector<KernelCase>& table);   // norms of queries and keys
void add_flat_cases(std::vector<KernelCase>& table);        // tanh GELU, residual, AdamW, sums
void add_activation_cases(std::vector<KernelCase>& table);  // the other activations, gated units
void add_identity_cases(std::vector<KernelCase>& table);    // sums over parts of a matrix

// ------------------------------------------------------------------------------------- writing a case
/// While one lives, `random_values` gives numbers that bfloat16 holds exactly: what a case works out of them
/// for a kernel to read then belongs to what the kernel reads.
class NarrowInputs {
  public:
    explicit NarrowInputs(bool narrow);
    ~NarrowInputs();
    NarrowInputs(const NarrowInputs&) = delete;
    NarrowInputs& operator=(const NarrowInputs&) = delete;
};
/// n numbers, roughly normal, that float32 holds exactly; the same for the same seed.
Values random_values(const std::string& seed, int64_t n, double deviation = 1, double mean = 0);
/// n integers in [0, below).
Values random_indices(const std::string& seed, int64_t n, int64_t below);

/// "kernel/B3_T5" from a kernel's name and pairs of letter and size.
template <class... Sizes>
std::string label(std::string kernel, Sizes... sizes) {
    kernel += "/";
    bool letter = true;
    const auto add = [&](auto part) {
        if constexpr (std::is_arithmetic_v<decltype(part)>) kernel += std::to_string(part) + "_";
        else kernel += part;
        letter = !letter;
    };
    (add(sizes), ...);
    if (kernel.back() == '_') kernel.pop_back();
    return kernel;
}

inline Operand in(const std::string& name, Values values, Kind kind = Kind::Element) {
    const int64_t n = int64_t(values.size());
    return {name, kind, Use::In, n, std::move(values)};
}
inline Operand in_out(const std::string& name, Values values, Kind kind = Kind::Element) {
    const int64_t n = int64_t(values.size());
    return {name, kind, Use::InOut, n, std::move(values)};
}
inline Operand out(const std::string& name, int64_t n, Kind kind = Kind::Element) {
    return {name, kind, Use::Out, n, {}};
}

/// run(context, buffers, T{}) for each precision of storage.
template <class F>
void set_run(KernelCase& c, F run) {
    c.run_bfloat16 = [run](Context& context, Buffers& buffers) { run(context, buffers, bf16{}); };
    c.run_float32 = [run](Context& context, Buffers& buffers) { run(context, buffers, float{}); };
    c.run_float64 = [run](Context& context, Buffers& buffers) { run(context, buffers, double{}); };
}
/// naive(inputs, T{}) for each precision.
template <class F>
void set_naive(KernelCase& c, F naive) {
    c.naive_float32 = [naive](const Named& given) { return naive(given, float{}); };
    c.naive_float64 = [naive](const Named& given) { return naive(given, double{}); };
    using Extended = long double;
    c.naive_extended = [naive](const Named& given) { return naive(given, Extended{}); };
}

/// The channel saw every element of an operand, as it lies there after the run.
ObservedChannel sees(const std::string& channel, const std::string& operand);

/// The first of the names that is among the operands; empty where none is.
Values any_of(const Named& given, std::initializer_list<const char*> names);
double largest_magnitude(const Values& values);
/// C · Σ d⁴ / (Σ d²)² of the rows [rows, C] that have one, d being deviations from the mean or from 0. Rows
/// have none where epsilon, in the norm's 1 / sqrt(mean d² + epsilon), dwarfs them.
Values kurtosis_of_rows(const Values& x, int64_t rows, int64_t C, bool about_mean, double epsilon);

}  // namespace wobble::test
