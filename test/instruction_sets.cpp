// Product and attention are right on processors with narrower registers than this one's: the build has
// compiled test/instruction_sets/blocks.cpp for them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>

namespace wobble::test {
namespace {

TEST(InstructionSets, NarrowerThanThisMachinesGiveRightProductsAndAttention) {
    const char* programs = std::getenv("WOBBLE_INSTRUCTION_SETS");
    ASSERT_NE(programs, nullptr) << "set WOBBLE_INSTRUCTION_SETS to the programs; `make test` does";
    std::istringstream names(programs);
    for (std::string program; names >> program;)
        EXPECT_EQ(std::system(("'" + program + "' 1>&2").c_str()), 0) << program;
}

}  // namespace
}  // namespace wobble::test
