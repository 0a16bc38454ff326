// Fewer points that look the same, and how numbers travel in the page.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "report/encode.h"
#include "report/series.h"

namespace wobble::test {
namespace {

std::vector<double> noise(size_t count, unsigned seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal;
    std::vector<double> values(count);
    for (double& x : values) x = normal(generator);
    return values;
}

bool holds(const std::vector<size_t>& kept, size_t row) {
    return std::binary_search(kept.begin(), kept.end(), row);
}

TEST(ReportSeries, KeepsTheExtremesOfEveryColumnInEveryBucket) {
    constexpr size_t rows = 10'007, buckets = 90;
    const std::vector<double> a = noise(rows, 1), b = noise(rows, 2);
    const std::vector<size_t> kept = kept_rows({&a, &b}, rows, buckets);
    EXPECT_LE(kept.size(), 4 * buckets + 2);
    EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
    EXPECT_TRUE(holds(kept, 0) && holds(kept, rows - 1));
    for (size_t k = 0; k < buckets; ++k) {
        const auto begin = std::ptrdiff_t(rows * k / buckets), end = std::ptrdiff_t(rows * (k + 1) / buckets);
        for (const auto& column : {a, b}) {
            const auto [low, high] = std::minmax_element(column.begin() + begin, column.begin() + end);
            EXPECT_TRUE(holds(kept, size_t(low - column.begin()))) << k;
            EXPECT_TRUE(holds(kept, size_t(high - column.begin()))) << k;
        }
    }
}

TEST(ReportSeries, KeepsGapsAndWhatIsAskedFor) {
    std::vector<double> x = noise(5000, 3);
    for (size_t i = 2000; i < 2003; ++i) x[i] = NAN;
    x[4321] = -INFINITY;
    const std::vector<size_t> kept = kept_rows({&x}, x.size(), 50, {777, 778, 12});
    for (const size_t row : {2000, 4321, 777, 778, 12}) EXPECT_TRUE(holds(kept, row)) << row;
    const std::vector<double> values = at_rows(x, kept);
    ASSERT_EQ(values.size(), kept.size());
    EXPECT_TRUE(std::any_of(values.begin(), values.end(), [](double v) { return std::isnan(v); }));
}

TEST(ReportSeries, LeavesShortSeriesAsTheyAre) {
    const std::vector<double> one = {3}, few = noise(20, 4), gone(30, NAN);
    EXPECT_EQ(kept_rows({&one}, 1, 100), std::vector<size_t>{0});
    EXPECT_EQ(kept_rows({&few}, 20, 10).size(), 20u);
    EXPECT_EQ(kept_rows({}, 0, 10).size(), 0u);
    const std::vector<size_t> of_nothing = kept_rows({&gone}, 30, 3);
    EXPECT_TRUE(holds(of_nothing, 0) && holds(of_nothing, 10) && holds(of_nothing, 29));
}

TEST(ReportEncoding, IsThatOfRfc4648) {
    EXPECT_EQ(base64(""), "");
    EXPECT_EQ(base64("f"), "Zg==");
    EXPECT_EQ(base64("fo"), "Zm8=");
    EXPECT_EQ(base64("foo"), "Zm9v");
    EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
    EXPECT_EQ(base64(std::string("\xff\xfe\x00", 3)), "//4A");
}

std::string bytes_of(const std::string& text) {
    static const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string bytes;
    uint32_t word = 0;
    int bits = 0;
    for (const char c : text) {
        if (c == '=') break;
        word = word << 6 | uint32_t(letters.find(c)), bits += 6;
        if (bits >= 8) bits -= 8, bytes += char(word >> bits & 255);
    }
    return bytes;
}

TEST(ReportEncoding, OfRealsIsRightToSeventeenBits) {
    std::vector<double> values = {0,     -0.0, 1,        -1,        3.4e38, 3.4028234e38,
                                  1e-40, NAN,  INFINITY, -INFINITY, 1e300};
    for (const double x : noise(1000, 5)) values.push_back(std::exp(20 * x));
    const std::string bytes = bytes_of(base64_reals(values));
    ASSERT_EQ(bytes.size(), 3 * values.size());
    for (size_t i = 0; i < values.size(); ++i) {
        const auto byte = [&](size_t k) { return uint32_t(uint8_t(bytes[3 * i + k])); };
        const double read = std::bit_cast<float>(byte(0) << 8 | byte(1) << 16 | byte(2) << 24);
        const double x = values[i];
        if (std::isnan(x)) EXPECT_TRUE(std::isnan(read));
        else if (std::fabs(x) > 3.4028e38) EXPECT_EQ(read, x > 0 ? INFINITY : -INFINITY);
        else EXPECT_LE(std::fabs(read - x), std::max(std::fabs(x) * 0x1p-16, 0x1p-141)) << x;
    }
}

TEST(ReportEncoding, OfIntegersIsLittleEndian) {
    EXPECT_EQ(bytes_of(base64_integers({1, 0x01020304})), std::string("\1\0\0\0\4\3\2\1", 8));
}

// What a run is called must not become part of the page.
TEST(ReportEncoding, LetsNothingOutOfItsElement) {
    const std::string json = for_script(R"({"name":"</script><!-- &amp;"})");
    EXPECT_EQ(json.find_first_of("<>&"), std::string::npos) << json;
    EXPECT_EQ(json, R"({"name":"\u003c/script\u003e\u003c!-- \u0026amp;"})");
    EXPECT_EQ(for_html("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
}

}  // namespace
}  // namespace wobble::test
