// A bare kernel is the same machine code as one that has never heard of probes. Every kernel is compiled
// twice with the flags of the build: from kernels/ as it is, and from a copy in which a small program has
// taken the probes out of the text. Then the instructions of each function are compared.
//
// What GCC leaves to chance is left out of the comparison: which register holds what, copies from one to
// another, fillers. The two texts number their variables differently, and ties are broken by such numbers. So
// functions are compared as bags of instructions: what reaches memory beyond the stack, calculates or calls
// must be the same; of what moves values between registers and stack or makes addresses, one in a hundred
// may differ.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <thread>

namespace wobble::test {
namespace {

// -------------------------------------------------------------------------------- taking the probes out

/// The bracket that closes the one at `open`.
size_t closing(const std::string& text, size_t open) {
    int depth = 0;
    for (size_t i = open; i < text.size(); ++i) {
        if (std::string("([{").find(text[i]) != std::string::npos) ++depth;
        if (std::string(")]}").find(text[i]) != std::string::npos && --depth == 0) return i;
    }
    throw std::runtime_error("no bracket closes: " + text.substr(open, 60));
}

/// The last of the arguments between two brackets.
std::string last_argument(const std::string& text, size_t open, size_t close) {
    int depth = 0;
    size_t begin = open + 1;
    for (size_t i = open + 1; i < close; ++i) {
        if (std::string("([{").find(text[i]) != std::string::npos) ++depth;
        if (std::string(")]}").find(text[i]) != std::string::npos) --depth;
        if (text[i] == ',' && depth == 0) begin = i + 1;
    }
    return text.substr(begin, close - begin);
}

/// A kernel's text without comments and without what it does for probes, except for handing one on.
std::string without_probes(std::string text) {
    text = std::regex_replace(text, std::regex("//[^\n]*"), "");
    // if constexpr (… looks) { … }, or with a single statement.
    for (size_t at = 0; (at = text.find("if constexpr (", at)) != std::string::npos;) {
        const size_t close = closing(text, at + 13);
        if (text.substr(at, close - at).find("looks") == std::string::npos) {
            at = close;
            continue;
        }
        const size_t body = text.find_first_not_of(" \n", close + 1);
        size_t end = text[body] == '{' ? closing(text, body) + 1 : text.find(';', body) + 1;
        const size_t next = text.find_first_not_of(" \n", end);
        if (text.compare(next, 5, "else ") == 0) throw std::runtime_error("a probe has an alternative");
        text.erase(at, end - at);
    }
    // Values that pass through.
    for (const char* call : {"probe.writes(", "probe.observe("}) {
        for (size_t at; (at = text.find(call)) != std::string::npos;) {
            const size_t open = at + std::string(call).size() - 1, close = closing(text, open);
            text.replace(at, close + 1 - at, "(" + last_argument(text, open, close) + ")");
        }
    }
    // Calls that are statements of their own; all but the first stand in functions that nobody calls now.
    for (const char* call :
         {"probe.wrote(", "probe.residual(", "probe.sum(", "probe.query(", "probe.pair(", "probe.finish("}) {
        for (size_t at; (at = text.find(call)) != std::string::npos;) {
            const size_t close = closing(text, at + std::string(call).size() - 1);
            if (text[close + 1] != ';') throw std::runtime_error("no statement: " + text.substr(at, 60));
            text.erase(at, close + 1 - at);
        }
    }
    text = std::regex_replace(text, std::regex("if \\(last\\) ;"), "");
    const std::string without_names = std::regex_replace(text, std::regex("#include[^\n]*"), "");
    if (const size_t left = without_names.find("probe."); left != std::string::npos)
        throw std::runtime_error("a probe is left: " + without_names.substr(left, 60));
    return text;
}

// -------------------------------------------------------------------------------- comparing instructions

/// The instructions of each function, as objdump lists them, without addresses.
std::map<std::string, std::vector<std::string>> functions_of(const std::string& listing) {
    std::map<std::string, std::vector<std::string>> functions;
    std::vector<std::string>* current = nullptr;
    std::istringstream lines(listing);
    for (std::string line; std::getline(lines, line);) {
        if (line.ends_with(">:")) {
            current = &functions[line.substr(line.find('<'))];
        } else if (const size_t tab = line.find('\t'); current && tab != std::string::npos) {
            current->push_back(line.substr(line.find_first_not_of('\t', tab)));
        }
    }
    return functions;
}

/// An instruction without the names of registers; empty for fillers and copies.
std::string normalised(const std::string& line) {
    static const std::regex addresses("[0-9a-f]+ <([^>+]*)(\\+0x[0-9a-f]+)?>"),
        stack("-?(0x[0-9a-f]+)?\\(%r[sb]p[^)]*\\)"), vector("%([xyz])mm[0-9]+"),
        general("%(r[0-9]+[dwb]?|[re]?[abcd]x|[sd]il|[re]?[sd]i|[sb]pl|[re]?[sb]p|[abcd][lh])"),
        mask("%k[0-9]"), move("^vmov(aps|ups|apd|upd|dqa|dqu)[0-9]*"),
        relocation("^[0-9a-f]+: (R_[^\t]*)\t(.*)"), add("^lea +(-?0x[0-9a-f]+)\\(%g\\),%g"), space("[ \t]+"),
        offset("\\+0x[0-9a-f]+(-0x4)?$"), zero("\\b0x0\\(%g");
    if (line.find("nop") != std::string::npos || line.find("xchg   %ax,%ax") == 0) return "";
    std::string s = line;
    // Most lines have no use for most of these.
    const auto replace = [&](const char* sign, const std::regex& what, const char* with) {
        if (s.find(sign) != std::string::npos) s = std::regex_replace(s, what, with);
    };
    replace("R_X86", relocation, "$1 $2");
    replace("<", addresses, "<$1>");
    replace("+0x", offset, "");
    replace("(%r", stack, "STACK");
    replace("mm", vector, "%$1");
    replace("%k", mask, "%k");
    replace("%", general, "%g");
    replace("vmov", move, "vmov");
    replace("lea", add, "add $$$1,%g");
    replace("0x0(", zero, "(%g");  // how two of the registers are written as a base
    replace("  ", space, " ");
    static const std::regex copy("v?mov (%[gxyz]),\\1 ?");
    return std::regex_match(s, copy) ? "" : s;
}

/// Whether register allocation may decide about it: it stays among registers and stack, and moves, or makes
/// addresses.
bool is_traffic(const std::string& s) {
    const bool memory = std::regex_replace(s, std::regex("STACK"), "").find('(') != std::string::npos;
    static const std::regex traffic(
        "^(v?mov|vmov[dq]|mov[lq]|lea|add|sub|inc|dec|xor|push|pop|vpinsr[dq]|vinsert[if][0-9x]+|"
        "vzeroupper|cltq|movslq|sh[lr]) .*");
    return std::regex_match(s, traffic) && (!memory || s.starts_with("lea"));
}

using Bag = std::map<std::string, int>;

/// What is in the one but not in the other.
Bag surplus(const Bag& one, const Bag& other) {
    Bag result;
    for (const auto& [instruction, count] : one) {
        const auto found = other.find(instruction);
        const int more = count - (found == other.end() ? 0 : found->second);
        if (more > 0) result[instruction] = more;
    }
    return result;
}

/// What tells two functions apart beyond chance; empty when nothing does.
std::string difference(const std::vector<std::string>& bare, const std::vector<std::string>& stripped) {
    if (bare == stripped) return "";
    Bag bags[2];
    int size = 0;
    for (const std::string& line : bare)
        if (const std::string s = normalised(line); !s.empty()) ++bags[0][s], ++size;
    for (const std::string& line : stripped)
        if (const std::string s = normalised(line); !s.empty()) ++bags[1][s];
    std::string work, traffic;
    int moved = 0;
    for (int which : {0, 1}) {
        for (const auto& [instruction, count] : surplus(bags[which], bags[1 - which])) {
            std::string& text = is_traffic(instruction) ? traffic : work;
            text += std::string(which == 0 ? "\n  with probes " : "\n  without     ") +
                    std::to_string(count) + " × " + instruction;
            if (is_traffic(instruction)) moved += count;
        }
    }
    return !work.empty() || moved > 1 + size / 100 ? work + traffic : "";
}

// ------------------------------------------------------------------------------------------------- the test

/// Every kernel, as the CPU runs it.
const char* const source = R"(
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention_blocks.h"
#include "kernels/classifier.h"
#include "kernels/dyt.h"
#include "kernels/embedding.h"
#include "kernels/head_norm.h"
#include "kernels/identities.h"
#include "kernels/layernorm.h"
#include "kernels/product.h"
#include "kernels/reduce.h"
#include "kernels/residual.h"
#include "kernels/rmsnorm.h"
#include "kernels/rotary.h"
#include "kernels/round.h"
#include "kernels/softcap.h"
#include "kernels/value_residual.h"
namespace wobble {
template <class Kernel>
void rows(const Kernel& kernel, int64_t n) {
    NoProbe probe;
    for (int64_t row = 0; row < n; ++row) kernel(Lane{}, row, probe);
}
template <class Kernel>
void whole(Context& context, const Kernel& kernel) {
    NoWatch watch;
    kernel(context, watch);
}
#define ROWS(Kernel) template void rows<Kernel<float>>(const Kernel<float>&, int64_t);
#define WHOLE(Kernel) template void whole<Kernel<float>>(Context&, const Kernel<float>&);
ROWS(EmbeddingForward) ROWS(TokenEmbeddingBackward) ROWS(PositionEmbeddingBackward)
ROWS(LayerNormForward) ROWS(LayerNormBackward) ROWS(LayerNormExamples)
ROWS(RMSNormForward) ROWS(RMSNormBackward) ROWS(ActivationForward) ROWS(ActivationBackward)
ROWS(Residual) ROWS(Scale) template void rows<RoundWeights<bf16>>(const RoundWeights<bf16>&, int64_t);
 ROWS(SoftmaxCrossEntropy) ROWS(LogitSoftcap)
ROWS(AdamW) ROWS(ColumnSum) ROWS(SumChunks)
ROWS(RMSNormExamples) ROWS(GatedForward) ROWS(GatedBackward)
template void rows<ActivationForward<float, GeluExact>>(const ActivationForward<float, GeluExact>&, int64_t);
template void rows<GatedBackward<float, GeluExact>>(const GatedBackward<float, GeluExact>&, int64_t);
template void rows<NormForward<float, DynamicTanh>>(const NormForward<float, DynamicTanh>&, int64_t);
template void rows<NormBackward<float, DynamicTanh>>(const NormBackward<float, DynamicTanh>&, int64_t);
template void rows<NormExamples<float, DynamicTanh>>(const NormExamples<float, DynamicTanh>&, int64_t);
ROWS(SquaredSum) ROWS(SquaredChange) ROWS(ColumnTotals) ROWS(BlockDots)
ROWS(Rotary) ROWS(HeadNormForward) ROWS(HeadNormBackward)
ROWS(ValueResidualForward) ROWS(ValueResidualBackward)
ROWS(AttentionForward) ROWS(AttentionBackwardQuery) ROWS(AttentionBackwardKey)
WHOLE(Product) WHOLE(AttentionForward) WHOLE(AttentionBackward)
}
)";

class BareCode : public testing::Test {
  protected:
    void SetUp() override {
        std::string name = (std::filesystem::temp_directory_path() / "wobble-bare-code-XXXXXX").string();
        ASSERT_NE(mkdtemp(name.data()), nullptr);
        directory_ = name;
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }

