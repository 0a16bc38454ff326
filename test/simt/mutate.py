#!/usr/bin/env python3
"""Plants one small fault at a time in the text of CUDA kernels, an index, a loop's end, a barrier or a lane mask, and
counts which of them the tests on the software machine find.

    python3 test/simt/mutate.py [--build build/faults] [--jobs 2] [--only kernels/flash.h] [--every 1]

Every place where a fault may be is compiled in once, behind a condition (planted/planted.h). The tests then run without
any, which shows which of them come to which place; and once for each fault, those that come to its place, the shortest
first, until one fails, crashes, or takes far longer than it did. About half an hour on two cores; no part of `make test`.
"""

import argparse
import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import time

# What cannot be told from the right text is no fault: the end of a loop whose stride is longer than it is moved by, an
# element beyond a pack of one, what a probe does on the CPU alone, constant loops over registers that are too long.
# What a fault looks like: where it may be, and what is put around the groups of the expression, by group: (before,
# after), or what stands in its place. `@` stands for planted(number).
FAULTS = [
    ("the next row", r"(?<![\w.])((?:\w+\.)?(?:row|tile|index|token|position|chunk|first|query|head|key_head|warp|lane)"
     r"(?= \* \w)|(?:row\.)?[bhijknt](?= \* (?:[A-Z]|\w\w))) \* ", {1: ("(", " + @)")}),
    ("the next element", r"(?:load|store)\((?:[^,()]|\([^()]*\))+()(?=, at\b)", {1: ("", " + @")}),
    ("the next element", r"\bat(\.index)\b", {0: ("(", " + @)")}),
    ("the next element", r"(?<=[\w\)\]])\[(?!0\])([^\[\]&=][^\[\]]*)()\]", {2: ("", " + @")}),
    ("one too few", r"; \w+() < [^;]+; (?:\+\+|\w+ \+= (?:32\)|block_threads|int\(blockDim))", {1: ("", " + @")}),
    ("one too many", r"; \w+ < ([^;]+); (?:\+\+|\w+ \+= (?:32\)|block_threads|int\(blockDim))", {1: ("", " + @")}),
    ("one too few", r"; \w+ <= ([^;]+); \+\+", {1: ("", " - @")}),
    ("no barrier", r"(\bteam\.sync\(\);)", {1: ("if (!@) ", "")}),
    ("no barrier", r"((?:return )?__sync(?:threads|warp)\([a-z]*\);)", {1: ("if (!@) ", "")}),
    ("no waiting", r"(\bwait_for_copies\(\);)", {1: ("if (!@) ", "")}),
    ("a lane is missing", r"__\w+_sync\((\w+),", {1: ("", " ^ unsigned(@)")}),
    ("the wrong lanes", r"offset = (16);", {1: "(@ ? 8 : 16)"}),
    ("the wrong lanes", r"\b(?:lane|threadIdx\.x\)|threadIdx\.x|lane\(\)\)) [/%] (2|4|8|16|32)\b", {1: "(@ ? 2 * {} : {})"}),
    ("the wrong lanes", r"threadIdx\.x\) & (31)", {1: "(@ ? 15 : 31)"}),
    ("the wrong lanes", r"(\* W);", {1: ("", " + @")}),
    ("the wrong lanes", r"(8) \* half", {1: "(@ ? 7 : 8)"}),
    ("the wrong lanes", r"32( \* W)\)", {1: ("", " - @")}),
    ("the wrong stage", r"n % (2)\b", {1: "(@ ? 1 : 2)"}),
]


class Fault:
    def __init__(self, path, line, what, text):
        self.path, self.line, self.what, self.text = path, line, what, text

    def __str__(self):
        return f"{self.path}:{self.line}: {self.what}: {self.text}"


def plant(path, faults):
    """The file's text with every fault in it that fits; they are added to `faults`."""
    lines = open(path).read().split("\n")
    for number, line in enumerate(lines):
        code = line.split("//")[0]
        for_openmp = "omp parallel" in "".join(lines[max(number - 2, 0):number])  # wants the loop as it is
        if not code.strip() or for_openmp or code.lstrip().startswith(("#", "static_assert", "template", "SIMD", "asm", "probe.wrote")) or '"' in code:
            continue
        edits = []  # (from, to, text)
        for what, pattern, changes in FAULTS:
            for match in re.finditer(pattern, code):
                if what == "one too many" and re.match(r"\s*(UNROLL|ONE_BY_ONE)", code):
                    continue
                k = len(faults)
                spans = []
                for group, change in changes.items():
                    begin, end = match.span(group)
                    old = code[begin:end]
                    if group == 0:  # the word before a member too
                        begin, old = match.start(), match.group(0)
                    new = change.replace("{}", old) if isinstance(change, str) else change[0] + old + change[1]
                    spans.append((begin, end, new.replace("@", f"planted({k})")))
                if any(b < e2 and b2 < e or b == b2 and e == e2 for b, e, _ in spans for b2, e2, _ in edits):
                    continue
                edits += spans
                shown = code[: spans[0][0]] + spans[0][2] + code[spans[0][1]:]
                faults.append(Fault(path, number + 1, what, shown.strip().replace(f"planted({k})", "1")))
        for begin, end, new in sorted(edits, reverse=True):
            code = code[:begin] + new + code[end:]
        lines[number] = code
    return "\n".join(lines)


