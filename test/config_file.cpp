// config.toml gives back what was written, and says which line it cannot read.
#include "run/config_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "kernels/error.h"

namespace wobble {
namespace {

class ConfigFile : public testing::Test {
  protected:
    ~ConfigFile() override { std::filesystem::remove(path_); }

    Options read(const std::string& text) {
        std::ofstream(path_) << text;
        return read_config(path_);
    }
    void refuses(const std::string& text, const std::string& words) {
        try {
            read(text);
            FAIL() << "accepted: " << text;
        } catch (const UserError& error) {
            const std::string message = error.what();
            EXPECT_NE(message.find(words), std::string::npos) << message;
            EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        }
    }

    std::string path_ =
        std::filesystem::temp_directory_path() / ("wobble-config-" + std::to_string(getpid()));
};

TEST_F(ConfigFile, GivesBackEveryOptionAsItWasWritten) {
    Options o;
    o.data = "0.5*text:a \"b\"\\c#d.txt?split=%+0.5*text:e,[f].txt";
    o.val = {"x=text:\t]", "y=text:\",\n"};
    o.lr = 0.1 + 0.2, o.epsilon = 4.9e-324, o.clip = 0;
    o.data_seed = UINT64_MAX, o.steps = INT64_MAX, o.decay_everything = true;
    const Options back = read(to_toml(o));
    const auto before = values_of(o), after = values_of(back);
    ASSERT_EQ(before.size(), after.size());
    for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i].value, after[i].value) << before[i].name;
    EXPECT_EQ(back.val, o.val);
    EXPECT_EQ(back.lr, o.lr);
}

TEST_F(ConfigFile, KeepsDefaultsAndReadsWhatAPersonWouldWrite) {
    const Options o =
        read("\n# mine\n  layers=2   # deep enough\nval = []\r\ndecay-everything = true\nlr = 3e-4");
    EXPECT_EQ(o.model.layers, 2);
    EXPECT_TRUE(o.val.empty());
    EXPECT_TRUE(o.decay_everything);
    EXPECT_EQ(o.lr, 3e-4);
    EXPECT_EQ(o.model.heads, Options{}.model.heads);
}

TEST_F(ConfigFile, NamesTheLineThatItCannotRead) {
    refuses("layers = 2\nlayrs = 3\n", "line 2: found 'layrs = 3'");
    refuses("layers 2\n", "KEY = VALUE");
    refuses("layers = two\n", "a whole number");
    refuses("layers = 2.5\n", "a whole number");
    refuses("lr = fast\n", "a number");
    refuses("decay-everything = yes\n", "true or false");
    refuses("data = text:a\n", "quotation marks");
    refuses("data = \"text:a\n", "closing quotation mark");
    refuses("data = \"a\\q\"\n", "after a backslash");
    refuses("val = [\"a\" \"b\"]\n", "a list of texts");
    refuses("layers = 2 3\n", "nothing more");
    refuses("layers = 2\nlayers = 2\n", "each key once");
    refuses("", "cannot read");
}

}  // namespace
}  // namespace wobble
