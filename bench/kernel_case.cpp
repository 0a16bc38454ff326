#include "bench/kernel_case.h"

namespace wobble::bench {

const std::vector<KernelCase>& kernel_cases() {
    static const std::vector<KernelCase> table = [] {
        std::vector<KernelCase> cases;
        add_row_cases(cases);
        add_product_cases(cases);
        add_attention_cases(cases);
        add_flat_cases(cases);
        add_identity_cases(cases);
        return cases;
    }();
    return table;
}

std::vector<KernelCase> matching_cases(const std::string& patterns) {
    std::vector<KernelCase> found;
    for (const KernelCase& c : kernel_cases()) {
        if (patterns.empty() || matches_any(patterns, c.name()) || matches_any(patterns, c.kernel))
            found.push_back(c);
    }
    return found;
}

}  // namespace wobble::bench
