r"""What it costs to see a training step from outside: GPT-2 in PyTorch, bare and with hooks.

    python bench/peers/pytorch_hooks.py --threads 2 --seconds 15 --model L4_H4_C128_T64_V256_B12 [--model ...]

The model is that of pytorch_gpt2.py, with GELU, attention and output head as modules so that they can be
hooked too. A step is forward, backward, clipping and AdamW (fused) on one batch that stays the same. Steps are
timed in turns:

    none               no hook
    leaf modules       forward and full backward hooks on each module without children, and a tensor hook on
                       each parameter's gradient: the tensors that the training program's own probes see
    every module       the same on all modules, also those that hold others and see their tensors again

A hook computes count, mean, rms, min, max, absmax, skew, kurtosis, zeros, NaNs and infinities of its tensor, in
as few passes as PyTorch allows; at the end of a step all of it is fetched as Python numbers. Median seconds
and the medians of each round's ratios to `none` are printed as one line of JSON. When PyTorch cannot be
imported, or fails, one line says "did not run: REASON".
"""

import argparse
import json
import math
import os
import re
import statistics
import sys
import time


def did_not_run(reason):
    """A peer that cannot run is a fact to report, not a failure of the comparison."""
    print("did not run: " + " ".join(str(reason).split()))
    sys.exit(0)


def parse_arguments():
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--model", action="append", required=True, metavar="L4_H4_C128_T64_V256_B12",
                        help="layers, heads, channels, context, vocabulary and batch; may be repeated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15, help="for each model, three rounds at least")
    arguments = parser.parse_args()
    for name in arguments.model:
        if not re.fullmatch(r"L\d+_H\d+_C\d+_T\d+_V\d+_B\d+", name):
            parser.error(f"--model {name}: expected a name like L4_H4_C128_T64_V256_B12")
    return arguments


options = parse_arguments()
# Threads that wait sleep soon, as those of the training program do: on a machine that others use too, a
# spinning thread holds the core that the one it waits for needs, and a step takes several times as long.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except Exception as error:  # a missing shared library raises OSError, a missing package ImportError
    did_not_run(f"PyTorch cannot be imported by {sys.executable} ({error}); PYTHON=... names another interpreter")


class Head(nn.Module):
    """The token embedding again, as output matrix."""

    def __init__(self, embedding):
        super().__init__()
        self.matrix = [embedding]  # in a list, so that the weight is registered once

    def forward(self, x):
        return F.linear(x, self.matrix[0].weight)


