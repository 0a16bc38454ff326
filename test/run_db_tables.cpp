// What an Observation becomes in run.db: a row for each of its rows, under the names that people query.
#include <bit>
#include <limits>
#include <random>
#include <set>
#include <sstream>

#include "test/run_db_file.h"

namespace wobble::test {
namespace {

class RunDbTables : public RunDbFile {
  protected:
    /// The tables that have rows of steps.
    static std::set<std::string> tables_with_steps(const Reader& query) {
        std::istringstream names(
            query("SELECT t.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c "
                  "WHERE t.type = 'table' AND c.name = 'step'"));
        std::set<std::string> tables;
        for (std::string name; names >> name;) tables.insert(name);
        return tables;
    }
};

TEST_F(RunDbTables, EachRowOfAnObservationComesBack) {
    RunDb db(path_);
    db.add_step(step_row(7), {});
    db.add_observation(7, observation_of(1));
    db.commit();
    const Reader query(path_);
    EXPECT_EQ(
        query("SELECT step, name, layer, phase, channel, kernel, count, mean, std, min, "
              "max, absmax, round(skew, 9), kurtosis, zeros, subnormals, nans, infs, first_row, first_column "
              "FROM stats JOIN sites USING (site)"),
        "7|wte|-1|forward|output|kernel|4|2.0|1.0|1.0|3.0|3.0|0.0|1.0|0|0|0|0|NULL|NULL");
    EXPECT_NEAR(query.number("SELECT rms FROM stats"), std::sqrt(5.0), std::sqrt(5.0) * 0x1p-24);
    EXPECT_EQ(query("SELECT step, name, bins, flushed, overflowed FROM histograms JOIN sites USING (site)"),
              "7|wte|{\"0\":4}|{}|{}");
    EXPECT_EQ(query("SELECT step, name, layer, phase, channel, kernel, head, max_logit, abs_logit, entropy, "
                    "entropy_min, sink, ties, saturated FROM heads JOIN sites USING (site) ORDER BY head"),
              "7|h.1.attn|1|forward|heads||0|1.0|2.0|3.0|4.0|5.0|6.0|7.0\n"
              "7|h.1.attn|1|forward|heads||1|-1.0|1.0|1.0|1.0|1.0|1.0|1.0");
    EXPECT_EQ(query("SELECT step, name, layer, phase, channel, kernel, identity, rows, value, bias, scale, "
                    "worst, worst_row FROM residuals JOIN sites USING (site)"),
              "7|h.0.ln_1|0|backward|residuals|layernorm|dx|12|1.0|2.0|3.0|4.0|7");
    EXPECT_EQ(query("SELECT step, name, layer, grad_rms, grad_max, weight_rms, distance_rms, update_rms, "
                    "update_ratio, rms_t, cos_grad_momentum, epsilon_share, lost_share, lost_share_bf16, "
                    "weight_dot_grad, cos_weight_grad FROM tensors ORDER BY name"),
              "7|h.11.mlp.fc.weight|11|1.0|2.0|3.0|4.0|5.0|6.0|7.0|8.0|9.0|10.0|11.0|12.0|13.0\n"
              "7|wte.weight|-1|1.0|1.0|1.0|1.0|1.0|1.0|1.0|1.0|1.0|1.0|1.0|1.0|1.0");
    EXPECT_EQ(query("SELECT phase, channel FROM sites WHERE name = 'wte.weight'"), "update|tensor");
    EXPECT_EQ(query("SELECT step, name, decile, rows, weight_rms, grad_rms, update_rms FROM embeddings"),
              "7|wte|9|5|1.0|2.0|3.0");
    EXPECT_EQ(query("SELECT step, name, layer, phase, channel, stream_rms, write_rms, ratio, cosine FROM "
                    "streams JOIN sites USING (site)"),
              "7|h.0.mlp.proj|0|forward|stream|1.0|2.0|3.0|4.0");
    EXPECT_EQ(query("SELECT step, name, layer, phase, kernel, channel, columns, kurtosis, dormant, dead, "
                    "largest, largest_rms, effective_rank, stable_rank, sampled_rows FROM channels JOIN "
                    "sites USING (site)"),
              "7|h.0.mlp.fc|0|forward|product|output|64|1.0|2.0|3.0|63|4.0|5.0|6.0|32");
    EXPECT_EQ(query("SELECT step, kind, key, loss, tokens FROM losses ORDER BY kind"),
              "7|percentile|95|1.0|100\n7|position|0|2.0|32");
    EXPECT_EQ(query("SELECT step, rank, micro, row, position, token, loss, source, document, offset FROM "
                    "largest_losses"),
              "7|0|1|2|3|50256|1.0|4|1099511627776|6");
    EXPECT_EQ(query("SELECT step, micro, row, norm FROM examples"), "7|0|1|1.0");
    EXPECT_EQ(query("SELECT step, name, value FROM measures"), "7|noise.scale|1.0");
}

TEST_F(RunDbTables, NonFiniteNumbersAreNull) {
    for (const float x : {NAN, INFINITY, -INFINITY}) {
        fs::remove(path_);
        RunDb db(path_);
        db.add_observation(1, observation_of(x));
        db.commit();
        const Reader query(path_);
        EXPECT_EQ(query("SELECT count, mean, std, rms, min, max, absmax, skew, kurtosis FROM stats"),
                  "0|NULL|NULL|NULL|NULL|NULL|NULL|NULL|NULL");
        EXPECT_EQ(query("SELECT sum(nans + infs) FROM stats"), "4");
        EXPECT_EQ(query("SELECT entropy, saturated FROM heads"), "NULL|NULL\nNULL|NULL");
        EXPECT_EQ(query("SELECT grad_rms, cos_weight_grad FROM tensors"), "NULL|NULL\nNULL|NULL");
        EXPECT_EQ(query("SELECT value, scale FROM residuals"), "NULL|NULL");
        EXPECT_EQ(query("SELECT stream_rms FROM streams UNION ALL SELECT effective_rank FROM channels UNION "
                        "ALL SELECT weight_rms FROM embeddings UNION ALL SELECT norm FROM examples UNION ALL "
                        "SELECT value FROM measures UNION ALL SELECT loss FROM largest_losses"),
                  "NULL\nNULL\nNULL\nNULL\nNULL\nNULL");
    }
}

TEST_F(RunDbTables, NumbersOfFloat32ComeBackExactlyAndOthersToItsRounding) {
    std::vector<double> numbers;
    std::mt19937 random(1);
    for (uint32_t exponent = 0; exponent < 255; ++exponent) {
        for (const uint32_t significand : {0u, 1u, 0x7fffffu, uint32_t(random() & 0x7fffffu)}) {
            const auto number = double(std::bit_cast<float>(exponent << 23 | significand));
            numbers.insert(numbers.end(), {number, -number});
        }
    }
    const size_t exact = numbers.size();
    numbers.insert(numbers.end(), {1.0 / 3, -0.1, 1e-30 / 3, 3e38 * 0.9999999});
    const size_t rounded = numbers.size();
    // Beyond what float32 holds: kept as they are.
    numbers.insert(numbers.end(), {1e300, -1e39, 3.4028236e38, 1e-40 / 3, -1e-300, 0x1p-1074});
    {
        RunDb db(path_);
        Observation o;
        for (size_t i = 0; i < numbers.size(); ++i)
            o.heads.push_back({"h.0.attn", 0, int64_t(i), numbers[i], 0, 0, 0, 0, 0, 0});
        db.add_observation(1, o);
    }
    sqlite3* database = nullptr;
    sqlite3_stmt* rows = nullptr;
    sqlite3_open(path_.c_str(), &database);
    sqlite3_prepare_v2(database, "SELECT max_logit FROM heads ORDER BY head", -1, &rows, nullptr);
    for (size_t i = 0; i < numbers.size(); ++i) {
        ASSERT_EQ(sqlite3_step(rows), SQLITE_ROW);
        EXPECT_EQ(sqlite3_column_type(rows, 0), SQLITE_FLOAT);
        const double found = sqlite3_column_double(rows, 0);
        if (i < exact || i >= rounded) EXPECT_EQ(found, numbers[i]);
        else EXPECT_EQ(found, double(float(numbers[i])));
    }
    sqlite3_finalize(rows);
    sqlite3_close(database);
}

TEST_F(RunDbTables, ChannelsThatSawNothingHaveNoRow) {
    RunDb db(path_);
    Observation o;
    o.records.push_back(record_of("nothing", {}));
    o.records.push_back(record_of("zero", {0}));
    o.records.push_back(record_of("nan", {NAN}));
    for (Record& record : o.records) record.statistics.histogram = std::make_unique<Histogram>();
    db.add_observation(1, o);
    db.commit();
    const Reader query(path_);
    EXPECT_EQ(query("SELECT name, count, nans FROM stats JOIN sites USING (site)"), "zero|1|0\nnan|0|1");
    EXPECT_EQ(query("SELECT name FROM histograms JOIN sites USING (site)"), "zero\nnan");
}

TEST_F(RunDbTables, EveryTableForgetsTheStepsThatAreRepeated) {
    RunDb db(path_);
    for (const int64_t step : {1, 2, 3}) {
        StepRow row = step_row(step);
        row.weights_hash = row.batch_hash = 7;
        db.add_step(row, {{0, 0, 0, 0, 0}});
        db.add_tokens(step, {{0, 0, {1, 2}, {2, -1}}});
        db.set_config(step, "steps = 3", 7);
        db.add_observation(step, observation_of(double(step)));
        db.add_eval({step, "val", 1, 1, 1});
        db.add_events({{step, "stall", 1, Severity::Note, "loss", 1, 1, "flat", "{}"}});
        db.commit();
    }
    const Reader query(path_);
    const std::set<std::string> tables = tables_with_steps(query);
    EXPECT_GE(tables.size(), 14u);
    for (const std::string& table : tables)
        EXPECT_EQ(query("SELECT group_concat(DISTINCT step) FROM " + table), "1,2,3") << table;
    db.forget_after(1);
    for (const std::string& table : tables)
        EXPECT_EQ(query("SELECT group_concat(DISTINCT step) FROM " + table), "1") << table;
    db.add_step(step_row(2), {{0, 0, 0, 0, 0}});
    db.add_observation(2, observation_of(5));
    db.commit();
    EXPECT_EQ(query("SELECT step, grad_rms FROM tensors WHERE name = 'wte.weight'"), "1|1.0\n2|5.0");
}

TEST_F(RunDbTables, ASiteHasOneNumberForGood) {
    Observation o;
    for (const char* site : {"a", "b"})
        for (const char* channel : {"x", "y"}) o.records.push_back(record_of(site, {1}, channel));
    { RunDb(path_).add_observation(1, o); }
    std::reverse(o.records.begin(), o.records.end());
    o.records.push_back(record_of("c", {1}, "x"));
    o.records.push_back(record_of("a", {1}, "x"));
    o.records.back().phase = Phase::Backward;
    o.records.push_back(record_of("a", {1}, "x"));
    o.records.back().kernel = "other";
    RunDb db(path_);
    db.add_observation(2, o);
    db.commit();
    EXPECT_EQ(Reader(path_)("SELECT site, name, phase, kernel, channel FROM sites ORDER BY site"),
              "1|a|forward|kernel|x\n2|a|forward|kernel|y\n3|b|forward|kernel|x\n4|b|forward|kernel|y\n"
              "5|c|forward|kernel|x\n6|a|backward|kernel|x\n7|a|forward|other|x");
}

TEST_F(RunDbTables, WhatIsGivenUpLeavesNoTrace) {
    RunDb db(path_);
    db.add_step(step_row(1), {});
    db.add_observation(1, observation_of(1));
    db.commit();
    Observation o;
    o.records.push_back(record_of("new", {1}));
    db.add_step(step_row(2), {});
    db.add_observation(2, o);
    db.rollback();
    const Reader query(path_);
    EXPECT_EQ(query("SELECT count(*) FROM sites WHERE name = 'new'"), "0");
    db.add_step(step_row(2), {});
    db.add_observation(2, o);
    db.commit();
    EXPECT_EQ(query("SELECT name FROM stats JOIN sites USING (site) WHERE step = 2"), "new");
}

TEST_F(RunDbTables, AQueryForOneSiteDoesNotReadTheOthers) {
    { RunDb db(path_); }
    const Reader query(path_);
    for (const char* sql : {"SELECT step, rms FROM stats WHERE site = 3",
                            "SELECT step, rms FROM stats JOIN sites USING (site) WHERE name = 'wte'",
                            "SELECT step, entropy FROM heads WHERE site = 3 AND head = 1",
                            "SELECT step, update_ratio FROM tensors WHERE name = 'wte.weight'"}) {
        const std::string plan = query(std::string("EXPLAIN QUERY PLAN ") + sql);
        EXPECT_NE(plan.find("(ANY(step) AND site=?"), std::string::npos) << sql << "\n" << plan;
    }
    for (const char* sql : {"SELECT * FROM stats JOIN sites USING (site) WHERE step = 3",
                            "SELECT * FROM tensors WHERE step = 3"}) {
        const std::string plan = query(std::string("EXPLAIN QUERY PLAN ") + sql);
        EXPECT_NE(plan.find("_packed USING PRIMARY KEY (step=?"), std::string::npos) << sql << "\n" << plan;
    }
}

TEST_F(RunDbTables, TheSchemaTellsWhatAColumnIs) {
    { RunDb db(path_); }
    const Reader query(path_);
    EXPECT_NE(query("SELECT sql FROM sqlite_schema WHERE name = 'tensors'").find("before clipping"),
              std::string::npos);
    EXPECT_EQ(query("SELECT count(*) FROM sqlite_schema WHERE sql LIKE '%real(%'"), "0");
    EXPECT_EQ(query("PRAGMA foreign_key_check"), "");
}

}  // namespace
}  // namespace wobble::test
