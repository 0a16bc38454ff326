r"""Training steps of this program beside PyTorch's, in turns: tokens/s, ratio, peak memory, share of the roof.

    python bench/peers/compare.py --train ./train [--model L4_H4_C128_T64_V256_B12] [--rounds 7] [--json FILE]
    python bench/peers/compare.py --train ./train --sizes | --options      this program alone

`make bench-peers` does the first for three models: 10M parameters, GPT-2 of 124M, and that of the demo. Each
contender is a process of its own that waits while others compute: ./train in float32 and bfloat16, and PyTorch
as it is (eager) and compiled (torch.compile), in float32 and under bfloat16 autocast. They take turns; medians
over all rounds are printed. All have the same model (numbers of parameters are compared), batch size, clipping
and AdamW (PyTorch's fused one), and as many threads.

PyTorch gets what is known to make it faster: memory is kept rather than given back to the system
(MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_), in huge pages (GLIBC_TUNABLES), threads stay on their cores
(OMP_PROC_BIND), and the first step, which compiles, is not counted. A contender that cannot run says why.

The roof is what ./train measures in the same run: multiply-adds in registers, in float32 or of bfloat16 pairs.
FLOPs are 6 for each weight that multiplies and token, and causal attention's 6 T C a layer.
"""

import argparse
import array
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile

MODELS = ["L6_H6_C384_T256_V256_B16", "L12_H12_C768_T256_V50257_B4", "L4_H4_C128_T64_V256_B12"]
SIZES = ["L4_H1_C64_T256_V256_B16", "L4_H2_C128_T256_V256_B16", "L4_H4_C256_T256_V256_B16",
         "L4_H8_C512_T256_V256_B8", "L4_H16_C1024_T256_V256_B4", "L4_H6_C384_T64_V256_B64",
         "L4_H6_C384_T128_V256_B32", "L4_H6_C384_T512_V256_B8", "L4_H6_C384_T1024_V256_B4",
         "L4_H6_C384_T2048_V256_B2"]
OPTIONS = ["--preset llama", "--preset olmo2", "--preset nanodo", "--preset modern", "--norm rmsnorm",
           "--norm dyt", "--norm-placement post", "--norm-placement peri", "--qk-norm rmsnorm", "--position rotary",
           "--kv-heads 2", "--window 64", "--attention-softcap 30", "--value-residual 0.5", "--activation relu",
           "--activation silu", "--gated", "--no-tied", "--logit-softcap 30", "--z-loss 1e-4"]
HERE = os.path.dirname(os.path.abspath(__file__))


def parse_arguments():
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--train", default="./train", help="the program")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has PyTorch")
    parser.add_argument("--model", action="append", metavar="NAME", help="layers, heads, channels, context, "
                        "vocabulary and batch; may be repeated")
    parser.add_argument("--sizes", action="store_true", help="widths and contexts, this program alone")
    parser.add_argument("--options", action="store_true", help="what members of the family cost, this program alone")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as this process may use cores")
    parser.add_argument("--json", metavar="FILE", help="file for every number")
    arguments = parser.parse_args()
    arguments.threads = arguments.threads or len(os.sched_getaffinity(0))
    arguments.peers = not (arguments.sizes or arguments.options)
    if not os.access(arguments.train, os.X_OK):
        parser.error(f"--train {arguments.train}: no such program; `make` builds it")
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds}: expected at least 1")
    for name in arguments.model or []:
        if not re.fullmatch(r"L\d+_H\d+_C\d+_T\d+_V\d+_B\d+", name):
            parser.error(f"--model {name}: expected a name like L4_H4_C128_T64_V256_B12")
    return arguments


def flags(name):
    layers, heads, channels, context, vocab, batch = re.findall(r"\d+", name)
    return ["--layers", layers, "--heads", heads, "--channels", channels, "--context", context,
            "--vocab", vocab, "--batch", batch]


