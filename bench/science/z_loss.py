r"""z-loss holds the normaliser of the output, log Z, near 0, at no cost in loss.

    python3 bench/science/z_loss.py [--train PATH] [--threads N] [--seeds N] [--quick]

Source: Wortsman et al. 2023, "Small-scale proxies for large-scale Transformer training instabilities",
section 3.1.2, after Chowdhery et al. 2022 (PaLM).

Claim: without weight decay and at high learning rates the output logits drift to very negative values late
in training, log Z with them, and the loss diverges. Adding c (log Z)^2 to the loss, c = 1e-4, keeps log Z
near 0 and prevents it.

Set-up: pre norm with QK norm, so that attention logits are bounded, a head of its own, no weight decay, L 4,
C 64, H 2, T 64, 8 sequences a step, 1000 steps, AdamW 0.9/0.95, warm-up of 100, cosine to a tenth, learning
rates 1e-2 and 3e-2; c 0, 1e-4 and 1e-3. RMS of log Z over the tokens of a step, and the mean logit, from
`stats`, site `loss`. Held-out loss is that of the data alone, without the z-loss.

Expected: without z-loss, in the second half of training the mean logit goes on falling, and log Z goes on
drifting away from 0. With z-loss log Z ends with a smaller RMS than with c = 0, less than half of it, and
below 1 (at 1e-4 as published; 1e-3 in case a short training is too short for that). The held-out loss is no
higher than with c = 0 (interval of the difference not above 0), and, as the paper found where training
diverged, lower (interval below 0).

Found (3 seeds, King James Bible; four minutes on one thread): the direction, not the size. With c = 0, log Z
ends at an RMS of 6.09 ± 0.16 (lr 1e-2) and 5.44 ± 0.21 (3e-2) and still grows slowly, by 0.27 ± 0.17 and
0.50 ± 0.22 in the second half. It is positive, not negative, near ln 256 = 5.55 where it began. c = 1e-4
takes 7 and 9 % off (5.65 and 4.95): it pulls too weakly to matter in 1000 steps. c = 1e-3 brings it to 2.53
± 0.31 and 2.03 ± 0.30, less than half and still falling, not yet below 1. The loss is the same with and
without at every c (differences at 1e-4 -0.01 ± 0.06 and -0.003 ± 0.032), and nothing diverged without, so
that z-loss prevents divergence did not show. The mean logit falls in every case, with z-loss even further
(at 3e-2 to -13.0, -13.5 and -18.6): a falling mean, here over bytes most of which never occur, is no sign of
divergence. Its fall in the second half is beyond doubt at 3e-2 (-1.35 ± 0.41) but not at 1e-2 (-1.33 ±
1.82).
"""

from experiment import Claim, Experiment, Interval, print_table

RATES = (1e-2, 3e-2)
WEIGHTS = (0, 1e-4, 1e-3)
SHARED = {"layers": 4, "heads": 2, "channels": 64, "context": 64, "batch": 8, "qk-norm": "layernorm",
          "tied": False, "weight-decay": 0, "on-nonfinite": "skip", "probes": "moments:loss"}


def course(run, channel, column):
    """[(step, value)] of a channel of the loss."""
    return run.rows(f"SELECT step, {column} FROM stats JOIN sites USING (site) "
                    "WHERE name = 'loss' AND channel = ? ORDER BY step", channel)


def main():
    experiment = Experiment(__doc__, runs_per_seed=len(RATES) * len(WEIGHTS), steps=1000)
    data = experiment.text()
    log_z, mean_logit, loss = {}, {}, {}  # rate, c: of each seed
    for seed in experiment.seeds:
        for rate in RATES:
            for c in WEIGHTS:
                flags = {"z-loss": c, "probe-every": max(1, experiment.steps // 20)}
                run = experiment.train(f"lr {rate:g}, z-loss {c:g}, seed {seed}", **SHARED, **flags,
                                       data=data, lr=rate, seed=seed, warmup=experiment.steps // 10)
                log_z.setdefault((rate, c), []).append(course(run, "log_z", "rms"))
                mean_logit.setdefault((rate, c), []).append(course(run, "mean_logit", "mean"))
                loss.setdefault((rate, c), []).append(run.final_loss())
                experiment.discard(run)

    def end(courses, key):
        return Interval(course[-1][1] for course in courses[key])

    def half_way(courses, key):
        return Interval(course[len(course) // 2][1] for course in courses[key])

    keys = [(rate, c) for rate in RATES for c in WEIGHTS]
    print()
    print_table(["lr", "c", "RMS log Z, half-way", "at the end", "mean logit, half-way", "at the end",
                 "held-out loss"],
                [[f"{r:g}", f"{c:g}", half_way(log_z, (r, c)), end(log_z, (r, c)),
                  half_way(mean_logit, (r, c)), end(mean_logit, (r, c)), Interval(loss[r, c])]
                 for r, c in keys])

    def curves(courses, rate):
        return {f"c {c:g}": [(steps[0][0], Interval(value for _, value in steps))
                             for steps in zip(*courses[rate, c])] for c in WEIGHTS}

    experiment.picture([(f"log Z, lr {rate:g}", "step", "RMS of log Z", False, False, curves(log_z, rate))
                        for rate in RATES] +
                       [(f"Mean logit, lr {RATES[-1]:g}", "step", "mean logit", False, False,
                         curves(mean_logit, RATES[-1]))])

    def at(measure):
        return {f"lr {rate:g}": measure(rate) for rate in RATES}

    def second_half(courses):
        return at(lambda r: Interval(course[-1][1] - course[len(course) // 2][1] for course in courses[r, 0]))

    claims = [
        Claim.at_each("c = 0: the mean logit goes on falling (change in the second half of training below 0)",
                      lambda x: x.high < 0, second_half(mean_logit)),
        Claim.at_each("c = 0: log Z goes on drifting away from 0 (likewise, of its RMS, above 0)",
                      lambda x: x.low > 0, second_half(log_z))]
    for c in WEIGHTS[1:]:
        share = at(lambda r: Interval(a[-1][1] / b[-1][1] for a, b in zip(log_z[r, c], log_z[r, 0])))
        extra = at(lambda r: Interval(a - b for a, b in zip(loss[r, c], loss[r, 0])))
        claims += [
            Claim.at_each(f"c = {c:g}: smaller RMS of log Z than with c = 0 (ratio below 1)",
                          lambda x: x.high < 1, share),
            Claim.at_each(f"c = {c:g}: less than half of it (ratio)", lambda x: x.high < 0.5, share),
            Claim.at_each(f"c = {c:g}: and below 1", lambda x: x.high < 1, at(lambda r: end(log_z, (r, c)))),
            Claim.at_each(f"c = {c:g}: held-out loss not above that with c = 0 (difference)",
                          lambda x: x.low <= 0, extra),
            Claim.at_each(f"c = {c:g}: and below it (difference)", lambda x: x.high < 0, extra)]
    experiment.finish(claims)


if __name__ == "__main__":
    main()
