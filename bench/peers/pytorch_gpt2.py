r"""A plain GPT-2 in PyTorch: an independent peer that trains on the same bytes and reports its held-out loss.

    python bench/peers/pytorch_gpt2.py --text FILE --val-text FILE --layers 4 --heads 4 --channels 128 \
        --context 64 --batch 12 --steps 2000 --lr 1e-3 --warmup 100 --seed 1 --threads 2 [--json]

GPT-2 with learned positions, pre-norm blocks, biases, tied embeddings, tanh GELU, layer norm epsilon 1e-5,
and no dropout. Weights are N(0, 0.02), those of the residual projections divided by sqrt(2 L), biases 0.
AdamW with betas 0.9 and 0.95, epsilon 1e-8, decay on matrices alone (embeddings are matrices), clipping at a
global norm of 1, and a cosine schedule after linear warm-up, down to a tenth of the rate.

Every byte is a token. The text is cut into windows of T tokens, each with the T that follow by one as its
targets; they are shuffled anew in each epoch. The held-out loss is the mean over all whole windows of the
validation text. The rate of tokens is that of the median step; what happens between steps is not counted.

With `--serve` it only takes steps, for those who time them: it says what a step is in one line of JSON, then
answers each number on standard input with the seconds of so many steps on one batch and the most memory it has
held. `--precision bf16` computes them under autocast.

To compare gradients, `--init model.safetensors` starts from given weights (linear weights are [in, out]), and
`--dump-gradients OUT.safetensors --tokens IN.bin` stores the loss and the gradient of every parameter for one
batch: IN.bin holds B·T input tokens and then B·T targets as int32, -1 for a target that is not counted.
"""

import argparse
import json
import math
import sys
import time


def parse_arguments():
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--text", help="training text, read as bytes")
    parser.add_argument("--val-text", help="held-out text, read as bytes")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=256)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of --serve: bf16 is autocast")
    parser.add_argument("--serve", action="store_true", help="take steps on request, and time them")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of --serve")
    parser.add_argument("--compile", action="store_true", help="run the model through torch.compile")
    parser.add_argument("--init", metavar="FILE", help="start from the weights in this safetensors file")
    parser.add_argument("--save", metavar="FILE", help="store the final weights as safetensors")
    parser.add_argument("--dump-gradients", metavar="FILE", help="store the gradients of --tokens and leave")
    parser.add_argument("--tokens", metavar="FILE", help="int32: B·T inputs, then B·T targets")
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    arguments = parser.parse_args()
    if arguments.dump_gradients:
        if not arguments.tokens:
            parser.error("--dump-gradients needs --tokens")
    elif not arguments.serve and (not arguments.text or not arguments.val_text):
        parser.error("training needs --text and --val-text")
    if arguments.steps < 1:
        parser.error("--steps must be at least 1")
    if arguments.channels % arguments.heads:
        parser.error("--heads must divide --channels")
    return arguments


def did_not_run(reason):
    """A peer that cannot run is a fact to report, not a failure of the comparison."""
    print("did not run: " + " ".join(str(reason).split()))
    sys.exit(0)


options = parse_arguments()
try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except Exception as error:  # a missing shared library raises OSError, a missing package ImportError
    did_not_run(f"PyTorch cannot be imported ({error})")


class Linear(nn.Module):
    """y = x W + b with W [in, out]."""

    def __init__(self, inputs, outputs, deviation):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * deviation)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return F.linear(x, self.weight.t(), self.bias)


class Attention(nn.Module):
    def __init__(self, channels, heads, residual_deviation):
        super().__init__()
        self.heads = heads
        self.qkv = Linear(channels, 3 * channels, 0.02)
        self.proj = Linear(channels, channels, residual_deviation)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(attended.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    def __init__(self, channels, residual_deviation):
        super().__init__()
        self.fc = Linear(channels, 4 * channels, 0.02)
        self.proj = Linear(4 * channels, channels, residual_deviation)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, channels, heads, residual_deviation):
        super().__init__()
        self.ln_1 = nn.LayerNorm(channels, eps=1e-5)
        self.attn = Attention(channels, heads, residual_deviation)
        self.ln_2 = nn.LayerNorm(channels, eps=1e-5)
        self.mlp = MLP(channels, residual_deviation)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """Returns the mean loss over the targets that are not -1."""

    def __init__(self, vocab, context, layers, heads, channels):
        super().__init__()
        self.wte = nn.Embedding(vocab, channels)
        self.wpe = nn.Embedding(context, channels)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)
        residual_deviation = 0.02 / math.sqrt(2 * layers)
        self.h = nn.ModuleList(Block(channels, heads, residual_deviation) for _ in range(layers))
        self.ln_f = nn.LayerNorm(channels, eps=1e-5)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


class Windows:
    """Windows of T tokens that do not overlap, with their targets, out of the bytes of one file."""

    def __init__(self, path, context):
        try:
            with open(path, "rb") as file:
                text = bytearray(file.read())
        except OSError as error:
            sys.exit(f"{path}: {error.strerror}")
        self.context = context
        self.count = (len(text) - 1) // context
        if self.count < 1:
            sys.exit(f"{path}: {len(text)} bytes; at least {context + 1} are needed for one window")
        self.tokens = torch.frombuffer(text, dtype=torch.uint8).long()

    def batch(self, indices):
        positions = torch.as_tensor(indices).unsqueeze(1) * self.context + torch.arange(self.context)
        return self.tokens[positions], self.tokens[positions + 1]

    def shuffled(self, batch, seed):
        """Batches without end; each epoch has every window once; a batch may reach into the next epoch."""
        generator = torch.Generator().manual_seed(seed)
        waiting = []
        while True:
            while len(waiting) < batch:
                waiting += torch.randperm(self.count, generator=generator).tolist()
            yield self.batch(waiting[:batch])
            del waiting[:batch]


