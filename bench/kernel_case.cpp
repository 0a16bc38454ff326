#include "bench/kernel_case.h"

#include <fnmatch.h>

#include <sstream>

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
        bool wanted = patterns.empty();
        std::istringstream list(patterns);
        for (std::string pattern; !wanted && std::getline(list, pattern, ',');) {
            wanted = fnmatch(pattern.c_str(), c.name().c_str(), 0) == 0 ||
                     fnmatch(pattern.c_str(), c.kernel.c_str(), 0) == 0;
        }
        if (wanted) found.push_back(c);
    }
    return found;
}

}  // namespace wobble::bench
