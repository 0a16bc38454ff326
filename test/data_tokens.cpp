// Token files: both headers, raw files, document boundaries, several shards, and every way in which they can
// be broken.
#include <algorithm>

#include "data/dataset.h"
#include "test/data_files.h"

namespace wobble::test {
namespace {

std::vector<int32_t> header(int32_t magic, int32_t version, int32_t tokens) {
    std::vector<int32_t> words(256);
    words[0] = magic;
    words[1] = version;
    words[2] = tokens;
    return words;
}

template <class T>
std::vector<int32_t> header_for(const std::vector<T>& ids) {
    return sizeof(T) == 2 ? header(20240520, 1, static_cast<int32_t>(ids.size()))
                          : header(20240801, 7, static_cast<int32_t>(ids.size()));
}

template <class T>
std::vector<T> counting(int from, int to) {
    std::vector<T> ids;
    for (int i = from; i < to; ++i) ids.push_back(static_cast<T>(i));
    return ids;
}

TEST(Tokens, OfThreeUnequalShardsAreTargetsOnceAnEpoch) {
    const Directory directory;
    const int sizes[] = {10, 1, 500};
    std::vector<int32_t> stream;
    int id = 0;
    for (int s = 0; s < 3; ++s) {
        const auto ids = counting<uint16_t>(id, id + sizes[s]);
        id += sizes[s];
        directory.write("shard_00000" + std::to_string(s) + ".bin", header_for(ids), ids);
        stream.insert(stream.end(), ids.begin(), ids.end());
    }
    const int64_t starts[] = {0, 10, 11};
    for (const int T : {1, 4, 64, 510}) {
        const Dataset data = Dataset::open("tokens:" + (directory / "*.bin"), {.context = T, .seed = 8});
        ASSERT_EQ(data.tokens(), 511);
        EXPECT_EQ(data.vocab(), 50257);
        for (int64_t epoch = 0; epoch < 2; ++epoch) {
            std::vector<int> count(stream.size());
            for (int64_t i = 0; i < data.sequences_per_epoch(); ++i) {
                const Sequence sequence = read(data, epoch * data.sequences_per_epoch() + i);
                const Provenance& p = sequence.provenance;
                EXPECT_EQ(starts[p.document] + p.offset,
                          sequence.inputs[0]);  // a token is its own position here
                for (size_t t = 0; t < sequence.targets.size(); ++t) {
                    if (sequence.targets[t] < 0) continue;
                    ++count[static_cast<size_t>(sequence.targets[t])];
                    EXPECT_EQ(sequence.inputs[t] + 1, sequence.targets[t]);
                }
            }
            EXPECT_EQ(count[0], 0);
            EXPECT_TRUE(std::all_of(count.begin() + 1, count.end(), [](int c) { return c == 1; })) << T;
        }
    }
}

// The document and offset of every token but the last, in the order of the stream.
std::vector<std::pair<int64_t, int64_t>> places(const std::string& spec, int vocab = 0) {
    const Dataset data = Dataset::open(spec, {.context = 1, .vocab = vocab});
    std::vector<std::pair<int64_t, int64_t>> list;
    for (int64_t i = 0; i < data.sequences_per_epoch(); ++i) {
        const Provenance p = read(data, i).provenance;
        list.emplace_back(p.document, p.offset);
    }
    std::sort(list.begin(), list.end());
    return list;
}

using Places = std::vector<std::pair<int64_t, int64_t>>;

TEST(Tokens, BeginADocumentAtAnEndOfTextOfLlmcAndAfterOneOfRawFiles) {
    const Directory directory;
    const std::vector<uint16_t> ids = {50256, 1, 2, 50256, 50256, 3, 50256};
    const std::string shard = "tokens:" + directory.write("shard.bin", header_for(ids), ids);
    const std::string raw = "tokens:" + directory.write("raw.bin", {}, ids);
    EXPECT_EQ(places(shard), (Places{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {2, 0}, {2, 1}}));
    EXPECT_EQ(places(raw), (Places{{0, 0}, {1, 0}, {1, 1}, {1, 2}, {2, 0}, {3, 0}}));
    EXPECT_EQ(places(shard + "?eot=2"), (Places{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {1, 2}, {1, 3}}));
    EXPECT_EQ(places(shard + "?eot=none"), (Places{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}}));
}

TEST(Tokens, OfASmallVocabularyHaveNoEndOfTextUnlessTold) {
    const Directory directory;
    const std::vector<uint16_t> ids = {0, 1, 2, 0, 1};
    const std::string spec = "tokens:" + directory.write("raw.bin", {}, ids);
    EXPECT_EQ(places(spec, 3), (Places{{0, 0}, {0, 1}, {0, 2}, {0, 3}}));
    EXPECT_EQ(places(spec + "?eot=0", 3), (Places{{0, 0}, {1, 0}, {1, 1}, {1, 2}}));
}

TEST(Tokens, BeginADocumentInEachFile) {
    const Directory directory;
    const std::vector<uint16_t> first = {50256, 1}, second = {2, 3, 50256, 4};
    directory.write("0.bin", header_for(first), first);
    directory.write("1.bin", header_for(second), second);
    EXPECT_EQ(places("tokens:" + (directory / "*.bin")), (Places{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}}));
}