class AttentionCore(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, qkv):
        B, T, C = qkv.shape
        q, k, v = qkv.view(B, T, 3, self.heads, C // 3 // self.heads).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C // 3)


class Attention(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.qkv = nn.Linear(channels, 3 * channels)
        self.core = AttentionCore(heads)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x):
        return self.proj(self.core(self.qkv(x)))


class MLP(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fc = nn.Linear(channels, 4 * channels)
        self.gelu = nn.GELU(approximate="tanh")
        self.proj = nn.Linear(4 * channels, channels)

    def forward(self, x):
        return self.proj(self.gelu(self.fc(x)))


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(channels)
        self.attn = Attention(channels, heads)
        self.ln_2 = nn.LayerNorm(channels)
        self.mlp = MLP(channels)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    def __init__(self, layers, heads, channels, context, vocab):
        super().__init__()
        self.wte = nn.Embedding(vocab, channels)
        self.wpe = nn.Embedding(context, channels)
        self.h = nn.Sequential(*(Block(channels, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(channels)
        self.head = Head(self.wte)
        self.loss = nn.CrossEntropyLoss()
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                deviation = 0.02 / math.sqrt(2 * layers) if name.endswith("proj.weight") else 0.02
                nn.init.normal_(parameter, std=deviation)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        logits = self.head(self.ln_f(self.h(x)))
        return self.loss(logits.flatten(0, 1), targets.flatten())


def moments(x):
    """count, mean, rms, min, max, absmax, skew, kurtosis, zeros, NaNs, infinities; all but the counts of the
    finite values alone. The extremes tell whether all are finite, so nothing is looked at twice."""
    x = x.detach().reshape(-1)
    low, high = torch.aminmax(x)
    nans = infs = 0
    if not (math.isfinite(low) and math.isfinite(high)):
        nans, infs = int(x.isnan().sum()), int(x.isinf().sum())
        x = x[x.isfinite()]
        if x.numel() == 0:
            return torch.tensor([0.0] + [math.nan] * 7 + [0.0, nans, infs])
        low, high = torch.aminmax(x)
    count = x.numel()
    mean = x.mean()
    deviation = x - mean
    square = deviation * deviation
    m2 = torch.dot(deviation, deviation) / count
    m3 = torch.dot(square, deviation) / count
    m4 = torch.dot(square, square) / count
    zeros = count - torch.count_nonzero(x)
    return torch.stack([torch.tensor(float(count)), mean, (mean * mean + m2).sqrt(), low, high,
                        torch.maximum(high, -low), m3 / (m2 * m2.sqrt()), m4 / (m2 * m2), zeros.to(x.dtype),
                        torch.tensor(float(nans)), torch.tensor(float(infs))])


class Hooks:
    """Hooks on a model's modules and gradients for as long as the `with` block lasts."""

    def __init__(self, model, every_module):
        self.model, self.every_module = model, every_module
        self.seen = {}

    def __enter__(self):
        self.handles = []
        for name, module in self.model.named_modules():
            if not self.every_module and any(True for _ in module.children()):
                continue
            self.handles.append(module.register_forward_hook(self.forward_hook(name)))
            self.handles.append(module.register_full_backward_hook(self.backward_hook(name)))
        for name, parameter in self.model.named_parameters():
            self.handles.append(parameter.register_hook(self.gradient_hook(name)))
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()

    def forward_hook(self, name):
        def hook(module, inputs, output):
            self.seen[name, "output"] = moments(output)
        return hook

    def backward_hook(self, name):
        def hook(module, grad_input, grad_output):
            for i, gradient in enumerate(grad_input):
                # Token numbers have none; some versions hand out integers for them.
                if gradient is not None and gradient.is_floating_point():
                    self.seen[name, "gradient of input", i] = moments(gradient)
        return hook

    def gradient_hook(self, name):
        def hook(gradient):
            self.seen[name, "gradient"] = moments(gradient)
        return hook

    def fetch(self):
        """All that was seen in a step, as numbers by name."""
        values = dict(zip(self.seen, torch.stack(list(self.seen.values())).tolist()))
        self.seen = {}
        return values


def quartiles(values):
    return statistics.quantiles(values, n=4, method="inclusive")[::2] if len(values) > 1 else [values[0]] * 2


def time_model(name):
    layers, heads, channels, context, vocab, batch = (int(n) for n in re.findall(r"\d+", name))
    torch.manual_seed(1)
    model = GPT2(layers, heads, channels, context, vocab)
    tokens = (torch.arange(batch * context) * 7919 % vocab).view(batch, context)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(tokens, tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def timed(hooks):
        """Seconds of a step; placing hooks and taking them away is not counted."""
        if hooks is None:
            begin = time.perf_counter()
            step()
            return time.perf_counter() - begin, 0
        with hooks:
            begin = time.perf_counter()
            step()
            seen = hooks.fetch()
            return time.perf_counter() - begin, len(seen)

    variants = {"none": None, "leaf modules": Hooks(model, False), "every module": Hooks(model, True)}
    for hooks in variants.values():
        timed(hooks)  # the first step of each waits for memory
    seconds, tensors = {which: [] for which in variants}, {}
    order = list(variants)
    begin = time.perf_counter()
    while len(seconds["none"]) < 3 or time.perf_counter() - begin < options.seconds:
        for which in order:
            taken, tensors[which] = timed(variants[which])
            seconds[which].append(taken)
        order = order[1:] + order[:1]

    rows = []
    for which, taken in seconds.items():
        ratios = [a / b - 1 for a, b in zip(taken, seconds["none"])]
        median = statistics.median(taken)
        rows.append({"hooks": which, "tensors": tensors[which], "seconds": median,
                     "seconds_quartiles": quartiles(taken), "least_seconds": min(taken),
                     "tokens_per_second": batch * context / median, "overhead": statistics.median(ratios),
                     "overhead_quartiles": quartiles(ratios)})
    return {"name": name, "parameters": sum(p.numel() for p in model.parameters()),
            "rounds": len(seconds["none"]), "rows": rows}


def main():
    torch.set_num_threads(options.threads)
    try:
        models = [time_model(name) for name in options.model]
    except Exception as error:
        did_not_run(f"{type(error).__name__}: {error}")
    print(json.dumps({"peer": "pytorch", "version": torch.__version__, "threads": torch.get_num_threads(),
                      "models": models}))


if __name__ == "__main__":
    main()
