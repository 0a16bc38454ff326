// The order of sequences, text, the held-out split, mixtures, and the messages of data/.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <thread>
#include <tuple>

#include "data/batch.h"
#include "data/dataset.h"
#include "data/documents.h"
#include "data/permutation.h"
#include "data/spec.h"
#include "test/data_files.h"

namespace wobble::test {
namespace {

// ------------ permutation ------------

TEST(Permutation, IsABijectionOfEverySmallSize) {
    for (int64_t n = 1; n <= 300; ++n) {
        for (int64_t epoch : {int64_t{0}, int64_t{1}, int64_t{1} << 40}) {
            const Permutation order(n, 5, Purpose::Order, 3, epoch);
            std::vector<bool> seen(static_cast<size_t>(n));
            for (int64_t i = 0; i < n; ++i) {
                const int64_t to = order(i);
                ASSERT_TRUE(to >= 0 && to < n && !seen[static_cast<size_t>(to)])
                    << n << " " << i << " " << to;
                seen[static_cast<size_t>(to)] = true;
            }
        }
    }
}

TEST(Permutation, IsABijectionOfLargeSizes) {
    for (const int64_t n : {65536, 65537, 100003}) {
        const Permutation order(n, 1, Purpose::Order, 0, 0);
        std::vector<bool> seen(static_cast<size_t>(n));
        for (int64_t i = 0; i < n; ++i) seen[static_cast<size_t>(order(i))] = true;
        EXPECT_EQ(std::count(seen.begin(), seen.end(), true), n);
    }
    // Sizes too large to go through: no two of many positions, at both ends, may meet.
    for (const int64_t n : {(int64_t{1} << 33) + 1, int64_t{1} << 62}) {
        const Permutation order(n, 1, Purpose::Order, 0, 0);
        std::set<int64_t> seen;
        for (int64_t i = 0; i < 2000; ++i) {
            for (const int64_t position : {i, n - 1 - i}) {
                const int64_t to = order(position);
                ASSERT_TRUE(to >= 0 && to < n);
                ASSERT_TRUE(seen.insert(to).second);
            }
        }
    }
}

TEST(Permutation, TakesEachOrderOfFourEquallyOften) {
    // 24 orders, 24000 epochs: chi-square with 23 degrees of freedom stays below 58.6 but once in 50,000.
    std::vector<int> count(256);
    for (int64_t epoch = 0; epoch < 24000; ++epoch) {
        // Four of five, so that cycle walking takes part.
        const Permutation order(5, 9, Purpose::Order, 0, epoch);
        std::vector<int64_t> places;
        for (int64_t i = 0; i < 5; ++i) {
            if (order(i) < 4) places.push_back(order(i));
        }
        ++count[static_cast<size_t>(places[0] * 64 + places[1] * 16 + places[2] * 4 + places[3])];
    }
    double chi_square = 0;
    int orders = 0;
    for (const int n : count) {
        if (n == 0) continue;
        ++orders;
        chi_square += (n - 1000.0) * (n - 1000.0) / 1000.0;
    }
    EXPECT_EQ(orders, 24);
    EXPECT_LT(chi_square, 58.6);
}

TEST(Permutation, DependsOnSeedPurposeStreamAndEpoch) {
    const auto order = [](uint64_t seed, Purpose purpose, uint32_t stream, int64_t epoch) {
        const Permutation permutation(1000, seed, purpose, stream, epoch);
        std::vector<int64_t> places;
        for (int64_t i = 0; i < 1000; ++i) places.push_back(permutation(i));
        return places;
    };
    const std::set<std::vector<int64_t>> orders = {order(1, Purpose::Order, 0, 0),
                                                   order(2, Purpose::Order, 0, 0),
                                                   order(uint64_t{1} << 32 | 1, Purpose::Order, 0, 0),
                                                   order(1, Purpose::Mixture, 0, 0),
                                                   order(1, Purpose::Order, 1, 0),
                                                   order(1, Purpose::Order, 0, 1),
                                                   order(1, Purpose::Order, 0, int64_t{1} << 32)};
    EXPECT_EQ(orders.size(), 7u);
    EXPECT_EQ(order(1, Purpose::Order, 0, 0), order(1, Purpose::Order, 0, 0));
}

// ------------ text ------------

// A text in which every position can be told from its content: numbers, one a line.
std::string numbers(int from, int to) {
    std::string text;
    for (int i = from; i < to; ++i) text += std::to_string(i) + "\n";
    return text;
}

// The stream of tokens that documents make.
std::vector<int32_t> stream_of(const std::vector<std::string>& documents) {
    std::vector<int32_t> stream;
    for (const std::string& document : documents) {
        for (const char c : document) stream.push_back(static_cast<unsigned char>(c));
        stream.push_back(0);
    }
    return stream;
}

int64_t start_of(const std::vector<std::string>& documents, const Provenance& p) {
    int64_t start = p.offset;
    for (int64_t d = 0; d < p.document; ++d)
        start += static_cast<int64_t>(documents[static_cast<size_t>(d)].size()) + 1;
    return start;
}

// Reads one epoch and checks each sequence against the stream, by its provenance. Counts how often each
// position of the stream is a target.
void count_targets(const Dataset& data, int64_t epoch, const std::vector<std::string>& documents,
                   std::vector<int>& count) {
    const std::vector<int32_t> stream = stream_of(documents);
    const int64_t n = data.sequences_per_epoch();
    for (int64_t i = epoch * n; i < (epoch + 1) * n; ++i) {
        const Sequence sequence = read(data, i);
        const int64_t start = start_of(documents, sequence.provenance);
        bool padded = false;
        for (size_t t = 0; t < sequence.inputs.size(); ++t) {
            const size_t at = static_cast<size_t>(start) + t;
            padded = padded || at + 1 >= stream.size();
            ASSERT_EQ(sequence.inputs[t], padded ? 0 : stream[at]);
            ASSERT_EQ(sequence.targets[t], padded ? -1 : stream[at + 1]);
            if (!padded) ++count[at + 1];
        }
    }
}

TEST(Dataset, GivesEveryTokenOnceAnEpochWithARaggedEnd) {
    const Directory directory;
    const std::vector<std::string> documents = {numbers(0, 150), numbers(200, 203), numbers(300, 471)};
    directory.write("a.txt", documents[0]);
    directory.write("b.txt", documents[1]);
    directory.write("c.txt", documents[2]);
    const std::vector<int32_t> stream = stream_of(documents);
    for (const int T : {1, 2, 7, 64, static_cast<int>(stream.size()) - 1}) {
        const Dataset data = Dataset::open("text:" + (directory / "*.txt"), {.context = T, .seed = 3});
        const int64_t N = static_cast<int64_t>(stream.size());
        ASSERT_EQ(data.vocab(), 256);
        ASSERT_EQ(data.tokens(), N);
        ASSERT_EQ(data.sequences_per_epoch(), (N - 1 + T - 1) / T);
        for (int64_t epoch = 0; epoch < 2; ++epoch) {
            std::vector<int> count(stream.size());
            count_targets(data, epoch, documents, count);
            EXPECT_EQ(count[0], 0);
            EXPECT_TRUE(std::all_of(count.begin() + 1, count.end(), [](int c) { return c == 1; }))
                << T << " " << epoch;
        }
    }
}

TEST(Dataset, OrdersEachEpochAndSeedDifferently) {
    const Directory directory;
    const std::string spec = "text:" + directory.write("a.txt", numbers(0, 1000));
    const auto order = [&](uint64_t seed, int64_t epoch) {
        const Dataset data = Dataset::open(spec, {.context = 16, .seed = seed});
        std::vector<int64_t> offsets;
        for (int64_t i = 0; i < data.sequences_per_epoch(); ++i) {
            offsets.push_back(read(data, epoch * data.sequences_per_epoch() + i).provenance.offset);
        }
        return offsets;
    };
    EXPECT_EQ(order(1, 0), order(1, 0));
    EXPECT_NE(order(1, 0), order(1, 1));
    EXPECT_NE(order(1, 0), order(2, 0));
    EXPECT_FALSE(std::is_sorted(order(1, 0).begin(), order(1, 0).end()));
}

TEST(Dataset, ReadsTheSameHoweverItIsCutIntoBatchesAndByWhichThread) {
    const Directory directory;
    const std::string text = directory.write("a.txt", numbers(0, 400));
    const Dataset data = Dataset::open("0.7*text:" + text + "+0.3*synthetic:markov?vocab=9", {.context = 32});
    const Batch whole = read_batch(data, 5, 120);
    for (const int cut : {1, 7, 40}) {
        Batch parts;
        for (int first = 0; first < 120; first += cut) {
            const Batch part = read_batch(data, 5 + first, std::min(cut, 120 - first));
            parts.inputs.insert(parts.inputs.end(), part.inputs.begin(), part.inputs.end());
            parts.targets.insert(parts.targets.end(), part.targets.begin(), part.targets.end());
            parts.provenance.insert(parts.provenance.end(), part.provenance.begin(), part.provenance.end());
            parts.valid_targets += part.valid_targets;
        }
        EXPECT_EQ(parts.inputs, whole.inputs);
        EXPECT_EQ(parts.targets, whole.targets);
        EXPECT_EQ(parts.provenance, whole.provenance);
        EXPECT_EQ(parts.valid_targets, whole.valid_targets);
    }
    std::vector<Sequence> sequences(120);
    std::vector<std::thread> threads;
    for (size_t k = 0; k < 3; ++k) {
        threads.emplace_back([&, k] {
            for (size_t i = k; i < 120; i += 3)
                sequences[119 - i] = read(data, 5 + static_cast<int64_t>(119 - i));
        });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<int32_t> inputs;
    for (const Sequence& s : sequences) inputs.insert(inputs.end(), s.inputs.begin(), s.inputs.end());
    EXPECT_EQ(inputs, whole.inputs);
}

TEST(Batch, CountsTheTargetsThatArePadding) {
    const Directory directory;
    const std::string spec =
        "text:" + directory.write("a.txt", "0123456789");  // 11 tokens with the 0, 10 targets
    const Dataset data = Dataset::open(spec, {.context = 4});
    const Batch batch = read_batch(data, 0, 3);
    EXPECT_EQ(batch.valid_targets, 10);
    EXPECT_EQ(std::count(batch.targets.begin(), batch.targets.end(), -1), 2);
    EXPECT_EQ(batch.inputs.size(), 12u);
    EXPECT_EQ(batch.provenance.size(), 3u);
}

TEST(Text, SplitsAtLinesAndDropsEmptyDocuments) {
    const Directory directory;
    // Only whole lines separate; a line of Windows does too; the last document needs no newline.
    directory.write("a.txt", "%\none\n%two\n%\n%\r\nthree % 3\n%\nfour");
    directory.write("b.txt", "%\n%\n");
    directory.write("c.txt", "five\n%");
    const std::vector<std::string> documents = {"one\n%two\n", "three % 3\n", "four", "five\n"};
    const Dataset data = Dataset::open("text:" + (directory / "*.txt") + "?split=%", {.context = 3});
    std::vector<int> count(stream_of(documents).size());
    ASSERT_EQ(data.tokens(), static_cast<int64_t>(count.size()));
    count_targets(data, 0, documents, count);
    EXPECT_TRUE(std::all_of(count.begin() + 1, count.end(), [](int c) { return c == 1; }));
    EXPECT_NE(data.describe().find("in 4 documents"), std::string::npos) << data.describe();
}

TEST(Text, ReadsFilesInTheOrderOfTheirNamesAndBytesAbove127) {
    const Directory directory;
    directory.write("b.txt", "\xc3\xa9");
    directory.write("a.txt", "\xff");
    const Dataset data = Dataset::open("text:" + (directory / "?.txt"), {.context = 4});
    const Sequence sequence = read(data, 0);
    EXPECT_EQ(sequence.inputs, (std::vector<int32_t>{0xff, 0, 0xc3, 0xa9}));
    EXPECT_EQ(sequence.targets, (std::vector<int32_t>{0, 0xc3, 0xa9, 0}));
}

// ------------ held-out split ------------

TEST(HeldOut, AndTrainingPartAreDisjointAndCompleteByDocumentOrTail) {
    const Directory directory;
    std::vector<std::string> documents;
    std::string text;
    for (int d = 0; d < 40; ++d) {
        documents.push_back(numbers(100 * d, 100 * d + 1 + d * 7 % 11));
        text += documents.back() + "%\n";
    }
    const std::string spec = "text:" + directory.write("a.txt", text) + "?split=%";
    const std::vector<int32_t> stream = stream_of(documents);
    const int64_t N = static_cast<int64_t>(stream.size());
    for (const double holdout : {0.03, 0.05, 0.1, 0.25, 1.0 / 3, 0.9}) {
        const bool by_document = 40 >= 2 / holdout;
        std::vector<int> count(stream.size());  // 1: an input of the training part, 2: of the held-out part
        std::set<int64_t> held_out_documents;
        int64_t tokens = 0, described = 0;
        for (const Part part : {Part::Train, Part::HeldOut}) {
            const Dataset data =
                Dataset::open(spec, {.context = 1, .seed = 4, .holdout = holdout, .part = part});
            tokens += data.tokens();
            ASSERT_EQ(data.sequences_per_epoch(), data.tokens() - 1);
            std::set<int64_t> in_part;
            for (int64_t i = 0; i < data.sequences_per_epoch(); ++i) {
                const Sequence sequence = read(data, i);
                const int64_t at = start_of(documents, sequence.provenance);
                ASSERT_EQ(sequence.inputs[0], stream[static_cast<size_t>(at)]);
                count[static_cast<size_t>(at)] += part == Part::Train ? 1 : 2;
                in_part.insert(sequence.provenance.document);
            }
            if (part == Part::HeldOut) held_out_documents = in_part;
            described += static_cast<int64_t>(in_part.size());
            EXPECT_NE(data.describe().find("in " + std::to_string(in_part.size()) + " document"),
                      std::string::npos)
                << data.describe();
        }
        EXPECT_EQ(tokens, N);
        // With T = 1 every token of a part but its last is an input once.
        EXPECT_EQ(std::count(count.begin(), count.end(), 0), 2);
        EXPECT_EQ(std::count(count.begin(), count.end(), 3), 0);
        if (by_document) {
            EXPECT_EQ(described, 40);  // no document in both
            EXPECT_EQ(static_cast<int>(held_out_documents.size()), static_cast<int>(40 * holdout));
            int64_t widest = 0, last = -1;
            for (const int64_t d : held_out_documents) {
                EXPECT_GT(std::floor(static_cast<double>(d + 1) * holdout),
                          std::floor(static_cast<double>(d) * holdout));
                widest = std::max(widest, d - last);
                last = d;
            }
            EXPECT_LE(widest, std::lround(std::ceil(1 / holdout)));  // evenly spread
        } else {
            EXPECT_EQ(std::count(count.end() - static_cast<int64_t>(static_cast<double>(N) * holdout),
                                 count.end() - 1, 2),
                      static_cast<int64_t>(static_cast<double>(N) * holdout) - 1);
        }
    }
}

TEST(HeldOut, SequencesJoinTheDocumentsOfTheirPartAlone) {
    const Directory directory;
    std::vector<std::string> documents;
    std::string text;
    for (int d = 0; d < 12; ++d) {
        documents.push_back(std::string(1 + static_cast<size_t>(d % 3), static_cast<char>('a' + d)));
        text += documents.back() + "\n%\n";
        documents.back() += "\n";
    }
    const std::string spec = "text:" + directory.write("a.txt", text) + "?split=%";
    for (const Part part : {Part::Train, Part::HeldOut}) {
        std::vector<std::string> kept;
        for (int d = 0; d < 12; ++d) {
            if ((d % 4 == 3) == (part == Part::HeldOut)) kept.push_back(documents[static_cast<size_t>(d)]);
        }
        const std::vector<int32_t> stream = stream_of(kept);
        const int T = static_cast<int>(stream.size()) - 1;
        const Sequence all = read(Dataset::open(spec, {.context = T, .holdout = 0.25, .part = part}), 0);
        EXPECT_EQ(all.inputs, std::vector<int32_t>(stream.begin(), stream.end() - 1));
        EXPECT_EQ(all.targets, std::vector<int32_t>(stream.begin() + 1, stream.end()));
        EXPECT_EQ(all.provenance, (Provenance{0, part == Part::HeldOut ? 3 : 0, 0}));
    }
}

TEST(Documents, BeyondThirtyTwoBitsAreFound) {
    constexpr int64_t kBig = int64_t{1} << 40;
    const Documents whole({0, kBig, kBig + 5, 3 * kBig, 4 * kBig}, 0.5,
                          Part::HeldOut);  // 1 and 3 are held out
    EXPECT_EQ(whole.tokens(), kBig + 5);
    const Documents::Place second = whole.locate(4), last = whole.locate(kBig + 4);
    EXPECT_EQ(std::tuple(second.position, second.document, second.offset, second.left),
              std::tuple(kBig + 4, 1, 4, 1));
    EXPECT_EQ(std::tuple(last.position, last.document, last.offset, last.left),
              std::tuple(4 * kBig - 1, 3, kBig - 1, 1));
    const Documents tail({0, 4 * kBig}, 0.25, Part::Train);
    EXPECT_EQ(tail.tokens(), 3 * kBig);
    EXPECT_EQ(tail.locate(2 * kBig).left, kBig);  // not beyond the part
    EXPECT_EQ(Documents({0, 4 * kBig}, 0.25, Part::HeldOut).locate(7).position, 3 * kBig + 7);
}

// ------------ mixture ------------

TEST(Mixture, HasExactSharesInEveryThousand) {
    const Directory directory;
    const std::string a = "text:" + directory.write("a.txt", numbers(0, 100));
    const std::string b = "text:" + directory.write("b.txt", numbers(0, 300));
    const std::string c = "synthetic:markov?vocab=3";
    struct Case {
        std::string spec;
        std::vector<int> shares;
    };
    const Case cases[] = {{"0.8*" + a + "+0.2*" + b, {800, 200}},
                          {a + "+" + b + "+" + c, {334, 333, 333}},
                          {"3*" + a + "+2*" + b + "+2*" + c, {428, 286, 286}},
                          {"0.3*" + a + "+0.7*" + b, {300, 700}}};
    for (const Case& test : cases) {
        const Dataset data = Dataset::open(test.spec, {.context = 8});
        std::vector<std::vector<int>> orders;
        for (const int64_t block : {int64_t{0}, int64_t{1}, int64_t{1000000000}}) {
            std::vector<int> shares(test.shares.size()), order;
            for (int64_t i = 0; i < 1000; ++i) {
                order.push_back(read(data, block * 1000 + i).provenance.source);
                ++shares[static_cast<size_t>(order.back())];
            }
            EXPECT_EQ(shares, test.shares) << test.spec;
            EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
            orders.push_back(order);
        }
        EXPECT_NE(orders[0], orders[1]);
    }
}

TEST(Mixture, ReadsEachSourceInEpochsOfItsOwn) {
    const Directory directory;
    const std::string a = directory.write("a.txt", numbers(0, 300));    // 1090 + 1 tokens
    const std::string b = directory.write("b.txt", numbers(0, 20000));  // more than is read here
    const Dataset data = Dataset::open("0.5*text:" + a + "+0.5*text:" + b, {.context = 5});
    const int64_t n_a = Dataset::open("text:" + a, {.context = 5}).sequences_per_epoch();
    ASSERT_EQ(n_a, 218);
    std::vector<int> count_a(static_cast<size_t>(n_a));
    std::set<int64_t> seen_b;
    for (int64_t i = 0; i < 2000; ++i) {
        const Provenance p = read(data, i).provenance;
        if (p.source == 0) ++count_a[static_cast<size_t>(p.offset / 5)];
        if (p.source == 1) {
            EXPECT_TRUE(seen_b.insert(p.offset).second);
        }
    }
    // 1000 visits of 218 sequences: each 4 or 5 times.
    EXPECT_EQ(*std::min_element(count_a.begin(), count_a.end()), 4);
    EXPECT_EQ(*std::max_element(count_a.begin(), count_a.end()), 5);
    EXPECT_EQ(data.source_name(1), "text:" + b);
    EXPECT_EQ(data.sources(), 2);
    EXPECT_FALSE(data.loss_floor().has_value());
    EXPECT_NE(data.describe().find("weight 0.5"), std::string::npos);
}

TEST(Mixture, OrdersEqualSourcesDifferently) {
    const Directory directory;
    const std::string a = "text:" + directory.write("a.txt", numbers(0, 3000));
    const Dataset data = Dataset::open(a + "+" + a, {.context = 10});
    std::vector<std::vector<int64_t>> offsets(2);
    for (int64_t i = 0; i < 1000; ++i) {
        const Provenance p = read(data, i).provenance;
        offsets[static_cast<size_t>(p.source)].push_back(p.offset);
    }
    // Sorted, so that only which sequences came first counts, not their order in the block.
    for (std::vector<int64_t>& list : offsets) std::sort(list.begin(), list.end());
    EXPECT_NE(offsets[0], offsets[1]);
}

// ------------ specification ------------

TEST(Spec, SplitsTermsOnlyWhereAnotherKindFollows) {
    const auto patterns = [](const std::string& spec) {
        std::vector<std::string> list;
        for (const Term& term : parse_spec(spec)) list.push_back(term.kind + "|" + term.pattern);
        return list;
    };
    using List = std::vector<std::string>;
    EXPECT_EQ(patterns("text:c++/*.txt"), (List{"text|c++/*.txt"}));
    EXPECT_EQ(patterns("0.5*text:a+b*.txt+0.5*tokens:x+1*2.bin"),
              (List{"text|a+b*.txt", "tokens|x+1*2.bin"}));
    EXPECT_EQ(patterns("text:a+text:b+2*synthetic:markov"), (List{"text|a", "text|b", "synthetic|markov"}));
    EXPECT_EQ(patterns("text:a + 0.5*text:b"), (List{"text|a", "text|b"}));
    EXPECT_EQ(patterns("text:part?.txt"), (List{"text|part?.txt"}));
    EXPECT_EQ(patterns("text:part?.txt?split=?a"), (List{"text|part?.txt"}));
    const std::vector<Term> terms = parse_spec("1e+3*text:a?split=%&x=1+1e+2*text:b");
    ASSERT_EQ(terms.size(), 2u);
    EXPECT_EQ(terms[0].weight, 1000);
    EXPECT_EQ(terms[1].weight, 100);
    EXPECT_EQ(terms[0].options.at("split"), "%");
    EXPECT_EQ(terms[0].options.at("x"), "1");
    EXPECT_EQ(terms[0].name, "text:a?split=%&x=1");
}

TEST(Spec, ExplainsWhatCannotBeRead) {
    const Directory directory;
    const std::string a = "text:" + directory.write("a.txt", numbers(0, 100));
    expect_error("a.txt", {}, {"'a.txt' names no kind", "text:GLOB", "write 'text:a.txt'"});
    expect_error("", {}, {"names no kind"});
    expect_error("csv:a.txt", {}, {"unknown kind 'csv'", "tokens:GLOB"});
    expect_error("0.5*" + a + "+0.5*csv:b", {}, {"unknown kind 'csv'"});
    expect_error(a + "?spilt=%", {}, {"unknown option 'spilt'", "expected split"});
    expect_error(a + "?split=%&x", {}, {"option 'x' has no value"});
    expect_error(a + "?split=%&split=#", {}, {"'split' is given twice"});
    expect_error(a + "?split=", {}, {"split is empty"});
    expect_error("half*" + a, {}, {"weight 'half'", "a number above 0"});
    expect_error("-1*" + a, {}, {"weight '-1'"});
    expect_error(a + "+0*" + a, {}, {"weight '0'"});
    expect_error(a + "+nan*" + a, {}, {"weight 'nan'"});
    expect_error("0.9999*" + a + "+0.0001*" + a, {}, {"a share of 0.0001", "1 sequence in 1000"});
}

TEST(Dataset, ExplainsFilesThatCannotBeUsed) {
    const Directory directory;
    expect_error("text:" + (directory / "none*.txt"), {},
                 {"no file matches '" + (directory / "none*.txt") + "'"});
    expect_error("text:" + (directory / "none.txt"), {}, {"no file matches"});
    expect_error("tokens:" + (directory / "none.bin"), {}, {"no file matches"});
    expect_error("text:" + (directory / "."), {}, {"is a directory", "/*'"});
    directory.write("empty.txt", "");
    expect_error("text:" + (directory / "empty.txt"), {}, {"empty.txt' is empty"});
    directory.write("bare.txt", "%\n%\n");
    expect_error("text:" + (directory / "bare.txt") + "?split=%", {}, {"only lines '%'"});
    directory.write("secret.txt", "text");
    std::filesystem::permissions(directory / "secret.txt", std::filesystem::perms::none);
    if (geteuid() != 0)
        expect_error("text:" + (directory / "secret.txt"), {}, {"cannot open", "Permission denied"});
}

TEST(Dataset, NamesTheContextThatWouldFit) {
    const Directory directory;
    const std::string spec = "text:" + directory.write("a.txt", "0123456789");  // 11 tokens
    expect_error(spec, {.context = 11}, {"holds 11 tokens", "T = 11 needs 12", "--context 10 or less"});
    EXPECT_EQ(error_of(spec, {.context = 10}), "");
    expect_error(spec, {.context = 8, .holdout = 0.3, .part = Part::Train},
                 {"training part holds 8 tokens", "T = 8 needs 9", "--context 7"});
    expect_error(spec, {.context = 3, .holdout = 0.3, .part = Part::HeldOut},
                 {"held-out part holds 3 tokens", "--context 2"});
    expect_error(spec, {.context = 1, .holdout = 0.1, .part = Part::HeldOut},
                 {"holds 1 token", "at least 2"});
    expect_error(spec, {.context = 1, .holdout = 0.01, .part = Part::HeldOut},
                 {"holds 0 tokens", "at least 2"});
}

TEST(Dataset, ExplainsOptionsOutOfRange) {
    const Directory directory;
    const std::string spec = "text:" + directory.write("a.txt", numbers(0, 100));
    expect_error(spec, {.context = 0}, {"context is 0"});
    expect_error(spec, {.vocab = -1}, {"vocab is -1"});
    expect_error(spec, {.holdout = 1}, {"held-out share is 1"});
    expect_error(spec, {.holdout = -0.1}, {"held-out share is -0.1"});
    expect_error(spec, {.holdout = std::nan("")}, {"held-out share is"});
    expect_error(spec, {.part = Part::HeldOut}, {"no held-out part"});
}

// ------------ demo text ------------

TEST(DemoText, IsMadeOnceAndCanBeRead) {
    const Directory directory;
    const std::string make =
        "sh data/make_demo_text.sh '" + (directory / "demo") + "' > '" + (directory / "said") + "'";
    ASSERT_EQ(std::system(make.c_str()), 0);
    for (const std::string file : {"demo/kjv.txt", "demo/fortunes.txt"}) {
        const std::string path = directory / file;
        const Dataset data =
            Dataset::open("text:" + path + "?split=%", {.holdout = 0.05, .part = Part::HeldOut});
        EXPECT_GT(data.tokens(), 5000);
        std::filesystem::last_write_time(path, std::filesystem::file_time_type::min());
    }
    const auto before = std::filesystem::last_write_time(directory / "demo/kjv.txt");
    ASSERT_EQ(std::system(make.c_str()), 0);
    EXPECT_EQ(std::filesystem::last_write_time(directory / "demo/kjv.txt"), before);
    EXPECT_EQ(std::filesystem::file_size(directory / "said"), 0u);
}

}  // namespace
}  // namespace wobble::test
