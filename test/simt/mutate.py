#!/usr/bin/env python3
"""Plants one small fault at a time in the text of CUDA kernels, an index, a barrier or a lane mask, and counts which of
them the tests on the software machine find.

    make CUDA=0 test-simt                        # what is not mutated comes from there
    python3 test/simt/mutate.py [--per-file 8] [--seed 1] [--only FILE] [--objects build/cpu]

Each fault is compiled and tested by itself, which takes long; it is no part of `make test`. A fault is found where a test fails, crashes or takes
much longer than all tests of the kernel should.
"""

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile

# What launches the kernels of a file: the objects to be compiled with the fault in them, and the tests to be run.
SUBJECTS = {
    "kernels/activation.h": (["test/cases_activation.cu"], "*activation_*:*gated_*"),
    "kernels/adamw.h": (["test/cases_flat.cu"], "*adamw*"),
    "kernels/attention.h": (["probes/attention_float32.cu", "probes/attention_bfloat16.cu"], "*attention_*"),
    "kernels/classifier.h": (["test/cases_rows.cu", "test/cases_objective.cu"], "*classifier*"),
    "kernels/dyt.h": (["test/cases_norm_rule.cu"], "*norm_*"),
    "kernels/embedding.h": (["test/cases_rows.cu"], "*embedding*"),
    "kernels/flash.h": (["probes/attention_float32.cu", "probes/attention_bfloat16.cu"], "*attention_*blocks*"),
    "kernels/flash_backward.h": (["probes/attention_float32.cu", "probes/attention_bfloat16.cu"],
                                 "*attention_backward*blocks*"),
    "kernels/flash_forward.h": (["probes/attention_float32.cu", "probes/attention_bfloat16.cu"],
                                "*attention_forward*blocks*"),
    "kernels/head_norm.h": (["test/cases_head_norm.cu"], "*head_norm*"),
    "kernels/identities.h": (["test/cases_identities.cu"], "*block_dots*:*column_totals*"),
    "kernels/layernorm.h": (["test/cases_layernorm.cu"], "*layernorm*"),
    "kernels/norm_rule.h": (["test/cases_norm_rule.cu"], "*norm_*"),
    "kernels/product_cuda.h": (["test/cases_products.cu"], "*product_*:*linear_*"),
    "kernels/reduce.h": (["test/cases_flat.cu", "test/cases_layernorm.cu"], "*column_sum*:*squared*:*layernorm*"),
    "kernels/residual.h": (["test/cases_flat.cu"], "*residual*:*scale*"),
    "kernels/rmsnorm.h": (["test/cases_rmsnorm.cu"], "*rmsnorm*"),
    "kernels/rotary.h": (["test/cases_rotary.cu"], "*rotary*"),
    "kernels/round.h": (["test/cases_flat.cu"], "*round*"),
    "kernels/run.h": (["test/cases_layernorm.cu"], "*layernorm*"),
    "kernels/softcap.h": (["test/cases_objective.cu"], "*softcap*:*classifier*"),
    "kernels/team.h": (["test/cases_layernorm.cu"], "*layernorm*"),
    "kernels/value_residual.h": (["test/cases_value_residual.cu"], "*value_residual*"),
    "kernels/warp_tiles.h": (["probes/attention_float32.cu", "probes/attention_bfloat16.cu"], "*attention_*blocks*"),
    "probes/lane_probe.h": (["test/cases_layernorm.cu"], "*Watched*layernorm*:*KernelsWith*layernorm*"),
    "probes/watch_on_cuda.h": (["test/cases_layernorm.cu"], "*Watched*layernorm*"),
}

# (what is looked for, what stands there instead); a group that must not change is in brackets.
FAULTS = [
    (r"\b(row|tile|index|token|position|chunk|first|query) \* ", r"(\1 + 1) * "),  # the next row
    (r"load\(([a-z_A-Z.]+)( \+ [^,()]+)?, at\)", r"load(\1\2 + 1, at)"),  # the next element
    (r"store\(([a-z_A-Z.]+)( \+ [^,()]+)?, at,", r"store(\1\2 + 1, at,"),
    (r"; ([a-z]+) < ([a-zA-Z_.:]+); \+\+", r"; \1 + 1 < \2; ++"),  # one too few
    (r"; ([a-z]+) < ([a-zA-Z_.:]+); \+\+", r"; \1 <= \2; ++"),  # one too many
    (r" <= row\.t;", r" < row.t;"),
    (r"\bteam\.sync\(\);", r";"),
    (r"__syncthreads\(\);", r";"),
    (r"\bwait_for_copies\(\);", r";"),
    (r"0xffffffffu, ", r"0xfffffffeu, "),
    (r"offset = 16;", r"offset = 8;"),
    (r"threadIdx\.x\) / 32", r"threadIdx.x) / 16"),
    (r"lane % 16", r"lane % 8"),
    (r"lane / 16", r"lane / 8"),
    (r"% 4 \* 2", r"% 4 * 2 + 1"),
    (r"\+ 8 \* half", r"+ 7 * half"),
    (r"n % 2\)", r"n % 1)"),
    (r"n \+ 1 < (end|steps)", r"n + 2 < \1"),
    (r"threadIdx\.x % 4 == 0", r"threadIdx.x % 4 == 1"),
    (r"int64_t\(lane\(\)\) \* W", r"int64_t(lane()) * W + 1"),
    (r"32 \* W\)", r"31 * W)"),
]


