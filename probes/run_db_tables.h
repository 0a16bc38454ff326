// The tables of run.db.
#pragma once

namespace wobble {

// The comments stay in the database: `sqlite3 run.db .schema` shows them.
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
    channel TEXT,              -- what of the kernel was observed
    kernel TEXT,
    UNIQUE (name, phase, kernel, channel)
);
CREATE TABLE stats (
    step INTEGER,
    site INTEGER REFERENCES sites,
    count INTEGER,             -- finite values; the next seven columns are about them, NULL when there are none
    mean REAL,
    rms REAL,
    min REAL,
    max REAL,
    absmax REAL,
    skew REAL,                 -- NULL when all values are equal
    kurtosis REAL,             -- 3 for a normal distribution; NULL when all values are equal
    zeros INTEGER,
    subnormals INTEGER,
    nans INTEGER,
    infs INTEGER,
    first_row INTEGER,         -- where the first non-finite value stood, NULL when all were finite
    first_column INTEGER,
    PRIMARY KEY (step, site)
) WITHOUT ROWID;
CREATE TABLE histograms (
    step INTEGER,
    site INTEGER REFERENCES sites,
    bins TEXT,                 -- JSON, finite values other than zero by exponent: {"e": values in 2^e up to 2^(e+1)}
    flushed TEXT,              -- JSON: {format: values that a cast would round to zero}
    overflowed TEXT,           -- JSON: {format: values that a cast would round beyond its largest number}
    PRIMARY KEY (step, site)
) WITHOUT ROWID;
)";

}  // namespace wobble
