// Every kernel that the headers in kernels/ declare is in the table of kernel cases, and shows a recorder all
// that it declares: a kernel that is added without its instrumented variant fails here.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "test/kernel_test.h"
#include "test/tallies.h"

namespace wobble::test {
namespace {

/// What a kernel declares, read from the text of its header.
struct Declaration {
    std::vector<std::string> channels, sums, identities;
    bool heads = false, pair = false;
};

/// The strings of `static constexpr const char* what[…] = {…}` in a kernel's text.
std::vector<std::string> list(const std::string& text, const std::string& what) {
    std::vector<std::string> strings;
    std::smatch found;
    if (!std::regex_search(text, found, std::regex("const char\\* " + what + "\\[[0-9]*\\] = \\{")))
        return strings;
    const size_t at = size_t(found.position());
    const std::string body = text.substr(at, text.find("};", at) - at);
    const std::regex quoted("\"([^\"]*)\"");
    for (std::sregex_iterator match(body.begin(), body.end(), quoted), end; match != end; ++match)
        strings.push_back((*match)[1]);
    return strings;
}

std::map<std::string, Declaration> declared_kernels() {
    std::map<std::string, Declaration> kernels;
    for (const auto& entry : std::filesystem::directory_iterator("kernels")) {
        std::ifstream file(entry.path());
        std::stringstream stream;
        stream << file.rdbuf();
        const std::string text = stream.str();
        // A kernel's declarations lie between its `struct` and that of the next one.
        const std::regex declaration("const char\\* name = \"([a-z0-9_]+)\"");
        for (std::sregex_iterator match(text.begin(), text.end(), declaration), end; match != end; ++match) {
            const size_t name = size_t(match->position());
            const size_t begin = text.rfind("\nstruct ", name), next = text.find("\nstruct ", name);
            const std::string body = text.substr(begin, next - begin);
            kernels[(*match)[1]] = {.channels = list(body, "channels"),
                                    .sums = list(body, "sums"),
                                    .identities = list(body, "identities"),
                                    .heads = body.find("using ObservesHeads") != std::string::npos,
                                    .pair = body.find("using ObservesPair") != std::string::npos};
        }
    }
    return kernels;
}

/// What recorders saw of each kernel over all small cases.
struct Sight {
    std::set<std::string> channels, identities;
    int64_t sums = 0;
    bool heads = false, pair = false;
};

std::map<std::string, Sight> shown_kernels() {
    std::map<std::string, Sight> kernels;
    for (const KernelCase& c : kernel_cases()) {
        if (!c.small) continue;
        Recorder recorder{ProbePlan("full")};
        Context context(1);
        context.recorder = &recorder;
        Buffers buffers = c.make(Precision::Float32);
        const Named before = buffers.inputs();
        c.run(context, buffers, Precision::Float32);
        const WatchedRun seen(c, recorder, before, buffers.values());
        std::string first;
        for (const Record& record : seen.observation.records) {
            if (first.empty()) first = record.kernel;
            kernels[record.kernel].channels.insert(record.channel);
        }
        for (const ResidualRow& row : seen.observation.residuals)
            kernels[row.kernel].identities.insert(row.identity);
        // These rows do not name their kernel: it is the case's first.
        kernels[first].sums = std::max(kernels[first].sums, int64_t(seen.sums.size()));
        kernels[first].heads |= !seen.observation.heads.empty();
        kernels[first].pair |= !seen.observation.streams.empty();
    }
    return kernels;
}

TEST(KernelCatalogue, HasACaseOfEveryKernelWhichShowsAllThatItDeclares) {
    const auto declared = declared_kernels();
    ASSERT_GE(declared.size(), 20u) << "tests run where the sources are";
    ASSERT_EQ(declared.at("softmax_cross_entropy").channels.size(), 7u);
    ASSERT_EQ(declared.at("adamw").sums.size(), 11u);
    const auto shown = shown_kernels();
    for (const auto& [name, declaration] : declared) {
        SCOPED_TRACE(name);
        if (std::set<std::string>{"total", "totals", "prepare_update", "fingerprint"}.count(name)) {
            EXPECT_TRUE(declaration.channels.empty()) << "no probe is to see it";
            continue;
        }
        ASSERT_FALSE(declaration.channels.empty()) << "it declares no channel";
        const auto found = shown.find(name);
        if (found == shown.end()) {
            ADD_FAILURE() << "it has no case in test/cases_*.cu, or none that a recorder sees";
            continue;
        }
        for (const std::string& channel : declaration.channels)
            EXPECT_TRUE(found->second.channels.count(channel)) << channel << " never shows";
        for (const std::string& identity : declaration.identities)
            EXPECT_TRUE(found->second.identities.count(identity)) << identity << " never shows";
        EXPECT_EQ(found->second.sums, int64_t(declaration.sums.size()));
        EXPECT_EQ(found->second.heads, declaration.heads);
        EXPECT_EQ(found->second.pair, declaration.pair);
    }
    for (const auto& [name, unused] : shown)
        EXPECT_TRUE(declared.count(name)) << name << " is declared in no header of kernels/";
}

}  // namespace
}  // namespace wobble::test