def candidates(path):
    """Every fault that fits somewhere in the file's kernels, as (line, text before, text after)."""
    lines = open(path).read().split("\n")
    found = []
    for number, line in enumerate(lines):
        code = line.split("//")[0]
        if not code.strip() or code.lstrip().startswith(("#", "static constexpr", "int64_t row_elements")):
            continue
        for pattern, instead in FAULTS:
            for match in re.finditer(pattern, code):
                changed = code[: match.start()] + match.expand(instead) + code[match.end():]
                found.append((number, code, changed))
    return lines, found


class Base:
    """The program as it is, from the build, and how its files are compiled."""

    def __init__(self, objects):
        self.simt = os.path.join(objects, "simt")
        variables = [f"CUDA=0", f"BUILD={os.path.dirname(objects)}"]
        said = subprocess.run(["make", "-n", "-W", "test/simt/faults.cu", *variables, self.simt + "/tests"],
                              capture_output=True, text=True).stdout
        compile_line = next(l for l in said.split("\n") if l.startswith("g++") and "test/simt/faults.cu" in l)
        link_line = next(l for l in said.split("\n") if l.startswith("g++") and l.endswith("-o " + self.simt + "/tests"))
        self.compile = shlex.split(compile_line)
        self.link = shlex.split(link_line)

    def build(self, work, path, text, sources):
        """The program with `text` in place of the file; None where that does not compile."""
        overlay = os.path.join(work, "overlay", path)
        os.makedirs(os.path.dirname(overlay), exist_ok=True)
        open(overlay, "w").write(text)
        objects = []
        for source in sources:
            made = os.path.join(work, source.replace("/", "_") + ".o")
            command = [c for c in self.compile if c not in ("-MMD", "-MP")]
            command[command.index("-c") + 1] = source
            command[command.index("-o") + 1] = made
            command.insert(1, "-I" + os.path.join(work, "overlay"))
            if subprocess.run(command, capture_output=True).returncode != 0:
                os.remove(overlay)
                return None
            objects.append((os.path.join(self.simt, source + ".o"), made))
        os.remove(overlay)
        # First come, first linked: templates that others instantiate too are taken from here.
        link = [c for c in self.link if c not in [before for before, _ in objects]]
        first = next(i for i, c in enumerate(link) if c.endswith(".o"))
        program = os.path.join(work, "tests")
        link[first:first] = [made for _, made in objects]
        link[link.index("-o") + 1] = program
        subprocess.run(link, check=True)
        return program


def passes(program, tests, seconds):
    for team in ("warp", "block"):
        environment = dict(os.environ, WOBBLE_TEST_DEVICE="cuda", WOBBLE_TEST_TEAM=team)
        try:
            run = subprocess.run([program, "--gtest_brief=1", "--gtest_fail_fast", "--gtest_filter=" + tests],
                                 env=environment, capture_output=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        if run.returncode != 0:
            return False
    return True


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--objects", default="build/cpu", help="where `make CUDA=0 test-simt` built")
    arguments.add_argument("--per-file", type=int, default=8, help="faults in each file")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--only", help="one file of kernels")
    arguments.add_argument("--seconds", type=int, default=300, help="after which a run counts as a fault that was found")
    options = arguments.parse_args()
    base = Base(options.objects)
    draw = random.Random(options.seed)
    planted = found = 0
    missed = []
    for path, (sources, tests) in SUBJECTS.items():
        lines, possible = candidates(path)
        draw.shuffle(possible)
        if options.only and path != options.only:
            continue
        used = 0
        for number, before, after in possible:
            if used == options.per_file:
                break
            text = "\n".join(lines[:number] + [after] + lines[number + 1:])
            with tempfile.TemporaryDirectory() as work:
                program = base.build(work, path, text, sources)
                if program is None:
                    continue
                used += 1
                planted += 1
                caught = not passes(program, tests, options.seconds)
            found += caught
            if not caught:
                missed.append(f"{path}:{number + 1}: {after.strip()}")
            print(f"{'found ' if caught else 'MISSED'} {path}:{number + 1}: {after.strip()}", flush=True)
    print(f"{found} of {planted} faults found, {100 * found / max(planted, 1):.0f} %")
    for line in missed:
        print("missed:", line)
    return 0 if planted and found >= 0.95 * planted else 1


if __name__ == "__main__":
    sys.exit(main())
