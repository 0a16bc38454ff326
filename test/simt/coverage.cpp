// Which kernels the software machine ran, into the file that WOBBLE_SIMT_COVERAGE names, one signature to a
// line; `make test` compares them with those that the program holds.
#include "test/simt/coverage.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace wobble::test {
namespace {

class Coverage : public testing::Environment {
    void TearDown() override {
        const char* const file = std::getenv("WOBBLE_SIMT_COVERAGE");
        if (!file) return;
        std::ofstream out(file);
        for (const std::string& kernel : simt::launched()) out << kernel << "\n";
    }
};

[[maybe_unused]] const testing::Environment* const coverage = testing::AddGlobalTestEnvironment(new Coverage);

}  // namespace
}  // namespace wobble::test
