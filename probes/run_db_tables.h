// The tables of run.db.
#pragma once

namespace wobble {

// The comments stay in the database: `sqlite3 run.db .schema` shows them.
//
// The three tables that take most of the room keep their reals as the four bytes of a float32, in tables
// *_packed; views of the plain names turn them back: real(x) stands for the expression that does
// (run_db.cpp).
constexpr const char* run_db_tables = R"(
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE steps (
    step INTEGER PRIMARY KEY,  -- optimizer steps done, this one included
    tokens INTEGER,            -- seen since the start of the run
    loss REAL,                 -- nats per token, mean over the batch; this and all other reals: NULL when not finite
    lr REAL,
    grad_norm REAL,            -- before clipping
    clip REAL,                 -- factor applied to the gradient, 1 when not clipped
    update_norm REAL,
    weight_norm REAL,
    seconds REAL,
    tokens_per_second REAL,
    applied INTEGER,           -- 0: the update was not applied
    finite INTEGER             -- 0: something was NaN or infinite
);
CREATE TABLE evals (
    step INTEGER,
    name TEXT,
    loss REAL,                 -- nats per token; NULL when not finite
    tokens INTEGER,
    seconds REAL,
    PRIMARY KEY (step, name)
) WITHOUT ROWID;
CREATE TABLE batches (
    step INTEGER,
    micro INTEGER,             -- micro-batch of the step
    row INTEGER,               -- sequence of the micro-batch
    source INTEGER,
    document INTEGER,          -- in the source
    offset INTEGER,            -- of the sequence in the document
    PRIMARY KEY (step, micro, row)
) WITHOUT ROWID;
CREATE TABLE sites (
    site INTEGER PRIMARY KEY,
    name TEXT,                 -- h.3.attn.qkv; with .weight or .bias in the backward phase: that parameter's gradient
    layer INTEGER,             -- -1: outside the layers
    phase TEXT,                -- forward, backward, update
    channel TEXT,              -- what of the kernel was observed; or the table that tells of the site: heads, residuals, stream, tensor
    kernel TEXT,               -- empty where it is not one kernel alone
    UNIQUE (name, phase, kernel, channel)
);
CREATE TABLE stats_packed (
    -- View stats tells what they are. Reals are integers here: the bits of a float32.
    step INTEGER,
    site INTEGER REFERENCES sites,
    count INTEGER, mean, std, rms, min, max, skew, kurtosis,
    zeros INTEGER, subnormals INTEGER, nans INTEGER, infs INTEGER,
    first_row INTEGER, first_column INTEGER,
    PRIMARY KEY (step, site)
) WITHOUT ROWID;
CREATE VIEW stats AS SELECT
    step,
    site,
    count,                                    -- finite values; the next eight columns are about them, NULL when there are none
    real(mean) AS mean,
    real(std) AS std,                         -- standard deviation
    real(rms) AS rms,
    real(min) AS min,
    real(max) AS max,
    max(real(max), -real(min)) AS absmax,
    real(skew) AS skew,                       -- NULL when all values are equal
    real(kurtosis) AS kurtosis,               -- 3 for a normal distribution; NULL when all values are equal
    zeros,
    subnormals,
    nans,
    infs,
    first_row,                                -- where the first non-finite value stood, NULL when all were finite
    first_column
FROM stats_packed;
CREATE TABLE histograms (
    step INTEGER,
    site INTEGER REFERENCES sites,
    bins TEXT,                 -- JSON, finite values other than zero by exponent: {"e": values in 2^e up to 2^(e+1)}
    flushed TEXT,              -- JSON: {format: values that a cast would round to zero}
    overflowed TEXT,           -- JSON: {format: values that a cast would round beyond its largest number}
    PRIMARY KEY (step, site)
) WITHOUT ROWID;
CREATE TABLE channels (
    step INTEGER,
    site INTEGER REFERENCES sites,  -- the site and channel of the kernel whose columns these are
    columns INTEGER,           -- of the site: the channels of the model that it has
    kurtosis REAL,             -- mean of s^4 over the square of the mean of s^2, s the RMS of a column over the rows: 1 when all are equally large
    dormant REAL,              -- share of columns with mean |x| at most 0.025 of the columns' average
    dead REAL,                 -- share of columns that were zero in every row
    largest INTEGER,           -- the column with the largest RMS
    largest_rms REAL,          -- and that
    effective_rank REAL,       -- exp of the entropy of the singular values, of sampled rows; NULL when not sampled
    stable_rank REAL,          -- squares of the singular values, their sum over the largest; NULL when not sampled
    sampled_rows INTEGER,
    PRIMARY KEY (step, site)
) WITHOUT ROWID;
CREATE TABLE heads_packed (
    -- View heads tells what they are. Reals are integers here: the bits of a float32.
    step INTEGER,
    site INTEGER REFERENCES sites,
    head INTEGER, max_logit, abs_logit, entropy, entropy_min, sink, ties, saturated,
    PRIMARY KEY (step, site, head)
) WITHOUT ROWID;
CREATE VIEW heads AS SELECT
    step,
    site,                                     -- of attention; channel 'heads'
    head,
    real(max_logit) AS max_logit,             -- the largest, signed, of the scaled products of query and key
    real(abs_logit) AS abs_logit,             -- the largest in magnitude, without its sign
    real(entropy) AS entropy,                 -- nats, mean over the queries
    real(entropy_min) AS entropy_min,         -- of queries with at least two keys; NULL when there is none
    real(sink) AS sink,                       -- mean probability of the first key
    real(ties) AS ties,                       -- share of queries whose largest logit is that of more than one key
    real(saturated) AS saturated              -- share of queries with at least two keys whose largest probability rounds to 1
FROM heads_packed;
CREATE TABLE residuals (
    step INTEGER,
    site INTEGER REFERENCES sites,  -- channel 'residuals'
    identity TEXT,             -- what exact arithmetic would make zero
    rows INTEGER,              -- residuals that were made: of each row, head or column
    value REAL,                -- sum of their magnitudes
    bias REAL,                 -- sum of them with their signs
    scale REAL,                -- sum of the magnitudes that should cancel
    worst REAL,                -- largest magnitude over its scale
    worst_row INTEGER,         -- and where
    PRIMARY KEY (step, site, identity)
) WITHOUT ROWID;
CREATE TABLE streams (
    step INTEGER,
    site INTEGER REFERENCES sites,  -- the last product of a branch; channel 'stream'
    stream_rms REAL,           -- of the residual stream before the branch wrote to it
    write_rms REAL,            -- of what the branch added
    ratio REAL,                -- norm of what it added over that of the stream
    cosine REAL,               -- of the two
    PRIMARY KEY (step, site)
) WITHOUT ROWID;
CREATE TABLE tensors_packed (
    -- View tensors tells what they are. Reals are integers here: the bits of a float32.
    step INTEGER,
    site INTEGER REFERENCES sites,
    grad_rms, grad_max, weight_rms, distance_rms, update_rms, update_ratio, rms_t, cos_grad_momentum,
    epsilon_share, lost_share, lost_share_bf16, weight_dot_grad, cos_weight_grad,
    PRIMARY KEY (step, site)
) WITHOUT ROWID;
CREATE VIEW tensors AS SELECT
    step,
    name,
    layer,                                    -- -1: outside the layers
    real(grad_rms) AS grad_rms,               -- of the gradient before clipping
    real(grad_max) AS grad_max,               -- its largest magnitude
    real(weight_rms) AS weight_rms,           -- after the update
    real(distance_rms) AS distance_rms,       -- of the weights less the initial ones; NULL when not asked for
    real(update_rms) AS update_rms,           -- of what was subtracted, learning rate and decay included
    real(update_ratio) AS update_ratio,       -- norm of the update over that of the weights before it
    real(rms_t) AS rms_t,                     -- root of the mean of g^2 / max(v, epsilon^2), g after clipping, v corrected for its bias
    real(cos_grad_momentum) AS cos_grad_momentum,  -- of the gradient and the momentum that took it in
    real(epsilon_share) AS epsilon_share,     -- share of weights whose root of v is below epsilon
    real(lost_share) AS lost_share,           -- of weights with an update: share that it left unchanged
    real(lost_share_bf16) AS lost_share_bf16, -- share that it would leave unchanged were they kept in bf16
    real(weight_dot_grad) AS weight_dot_grad, -- inner product of the weights before the update and the gradient
    real(cos_weight_grad) AS cos_weight_grad, -- and their cosine
    site                                      -- channel 'tensor'
FROM tensors_packed JOIN sites USING (site);
CREATE TABLE embeddings (
    step INTEGER,
    name TEXT,
    decile INTEGER,            -- of token frequency, 0: the rarest; each holds about a tenth of the occurrences
    rows INTEGER,              -- tokens in it
    weight_rms REAL,           -- of the rows of these tokens; so the next two
    grad_rms REAL,
    update_rms REAL,
    PRIMARY KEY (step, name, decile)
) WITHOUT ROWID;
CREATE TABLE losses (
    step INTEGER,
    kind TEXT,                 -- percentile (loss is the quantile), frequency (decile of the target), position
    key INTEGER,               -- 1, 5, 25, 50, 75, 95, 99, 100; 0 to 9; the first position of a range
    loss REAL,                 -- nats, mean over the tokens of the group
    tokens INTEGER,            -- in the group
    PRIMARY KEY (step, kind, key)
) WITHOUT ROWID;
CREATE TABLE largest_losses (
    step INTEGER,
    rank INTEGER,              -- 0: the largest
    micro INTEGER,             -- where the target stood in the step: micro-batch,
    row INTEGER,               -- sequence of the micro-batch,
    position INTEGER,          -- token of the sequence
    token INTEGER,             -- the target
    loss REAL,                 -- nats
    source INTEGER,            -- and where it stands in the data: number of the source,
    document INTEGER,          -- document in the source,
    offset INTEGER,            -- token in the document
    PRIMARY KEY (step, rank)
) WITHOUT ROWID;
CREATE TABLE examples (
    step INTEGER,
    micro INTEGER,             -- micro-batch of the step
    row INTEGER,               -- sequence of the micro-batch
    norm REAL,                 -- of the gradient of its mean loss with respect to gains and biases of all norms
    PRIMARY KEY (step, micro, row)
) WITHOUT ROWID;
CREATE TABLE measures (
    step INTEGER,
    name TEXT,                 -- noise.scale, sharpness.critical and the like
    value REAL,
    PRIMARY KEY (step, name)
) WITHOUT ROWID;
CREATE TABLE binades (
    binade INTEGER PRIMARY KEY,  -- of a float32: the nine bits of sign and exponent
    unit REAL                  -- what the last bit of its significand is worth
);
WITH RECURSIVE
    powers(exponent, power) AS
        (SELECT 1, 1.0 / (1 << 62) / (1 << 62) / (1 << 25) UNION ALL SELECT exponent + 1, 2 * power FROM powers WHERE exponent < 254)
INSERT INTO binades SELECT 0, 0.0 UNION ALL SELECT exponent, power FROM powers UNION ALL SELECT exponent - 256, -power FROM powers;
)";

