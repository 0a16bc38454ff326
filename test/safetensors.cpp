// Files of tensors: written so that others can read them, and refused when anything in them is not as it
// should be.
#include "model/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "kernels/error.h"

namespace {

using namespace wobble;
namespace fs = std::filesystem;

std::string read_bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

/// The bytes of a safetensors file with this header and these data.
std::string assemble(const std::string& header, const std::string& data) {
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

/// CRC-32 bit by bit: the reflected polynomial 0xEDB88320 of IEEE 802.3, as zlib uses it.
uint32_t slow_crc32(const std::string& bytes) {
    uint32_t crc = ~0u;
    for (const char c : bytes) {
        crc ^= static_cast<unsigned char>(c);
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0u);
    }
    return ~crc;
}

/// What follows `"key":` in JSON without blanks, up to `end`, by text search alone.
std::string after(const std::string& text, const std::string& key, const std::string& end) {
    const size_t at = text.find("\"" + key + "\":");
    if (at == std::string::npos) return "missing";
    const size_t begin = at + key.size() + 3;
    return text.substr(begin, text.find(end, begin) - begin);
}

class SafetensorsTest : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = (fs::temp_directory_path() / "wobble-safetensors-XXXXXX").string();
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        directory_ = pattern;
        path_ = (fs::path(directory_) / "tensors").string();
    }
    void TearDown() override { fs::remove_all(directory_); }

    /// A file of every dtype, awkward values included.
    void write_sample() const {
        write_safetensors(path_,
                          {{"h.0.weight", DType::F32, {2, 3}, floats_},
                           {"a scalar", DType::I64, {}, &integer_},
                           {"half", DType::BF16, {3}, halves_},
                           {"doubles", DType::F64, {1, 2, 1}, doubles_},
                           {"nothing", DType::F32, {4, 0}, nullptr},
                           {"counter \"\n\u00e9", DType::U64, {1}, &counter_},
                           {"ids", DType::I32, {2}, ids_}},
                          {{"step", "12"}, {"note", "a \"quoted\" line\n"}});
    }

    /// The message with which the file is refused; "accepted" when it is not. It must be one line.
    std::string refusal() const {
        try {
            const SafetensorsFile file(path_);
            return "accepted";
        } catch (const UserError& error) {
            const std::string message = error.what();
            EXPECT_EQ(message.find('\n'), std::string::npos) << message;
            EXPECT_NE(message.find(path_), std::string::npos) << message;
            return message;
        }
    }

    void expect_refused(const std::string& header, const std::string& data, const std::string& reason) const {
        write_bytes(path_, assemble(header, data));
        EXPECT_NE(refusal().find(reason), std::string::npos) << header << "\n" << refusal();
    }

    std::string directory_, path_;
    const float floats_[6] = {1.5f,
                              -0.0f,
                              std::bit_cast<float>(0x7fc01234u),  // NaN with a payload
                              std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::denorm_min(),
                              3.0f};
    const double doubles_[2] = {1e300, std::bit_cast<double>(0xfff8000000000001ull)};
    const uint16_t halves_[3] = {0x3f80, 0xffff, 1};
    const int64_t integer_ = std::numeric_limits<int64_t>::min();
    const uint64_t counter_ = ~0ull;
    const int32_t ids_[2] = {-1, 50256};
};

TEST_F(SafetensorsTest, RoundTripKeepsEveryBitNameShapeAndMetadata) {
    write_sample();
    const SafetensorsFile file(path_);
    EXPECT_EQ(file.tensors().size(), 7u);
    const auto expect = [&](const char* name, DType dtype, std::vector<int64_t> shape, const void* data,
                            size_t size) {
        const TensorView* found = file.find(name);
        ASSERT_NE(found, nullptr) << name;
        EXPECT_EQ(found->name, name);
        EXPECT_EQ(found->dtype, dtype) << name;
        EXPECT_EQ(found->shape, shape) << name;
        ASSERT_EQ(byte_count(*found), static_cast<int64_t>(size)) << name;
        EXPECT_TRUE(size == 0 || std::memcmp(found->data, data, size) == 0) << name;
    };
    expect("h.0.weight", DType::F32, {2, 3}, floats_, sizeof floats_);
    expect("a scalar", DType::I64, {}, &integer_, sizeof integer_);
    expect("half", DType::BF16, {3}, halves_, sizeof halves_);
    expect("doubles", DType::F64, {1, 2, 1}, doubles_, sizeof doubles_);
    expect("nothing", DType::F32, {4, 0}, nullptr, 0);
    expect("counter \"\n\u00e9", DType::U64, {1}, &counter_, sizeof counter_);
    expect("ids", DType::I32, {2}, ids_, sizeof ids_);
    EXPECT_EQ(file.find("h.0.bias"), nullptr);
    const std::map<std::string, std::string> metadata = {{"step", "12"}, {"note", "a \"quoted\" line\n"}};
    EXPECT_EQ(file.metadata(), metadata);
}

