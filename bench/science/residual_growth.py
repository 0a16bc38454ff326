r"""The residual stream by depth: how it grows in training with norms before, around and after the branches.

    python3 bench/science/residual_growth.py [--train PATH] [--threads N] [--seeds N] [--quick]

Source: Kim et al. 2025, "Peri-LN: Revisiting Normalization Layer in the Transformer Architecture" (400 M to
3.2 B parameters).

Claim: with pre norm the variance of the stream grows faster than linearly with depth, exponentially in what
they measured, and ever more so in training; with peri norm it grows about linearly; with post norm it stays.

Set-up: L 12, C 64, H 2, T 64, 8 sequences a step, 500 steps, AdamW 0.9/0.95, decay 0.1, warm-up of 50,
cosine to a tenth; learning rates 1e-3 and 1e-2, GPT-2's start, no norm of the embedding. v is the mean
square of the stream (it stands for the variance) after each block, from `streams`, and for post norm's last
block from `stats`. At the last recorded step the exponent p is that of the power law v ~ l^p through blocks
l = 1 to 12, and the bend is growth per block in the upper half of the blocks over that in the lower half.
Growth in training is v after the last block, over that at the first step.

Expected, at both learning rates. Post: v at block 11 within 0.8 to 1.25 of that at block 1 (the norm of
block 12 is the output's norm, which the others have apart from the stream). Peri: p within 0.75 to 1.25.
Pre: p and bend above 1, and p above peri's, seed by seed. Growth in training: pre above peri above post,
seed by seed.

Found (3 seeds, King James Bible; six and a half minutes on one thread): the order of growth in training did
reproduce, at both rates; the shapes in depth did at 1e-3 only, and in part. At 1e-3, growth in training is
525 with pre, 2.9 with peri, 1.3 with post norm; p is 1.30 ± 0.08 with pre and 0.99 ± 0.18 with peri norm;
post's v at block 11 is 1.02 ± 0.02 of that at block 1. But pre's bend is 0.64 ± 0.23: p is above 1 because
of the first blocks, and the growth is nowhere near exponential. At 1e-2, growth in training is 920,000, 15
and 0.6, and pre's v ends above peri's (1,045 against 213), yet pre's p is 0.77 ± 0.02 and peri's 1.54 ±
0.46: the reverse of the claim. Post norm learnt nothing beyond the frequencies of letters at either rate
(loss 3.04; 2.23 and 2.34 with pre and peri at 1e-3), so that its constant stream is that of a model that did
not train.
"""

import math

from experiment import Claim, Experiment, Interval, exponent, geometric_mean, number, print_table

LAYERS = 12
PLACEMENTS = ("pre", "peri", "post")
RATES = (1e-3, 1e-2)
SHARED = {"layers": LAYERS, "heads": 2, "channels": 64, "context": 64, "batch": 8, "schedule": "cosine"}
# What is read of the stream: where each branch writes (pre: in its last product; peri, post: in an addition).
SITES = "moments:*.attn.proj,moments:*.mlp.proj,moments:*.add,moments:h.11.ln_2,moments:embedding"


def stream(run, placement, step):
    """Mean square of the stream after each block, l = 1 to L, at that step."""
    rows = run.rows("SELECT name, stream_rms, write_rms, cosine FROM streams JOIN sites USING (site) "
                    "WHERE step = ? ORDER BY layer, name LIKE '%.mlp.%'", step)
    before = [rms ** 2 for name, rms, _, _ in rows if ".attn." in name]
    if placement == "post":  # the norm after the addition makes the stream
        last = run.rows("SELECT rms FROM stats JOIN sites USING (site) WHERE step = ? AND name = 'h.11.ln_2' "
                        "AND phase = 'forward' AND channel = 'output'", step)[0][0] ** 2
    else:
        _, rms, write, cosine = rows[-1]
        last = rms ** 2 + write ** 2 + 2 * rms * write * cosine
    return before[1:] + [last]


def law(v):
    return exponent([(layer, value) for layer, value in enumerate(v, 1)])


