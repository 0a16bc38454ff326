#!/usr/bin/env python3
"""Everything that only a GPU can say, in one Markdown report; meant to take less than eight minutes.

    make && make tests            # or programs that were built elsewhere: --train FILE --tests FILE
    python3 bench/gpu/report.py [--train ./train] [--tests build/cuda/test/tests] [--python python3] [--out FILE]

Unit tests on the GPU; compute-sanitizer's memcheck, racecheck and synccheck on small shapes; steps of the GPU beside
those of the CPU; every kernel's bandwidth or rate, as a share of what the GPU was measured to do; training of GPT-2's
124M parameters in bfloat16 at each tier of probes, beside PyTorch's compiled one (--python: an interpreter that has
it). What cannot run says so in its place; the exit status is 1 where a check failed.
"""

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time

MODEL = dict(layers=12, heads=12, channels=768, context=1024, vocab=50257, batch=32)
SMALL = "*rows3*:*T33*:*T70*:*n10007*:*M13*K48*"


class Report:
    def __init__(self, path):
        self.path, self.lines, self.failed, self.begin = path, [], False, time.time()

    def say(self, text=""):
        self.lines.append(text)
        with open(self.path, "w") as file:
            file.write("\n".join(self.lines) + "\n")
        print(text, flush=True)

    def head(self, text):
        self.say(f"\n## {text} ({time.time() - self.begin:.0f} s)\n")

    def check(self, good, what):
        self.failed |= not good
        self.say(f"- {'ok' if good else '**FAILED**'}: {what}")


