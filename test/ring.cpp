// The ring of the last steps: which steps it holds, in which order, and what of them run.db takes.
#include "probes/ring.h"

#include "probes/run_writer.h"
#include "test/run_db_file.h"

namespace wobble::test {
namespace {

/// Two sites with moments that tell the step.
std::vector<Record> records_of(int64_t step) {
    std::vector<Record> records;
    records.push_back(record_of("a", {double(step)}));
    records.push_back(record_of("b", {double(step), double(step) + 2}));
    return records;
}

/// "step: site=mean …" of every step.
std::string text_of(const RingDump& dump) {
    std::string text;
    for (const RingDump::Step& s : dump.steps) {
        text += (text.empty() ? "" : "; ") + std::to_string(s.step) + ":";
        for (size_t i = 0; i < s.sites.size(); ++i)
            text +=
                " " + dump.sites[size_t(s.sites[i])].site + "=" + std::to_string(int64_t(s.moments[i].mean));
    }
    return text;
}

TEST(Ring, HandsOverItsStepsInOrderAndIsEmpty) {
    Ring ring(5);
    EXPECT_EQ(text_of(ring.take()), "");
    for (const int64_t step : {3, 4, 7}) ring.push(step, records_of(step));
    EXPECT_EQ(ring.size(), 3);
    EXPECT_EQ(text_of(ring.take()), "3: a=3 b=4; 4: a=4 b=5; 7: a=7 b=8");
    EXPECT_EQ(ring.size(), 0);
    EXPECT_EQ(text_of(ring.take()), "");
    ring.push(8, records_of(8));
    EXPECT_EQ(text_of(ring.take()), "8: a=8 b=9");
}

TEST(Ring, KeepsTheLastSteps) {
    for (const int64_t room : {1, 2, 3, 7}) {
        Ring ring(room);
        for (int64_t step = 1; step <= 3 * room + 1; ++step) {
            ring.push(step, records_of(step));
            ASSERT_EQ(ring.size(), std::min(step, room));
        }
        const RingDump dump = ring.take();
        ASSERT_EQ(int64_t(dump.steps.size()), room);
        for (int64_t i = 0; i < room; ++i) {
            const RingDump::Step& s = dump.steps[size_t(i)];
            EXPECT_EQ(s.step, 2 * room + 2 + i);
            EXPECT_EQ(s.moments[0].mean, double(s.step));
        }
    }
}

TEST(Ring, OfNoStepsKeepsNothing) {
    Ring ring(0);
    ring.push(1, records_of(1));
    EXPECT_EQ(ring.size(), 0);
    EXPECT_EQ(text_of(ring.take()), "");
}

TEST(Ring, AStepThatIsPushedAgainReplacesItselfAndTheUndoneOnesAfterIt) {
    Ring ring(4);
    for (int64_t step = 1; step <= 6; ++step) ring.push(step, records_of(step));
    ring.push(6, records_of(60));
    EXPECT_EQ(ring.size(), 4);
    ring.push(5, records_of(50));
    EXPECT_EQ(ring.size(), 3);
    ring.push(6, records_of(61));
    ring.push(7, records_of(7));
    EXPECT_EQ(text_of(ring.take()), "4: a=4 b=5; 5: a=50 b=51; 6: a=61 b=62; 7: a=7 b=8");
    ring.push(10, records_of(10));
    ring.push(1, records_of(1));
    EXPECT_EQ(text_of(ring.take()), "1: a=1 b=2");
}

TEST(Ring, StepsMayHaveDifferentSites) {
    Ring ring(10);
    ring.push(1, records_of(1));
    std::vector<Record> records = records_of(2);
    std::swap(records[0], records[1]);
    records.push_back(record_of("c", {9}));
    records.push_back(record_of("a", {5}, "other channel"));
    ring.push(2, records);
    ring.push(3, {});
    ring.push(4, records_of(4));
    const RingDump dump = ring.take();
    EXPECT_EQ(text_of(dump), "1: a=1 b=2; 2: b=3 a=2 c=9 a=5; 3:; 4: a=4 b=5");
    EXPECT_EQ(dump.sites.size(), 4u);
    EXPECT_EQ(dump.sites[3].channel, "other channel");
}

class RingInRunDb : public RunDbFile {};

constexpr const char* means =
    "SELECT step, name, mean FROM stats JOIN sites USING (site) ORDER BY step, name";

TEST_F(RingInRunDb, StepsThatAreThereAreLeftAlone) {
    Ring ring(3);
    for (const int64_t step : {9, 10, 11}) ring.push(step, records_of(step));
    RunDb db(path_);
    Observation recorded;
    recorded.records.push_back(record_of("a", {-1}));
    db.add_observation(10, recorded);
    const RingDump dump = ring.take();
    db.add_ring(dump);
    db.add_ring(dump);
    db.commit();
    const Reader query(path_);
    const std::string expected = "9|a|9.0\n9|b|10.0\n10|a|-1.0\n10|b|11.0\n11|a|11.0\n11|b|12.0";
    EXPECT_EQ(query(means), expected);
    // And a step that is recorded after the ring with it was written is as recorded.
    recorded.records[0] = record_of("a", {-2});
    db.add_observation(11, recorded);
    db.commit();
    EXPECT_EQ(query("SELECT mean FROM stats JOIN sites USING (site) WHERE step = 11 AND name = 'a'"), "-2.0");
}

TEST_F(RingInRunDb, IsWrittenByTheWriterAndHasNoRowsOfChannelsThatSawNothing) {
    Ring ring(2);
    std::vector<Record> records = records_of(1);
    records.push_back(record_of("nothing", {}));
    records.push_back(record_of("nan", {NAN}));
    ring.push(1, records);
    RunWriter writer(path_);
    writer.add_ring(ring.take());
    writer.flush();
    EXPECT_EQ(Reader(path_)(means), "1|a|1.0\n1|b|2.0\n1|nan|NULL");
}

}  // namespace
}  // namespace wobble::test
