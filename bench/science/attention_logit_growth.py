r"""Attention logits grow faster than the learning rate, unless queries and keys are normalised.

    python3 bench/science/attention_logit_growth.py [--train PATH] [--threads N] [--seeds N] [--quick]

Source: Wortsman et al. 2023, "Small-scale proxies for large-scale Transformer training instabilities",
section 3.1.1 (10 M parameters and more).

Claim: the largest attention logit grows more than in proportion to the learning rate and, where it gets
large, the loss suffers. With a layer norm of queries and keys (QK norm) logits are bounded, |q.k| / sqrt(D)
<= sqrt(D) max|gain of q| max|gain of k|, and the loss depends much less on the learning rate.

Set-up: pre norm, L 4, C 64, H 2 (D 32), T 64, 8 sequences a step, 400 steps, no biases, AdamW 0.9/0.95/1e-8,
clipping at 1, warm-up of 40, cosine to a tenth, weight decay independent of the learning rate (1e-4 a step
at its peak: --weight-decay 1e-4 / lr), learning rates 1e-3 to 1e-1. The paper's z-loss is left out. The
largest |logit| of all heads at the last recorded step, from `heads`; gains from the last checkpoint.

Expected: without QK norm, exponent of the logit in the learning rate above 1; with it, below 0.5 and every
logit within the bound. The loss at the highest rate lower with QK norm, and so its sensitivity: mean over
the rates of the held-out loss above the lowest of the rates.

Found (3 seeds, King James Bible; four minutes on one thread): reproduced. Exponent without QK norm 1.87 ±
0.13 (largest logit 5.6 at 1e-3, 92 at 1e-2, 24,000 at 1e-1), with it 0.33 ± 0.13 (5.4, 6.5, 26; no logit
above 0.92 of its bound, which grows from 6 to 46 because gains grow). Loss at 1e-1 2.95 ± 0.24 without, 2.38
± 0.02 with; sensitivity 0.30 ± 0.12 and 0.09 ± 0.07. At rates up to 1e-2 the two lose about the same: QK
norm helps where the rate is too high, and there is no gain at the best rate. With the Markov chain that
stands in where there is no text the logits do the same (exponents 1.92 ± 0.19 and 0.33 ± 0.11), but the
model hardly learns it, and the claims about the loss do not show.
"""

import json
import math
import struct

from experiment import Claim, Experiment, Interval, exponent, print_table

RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
LAYERS, CHANNELS, HEADS = 4, 64, 2
SHARED = {"layers": LAYERS, "heads": HEADS, "channels": CHANNELS, "context": 64, "batch": 8, "bias": False,
          "norm-bias": False, "on-nonfinite": "skip", "probes": "moments:h.*.attn"}


def tensors(file):
    """The float32 tensors of a safetensors file whose names hold 'q_norm' or 'k_norm'."""
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    found = {}
    for name, entry in json.loads(content[8:8 + size]).items():
        if "q_norm" in name or "k_norm" in name:
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            found[name] = struct.unpack(f"<{(end - start) // 4}f", content[start:end])
    return found


def bound(run):
    """The largest logit that the gains of the norms allow, over all layers."""
    checkpoint = sorted((run.directory / "checkpoints").glob("step-*"))[-1]
    gains = {name: max(map(abs, gain)) for name, gain in tensors(checkpoint / "model.safetensors").items()}
    return max(math.sqrt(CHANNELS / HEADS) * gains[f"h.{layer}.attn.q_norm.weight"] *
               gains[f"h.{layer}.attn.k_norm.weight"] for layer in range(LAYERS))


def main():
    experiment = Experiment(__doc__, runs_per_seed=2 * len(RATES), steps=400)
    data = experiment.text()
    logit, loss, limit = {}, {}, {}  # norm, rate: of each seed
    for seed in experiment.seeds:
        for norm in ("none", "layernorm"):
            for rate in RATES:
                flags = {"qk-norm": norm, "weight-decay": 1e-4 / rate, "probe-every": experiment.steps - 1}
                run = experiment.train(f"QK norm {norm}, lr {rate:g}, seed {seed}", **SHARED, **flags,
                                       data=data, lr=rate, seed=seed, warmup=experiment.steps // 10)
                logit.setdefault((norm, rate), []).append(run.rows(
                    "SELECT max(abs_logit) FROM heads WHERE step = (SELECT max(step) FROM heads)")[0][0])
                loss.setdefault((norm, rate), []).append(run.final_loss())
                if norm == "layernorm":
                    limit.setdefault(rate, []).append(bound(run))
                experiment.discard(run)

    def growth(norm):  # exponent of the learning rate in the largest logit
        return Interval(exponent([(rate, logit[norm, rate][i]) for rate in RATES])
                        for i in range(len(experiment.seeds)))

    def sensitivities(norm):
        by_seed = [[loss[norm, rate][i] for rate in RATES] for i in range(len(experiment.seeds))]
        return [sum(losses) / len(losses) - min(losses) for losses in by_seed]

    print()
    print_table(["lr", "max |logit|", "with QK norm", "its bound", "held-out loss", "with QK norm"],
                [[f"{rate:g}", Interval(logit["none", rate]), Interval(logit["layernorm", rate]),
                  Interval(limit[rate]), Interval(loss["none", rate]), Interval(loss["layernorm", rate])]
                 for rate in RATES])
    names = {"none": "without QK norm", "layernorm": "with QK norm"}
    experiment.picture([
        ("Largest attention logit at the end", "learning rate", "max |logit|", True, True,
         {**{text: [(rate, Interval(logit[norm, rate])) for rate in RATES] for norm, text in names.items()},
          "its bound": [(rate, Interval(limit[rate])) for rate in RATES]}),
        ("Loss at the end", "learning rate", "held-out loss, nats per token", True, False,
         {text: [(rate, Interval(loss[norm, rate])) for rate in RATES] for norm, text in names.items()})])

    without, bounded = growth("none"), growth("layernorm")
    margin = max(a / b for rate in RATES for a, b in zip(logit["layernorm", rate], limit[rate]))
    gap = Interval(a - b for a, b in zip(loss["none", RATES[-1]], loss["layernorm", RATES[-1]]))
    spared = Interval(a - b for a, b in zip(sensitivities("none"), sensitivities("layernorm")))
    experiment.finish([
        Claim("without QK norm, exponent of the largest logit in the learning rate above 1", without.low > 1,
              without),
        Claim("with it, below 0.5", bounded.high < 0.5, bounded),
        Claim("with it, no logit above its bound (largest share of it)", margin <= 1, f"{margin:.2f}"),
        Claim("at the highest rate, loss without less loss with QK norm above 0", gap.low > 0, gap),
        Claim("sensitivity of the loss to the rate larger without QK norm (difference above 0)",
              spared.low > 0, f"{Interval(sensitivities('none'))} without, "
              f"{Interval(sensitivities('layernorm'))} with, difference {spared}")])


if __name__ == "__main__":
    main()
