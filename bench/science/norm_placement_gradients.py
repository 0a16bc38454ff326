r"""Gradients by depth at the start: large at the top with post norm, falling as 1/sqrt(L) with pre norm.

    python3 bench/science/norm_placement_gradients.py [--train PATH] [--threads N] [--seeds N] [--quick]

Source: Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture", theorem 1 and figure 3.

Claim: with weights as they start, the gradient of W2, the second matrix of the network, in the last layer
has a norm of order d sqrt(ln d) with post norm, whatever the depth L, and of order d sqrt(ln d / L) with pre
norm. Downwards from the top it decays with post norm and stays about the same with pre norm.

Set-up: the paper's start, which is not GPT-2's: every matrix N(0, 1 / rows), projections that write to the
stream as large as all others (--residual-init same), stream of variance 1 (embeddings N(0, 1), then a norm),
ReLU, a head of its own. C 128, H 4, T 64, 16 sequences of the synthetic source, L 6, 12 and 24; gradient of
the first step, before anything has moved, from `tensors` (all W2 have one shape, so the RMS stands for the
norm). A third line shows GPT-2's start (N(0, 0.02^2), projections divided by sqrt(2 L)) with pre norm.

Expected. Post: last over first layer above 1.5 at L 12, exponent of L in the last layer's gradient within
0.2 of 0. Pre: that exponent -1/2 (the interval holds it, and neither 0 nor -1), a smaller last layer than
post's, and last over first layer within a factor of 2 of 1.

Found (3 seeds; half a minute on one thread): all but the last. Post: last over first layer 2.20 ± 0.42 at L
12 (1.01 ± 0.25 at L 6: the decay needs depth), exponent 0.17 ± 0.06. Pre: exponent -0.48 ± 0.08, last layer
0.30 ± 0.15 of post's. But with pre norm the gradient is not the same in all depths: last over first layer is
0.40 ± 0.16 at L 12 and 0.275 ± 0.018 at L 24. It falls from the bottom to the top, since the first layer's
gradient does not depend on L (exponent -0.02 ± 0.13): the theorem is about the last layer, and it is there
that 1/sqrt(L) shows. With GPT-2's start neither end depends on L, and last over first layer is 0.62 ± 0.02
at L 12.
"""

from experiment import Claim, Experiment, Interval, exponent, print_table

DEPTHS = (6, 12, 24)
SHARED = {"heads": 4, "channels": 128, "context": 64, "batch": 16, "warmup": 0, "eval-sequences": 8,
          "probes": "moments:*.mlp.proj.weight"}
PAPER = {"init": "fan_in", "embedding-std": 1, "embedding-norm": True, "residual-init": "same",
         "activation": "relu", "tied": False}
ARMS = {"post": {"norm-placement": "post", **PAPER}, "pre": {"norm-placement": "pre", **PAPER},
        "pre, GPT-2's start": {"norm-placement": "pre"}}


def main():
    experiment = Experiment(__doc__, runs_per_seed=len(ARMS) * len(DEPTHS), steps=1)
    data = experiment.arguments.data or "synthetic:markov?order=1&vocab=64&seed=1"
    gradients = {}  # arm, L: of each seed, RMS by layer
    for seed in experiment.seeds:
        for arm, flags in ARMS.items():
            for layers in DEPTHS:
                run = experiment.train(f"{arm}, L {layers}, seed {seed}", data=data, layers=layers, seed=seed,
                                       **SHARED, **flags)
                gradients.setdefault((arm, layers), []).append([rms for rms, in run.rows(
                    "SELECT grad_rms FROM tensors WHERE step = 1 AND name LIKE 'h.%.mlp.proj.weight' "
                    "ORDER BY layer")])
                experiment.discard(run)

    def ratio(arm, layers):  # of the last layer to the first
        return Interval(seed[-1] / seed[0] for seed in gradients[arm, layers])

    def law(arm, layer):  # exponent of L in the gradient of that layer
        by_seed = zip(*(gradients[arm, layers] for layers in DEPTHS))
        return Interval(exponent([(n, g[layer]) for n, g in zip(DEPTHS, seed)]) for seed in by_seed)

    print()
    print_table(["RMS of the gradient of W2", "L", "first layer", "last layer", "last / first"],
                [[arm, n, Interval(g[0] for g in gradients[arm, n]),
                  Interval(g[-1] for g in gradients[arm, n]), ratio(arm, n)] for arm in ARMS for n in DEPTHS])
    print_table(["exponent of L", "in the first layer", "in the last layer"],
                [[arm, law(arm, 0), law(arm, -1)] for arm in ARMS])
    experiment.picture([(f"L = {n}", "layer", "RMS of the gradient of W2", False, True,
                         {arm: [(layer, Interval(seed[layer] for seed in gradients[arm, n]))
                                for layer in range(n)] for arm in ARMS}) for n in DEPTHS])

    post, pre = ratio("post", 12), ratio("pre", 12)
    post_law, pre_law = law("post", -1), law("pre", -1)
    top = Interval(a[-1] / b[-1] for a, b in zip(gradients["pre", 12], gradients["post", 12]))
    experiment.finish([
        Claim("post norm, L 12: last over first layer above 1.5", post.low > 1.5, post),
        Claim("post norm: last layer's gradient does not depend on L (exponent within 0.2 of 0)",
              abs(post_law.mean) < 0.2 and post_law.low > -0.5, post_law),
        Claim("pre norm: last layer's gradient falls as L^-1/2 (interval holds -1/2, neither 0 nor -1)",
              pre_law.low <= -0.5 <= pre_law.high and pre_law.low > -1 and pre_law.high < 0, pre_law),
        Claim("pre norm, L 12: last layer's gradient smaller than post norm's", top.high < 1, top),
        Claim("pre norm, L 12: about the same in all depths (last over first layer between 1/2 and 2)",
              pre.low > 0.5 and pre.high < 2, pre)])


if __name__ == "__main__":
    main()