constexpr const char* events_table = R"(
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    step INTEGER,
    detector TEXT,
    version INTEGER,           -- of the detector's rule
    severity TEXT,             -- note, warning or alarm
    site TEXT,                 -- what the number is about
    expected REAL,             -- about what it should have been
    seen REAL,                 -- NULL when not finite
    summary TEXT,              -- a sentence
    detail TEXT                -- JSON
);
CREATE INDEX events_by_step ON events (step);
)";

// What a replay goes by.
constexpr const char* replay_tables = R"(
CREATE TABLE hashes (
    step INTEGER PRIMARY KEY,  -- 0: before the first
    weights INTEGER,           -- 64 bits, of all weights after the step
    batch INTEGER              -- and of the tokens that it read; NULL at step 0
);
CREATE TABLE configs (
    step INTEGER PRIMARY KEY,  -- the steps after this one had this configuration
    config TEXT                -- TOML
);
CREATE TABLE tokens (
    -- Of the batches around an alarm; table batches says where they come from.
    step INTEGER,
    micro INTEGER,             -- micro-batch of the step
    row INTEGER,               -- sequence of the micro-batch
    inputs BLOB,               -- int32, little-endian, one a token
    targets BLOB,              -- -1 where there is none
    PRIMARY KEY (step, micro, row)
) WITHOUT ROWID;
)";

// What ANALYZE would find: about so many rows of a step share the first column of the key. With it SQLite
// looks a site up at each step where a query asks for a site alone, in place of reading all rows.
constexpr const char* run_db_row_counts = R"(
ANALYZE;
INSERT INTO sqlite_stat1 VALUES
    ('stats_packed', 'stats_packed', '1000000 500 1'),
    ('histograms', 'histograms', '1000000 500 1'),
    ('channels', 'channels', '1000000 100 1'),
    ('heads_packed', 'heads_packed', '1000000 100 10 1'),
    ('tensors_packed', 'tensors_packed', '1000000 100 1'),
    ('sites', 'sqlite_autoindex_sites_1', '1000 2 1 1 1');
)";

}  // namespace wobble