class Contender:
    """A process that takes steps when it is asked to."""

    def __init__(self, label, precision, command, environment=None):
        self.label, self.precision, self.seconds, self.peak_bytes = label, precision, [], 0
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
        first = self.process.stdout.readline()
        try:
            self.about, self.refusal = json.loads(first), None
        except ValueError:
            _, errors = self.process.communicate()
            self.refusal = (first or errors.strip().split("\n")[-1]).strip() or "it ended without a word"
            self.refusal = self.refusal.removeprefix("did not run: ")

    def ask(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        text = self.process.stdout.readline()
        if not text:
            sys.exit(f"{self.label} {self.precision} ended: {self.process.stderr.read().strip()}")
        return json.loads(text)

    def turn(self, steps):
        reply = self.ask(steps)
        self.seconds.append(statistics.median(reply["seconds"]))
        self.peak_bytes = reply["peak_bytes"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def this_program(options, name, precision, more=""):
    return Contender("wobble " + more if more else "wobble", precision,
                     [options.train, "steps", *flags(name), "--precision", precision, "--threads",
                      str(options.threads), "--data", f"tokens:{tokens_file(options, name)}", *more.split()])


def tokens_file(options, name):
    """Tokens of the model's whole vocabulary at random, as raw uint16."""
    vocab = int(re.search(r"V(\d+)", name)[1])
    path = os.path.join(options.directory, f"{vocab}.bin")
    if not os.path.exists(path):
        draw = random.Random(1)
        with open(path, "wb") as file:
            array.array("H", (draw.randrange(vocab) for _ in range(200_000))).tofile(file)
    return path


def pytorch(options, name, precision, compiled):
    environment = {"OMP_NUM_THREADS": str(options.threads), "OMP_PROC_BIND": "true",
                   "MALLOC_TRIM_THRESHOLD_": "1000000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000000",
                   "MALLOC_TOP_PAD_": "268435456", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    script = os.path.join(HERE, "pytorch_gpt2.py")
    return Contender("PyTorch compiled" if compiled else "PyTorch eager", precision,
                     [options.python, script, "--serve", *flags(name), "--precision", precision, "--threads",
                      str(options.threads), *(["--compile"] if compiled else [])], environment)


def note(text):
    print(text, file=sys.stderr, flush=True)


def race(options, title, contenders):
    """Turns for all that can run, this program first; the rows of a table."""
    server = contenders[0]
    if server.refusal:
        sys.exit(f"{title}: {server.refusal}")
    runners = [c for c in contenders if not c.refusal]
    for c in runners:
        if options.peers and c.about["parameters"] != server.about["parameters"]:
            sys.exit(f"{title}: {c.label} has {c.about['parameters']} parameters, this program "
                     f"{server.about['parameters']}; they are not the same model")
    roof = {}
    flops, tokens = server.about["flops"], server.about["tokens"]
    for c in runners:
        c.turn(1)
    counts = [max(1, round(0.5 / c.seconds[0])) for c in runners]
    for c in runners:
        c.seconds.clear()
    for round_number in range(options.rounds):
        note(f"{title}: round {round_number + 1} of {options.rounds}")
        for precision, value in server.ask("roof").items():
            roof[precision] = max(roof.get(precision, 0), value)
        order = list(zip(runners, counts))
        for c, steps in order[round_number % len(order):] + order[:round_number % len(order)]:
            c.turn(steps)
    rows = []
    for c in contenders:
        if c.refusal:
            rows.append({"model": title, "contender": c.label, "precision": c.precision, "did_not_run": c.refusal})
            continue
        median = statistics.median(c.seconds)
        own_flops = c.about.get("flops", flops)
        rows.append({"model": title, "contender": c.label, "precision": c.precision, "seconds": median,
                     "all_seconds": c.seconds, "tokens_per_second": tokens / median,
                     "time_ratio": statistics.median(a / b for a, b in zip(c.seconds, server.seconds)),
                     "share_of_roof": own_flops / median / roof["bfloat16" if c.precision == "bf16" else "float32"],
                     "flops": own_flops, "peak_bytes": c.peak_bytes, "roof": roof, "about": c.about})
        c.close()
    return rows


def table(rows, ratio):
    lines = [f"| model | program | precision | tokens/s | {ratio} | share of roof | peak memory |",
             "|---|---|---|---:|---:|---:|---:|"]
    for r in rows:
        start = f"| {r['model']} | {r['contender']} | {r['precision']} |"
        if "did_not_run" in r:
            lines.append(f"{start} did not run: {r['did_not_run']} | | | |")
            continue
        lines.append(f"{start} {r['tokens_per_second']:,.0f} | {r['time_ratio']:.2f} | "
                     f"{100 * r['share_of_roof']:.0f} % | {r['peak_bytes'] / 2**20:,.0f} MiB |")
    return "\n".join(lines)


def main():
    options = parse_arguments()
    with tempfile.TemporaryDirectory() as options.directory:
        compare(options)


def compare(options):
    rows = []
    if options.sizes:
        for name in SIZES:
            rows += race(options, name, [this_program(options, name, p) for p in ("fp32", "bf16")])
        ratio = "time / float32"
    elif options.options:
        name = (options.model or [MODELS[0]])[0]
        for more in OPTIONS:
            pair = [this_program(options, name, "fp32"), this_program(options, name, "fp32", more)]
            rows += race(options, name, pair)[0 if not rows else 1:]
        ratio = "time / default"
    else:
        for name in options.model or MODELS:
            for precision in ("fp32", "bf16"):
                note(f"{name} {precision}: starting; compiling takes a minute or more")
                contenders = [this_program(options, name, precision), pytorch(options, name, precision, False),
                              pytorch(options, name, precision, True)]
                rows += race(options, name, contenders)
                note(table(rows[-len(contenders):], "time / wobble"))
        ratio = "time / wobble"
    print(table(rows, ratio))
    roof = {p: max(r["roof"][p] for r in rows if "roof" in r) for p in ("float32", "bfloat16")}
    print(f"\nroof: {roof['float32'] / 1e9:.0f} GFLOP/s in float32, {roof['bfloat16'] / 1e9:.0f} in bfloat16, "
          f"{options.threads} threads; medians of {options.rounds} rounds in turns")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
