// The table of kernel cases: every kernel in the roles and shapes that it has in a step of a model. A kernel
// that is added to the program gets its timings here.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/operands.h"
#include "probes/launch.h"

namespace wobble::bench {

/// What one launch must do at the least. Where multiply-adds are given it is they that bound the kernel, else
/// the bytes.
struct Cost {
    double bytes = 0;  // read once and written once; what is updated in place counts twice
    double flops = 0;  // a multiply-add is two
};

/// A case with its operands in memory.
struct Prepared {
    std::function<void(Context&)> launch;
    std::function<void()> reset;  // brings back what repeated launches would let grow
};

struct KernelCase {
    std::string kernel;     // its name in records
    std::string role;       // in the model; empty where it has but one
    std::string shape;      // of its largest operands, for people
    std::string precision;  // of its elements
    Cost cost;
    std::function<Prepared()> prepare;

    std::string name() const { return role.empty() ? kernel : kernel + "/" + role; }
    /// Measured against the multiply-add peak; otherwise against the copy bandwidth.
    bool computes() const { return cost.flops > 0; }
};

/// All cases in all precisions, in the order of a step.
const std::vector<KernelCase>& kernel_cases();
/// Those whose name, or kernel, one of the comma-separated shell patterns matches; all for an empty one.
std::vector<KernelCase> matching_cases(const std::string& patterns);

/// The shapes of the model: 384 channels and 16 sequences of 256 tokens on the CPU, GPT-2's with 124M
/// parameters and 32 sequences of 1,024 on a GPU. They are chosen once, before the table is made.
namespace shape {

inline int64_t B = 16, T = 256, C = 384, H = 6, D = C / H, F = 4 * C, V = 256, rows = B * T;
inline Device device = Device::Cpu;  // where operands lie

inline void choose(Device on) {
    device = on;
    if (on == Device::Cpu) return;
    B = 32, T = 1024, C = 768, H = 12, V = 50257;
    D = C / H, F = 4 * C, rows = B * T;
}

}  // namespace shape

template <class T>
struct Precision;
template <>
struct Precision<float> {
    static constexpr const char* name = "float32";
};
template <>
struct Precision<bf16> {
    static constexpr const char* name = "bfloat16";
};

/// "4096x384"
inline std::string dimensions(std::initializer_list<int64_t> sizes) {
    std::string text;
    for (const int64_t size : sizes) text += (text.empty() ? "" : "x") + std::to_string(size);
    return text;
}

namespace detail {

// The kernel's type is read off the lambda's call operator: nvcc has no name for the result of calling it.
template <class Kernel, class Make, class Launch>
KernelCase kernel_case(Kernel (Make::*)(Operands&) const, const char* role, std::string shape, Cost cost,
                       Make make, Launch launch_it) {
    return {Kernel::name, role, std::move(shape), Precision<typename Kernel::Element>::name, cost, [=] {
                auto operands = std::make_shared<Operands>(shape::device);
                const Kernel kernel = make(*operands);
                return Prepared{[=](Context& context) { launch_it(context, kernel); },
                                [operands] { operands->reset(); }};
            }};
}
template <class Kernel>
void launch_over(Context& context, int64_t rows, const Kernel& kernel) {
    launch(context, rows, kernel, {"bench"});
}

}  // namespace detail

/// A kernel launched over its rows. `make(operands)` is the kernel.
template <class Make>
KernelCase over_rows(const char* role, std::string shape, Cost cost, int64_t rows, Make make) {
    return detail::kernel_case(
        &Make::operator(), role, std::move(shape), cost, make,
        [rows](Context& context, const auto& kernel) { detail::launch_over(context, rows, kernel); });
}

/// A kernel that spreads its work over the threads itself.
template <class Make>
KernelCase as_a_whole(const char* role, std::string shape, Cost cost, Make make) {
    return detail::kernel_case(
        &Make::operator(), role, std::move(shape), cost, make,
        [](Context& context, const auto& kernel) { launch(context, kernel, {"bench"}); });
}

/// Parts of the table, one file each.
void add_row_cases(std::vector<KernelCase>& table);
void add_product_cases(std::vector<KernelCase>& table);
void add_attention_cases(std::vector<KernelCase>& table);
void add_flat_cases(std::vector<KernelCase>& table);
void add_identity_cases(std::vector<KernelCase>& table);

}  // namespace wobble::bench