def learning_rate(step):
    """Linear warm-up, then a cosine down to a tenth; step counts from 0."""
    if step < options.warmup:
        return options.lr * (step + 1) / options.warmup
    progress = min(1, (step - options.warmup) / max(1, options.steps - options.warmup))
    lowest = 0.1 * options.lr
    return lowest + (1 + math.cos(math.pi * progress)) / 2 * (options.lr - lowest)


@torch.no_grad()
def mean_loss(model, windows):
    """Mean loss per token over all whole windows."""
    total = 0.0
    for begin in range(0, windows.count, options.batch):
        indices = range(begin, min(begin + options.batch, windows.count))
        total += model(*windows.batch(list(indices))).item() * len(indices)
    return total / windows.count


def dump_gradients(model):
    from safetensors.torch import save_file

    with open(options.tokens, "rb") as file:
        tokens = torch.frombuffer(bytearray(file.read()), dtype=torch.int32).long()
    shape = (2, options.batch, options.context)
    if len(tokens) != math.prod(shape):
        sys.exit(f"{options.tokens}: {len(tokens)} int32 values; expected 2·B·T = {math.prod(shape)}")
    inputs, targets = tokens.view(shape)
    loss = model(inputs, targets)
    loss.backward()
    gradients = {name: parameter.grad.contiguous() for name, parameter in model.named_parameters()}
    save_file({"loss": loss.detach().reshape(1), **gradients}, options.dump_gradients)
    print(f"loss {loss.item():.9f}; gradients of {len(gradients)} parameters in {options.dump_gradients}")


def adamw(model):
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": options.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)


def serve(model):
    import resource

    model.to(options.device)
    optimizer = adamw(model)
    run = torch.compile(model) if options.compile else model
    shape = (options.batch, options.context)
    tokens, targets = torch.randint(0, options.vocab, (2, *shape), device=options.device)

    def step():
        begin = time.perf_counter()
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = run(tokens, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()
        return time.perf_counter() - begin

    step()  # compiles, and claims memory
    print(json.dumps({"version": torch.__version__, "tokens": math.prod(shape),
                      "parameters": sum(p.numel() for p in model.parameters())}), flush=True)
    for line in sys.stdin:
        seconds = [step() for _ in range(int(line))]
        if options.device == "cuda":
            peak = torch.cuda.max_memory_allocated()
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "peak_bytes": peak}), flush=True)


def train(model):
    training, held_out = Windows(options.text, options.context), Windows(options.val_text, options.context)
    optimizer = adamw(model)
    run = torch.compile(model) if options.compile else model

    losses, seconds = [], []
    batches = training.shuffled(options.batch, options.seed)
    for step in range(options.steps):
        begin = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        loss = run(*next(batches))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
        if step % 100 == 0 or step == options.steps - 1:
            print(f"step {step}  loss {losses[-1]:.4f}  norm {norm.item():.3f}", file=sys.stderr)

    # The median: the first steps compile or warm caches, and others use the machine too.
    median = sorted(seconds)[len(seconds) // 2]
    recent = losses[-100:]
    return {
        "peer": "pytorch",
        "version": torch.__version__,
        "compiled": options.compile,
        "threads": options.threads,
        "seed": options.seed,
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": options.steps,
        "train_loss": sum(recent) / len(recent),
        "val_loss": mean_loss(model, held_out),
        "val_tokens": held_out.count * options.context,
        "seconds": sum(seconds),
        "median_step_seconds": median,
        "tokens_per_second": options.batch * options.context / median,
    }


def main():
    torch.set_num_threads(options.threads)
    torch.set_default_dtype(getattr(torch, options.dtype))
    torch.manual_seed(options.seed)
    model = GPT2(options.vocab, options.context, options.layers, options.heads, options.channels)
    if options.init:
        from safetensors.torch import load_file

        names = model.state_dict()
        try:
            loaded = load_file(options.init)
            model.load_state_dict({name: tensor for name, tensor in loaded.items() if name in names})
        except Exception as error:  # unreadable, or a parameter that is missing or of another shape
            reason = " ".join(str(error).split())
            sys.exit(f"--init {options.init}: " + (reason if len(reason) < 300 else reason[:300] + " ..."))

    if options.dump_gradients:
        dump_gradients(model)
        return
    try:
        if options.serve:
            serve(model)
            return
        result = train(model)
    except Exception as error:
        # Raised by the compiler's own modules: there is no C++ compiler, or not one that it can use.
        if options.compile and type(error).__module__.startswith("torch._"):
            did_not_run(f"torch.compile failed ({error})")
        raise
    if options.save:
        from safetensors.torch import save_file

        save_file(model.state_dict(), options.save)
    if options.json:
        print(json.dumps(result))
    else:
        print(f"PyTorch {result['version']}: held-out loss {result['val_loss']:.4f} over "
              f"{result['val_tokens']} tokens after {result['steps']} steps; training loss "
              f"{result['train_loss']:.4f}; {result['tokens_per_second']:.0f} tokens/s")


if __name__ == "__main__":
    main()
