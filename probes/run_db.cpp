// run.db: its tables, and the rows that go into them, one transaction a second.
#include "probes/run_db.h"

#include <cmath>
#include <cstdio>
#include <span>
#include <utility>

#include "kernels/error.h"
#include "probes/run_db_tables.h"

namespace wobble {
namespace {

// Raised whenever a reader of the older form would go wrong.
constexpr int64_t run_db_version = 4;

/// The SQL with an expression in place of each real(x): the number whose float32 has the bits x. Sign and
/// exponent say what the last bit of the significand is worth, the significand, with its hidden bit, how
/// often to take that. A real is one that float32 has no normal number for, and was stored as it is.
std::string with_reals_unpacked(const std::string& sql) {
    const std::string call = "real(";
    std::string result;
    size_t at = 0;
    for (size_t found; (found = sql.find(call, at)) != std::string::npos;) {
        const size_t begin = found + call.size(), end = sql.find(')', begin);
        const std::string x = sql.substr(begin, end - begin);
        result += sql.substr(at, found - at) + "iif(typeof(" + x + ") = 'real', " + x +
                  ", (SELECT unit FROM binades WHERE binade = " + x + " >> 23) * (" + x +
                  " & 8388607 | 8388608))";
        at = end + 1;
    }
    return result + sql.substr(at);
}

/// {"name":count,…} of the counts that are not zero.
class CountsAsJson {
  public:
    void add(const std::string& name, uint64_t count) {
        if (count == 0) return;
        text_ += (text_.size() > 1 ? ",\"" : "\"") + name + "\":" + std::to_string(count);
    }
    std::string text() const { return text_ + "}"; }