def build(folder, subjects):
    """The tests with every fault in them, and the faults."""
    faults = []
    for path in subjects:
        text = plant(path, faults)
        made = os.path.join(folder, "text", path)
        os.makedirs(os.path.dirname(made), exist_ok=True)
        if not os.path.exists(made) or open(made).read() != text:
            open(made, "w").write(text)
    program = os.path.join(folder, "cpu/simt/tests")
    sources = glob.glob("test/simt/*.cpp") + ["test/simt/planted/planted.cpp"]
    subprocess.run(["make", f"-j{os.cpu_count()}", "CUDA=0", f"BUILD={folder}", "WARNINGS=-w", "SIMT_CPP=" + " ".join(sources),
                    f"INCLUDE=-include test/simt/planted/planted.h -I{folder}/text -I.", program], check=True)
    return program, faults


def run(program, team, tests, seconds=None, **more):
    environment = dict(os.environ, WOBBLE_TEST_DEVICE="cuda", WOBBLE_TEST_TEAM=team, **more)
    command = [program, "--gtest_brief=1", "--gtest_fail_fast", "--gtest_filter=" + tests]
    try:
        return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def tests_by_fault(program, folder, workers):
    """For each fault [(milliseconds, team, test)] of the tests that come to its place."""
    def one(team):
        file = os.path.join(folder, team + ".reached")
        if os.path.exists(file + ".whole") and os.path.getmtime(file) > os.path.getmtime(program):
            return team, [line.split() for line in open(file)]
        passed = run(program, team, "*-*StayInside*" + (":*/attention_*" if team == "block" else ""),
                     WOBBLE_FAULTS_REACHED=file)
        if not passed:
            sys.exit(f"with no fault planted, tests fail: WOBBLE_TEST_DEVICE=cuda WOBBLE_TEST_TEAM={team} {program}")
        open(file + ".whole", "w").close()
        return team, [line.split() for line in open(file)]

    reached = {}
    for team, lines in workers.map(one, ["warp", "block"]):
        for test, milliseconds, *places in lines:
            for k in places:
                reached.setdefault(int(k), []).append((int(milliseconds), team, test))
    return {k: sorted(tests) for k, tests in reached.items()}


def is_found(program, fault, tests):
    """By the ten shortest tests of each team, or else by those that follow, of half a minute in all; a test that takes
    far longer than it did has found it too."""
    for begin, end in ((0, 10), (10, None)):
        for team in ("warp", "block"):
            some, total = [], 0
            for milliseconds, _, test in [t for t in tests if t[1] == team][begin:end]:
                total += milliseconds
                if total > 30000:
                    break
                some.append(test)
            if some and not run(program, team, ":".join(some), 30 + 0.01 * total, WOBBLE_FAULT=str(fault)):
                return True
    return False


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--build", default="build/faults", help="folder for what is compiled")
    options.add_argument("--jobs", type=int, default=2, help="faults tried at a time")
    options.add_argument("--only", default="", help="faults in files with this in their names")
    options.add_argument("--every", type=int, default=1, help="of the faults, one in so many")
    options = options.parse_args()
    subjects = sorted(path for path in glob.glob("kernels/*.h") + glob.glob("probes/*.h")
                      if re.search(r"__device__|__global__|operator\(\)\(.*[tT]eam", open(path).read()))
    program, faults = build(os.path.abspath(options.build), subjects)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as workers:
        reached = tests_by_fault(program, options.build, workers)
        tried = [k for k in sorted(reached) if options.only in faults[k].path][:: options.every]
        print(f"{len(faults)} places, {len(reached)} of them in kernels that run; {len(tried)} faults to try", flush=True)
        began, missed, files = time.time(), [], {}
        for done, (k, found) in enumerate(zip(tried, workers.map(lambda k: is_found(program, k, reached[k]), tried)), 1):
            count = files.setdefault(faults[k].path, [0, 0])
            count[0] += found
            count[1] += 1
            if not found:
                missed.append(k)
                print(f"missed {faults[k]}", flush=True)
            if done % 25 == 0:
                left = (time.time() - began) / done * (len(tried) - done)
                print(f"{done - len(missed)} of {done} found, {left / 60:.0f} min left", flush=True)
    for path, (found, all_of_them) in files.items():
        print(f"{found:4d} of {all_of_them:4d}  {path}")
    found = len(tried) - len(missed)
    print(f"{found} of {len(tried)} faults found, {100 * found / max(len(tried), 1):.1f} %")
    return 0 if tried and found >= 0.95 * len(tried) else 1


if __name__ == "__main__":
    sys.exit(main())