TEST_F(SafetensorsTest, AnotherParserFindsTensorsAndChecksums) {
    const float other[3] = {7, 8, 9};
    write_safetensors(path_, {{"w", DType::F32, {2, 3}, floats_}, {"b", DType::F32, {3}, other}},
                      {{"step", "12"}});
    const std::string bytes = read_bytes(path_);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    ASSERT_LT(length, bytes.size());
    const std::string header = bytes.substr(8, length), data = bytes.substr(8 + length);
    EXPECT_EQ(header.front(), '{');
    EXPECT_EQ((8 + length) % 64, 0u) << "data start at a multiple of 64 bytes";
    EXPECT_EQ(data, std::string(reinterpret_cast<const char*>(floats_), 24) +
                        std::string(reinterpret_cast<const char*>(other), 12));
    EXPECT_EQ(after(header, "w", "}"), R"({"dtype":"F32","shape":[2,3],"data_offsets":[0,24])");
    EXPECT_EQ(after(header, "b", "}"), R"({"dtype":"F32","shape":[3],"data_offsets":[24,36])");
    EXPECT_EQ(std::stoul(after(header, "crc32.w", ",").substr(1), nullptr, 16),
              slow_crc32(data.substr(0, 24)));
    EXPECT_EQ(std::stoul(after(header, "crc32.b", ",").substr(1), nullptr, 16), slow_crc32(data.substr(24)));
    const std::string stored = after(header, "crc32", ",").substr(1, 8);
    std::string zeroed = header;
    zeroed.replace(zeroed.find(stored), 8, "00000000");
    EXPECT_EQ(std::stoul(stored, nullptr, 16), slow_crc32(zeroed));
}

TEST_F(SafetensorsTest, SameTensorsGiveSameBytes) {
    write_sample();
    const std::string first = read_bytes(path_);
    write_sample();
    EXPECT_EQ(read_bytes(path_), first);
    EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 1)
        << "nothing but the file is left";
}

TEST_F(SafetensorsTest, EveryTensorIsAlignedToItsElements) {
    write_sample();
    const SafetensorsFile file(path_);
    for (const TensorView& tensor : file.tensors())
        EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(dtype_size(tensor.dtype)),
                  0u)
            << tensor.name;
}

TEST_F(SafetensorsTest, PointersToTensorsSurviveAMove) {
    write_sample();
    SafetensorsFile file(path_);
    const TensorView* before = file.find("ids");
    const SafetensorsFile moved = std::move(file);
    EXPECT_EQ(moved.find("ids"), before);
    EXPECT_EQ(std::memcmp(before->data, ids_, sizeof ids_), 0);
}

TEST_F(SafetensorsTest, EveryFlippedBitIsNoticed) {
    write_sample();
    const std::string good = read_bytes(path_);
    for (size_t i = 0; i < good.size(); ++i) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ (1 << (i * 5 % 8)));
        write_bytes(path_, bad);
        EXPECT_NE(refusal(), "accepted") << "bit " << i * 5 % 8 << " of byte " << i;
    }
}

TEST_F(SafetensorsTest, EveryTruncationAndAnAddedByteAreNoticed) {
    write_sample();
    const std::string good = read_bytes(path_);
    for (size_t size = 0; size < good.size(); ++size) {
        write_bytes(path_, good.substr(0, size));
        EXPECT_NE(refusal(), "accepted") << "of " << good.size() << " bytes the first " << size;
    }
    write_bytes(path_, good + '\0');
    EXPECT_NE(refusal(), "accepted");
}

TEST_F(SafetensorsTest, DamageToDataNamesTheTensorAndBothChecksums) {
    write_sample();
    std::string bytes = read_bytes(path_);
    const auto at = static_cast<size_t>(bytes.find(std::string(reinterpret_cast<const char*>(floats_), 4)));
    bytes[at + 1] ^= 4;
    write_bytes(path_, bytes);
    std::string damaged(reinterpret_cast<const char*>(floats_), sizeof floats_);
    damaged[1] ^= 4;
    char found[9], expected[9];
    std::snprintf(found, sizeof found, "%08x", slow_crc32(damaged));
    damaged[1] ^= 4;
    std::snprintf(expected, sizeof expected, "%08x", slow_crc32(damaged));
    EXPECT_NE(refusal().find("\"h.0.weight\""), std::string::npos) << refusal();
    EXPECT_NE(refusal().find(found), std::string::npos) << refusal();
    EXPECT_NE(refusal().find(expected), std::string::npos) << refusal();
}