    std::filesystem::path path(const std::string& name) const { return directory_ / name; }
    static std::string read_file(const std::filesystem::path& path) {
        std::ifstream file(path);
        std::stringstream text;
        text << file.rdbuf();
        return text.str();
    }
    static bool runs(const std::string& command) {
        return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
    }

    /// The listing of `source`, compiled against the kernels in `include`. The flags of the Makefile.
    std::string listing(const std::string& name, const std::string& include) {
        const std::string flags =
            "-std=c++20 -O3 -march=native -mprefer-vector-width=512 -ffp-contract=off -fno-math-errno "
            "-fno-trapping-math -Wno-psabi -fopenmp";
        const std::string object = path(name + ".o").string(), text = path(name + ".s").string();
        const std::string command = "g++ " + flags + " -I" + include + " -c " + path("kernels.cpp").string() +
                                    " -o " + object + " 2> " + text + " && objdump -dr --no-show-raw-insn " +
                                    object + " > " + text;
        const bool good = std::system(command.c_str()) == 0;
        if (!good) ADD_FAILURE() << command << "\n" << read_file(text);
        return read_file(text);
    }

  private:
    std::filesystem::path directory_;
};

TEST_F(BareCode, IsThatOfKernelsWithoutProbes) {
#if !defined(__x86_64__)
    GTEST_SKIP() << "instructions are read for x86-64 only";
#endif
    if (!runs("g++ --version") || !runs("objdump --version")) GTEST_SKIP() << "g++ or objdump is missing";
    ASSERT_TRUE(std::filesystem::exists("kernels/layernorm.h")) << "tests run where the sources are";
    std::filesystem::create_directories(path("stripped/kernels"));
    for (const auto& entry : std::filesystem::directory_iterator("kernels")) {
        const std::string text = read_file(entry.path());
        std::ofstream(path("stripped") / entry.path())
            << (entry.path().filename() == "probe.h" ? text : without_probes(text));
    }
    std::ofstream(path("kernels.cpp")) << source;
    std::string with, without;
    std::thread other([&] { without = listing("without", path("stripped").string()); });
    with = listing("with", std::filesystem::current_path().string());
    other.join();

    const auto bare = functions_of(with), stripped = functions_of(without);
    EXPECT_GE(bare.size(), 25u);
    for (const auto& [name, instructions] : bare) {
        const auto found = stripped.find(name);
        if (found == stripped.end()) {
            ADD_FAILURE() << name << " is a function only where there are probes";
            continue;
        }
        if (const std::string d = difference(instructions, found->second); !d.empty())
            ADD_FAILURE() << name << d;
    }
    EXPECT_EQ(bare.size(), stripped.size());
}

TEST_F(BareCode, TakesProbesOutOfTheText) {
    EXPECT_EQ(without_probes("store(y, at, probe.writes(Output, row, at_column(a, at), f(x, 1)));"),
              "store(y, at, ( f(x, 1)));");
    EXPECT_EQ(without_probes("r = probe.observe(C, row, At<1>{0}, splat<1>(r))[0];"),
              "r = ( splat<1>(r))[0];");
    EXPECT_EQ(without_probes("a; if constexpr (Probe::looks) { if (b) { c; } } d;"), "a;  d;");
    EXPECT_EQ(without_probes("a; if constexpr (Probe::looks) b += f(c); d;"), "a;  d;");
    EXPECT_EQ(without_probes("if constexpr (N == 1) a; probe.wrote(Output, 0, 0, y, f(n));"),
              "if constexpr (N == 1) a; ;");
    EXPECT_THROW(without_probes("if (probe.full()) a;"), std::runtime_error);
    EXPECT_THROW(without_probes("if constexpr (Probe::looks) a; else b;"), std::runtime_error);
    EXPECT_THROW(without_probes("x = probe.sum(1, 2) + 1;"), std::runtime_error);
}

TEST_F(BareCode, IsComparedUpToRegistersAndNoFurther) {
    const std::vector<std::string> one{"vmovups (%rax),%zmm0", "vaddps %zmm0,%zmm1,%zmm2", "mov    %rax,%rbx",
                                       "add    $0x10,%rcx", "vmovaps %zmm2,(%rbx)"};
    const std::vector<std::string> renamed{"vmovups (%rdx),%zmm3", "vaddps %zmm3,%zmm1,%zmm1",
                                           "lea    0x10(%rcx),%r8", "nopl   0x0(%rax)",
                                           "vmovdqa64 %zmm2,(%rbx)"};
    EXPECT_EQ(difference(one, renamed), "");
    std::vector<std::string> more = one;
    more.push_back("vaddps %zmm0,%zmm1,%zmm2");
    EXPECT_NE(difference(more, one), "");
    EXPECT_NE(difference(one, more), "");
    more.back() = "mov    0x8(%rdi),%rax";
    EXPECT_NE(difference(more, one), "") << "it reads memory";
    std::vector<std::string> spilled = one;
    for (int i = 0; i < 10; ++i) spilled.push_back("mov    %rax,-0x20(%rbp)");
    EXPECT_NE(difference(spilled, one), "") << "more than chance";
}

}  // namespace
}  // namespace wobble::test