def bend(v):
    """Growth per block above block L / 2 over that below it: 1 where v is linear."""
    half = LAYERS // 2
    return (v[-1] - v[half - 1]) / (LAYERS - half) / ((v[half - 1] - v[0]) / (half - 1))


def main():
    experiment = Experiment(__doc__, runs_per_seed=len(PLACEMENTS) * len(RATES), steps=500)
    data = experiment.text()
    first, last, loss = {}, {}, {}  # placement, rate: of each seed
    for seed in experiment.seeds:
        for rate in RATES:
            for placement in PLACEMENTS:
                key = placement, rate
                flags = {"norm-placement": placement, "probes": SITES, "probe-every": experiment.steps - 1}
                run = experiment.train(f"{placement}, lr {rate:g}, seed {seed}", **SHARED, **flags,
                                       data=data, lr=rate, seed=seed, warmup=experiment.steps // 10)
                end = run.rows("SELECT max(step) FROM streams")[0][0]
                first.setdefault(key, []).append(stream(run, placement, 1))
                last.setdefault(key, []).append(stream(run, placement, end))
                loss.setdefault(key, []).append(run.final_loss())
                experiment.discard(run)

    growth = {key: [b[-1] / a[-1] for a, b in zip(first[key], last[key])] for key in last}
    powers = {key: [law(v) for v in last[key]] for key in last}
    keys = [(placement, rate) for rate in RATES for placement in PLACEMENTS]
    print()
    print_table(["lr", "norm", "v, block 1", "v, block 12", "last / first", "p at step 1", "p at the end",
                 "bend", "growth in training", "held-out loss"],
                [[f"{r:g}", p, number(geometric_mean(v[0] for v in last[p, r])),
                  number(geometric_mean(v[-1] for v in last[p, r])),
                  Interval(v[-1] / v[0] for v in last[p, r]),
                  Interval(law(v) for v in first[p, r]), Interval(powers[p, r]),
                  "" if p == "post" else Interval(map(bend, last[p, r])),
                  number(geometric_mean(growth[p, r])), Interval(loss[p, r])] for p, r in keys])
    experiment.picture([(f"lr {rate:g}, last step", "after block", "mean square of the stream", False, True,
                         {p: [(layer + 1, Interval(v[layer] for v in last[p, rate]))
                              for layer in range(LAYERS)] for p in PLACEMENTS}) for rate in RATES])

    def at(measure):
        return {f"lr {rate:g}": measure(rate) for rate in RATES}

    def above(high, low):  # how many times as much growth, as a power of ten, seed by seed
        return at(lambda r: Interval(math.log10(a / b) for a, b in zip(growth[high, r], growth[low, r])))

    def positive(x):
        return x.low > 0

    experiment.finish([
        Claim.at_each("post norm: v the same at block 11 as at block 1 (ratio within 0.8 to 1.25)",
                      lambda x: 0.8 < x.low and x.high < 1.25,
                      at(lambda r: Interval(v[-2] / v[0] for v in last["post", r]))),
        Claim.at_each("in training, v grows more with pre than with peri norm (log10 of the ratio above 0)",
                      positive, above("pre", "peri")),
        Claim.at_each("and more with peri than with post norm (likewise)", positive, above("peri", "post")),
        Claim.at_each("peri norm: v grows about linearly with depth (p within 0.75 to 1.25)",
                      lambda x: 0.75 < x.mean < 1.25, at(lambda r: Interval(powers["peri", r]))),
        Claim.at_each("pre norm: v grows faster than linearly with depth (p above 1)",
                      lambda x: x.low > 1, at(lambda r: Interval(powers["pre", r]))),
        Claim.at_each("and ever faster (growth per block, upper over lower half, above 1)",
                      lambda x: x.low > 1, at(lambda r: Interval(map(bend, last["pre", r])))),
        Claim.at_each("pre norm's p above peri norm's (difference above 0)", positive,
                      at(lambda r: Interval(a - b for a, b in zip(powers["pre", r], powers["peri", r]))))])


if __name__ == "__main__":
    main()