TEST_F(SafetensorsTest, FilesOfOtherWritersAreRead) {
    write_bytes(path_, assemble(R"( {"b":{"data_offsets":[4,12],"shape":[2],"dtype":"F32"},)"
                                R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}  )",
                                std::string("\x80\x3f\x00\x40", 4) + "12345678"));
    const SafetensorsFile file(path_);
    ASSERT_EQ(file.tensors().size(), 2u);
    EXPECT_EQ(file.tensors()[0].name, "a");
    EXPECT_EQ(std::memcmp(file.find("b")->data, "12345678", 8), 0);
    EXPECT_TRUE(file.metadata().empty());
}

TEST_F(SafetensorsTest, ImpossibleHeaderLengthsAreRefused) {
    for (const uint64_t length :
         {uint64_t{3}, uint64_t{200}, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}}) {
        write_bytes(path_, std::string(reinterpret_cast<const char*>(&length), 8) + "{}");
        EXPECT_NE(refusal().find("header length of " + std::to_string(length)), std::string::npos)
            << refusal();
    }
}

TEST_F(SafetensorsTest, HeadersThatAreNoDescriptionOfTensorsAreRefused) {
    for (const char* header : {"", "{", "weights", "{\"a\":}", "{\"\xff\":1}", "{\"a\":1e999}"})
        expect_refused(header, " ", "not JSON");
    for (const char* header : {"3", "[]", "null", "\"a\""}) expect_refused(header, "", "no JSON object");
    expect_refused(std::string(100'000, '['), "", "deep nesting");
    expect_refused("{\"a\":{\"b\":{\"c\":{\"d\":{}}}}}", "", "deep nesting");
    for (const char* value : {"3", "null", "[1,2]", "\"F32\""})
        expect_refused("{\"a\":" + std::string(value) + "}", "", "\"a\" without a description");
    expect_refused(R"({"__metadata__":{"step":3}})", "", "metadata \"step\" that is no text");
}

TEST_F(SafetensorsTest, ImpossibleTensorsAreRefused) {
    const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
        return "{\"w\\n\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
               "}}";
    };
    const std::string data(24, 'x');
    write_bytes(path_, assemble(tensor("\"F32\"", "[2,3]", "[0,24]"), data));
    ASSERT_EQ(refusal(), "accepted");

    for (const char* dtype : {"\"F31\"", "\"f32\"", "32", "null", "[]"})
        expect_refused(tensor(dtype, "[2,3]", "[0,24]"), data, "of dtype");
    for (const char* shape :
         {"6", "[-2,-3]", "[2.0,3]", "[\"6\"]", "null", "[18446744073709551616]",
          "[9223372036854775807,9223372036854775807]", "[4294967296,4294967296,0]", "[18446744073709551615]"})
        expect_refused(tensor("\"F32\"", shape, "[0,24]"), data, "\"w\\n\" with an impossible shape");
    for (const char* offsets : {"[0]", "[0,24,24]", "[24,0]", "[-24,0]", "[0,24.0]", "24", "{}"})
        expect_refused(tensor("\"F32\"", "[2,3]", offsets), data, "impossible data_offsets");
    expect_refused(tensor("\"F32\"", "[2,3]", "[0,28]"), data, "ending at byte 28");
    expect_refused(tensor("\"F32\"", "[2,3]", "[9223372036854775783,9223372036854775807]"), data,
                   "ending at byte");
    expect_refused(tensor("\"F32\"", "[2,4]", "[0,24]"), data, "24 bytes; expected 32 bytes for F32 [2, 4]");
    expect_refused(tensor("\"F64\"", "[2,3]", "[0,24]"), data, "24 bytes; expected 48 bytes for F64 [2, 3]");
    expect_refused(tensor("\"F32\"", "[5]", "[4,24]"), data, "at byte 4 of the data; expected byte 0");
    expect_refused(tensor("\"F32\"", "[5]", "[0,20]"), data, "24 bytes of data; expected 20");
    expect_refused(R"({"w":{"dtype":"F32","shape":[6]}})", data, "impossible data_offsets");
}

TEST_F(SafetensorsTest, HolesOverlapsAndRepeatedNamesAreRefused) {
    const auto two = [](const std::string& first, const std::string& second, const char* name) {
        return R"({"a":{"dtype":"I32","shape":[3],"data_offsets":)" + first + "},\"" + name +
               R"(":{"dtype":"I32","shape":[3],"data_offsets":)" + second + "}}";
    };
    const std::string data(28, 'x');
    expect_refused(two("[0,12]", "[16,28]", "b"), data, "\"b\" at byte 16 of the data; expected byte 12");
    expect_refused(two("[0,12]", "[8,20]", "b"), data, "\"b\" at byte 8 of the data; expected byte 12");
    expect_refused(two("[0,12]", "[0,12]", "b"), data, "at byte 0 of the data; expected byte 12");
    expect_refused(two("[0,12]", "[12,24]", "a"), data, "\"a\" twice");
    expect_refused(two("[0,12]", "[12,24]", "\\u0061"), data, "\"a\" twice");
    expect_refused(R"({"w":{"dtype":"F32","shape":[7],"shape":[7],"data_offsets":[0,28]}})", data,
                   "\"shape\" twice");
}