def run(command, seconds, **environment):
    """(exit status, output); 124 where it took too long, 127 where there is no such program."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds,
                              env=dict(os.environ, **environment))
        return done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        return 124, f"not done after {seconds} s\n" + (late.stdout or b"").decode(errors="replace")[-500:]
    except FileNotFoundError:
        return 127, f"{command[0]} is not here"


def last_lines(text, count=12):
    return "\n".join(["```"] + text.strip().split("\n")[-count:] + ["```"])


def unit_tests(report, tests):
    report.head("Kernels against float64 references")
    for team in ("warp", "block"):
        status, said = run([tests, "--gtest_brief=1", "--gtest_filter=Table/Kernels.*:Table/WatchedKernels.Give*"], 90,
                           WOBBLE_TEST_DEVICE="cuda", WOBBLE_TEST_TEAM=team)
        report.check(status == 0, f"rows by {team}s")
        report.say(last_lines(said, 3 if status == 0 else 30))


def sanitizer(report, tests):
    report.head("compute-sanitizer")
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        report.say("It did not run: compute-sanitizer is not here.")
        return
    for check in ("memcheck", "racecheck", "synccheck"):
        status, said = run([tool, "--tool", check, "--error-exitcode", "9", tests, "--gtest_brief=1",
                            "--gtest_filter=Table/Kernels.MatchTheFloat64ReferenceInBfloat16/" + SMALL.replace(
                                ":", ":Table/Kernels.MatchTheFloat64ReferenceInBfloat16/")], 60,
                           WOBBLE_TEST_DEVICE="cuda")
        report.check(status == 0, check)
        report.say(last_lines(said, 3 if status == 0 else 30))


def losses(run_directory):
    with sqlite3.connect(os.path.join(run_directory, "run.db")) as db:
        return db.execute("select step, loss, grad_norm from steps order by step").fetchall()


def agreement(report, train):
    report.head("Steps beside the CPU's")
    with tempfile.TemporaryDirectory() as work:
        for precision, tolerance in (("fp32", 1e-4), ("bf16", 3e-2)):
            steps = {}
            for name, flags in {"cpu": ["--device", "cpu"], "cuda": ["--device", "cuda"],
                                "graph": ["--device", "cuda", "--cuda-graph"],
                                "probes": ["--device", "cuda", "--probes", "full"]}.items():
                directory = os.path.join(work, precision + name)
                status, said = run([train, "--run", directory, "--data", "synthetic:markov?order=1&vocab=64&seed=1",
                                    "--layers", "2", "--heads", "2", "--channels", "128", "--context", "128", "--batch",
                                    "4", "--steps", "10", "--eval-every", "0", "--precision", precision, *flags], 60)
                if status != 0:
                    report.check(False, f"{precision} {name}")
                    report.say(last_lines(said))
                    break
                steps[name] = losses(directory)
            else:
                far = max(abs(a[i] - b[i]) / abs(a[i]) for a, b in zip(steps["cpu"], steps["cuda"]) for i in (1, 2))
                report.check(far < tolerance, f"{precision}: loss and gradient norm of ten steps differ by {far:.1e}")
                report.check(steps["cuda"] == steps["graph"], f"{precision}: the same bits as CUDA graphs")
                report.check(steps["cuda"] == steps["probes"], f"{precision}: the same bits with probes on")


def bench(report, train, what, seconds):
    with tempfile.TemporaryDirectory() as work:
        file = os.path.join(work, "bench.json")
        status, said = run([train, "bench", "--device", "cuda", "--quick", what, "--json", file], seconds)
        if status != 0:
            report.check(False, "train bench " + what)
            report.say(last_lines(said))
            return None
        return json.load(open(file))


def kernels(report, train):
    report.head("Kernels")
    found = bench(report, train, "--kernels-only", 120)
    if not found:
        return
    roofs = found["roofs"]
    report.say(f"Copying {roofs['copy_bytes_per_second'] * 1e-9:,.0f} GB/s; products of bfloat16 "
               f"{roofs['pair_multiply_add_flops_per_second'] * 1e-12:,.0f} TFLOP/s, of float32 "
               f"{roofs['multiply_add_flops_per_second'] * 1e-12:,.0f}.\n")
    report.say("| kernel | shape | type | µs | GB/s or TFLOP/s | share of its roof | moments | full |")
    report.say("|---|---|---|---:|---:|---:|---:|---:|")
    by_case = {}
    for row in found["kernels"]:
        by_case.setdefault((row["case"], row["shape"], row["precision"]), {})[row["probes"]] = row
    for (case, shape, precision), tiers in by_case.items():
        off = tiers["off"]
        rate = off["bytes_per_second"] * 1e-9 if off["roof"] == "copy" else off["flops_per_second"] * 1e-12
        report.say(f"| {case} | {shape} | {precision} | {off['seconds'] * 1e6:.1f} | {rate:,.0f} | "
                   f"{100 * off['share_of_roof']:.0f} % | {100 * tiers['moments']['overhead']:+.0f} % | "
                   f"{100 * tiers['full']['overhead']:+.0f} % |")


def training(report, train, python):
    report.head("Training GPT-2 124M, bfloat16, T 1024")
    found = bench(report, train, "--steps-only", 120)
    report.say("| what | tokens/s | share of the measured matrix peak |\n|---|---:|---:|")
    for row in found["steps"] if found else []:
        report.say(f"| wobble, probes {row['probes']} | {row['tokens_per_second']:,.0f} | "
                   f"{100 * row['share_of_roof']:.0f} % |")
    peer = os.path.join(os.path.dirname(__file__), "..", "peers", "pytorch_gpt2.py")
    command = [python, peer, "--serve", "--device", "cuda", "--precision", "bf16", "--compile"]
    for name, value in MODEL.items():
        command += ["--" + name, str(value)]
    try:
        done = subprocess.run(command, input="20\n", capture_output=True, text=True, timeout=150)
        description, times = [json.loads(line) for line in done.stdout.strip().split("\n")]
        middle = sorted(times["seconds"])[len(times["seconds"]) // 2]
        report.say(f"| PyTorch {description['version']}, compiled, flash attention | "
                   f"{description['tokens'] / middle:,.0f} | |")
    except (subprocess.TimeoutExpired, ValueError, OSError, KeyError) as error:
        said = done.stdout + done.stderr if "done" in locals() else str(error)
        report.say("\nPyTorch did not run: " + " ".join(said.split())[-300:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", default="./train")
    parser.add_argument("--tests", default="build/cuda/test/tests")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has PyTorch")
    parser.add_argument("--out", default="build/gpu_report.md")
    options = parser.parse_args()
    for program in (options.train, options.tests):
        if not os.access(program, os.X_OK):
            parser.error(f"{program} cannot be run; build it, or name another by --train and --tests")
    report = Report(options.out)
    status, said = run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], 20)
    if status != 0:
        parser.error("this machine shows no NVIDIA GPU: " + said.strip().split("\n")[-1])
    report.say("# wobble on a GPU\n\n" + said.strip() + "\n\n" + run([options.train, "--version"], 20)[1].strip())
    agreement(report, options.train)
    unit_tests(report, options.tests)
    kernels(report, options.train)
    training(report, options.train, options.python)
    sanitizer(report, options.tests)
    report.head("Done")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
