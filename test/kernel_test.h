// What the tests of kernels share: a run of a case, by itself or with a recorder looking on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "probes/recorder.h"
#include "test/kernel_cases.h"

namespace wobble::test {

/// With which team they run on CUDA.
inline CudaTeam tested_team() {
    static const char* const name = std::getenv("WOBBLE_TEST_TEAM");
    const std::string team = name ? name : "";
    return team == "warp" ? CudaTeam::Warp : team == "block" ? CudaTeam::Block : CudaTeam::ByLength;
}

/// In which a kernel adds up: CUDA kernels have no float64 ones.
inline std::vector<Precision> precisions() {
    if (tested_device() == Device::Cuda) return {Precision::Float32};
    return {Precision::Float32, Precision::Float64};
}

inline const char* name_of(Precision precision) {
    return precision == Precision::Bfloat16  ? "bfloat16"
           : precision == Precision::Float32 ? "float32"
                                             : "float64";
}

/// Half the distance from 1 to the next number in which sums are made: the largest relative error of one
/// rounding.
inline double unit_roundoff(Precision precision) {
    return precision == Precision::Float64 ? 0x1p-53 : 0x1p-24;
}

class KernelTest : public testing::TestWithParam<const KernelCase*> {
  protected:
    const KernelCase& kernel = *GetParam();

    /// Those that the kernel stores in.
    std::vector<Precision> every_precision() const {
        std::vector<Precision> all = precisions();
        if (kernel.run_bfloat16) all.push_back(Precision::Bfloat16);
        return all;
    }
    std::vector<Operand> operands_of(const KernelCase& c, Precision precision) const {
        const NarrowInputs narrow(precision == Precision::Bfloat16);
        return c.operands();
    }
    std::vector<Operand> operands(Precision precision) const { return operands_of(kernel, precision); }

    /// The buffers after a run with `threads` threads.
    Buffers run(const std::vector<Operand>& operands, Precision precision, int threads,
                Recorder* recorder = nullptr) const {
        Context context(threads);
        if (precision != Precision::Float64) context.device = tested_device();
        Buffers buffers(operands, precision, context.device);
        context.cuda_team = tested_team();
        context.least_parallel = 0;  // share out the smallest work too
        context.recorder = recorder;
        kernel.run(context, buffers, precision);
        buffers.fetch();
        return buffers;
    }
};

inline std::vector<const KernelCase*> select(bool (*wanted)(const KernelCase&)) {
    std::vector<const KernelCase*> selected;
    for (const KernelCase& c : kernel_cases())
        if (wanted(c)) selected.push_back(&c);
    return selected;
}
inline std::vector<const KernelCase*> every_case() {
    return select([](const KernelCase&) { return true; });
}

inline std::string test_name(const testing::TestParamInfo<const KernelCase*>& info) {
    std::string name = info.param->name;
    std::replace(name.begin(), name.end(), '/', '_');
    return name;
}

inline Operand* find(std::vector<Operand>& operands, const std::string& name) {
    for (Operand& operand : operands)
        if (operand.name == name) return &operand;
    return nullptr;
}

inline Named run_forward(const KernelCase& forward, const std::vector<Operand>& operands,
                         Precision precision) {
    Buffers buffers(operands, precision);
    Context context(1);
    forward.run(context, buffers, precision);
    return buffers.values();
}

/// The backward's operands, with what forward read and kept as it is in `forward`; gradients that are added
/// to start at zero.
inline std::vector<Operand> after_forward(const KernelCase& backward, const Named& forward) {
    std::vector<Operand> operands = backward.operands();
    for (Operand& operand : operands) {
        if (operand.use == Use::InOut) std::fill(operand.initial.begin(), operand.initial.end(), 0.0);
        if (const auto kept = forward.find(operand.name); operand.use == Use::In && kept != forward.end())
            operand.initial = kept->second;
    }
    return operands;
}

}  // namespace wobble::test
