// Bad input: one clear line, exit status 2, nothing left behind.

#include <algorithm>
#include <fstream>

#include "run/machine.h"
#include "test/program.h"

namespace wobble::test {

namespace {

const std::string small =
    " --data 'synthetic:markov?order=1&vocab=32&seed=3' --layers 1 --heads 2 --channels 16 --context 8 "
    "--batch 2"
    " --eval-sequences 4 --log-every 1000 ";

class Errors : public Program {
  protected:
    /// The program refuses, in one line on stderr that holds each of `words`, and leaves no run.
    void refuses(const std::string& arguments, const std::vector<std::string>& words) {
        const Outcome o = train(arguments);
        EXPECT_EQ(o.status, 2) << arguments << "\n" << o.out << o.err;
        EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
        for (const std::string& word : words)
            EXPECT_NE(o.err.find(word), std::string::npos) << word << " in: " << o.err;
        EXPECT_FALSE(std::filesystem::exists(path("runs"))) << arguments;
        EXPECT_FALSE(std::filesystem::exists(path("new"))) << arguments;
    }
    void flip_byte(const std::filesystem::path& file) {
        std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
        f.seekg(-5, std::ios::end);
        const int byte = f.get();
        f.seekp(-5, std::ios::end);
        f.put(char(byte ^ 4));
    }
};

TEST_F(Errors, InFlagsNameTheFlag) {
    refuses("--layer 3", {"--layer is not a flag", "did you mean --layers?"});
    refuses("--frobnicate", {"--frobnicate is not a flag", "--help"});
    refuses("--steps many", {"--steps", "many"});
    refuses("--steps 0", {"--steps is 0", "at least 1"});
    refuses("--lr -1", {"--lr is -1"});
    refuses("--lr nan", {"--lr is nan"});
    refuses("--beta2 1", {"--beta2 is 1", "less than 1"});
    refuses("--schedule cosin", {"--schedule cosin", "cosine"});
    refuses("--device tpu", {"--device tpu", "cpu"});
    refuses("--matmul-precision fp16", {"--matmul-precision fp16", "tf32"});
    refuses("--on-nonfinite ignore", {"--on-nonfinite ignore", "skip"});
    refuses("--probes everything", {"--probes everything", "moments"});
    refuses("--probe-every 0", {"--probe-every is 0"});
    refuses("trian", {"'trian' is not a command", "sample", "coordcheck"});
    refuses("--heads 3 --channels 128", {"--heads 3 does not divide --channels 128", "--heads 2"});
    refuses("--heads 0", {"--heads is 0"});
    refuses("--kv-heads 3", {"--kv-heads 3 does not divide --heads 4", "--kv-heads 2"});
    refuses("--precision fp16", {"--precision fp16 is unknown", "fp32, bf16 or bf16-stochastic"});
    refuses("--precision bf16 --hessian-every 5", {"--hessian-every", "--precision fp32"});
    refuses("--kv-heads -1", {"--kv-heads is -1"});
    refuses("--value-residual 1", {"--value-residual is 1", "less than 1"});
    refuses("--preset gpt3", {"--preset gpt3 is unknown", "modern"});
    refuses("--z-loss -1", {"--z-loss is -1", "0 for none"});
    refuses("--z-loss inf", {"--z-loss is inf", "finite"});
    refuses("--label-smoothing 1", {"--label-smoothing is 1", "less than 1"});
    refuses("--label-smoothing nan", {"--label-smoothing is nan"});
    refuses("--logit-softcap -30", {"--logit-softcap is -30", "0 for none"});
    refuses("--attention-softcap nan", {"--attention-softcap is nan", "0 for none"});
    refuses("--val text:x", {"--val text:x", "NAME=SPEC"});
    refuses("--config nowhere.toml", {"nowhere.toml"});
    refuses("--resume nowhere", {"--resume nowhere", "no run"});
    refuses("sample nowhere", {"nowhere holds no run"});
}

TEST_F(Errors, InACoordinateCheckNameTheSizes) {
    const auto refused = [&](const std::string& flags, const std::vector<std::string>& words) {
        refuses("coordcheck " + flags, words);
        EXPECT_FALSE(std::filesystem::exists(path("coordcheck.svg"))) << flags;
    };
    refused("--widths ''", {"--widths '' is empty", "64,128,256"});
    refused("--widths 64,wide", {"--widths 64,wide holds 'wide'", "whole numbers"});
    refused("--widths 64,-128", {"holds '-128'"});
    refused("--widths 64,,128", {"holds ''"});
    refused("--widths 64,128,", {"ends in a comma"});
    refused("--widths 0,128", {"holds '0'"});
    refused("--widths 128,64", {"--widths 128,64 does not ascend"});
    refused("--widths 64,64", {"does not ascend"});
    refused("--depths 4,2", {"--depths 4,2 does not ascend", "2,4,8"});
    refused("--widths 64 --depths 2", {"--widths 64 and --depths 2", "a slope needs two"});
    refused("--widths 64,80", {"--widths holds 80", "--head-size 32", "multiples"});
    refused("--head-size 0", {"--head-size is 0"});
    refused("--seeds 0", {"--seeds is 0", "1 to 30"});
    refused("--seeds 31", {"--seeds is 31"});
    refused("--mlp-width 100", {"--mlp-width is 100", "4C"});
    refused("--channels 64", {"--channels is not a flag"});
    refused("--resume nowhere", {"--resume is not a flag"});
    refused("--width 64,128", {"--width is not a flag", "did you mean --widths?"});
    refused("--out nowhere/a.svg", {"--out nowhere/a.svg", "no directory nowhere"});
    refused("--json nowhere/a.json", {"--json nowhere/a.json", "no directory nowhere"});
    refused("--data text:missing.txt", {"missing.txt"});
    const Outcome o =
        train("coordcheck --lr 9e5 --norm none --widths 8,16 --depths 1 --head-size 8 --batch 1 --context 4");
    EXPECT_EQ(o.status, 2) << o.out << o.err;
    EXPECT_NE(o.err.find("width 8, depth 1: step "), std::string::npos) << o.err;
    EXPECT_NE(o.err.find(" is not finite; there are no sizes to compare; choose a smaller --lr"),
              std::string::npos)
        << o.err;
}

TEST_F(Errors, InDataNameTheFile) {
    write("empty.txt", "");
    write("short.txt", "hello");
    write("shard.bin", std::string("\xff\xff\x01\x00", 4) + std::string(400, 'x'));
    refuses("--run new --data text:missing.txt", {"missing.txt"});
    refuses("--run new --data text:empty.txt", {"empty.txt"});
    refuses("--run new --data text:short.txt --holdout 0", {"short.txt", "64", "--context"});
    refuses("--run new --data tokens:shard.bin", {"shard.bin", "65535", "50257"});
    refuses("--run new --data nonsense", {"nonsense"});
    refuses("--run new --data synthetic:zebra", {"zebra", "markov"});
    refuses("--run new --val a=text:missing.txt" + small, {"missing.txt"});
    refuses("--run new --val 'a=synthetic:markov?order=1&vocab=64&seed=3'" + small,
            {"vocabulary of 64", "32"});
}

TEST_F(Errors, WhereTheRunCannotBeWritten) {
    write("file", "x");
    refuses("--run file/new --steps 1" + small, {"file/new"});
    ASSERT_EQ(train("--run taken --steps 1" + small).status, 0);
    refuses("--run taken --steps 1" + small, {"taken exists already", "--resume taken"});
}

TEST_F(Errors, OnResumeNameWhatMayNotChange) {
    ASSERT_EQ(train("--run r --steps 4 --stop-after 2" + small).status, 0);
    const std::string before = checkpoint("r");
    refuses("--resume r --layers 2", {"--layers is 2", "started with 1"});
    refuses("--resume r --batch 5", {"--batch is 5"});
    refuses("--resume r --config r/config.toml", {"--resume and --config"});
    refuses("--resume r --steps 1", {"--steps 1 is behind the run, which has done 2"});
    EXPECT_EQ(checkpoint("r"), before);
    EXPECT_EQ(train("--resume r --threads 1 --steps 5").status, 0);
}

TEST_F(Errors, InCheckpointsFallBackOrAreNamed) {
    ASSERT_EQ(train("--run r --steps 4 --checkpoint-every 2 --keep 0" + small).status, 0);
    flip_byte(path("r/checkpoints/step-00000004/model.safetensors"));
    const Outcome fell_back = train("--resume r");
    EXPECT_EQ(fell_back.status, 0) << fell_back.err;
    EXPECT_NE(fell_back.out.find("warning:"), std::string::npos) << fell_back.out;
    EXPECT_NE(fell_back.out.find("from step 2"), std::string::npos) << fell_back.out;

    flip_byte(path("r/checkpoints/step-00000004/model.safetensors"));
    std::filesystem::resize_file(path("r/checkpoints/step-00000002/state.safetensors"), 100);
    refuses("--resume r", {"step-00000004/model.safetensors", "checksum", "steps 2, 4"});
    refuses("sample r --checkpoint 4", {"model.safetensors", "checksum"});
    refuses("sample r --checkpoint 3", {"3", "2", "4"});
}

TEST_F(Errors, OnAFullDiskLeaveTheLastCheckpointInUse) {
    ASSERT_EQ(train("--run r --steps 4 --stop-after 2" + small).status, 0);
    const std::string before = checkpoint("r");
    // No file may grow beyond 8 blocks: the checkpoint does not fit.
    const Outcome o = train("--resume r", "trap '' XFSZ; ulimit -f 8; ");
    EXPECT_EQ(o.status, 2) << o.out << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    EXPECT_EQ(checkpoint("r"), before);
    EXPECT_EQ(train("--resume r").status, 0);
}

TEST_F(Errors, OfTwoProcessesInOneRunStopTheSecond) {
    ASSERT_EQ(train("--run r --steps 4 --stop-after 2" + small).status, 0);
    const Outcome o = train("--resume r", "flock -n r/.lock sleep 1 & sleep 0.2; ");
    EXPECT_EQ(o.status, 2) << o.out;
    EXPECT_NE(o.err.find("another process"), std::string::npos) << o.err;
}

// This machine may have a GPU or none, and this build kernels for one or none.
TEST_F(Errors, OfTheDeviceSayWhatWasFound) {
    refuses("--run new --device gpu" + small, {"--device gpu", "auto, cpu or cuda"});
    const Outcome anything = train("--run a --steps 1" + small);
    EXPECT_EQ(anything.status, 0) << anything.err;
    if (anything.out.find("the GPU") != std::string::npos) return;
    refuses("--run new --device cuda" + small, {"--device cuda", "this ", "choose --device cpu"});
    EXPECT_EQ(anything.out.find("device  the CPU: this machine ") != std::string::npos, built_for_cuda())
        << anything.out;
}

TEST_F(Errors, InSamplingNameTheFlag) {
    ASSERT_EQ(train("--run r --steps 1" + small).status, 0);
    const auto refuses_sample = [&](const std::string& arguments, const std::string& words) {
        const Outcome o = train("sample r " + arguments);
        EXPECT_EQ(o.status, 2) << arguments;
        EXPECT_NE(o.err.find(words), std::string::npos) << o.err;
    };
    refuses_sample("--prompt hello", "token numbers");
    refuses_sample("--prompt 99", "from 0 to 31");
    refuses_sample("--temperature -1", "--temperature");
    refuses_sample("--tokens -1", "--tokens");
    refuses_sample("--top-k -1", "--top-k");
    refuses_sample("--prompts 1", "did you mean --prompt?");
}

}  // namespace

}  // namespace wobble::test
