"""A run of 100,000 steps of a 12-layer model, as ./train would record it, without the training: a few real steps, and their
records again and again with small changes, under a loss that falls, spikes, and is not finite for a while.

    long_run.py TRAIN DIRECTORY [--steps 100000] [--every 10] [--histograms-every 100]
"""

import argparse
import math
import random
import sqlite3
import subprocess


def make(train, directory, steps=100_000, every=10, histograms_every=100):
    subprocess.run([train, "--run", directory, "--data", "synthetic:markov?order=1&vocab=64&seed=1", "--layers", "12", "--heads", "12",
                    "--channels", "48", "--context", "16", "--batch", "2", "--steps", "12", "--probes", "full", "--probe-every", "1",
                    "--ring", "0", "--eval-sequences", "4", "--log-every", "100", "--warmup", "3"],
                   check=True, stdout=subprocess.DEVNULL)
    with open(f"{directory}/config.toml") as file:
        config = file.read()
    with open(f"{directory}/config.toml", "w") as file:
        file.write(config.replace("\nsteps = 12\n", f"\nsteps = {steps}\n").replace("probe-every = 1\n", f"probe-every = {every}\n"))
    db = sqlite3.connect(f"{directory}/run.db", isolation_level=None)
    db.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -400000; BEGIN")
    number = random.Random(7)
    columns = {table: [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
               for table in ("stats_packed", "tensors_packed", "heads_packed", "histograms", "largest_losses")}
    # Of a float32 as an integer, so much is up to two per cent.
    packed = {"mean", "std", "rms", "min", "max", "skew", "kurtosis", "entropy", "max_logit", "abs_logit", "sink", "grad_rms", "grad_max",
              "weight_rms", "update_rms", "update_ratio", "rms_t"}

    def copies(table, of):
        expressions = [f"iif(typeof({c}) = 'integer', {c} + random() % 160000, {c})" if c in packed else c
                       for c in columns[table] if c != "step"]
        return f"INSERT OR REPLACE INTO {table} SELECT ?, {', '.join(expressions)} FROM {table} WHERE step = {of}"

    bursts = [steps * k // 9 for k in range(1, 9)]
    statistics = [copies(table, 12) for table in ("stats_packed", "tensors_packed", "heads_packed", "largest_losses")]
    histograms = copies("histograms", 12)
    rows, batches, loss = [], [], 0.0
    for step in range(1, steps + 1):
        since = min((step - b for b in bursts if step >= b), default=1e9)
        loss = 2.6 + 1.6 * math.exp(-step / (steps / 8)) + number.gauss(0, 0.03) + (2 * math.exp(-since / 20) if since < 200 else 0)
        norm = abs(number.gauss(1, 0.1)) + (9 * math.exp(-since / 8) if since < 60 else 0)
        finite = not steps // 2 <= step < steps // 2 + 3
        lr = 3e-4 * min(1, step / 1000) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        watched = step % every == 1 or every == 1
        seconds = number.gauss(0.08, 0.002) * (1.07 if watched else 1)
        rows.append((step, 4096 * step, loss if finite else None, lr, norm if finite else None, min(1, 1 / norm), lr * norm * 30,
                     40 + step / steps * 9, seconds, 4096 / seconds, finite, finite))
        batches += [(step, 0, row, 0, step * 4 + row, 0) for row in range(4)]
        if step > 12 and watched:
            for copy in statistics:
                db.execute(copy, (step,))
        if step > 12 and step % histograms_every == 1:
            db.execute(histograms, (step,))
    db.execute("DELETE FROM steps")
    db.execute("DELETE FROM batches")
    db.executemany(f"INSERT INTO steps VALUES ({', '.join('?' * 12)})", rows)
    db.executemany("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", batches)
    for k, burst in enumerate(bursts):
        for severity, detector, site, lag in (("alarm", "loss spike", "loss", 0), ("warning", "gradient spike", "grad_norm", 1),
                                              ("note", "range", "h.3.mlp.gelu backward output", 2)):
            db.execute("INSERT INTO events (step, detector, version, severity, site, expected, seen, summary, detail) VALUES (?,?,1,?,?,?,?,?,?)",
                       (burst + lag, detector, severity, site, 2.7, 4.7, f"{site} jumps to 4.7, {k + 1} of 8", '{"window": 128}'))
    # Before each burst one place leaves its past.
    for burst in bursts:
        begin = max(13, burst - 5 * every)
        db.execute("UPDATE stats_packed SET rms = rms + 25000000, max = max + 25000000 WHERE step BETWEEN ? AND ? AND site = "
                   "(SELECT site FROM sites WHERE name = 'h.7.mlp.fc' AND phase = 'forward' AND channel = 'output')", (begin, burst + 3 * every))
    db.execute("COMMIT")
    db.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("train")
    parser.add_argument("directory")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--histograms-every", type=int, default=100)
    given = parser.parse_args()
    make(given.train, given.directory, given.steps, given.every, given.histograms_every)