TEST_F(SafetensorsTest, AFileWithSomeChecksumsMustHaveThemAll) {
    write_sample();
    const std::string good = read_bytes(path_);
    for (const std::string key : {"\"crc32\"", "\"crc32.ids\""}) {
        std::string renamed = good;
        renamed[renamed.find(key) + 1] = 'x';
        write_bytes(path_, renamed);
        EXPECT_NE(refusal().find("checksum"), std::string::npos) << key << ": " << refusal();
    }
}

TEST_F(SafetensorsTest, PathsThatAreNoFilesAreRefused) {
    EXPECT_NE(refusal().find("No such file"), std::string::npos) << refusal();
    path_ = directory_;
    EXPECT_NE(refusal().find("no regular file"), std::string::npos) << refusal();
}

TEST_F(SafetensorsTest, AFullDiskIsAnErrorThatLeavesNothingAndHarmsNothing) {
    write_sample();
    const std::string good = read_bytes(path_);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {  // a limit on the size of files acts as a disk that fills up
        std::signal(SIGXFSZ, SIG_IGN);
        const rlimit limit = {100'000, 100'000};
        setrlimit(RLIMIT_FSIZE, &limit);
        std::string message = "no error";
        try {
            const std::vector<float> large(50'000);
            write_safetensors(path_, {{"large", DType::F32, {50'000}, large.data()}});
        } catch (const UserError& error) {
            message = error.what();
        }
        _exit(write(ends[1], message.data(), message.size()) > 0 ? 0 : 1);
    }
    close(ends[1]);
    char text[1000];
    const ssize_t size = read(ends[0], text, sizeof text);
    close(ends[0]);
    waitpid(child, nullptr, 0);
    const std::string message(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
    EXPECT_NE(message.find("cannot write " + path_ + ": File too large; expected room for"),
              std::string::npos)
        << message;
    EXPECT_EQ(read_bytes(path_), good) << "the file that was there stays";
    EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 1);
}

TEST_F(SafetensorsTest, PlacesThatCannotBeWrittenAreAnError) {
    write_bytes(path_, "a file");
    for (const std::string& place : {path_ + "/within-a-file", directory_ + "/missing/tensors", directory_}) {
        try {
            write_safetensors(place, {{"ids", DType::I32, {2}, ids_}});
            ADD_FAILURE() << place;
        } catch (const UserError& error) {
            EXPECT_NE(std::string(error.what()).find("cannot write " + place), std::string::npos)
                << error.what();
        }
    }
    EXPECT_FALSE(fs::exists(directory_ + ".writing"));
}

TEST_F(SafetensorsTest, NamesThatAFileCannotHoldAreRefused) {
    EXPECT_THROW(write_safetensors(path_, {{"a", DType::I32, {2}, ids_}, {"a", DType::I32, {1}, ids_}}),
                 std::invalid_argument);
    EXPECT_THROW(write_safetensors(path_, {{"__metadata__", DType::I32, {2}, ids_}}), std::invalid_argument);
    EXPECT_THROW(write_safetensors(path_, {{"a", DType::I32, {-2}, ids_}}), std::invalid_argument);
    EXPECT_THROW(write_safetensors(path_, {}, {{"crc32.a", ""}}), std::invalid_argument);
    EXPECT_THROW(write_safetensors(path_, {}, {{"note", "\xff"}}), UserError);
    EXPECT_FALSE(fs::exists(path_));
}

}  // namespace
