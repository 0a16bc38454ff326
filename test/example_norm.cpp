// A norm is added by one file and one line: the build has done so (test/example_norm/l4norm.h, and the line
// that the Makefile puts into a copy of model/norms.h), and the tests of the family hold for it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace wobble::test {
namespace {

TEST(ExampleNorm, IsAMemberOfTheFamilyByItsFileAndOneLine) {
    const char* program = std::getenv("WOBBLE_EXAMPLE_NORM");
    ASSERT_NE(program, nullptr) << "set WOBBLE_EXAMPLE_NORM to the program; `make test` does";
    // Alone and beside every other choice. Of what the README lists, it is none.
    const std::string command = std::string("WOBBLE_CHOICE=norm=l4norm '") + program +
                                "' --gtest_brief=1 --gtest_filter=-Family.Readme* 1>&2";
    EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace wobble::test