TEST(Tokens, OfLlama3ShardsAreReadAs32Bits) {
    const Directory directory;
    const std::vector<uint32_t> ids = {128000, 100000, 7, 128000, 128255};
    const std::string spec = "tokens:" + directory.write("llama.bin", header_for(ids), ids);
    const Dataset data = Dataset::open(spec, {.context = 4});
    EXPECT_EQ(data.vocab(), 128256);
    const Sequence sequence = read(data, 0);
    EXPECT_EQ(sequence.inputs, (std::vector<int32_t>{128000, 100000, 7, 128000}));
    EXPECT_EQ(sequence.targets, (std::vector<int32_t>{100000, 7, 128000, 128255}));
    EXPECT_NE(data.describe().find("in 2 documents"), std::string::npos) << data.describe();
}

TEST(Tokens, WithManyDocumentsAreFoundAcrossScanBlocks) {
    const Directory directory;
    std::vector<uint16_t> ids;
    Places expected;
    int64_t document = -1, offset = 0;
    for (int i = 0; i < 20000; ++i) {
        const bool begins = i % 4096 == 0 || i % 4096 == 4095 || i % 997 == 0;
        ids.push_back(begins ? 50256 : static_cast<uint16_t>(i));
        if (begins) ++document, offset = 0;
        expected.emplace_back(document, offset++);
    }
    expected.pop_back();
    EXPECT_EQ(places("tokens:" + directory.write("shard.bin", header_for(ids), ids)), expected);
}

TEST(Tokens, AboveTheVocabularyAreRefusedWithTheirPlace) {
    const Directory directory;
    auto ids = counting<uint16_t>(0, 9000);
    ids[8500] = 50257;
    const std::string shard = "tokens:" + directory.write("shard.bin", header_for(ids), ids);
    expect_error(shard, {}, {"shard.bin': token 8500 has the id 50257", "V = 50257", "larger --vocab"});
    EXPECT_EQ(error_of(shard, {.vocab = 50258}), "");
    expect_error(shard, {.vocab = 5000}, {"token 5000 has the id 5000", "V = 5000"});
    const std::vector<uint32_t> wide = {1, 2, 0xffffffff};
    expect_error("tokens:" + directory.write("llama.bin", header_for(wide), wide), {},
                 {"token 2 has the id 4294967295", "V = 128256"});
}

TEST(Tokens, OfMalformedFilesAreRefusedWithWhatWasFoundAndExpected) {
    const Directory directory;
    const auto ids = counting<uint16_t>(0, 100);
    const auto refused = [&](const std::vector<int32_t>& words, const std::vector<uint16_t>& content,
                             const std::vector<std::string>& parts) {
        expect_error("tokens:" + directory.write("shard.bin", words, content), {.context = 4}, parts);
    };
    refused(header(20240520, 1, 101), ids, {"has 1224 bytes", "expected 1226", "101 tokens"});
    refused(header(20240520, 1, 99), ids, {"has 1224 bytes", "expected 1222"});
    refused(header(20240520, 1, -1), ids, {"has 1224 bytes", "-1 tokens"});
    refused(header(20240520, 1, 0), {}, {"holds no tokens"});
    refused(header(20240520, 2, 100), ids, {"version 2", "expected 1"});
    refused(header(20240801, 1, 50), ids, {"version 1", "expected 7"});
    refused(header(20240801, 7, 100), ids, {"has 1224 bytes", "expected 1424"});
    refused({20240520, 1, 100}, ids, {"has 212 bytes", "1024"});
    refused(header(20240522, 1, 100), ids, {"evaluation set"});
    refused(header(20240326, 3, 100), ids, {"model checkpoint"});
    directory.write("odd.bin", "abc");
    expect_error("tokens:" + (directory / "odd.bin"), {}, {"has 3 bytes", "even number"});
    directory.write("empty.bin", "");
    expect_error("tokens:" + (directory / "empty.bin"), {}, {"is empty"});
    directory.write("llmq.bin", "BIN.TOK\n0000");
    expect_error("tokens:" + (directory / "llmq.bin"), {}, {"llmq"});
}

TEST(Tokens, OfTwoFormatsAreNotMixedInOneSource) {
    const Directory directory;
    const auto ids = counting<uint16_t>(0, 100);
    directory.write("a.bin", header_for(ids), ids);
    directory.write("b.bin", {}, ids);
    expect_error("tokens:" + (directory / "*.bin"), {},
                 {"a.bin' is llm.c", "b.bin' is raw uint16", "two sources"});
    EXPECT_EQ(error_of("tokens:" + (directory / "a.bin") + "+tokens:" + (directory / "b.bin"), {}), "");
}

TEST(Tokens, ExplainTheirOptions) {
    const Directory directory;
    const auto ids = counting<uint16_t>(0, 100);
    const std::string spec = "tokens:" + directory.write("a.bin", {}, ids);
    expect_error(spec + "?eot=x", {}, {"eot is 'x'", "whole number from 0 to 50256"});
    expect_error(spec + "?eot=50257", {}, {"eot is '50257'"});
    expect_error(spec + "?eot=70000", {.vocab = 100000}, {"from 0 to 65535"});
    expect_error(spec + "?split=%", {}, {"unknown option 'split'", "expected eot"});
    expect_error(spec, {.context = 100}, {"holds 100 tokens", "--context 99"});
}

}  // namespace
}  // namespace wobble::test