  private:
    std::string text_ = "{";
};

bool saw_nothing(const Moments& m) {
    return m.count == 0 && m.nonfinite() == 0;
}

/// The layer that a tensor's name tells: 3 of h.3.attn.qkv.weight, -1 of others.
int layer_of(const std::string& name) {
    int layer = -1;
    return std::sscanf(name.c_str(), "h.%d.", &layer) == 1 ? layer : -1;
}

}  // namespace

RunDb::RunDb(const std::string& path, std::chrono::milliseconds lock_timeout)
    : sqlite_(path, lock_timeout), committed_(std::chrono::steady_clock::now()) {
    create_tables();
    // With a write-ahead log readers and the writer do not wait for each other, and a commit needs no sync. A
    // power cut may take the newest commits; the database stays whole. File systems without shared memory
    // keep a rollback journal.
    sqlite_.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;");
}

void RunDb::create_tables() {
    begin();  // so that no other process creates them at the same time
    const int64_t found = sqlite_.number("PRAGMA user_version");
    const std::string cannot = "cannot use " + sqlite_.path() + ": found ",
                      expected = "; expected version " + std::to_string(run_db_version) + "; ";
    if (found > run_db_version)
        throw UserError(cannot + "version " + std::to_string(found) + expected +
                        "use the newer program that wrote it");
    if (found == 2 || found == 3) {  // had less, and is as it is now otherwise
        if (found == 2) sqlite_.execute(events_table);
        sqlite_.execute(replay_tables);
        sqlite_.execute("PRAGMA user_version = " + std::to_string(run_db_version));
    } else if (found != 0 && found < run_db_version)
        throw UserError(cannot + "the run of an older program, version " + std::to_string(found) + expected +
                        "start a new run");
    if (found == 0) {
        if (sqlite_.number("SELECT count(*) FROM sqlite_schema") != 0)
            throw UserError(cannot +
                            "the database of another program; expected that of a run; "
                            "move it away or choose another run directory");
        sqlite_.execute(with_reals_unpacked(run_db_tables));
        sqlite_.execute(events_table);
        sqlite_.execute(replay_tables);
        sqlite_.execute(run_db_row_counts);
        sqlite_.execute("PRAGMA user_version = " + std::to_string(run_db_version));
    }
    commit();
}

void RunDb::begin() {
    // After an error SQLite may have rolled back by itself, and sites with it.
    if (sqlite_.begin() && std::exchange(open_, true)) sites_.clear();
}

void RunDb::commit() {
    sqlite_.commit();
    open_ = false;
    committed_ = std::chrono::steady_clock::now();
}

void RunDb::rollback() noexcept {
    sqlite_.rollback();
}

void RunDb::set(const std::string& key, const std::string& value) {
    begin();
    Statement replace = sqlite_.prepare("REPLACE INTO run VALUES (?, ?)");
    sqlite_.run(replace, key, value);
    commit();
}

std::optional<std::string> RunDb::get(const std::string& key) {
    Statement select = sqlite_.prepare("SELECT value FROM run WHERE key = ?");
    sqlite_.bind(select, key);
    if (!sqlite_.next(select)) return std::nullopt;
    return Sqlite::text(select, 0);
}

void RunDb::forget_after(int64_t step) {
    begin();
    // Asked of the database, so that no table that is added later is forgotten here.
    std::vector<std::string> tables;
    Statement with_step = sqlite_.prepare(
        "SELECT t.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c WHERE t.type = 'table' AND "
        "c.name = 'step'");
    while (sqlite_.next(with_step)) tables.push_back(Sqlite::text(with_step, 0));
    for (const std::string& table : tables) {
        Statement remove = sqlite_.prepare("DELETE FROM \"" + table + "\" WHERE step > ?");
        sqlite_.run(remove, step);
    }
    commit();
}

template <class... Values>
void RunDb::insert(Statement& statement, const char* into, const Values&... values) {
    if (!statement) {
        std::string sql = std::string(into) + " VALUES (?";
        for (size_t i = 1; i < sizeof...(values); ++i) sql += ", ?";
        statement = sqlite_.prepare(sql + ")");
    }
    sqlite_.run(statement, values...);
}

int64_t RunDb::site_number(const SiteKey& key, int layer) {
    if (const auto known = sites_.find(key); known != sites_.end()) return known->second;
    Statement add = sqlite_.prepare(
        "INSERT INTO sites (name, layer, phase, channel, kernel) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET layer = layer RETURNING site");
    sqlite_.bind(add, key.site, layer, phase_name(key.phase), key.channel, key.kernel);
    sqlite_.next(add);
    const int64_t number = Sqlite::integer(add, 0);
    sqlite_.next(add);
    sites_.emplace(SiteName(key, layer), number);
    return number;
}

void RunDb::add_step(const StepRow& s, const std::vector<BatchRow>& batches) {
    begin();
    const bool finite = s.finite && std::isfinite(s.loss) && std::isfinite(s.lr) &&
                        std::isfinite(s.grad_norm) && std::isfinite(s.clip) && std::isfinite(s.update_norm) &&
                        std::isfinite(s.weight_norm);
    insert(step_, "INSERT INTO steps", s.step, s.tokens, s.loss, s.lr, s.grad_norm, s.clip, s.update_norm,
           s.weight_norm, s.seconds, s.tokens_per_second, s.applied, finite);
    if (s.weights_hash != 0 || s.batch_hash != 0)
        insert(hash_, "REPLACE INTO hashes", s.step, int64_t(s.weights_hash), int64_t(s.batch_hash));
    for (const BatchRow& b : batches)
        insert(batch_, "INSERT INTO batches", s.step, b.micro, b.row, b.source, b.document, b.offset);
    // Counted from the last commit, not from the first row since, so that a slow step does not wait for the
    // next one.
    if (std::chrono::steady_clock::now() - committed_ >= std::chrono::seconds(1)) commit();
}

void RunDb::add_moments(Statement& statement, const char* into, int64_t step, int64_t site,
                        const Moments& m) {
    const bool any = m.count > 0;
    const auto place = [](int64_t at) { return at < 0 ? std::nullopt : std::optional(at); };
    insert(statement, into, step, site, m.count, Float32{any ? m.mean : NAN},
           Float32{std::sqrt(m.variance())}, Float32{m.rms()}, Float32{m.min}, Float32{m.max},
           Float32{m.skew()}, Float32{m.kurtosis()}, m.zeros, m.subnormals, m.nans,
           m.positive_infinities + m.negative_infinities, place(m.first_row), place(m.first_column));
}

void RunDb::add_histogram(int64_t step, int64_t site, const Histogram& h) {
    CountsAsJson bins, flushed, overflowed;
    for (int i = 0; i < Histogram::bins; ++i)
        bins.add(std::to_string(i + Histogram::lowest), h.by_exponent[size_t(i)]);
    for (size_t f = 0; f < format_count; ++f)
        flushed.add(formats[f].name, h.flushed[f]), overflowed.add(formats[f].name, h.overflowed[f]);
    insert(histogram_, "INSERT INTO histograms", step, site, bins.text(), flushed.text(), overflowed.text());
}

void RunDb::add_records(int64_t step, const std::vector<Record>& records) {
    begin();
    for (const Record& r : records) {
        if (saw_nothing(r.moments())) continue;
        const int64_t site = site_number({r.site, r.phase, r.kernel, r.channel}, r.layer);
        // Replaced, since a ring may have been written with this step in it.
        add_moments(stats_, "REPLACE INTO stats_packed", step, site, r.moments());
        if (r.statistics.histogram) add_histogram(step, site, *r.statistics.histogram);
    }
}

void RunDb::add_ring(const RingDump& ring) {
    begin();
    for (const RingDump::Step& s : ring.steps) {
        for (size_t i = 0; i < s.sites.size(); ++i) {
            if (saw_nothing(s.moments[i])) continue;
            const SiteName& name = ring.sites[size_t(s.sites[i])];
            add_moments(ring_, "INSERT OR IGNORE INTO stats_packed", s.step, site_number(name, name.layer),
                        s.moments[i]);
        }
    }
}

void RunDb::add_observation(int64_t step, const Observation& o) {
    add_records(step, o.records);
    for (const ChannelRow& r : o.channels)
        insert(channel_, "INSERT INTO channels", step,
               site_number({r.site, r.phase, r.kernel, r.channel}, r.layer), r.columns, r.kurtosis, r.dormant,
               r.dead, r.largest, r.largest_rms, r.effective_rank, r.stable_rank, r.sampled_rows);
    for (const HeadRow& r : o.heads)
        insert(head_, "INSERT INTO heads_packed", step,
               site_number({r.site, Phase::Forward, "", "heads"}, r.layer), r.head, Float32{r.max_logit},
               Float32{r.abs_logit}, Float32{r.entropy}, Float32{r.entropy_min}, Float32{r.sink},
               Float32{r.ties}, Float32{r.saturated});
    for (const ResidualRow& r : o.residuals)
        insert(residual_, "INSERT INTO residuals", step,
               site_number({r.site, r.phase, r.kernel, "residuals"}, r.layer), r.identity, r.rows, r.value,
               r.bias, r.scale, r.worst, r.worst_row);
    for (const StreamRow& r : o.streams)
        insert(stream_, "INSERT INTO streams", step,
               site_number({r.site, Phase::Forward, "", "stream"}, r.layer), r.stream_rms, r.write_rms,
               r.ratio, r.cosine);
    for (const TensorRow& r : o.tensors)
        insert(tensor_, "INSERT INTO tensors_packed", step,
               site_number({r.name, Phase::Update, "", "tensor"}, layer_of(r.name)), Float32{r.grad_rms},
               Float32{r.grad_max}, Float32{r.weight_rms}, Float32{r.distance_rms}, Float32{r.update_rms},
               Float32{r.update_ratio}, Float32{r.rms_t}, Float32{r.cos_grad_momentum},
               Float32{r.epsilon_share}, Float32{r.lost_share}, Float32{r.lost_share_bf16},
               Float32{r.weight_dot_grad}, Float32{r.cos_weight_grad});
    for (const EmbeddingRow& r : o.embeddings)
        insert(embedding_, "INSERT INTO embeddings", step, r.name, r.decile, r.rows, r.weight_rms, r.grad_rms,
               r.update_rms);
    for (const LossRow& r : o.losses)
        insert(loss_, "INSERT INTO losses", step, r.kind, r.key, r.loss, r.tokens);
    for (const TokenRow& r : o.largest_losses)
        insert(token_, "INSERT INTO largest_losses", step, r.rank, r.micro, r.row, r.position, r.token,
               r.loss, r.source, r.document, r.offset);
    for (const ExampleRow& r : o.examples)
        insert(example_, "INSERT INTO examples", step, r.micro, r.row, r.norm);
    for (const MeasureRow& r : o.measures) insert(measure_, "INSERT INTO measures", step, r.name, r.value);
}

void RunDb::add_events(const std::vector<Event>& events) {
    begin();
    for (const Event& e : events)
        insert(
            event_,
            "INSERT INTO events (step, detector, version, severity, site, expected, seen, summary, detail)",
            e.step, e.detector, e.version, severity_name(e.severity), e.site, e.expected, e.seen, e.summary,
            e.detail);
}

void RunDb::add_tokens(int64_t step, const std::vector<TokensRow>& rows) {
    begin();
    for (const TokensRow& r : rows)
        insert(tokens_, "REPLACE INTO tokens", step, r.micro, r.row, std::span<const int32_t>(r.inputs),
               std::span<const int32_t>(r.targets));
}

void RunDb::set_config(int64_t step, const std::string& toml, uint64_t weights_hash) {
    begin();
    Statement config = sqlite_.prepare("REPLACE INTO configs VALUES (?, ?)");
    sqlite_.run(config, step, toml);
    if (step == 0) {  // later ones have their step's
        Statement hash = sqlite_.prepare("REPLACE INTO hashes VALUES (?, ?, NULL)");
        sqlite_.run(hash, step, int64_t(weights_hash));
    }
    commit();
}

void RunDb::add_eval(const EvalRow& e) {
    begin();
    Statement replace = sqlite_.prepare("REPLACE INTO evals VALUES (?, ?, ?, ?, ?)");
    sqlite_.run(replace, e.step, e.name, e.loss, e.tokens, e.seconds);
    commit();
}

}  // namespace wobble
