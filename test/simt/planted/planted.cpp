// Says which places of faults each test comes to, into the file that WOBBLE_FAULTS_REACHED names: the test's
// name, its milliseconds, and the numbers of the faults, on one line.
#include "test/simt/planted/planted.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace simt {

int fault_that_is_planted = [] {
    const char* text = std::getenv("WOBBLE_FAULT");
    return text ? std::atoi(text) : -1;
}();
bool fault_was_reached[most_faults];

namespace {

class Reached : public testing::EmptyTestEventListener {
  public:
    explicit Reached(const char* file) : out_(file) {}

  private:
    void OnTestStart(const testing::TestInfo&) override {
        std::fill(std::begin(fault_was_reached), std::end(fault_was_reached), false);
    }
    void OnTestEnd(const testing::TestInfo& test) override {
        out_ << test.test_suite_name() << "." << test.name() << " " << test.result()->elapsed_time();
        for (int k = 0; k < most_faults; ++k)
            if (fault_was_reached[k]) out_ << " " << k;
        out_ << "\n";
    }
    std::ofstream out_;
};

[[maybe_unused]] const bool listens = [] {
    const char* file = std::getenv("WOBBLE_FAULTS_REACHED");
    if (file) testing::UnitTest::GetInstance()->listeners().Append(new Reached(file));
    return file != nullptr;
}();

}  // namespace
}  // namespace simt
