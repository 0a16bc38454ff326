"""The report in a real browser: make test-report. Made runs, their pages, and what a person does with them, in a headless Chromium.

    browser.py TRAIN PICTURES      writes light and dark pictures of the page, and numbers.json, into the folder PICTURES
"""

import json
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from chromium import Chromium  # noqa: E402
from long_run import make as make_long_run  # noqa: E402

TRAIN, PICTURES = "", pathlib.Path()
NUMBERS = {}
SMALL = ["--data", "synthetic:markov?order=1&vocab=64&seed=1", "--layers", "3", "--heads", "4", "--channels", "32", "--context", "32",
         "--batch", "4", "--eval-sequences", "8", "--log-every", "1000"]

# Pixels that were drawn, and how many colours they have.
DRAWN = """(canvas => { const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    const colours = new Set(); let count = 0;
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 0) ++count, colours.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
    return [count, colours.size]; })"""


def train(*arguments):
    return subprocess.run([TRAIN, *arguments], check=True, capture_output=True, text=True).stdout


class Browser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="wobble-report-"))
        run = lambda name: str(cls.folder / name)
        train("--run", run("healthy"), *SMALL, "--steps", "160", "--probes", "full", "--probe-every", "10")
        train("--run", run("broken"), *SMALL, "--steps", "160", "--probes", "full", "--probe-every", "10", "--lr", "0.3", "--clip", "0")
        train("--run", run("bare"), *SMALL, "--steps", "20", "--ring", "0")
        train("--run", run("one"), *SMALL, "--steps", "1", "--probes", "full", "--probe-every", "1")
        shutil.copytree(run("healthy"), run("nan"))
        with sqlite3.connect(run("nan") + "/run.db") as db:
            db.execute("UPDATE steps SET loss = NULL, grad_norm = NULL, finite = 0 WHERE step BETWEEN 40 AND 60")
            db.execute("UPDATE stats_packed SET nans = 7 WHERE step = 41")
        shutil.copytree(run("one"), run("nothing finite"))
        with sqlite3.connect(run("nothing finite") + "/run.db") as db:
            db.execute("UPDATE steps SET loss = NULL, grad_norm = NULL, update_norm = NULL, weight_norm = NULL, finite = 0")
        cls.browser = Chromium()
        cls.browser.colours("light")

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        shutil.rmtree(cls.folder, ignore_errors=True)

    def open(self, *runs):
        """The page of these runs, and nothing but it was asked for."""
        page = self.folder / ("-".join(runs) + ".html")
        train("report", *[str(self.folder / run) for run in runs], "-o", str(page))
        self.browser.errors.clear(), self.browser.requests.clear()
        self.browser.open(page.as_uri())
        return page

    def tearDown(self):
        self.assertEqual(self.browser.errors, [])
        self.assertEqual([url for url in self.browser.requests if not url.startswith(("file:", "data:", "http://127.0.0.1:"))], [])

    def ask(self, script):
        return self.browser.run(script)

    def see(self, selector):
        """Scrolls there, so that what is drawn when it is seen gets drawn; its place on the screen."""
        self.ask(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center', behavior: 'instant'}})")
        time.sleep(0.15)
        return self.ask(f"(r => [r.left, r.top, r.width, r.height])(document.querySelector({selector!r}).getBoundingClientRect())")

    def click(self, selector):
        left, top, width, height = self.see(selector)
        self.browser.click(left + width / 2, top + height / 2)

    def choose(self, section, label, value):
        self.ask(f"(select => {{ select.value = {value!r}; select.dispatchEvent(new Event('change')); }})"
                 f"([...document.querySelectorAll('#{section} label')].find(l => l.firstChild.textContent === {label!r}).querySelector('select'))")

    def options(self, section, label):
        return self.ask(f"[...[...document.querySelectorAll('#{section} label')].find(l => l.firstChild.textContent === {label!r})"
                        ".querySelectorAll('option')].map(o => o.value)")

    def every_curve_is_drawn(self):
        keys = self.ask("[...document.querySelectorAll('#curves .plot')].map(p => p.dataset.key)")
        self.assertEqual(len(keys), 7)
        for key in keys:
            plot = f"#curves .plot[data-key={key}]"
            self.see(plot)
            self.browser.wait(f"document.querySelector('{plot} canvas') || document.querySelector('{plot} .missing')")
            if self.ask(f"!!document.querySelector('{plot} .missing')"):
                continue
            drawn = max(self.ask(f"[...document.querySelectorAll('{plot} canvas')].map({DRAWN})"))
            self.assertGreater(drawn[0], 200, key)
        return keys

    def heat_map_is_drawn(self, section):
        """False: a sentence stands in its place."""
        if self.ask(f"!!document.querySelector('#{section} .missing')"):
            self.assertGreater(len(self.ask(f"document.querySelector('#{section} .missing').textContent")), 20)
            return False
        self.see(f"#{section} .map-frame")
        self.browser.wait(f"document.querySelector('#{section} .map-frame canvas').width > 300")
        count, colours = self.ask(f"{DRAWN}(document.querySelector('#{section} .map-frame canvas'))")
        self.assertGreater(count, 1000)
        self.assertGreater(colours, 2)
        self.assertTrue(self.ask(f"!!document.querySelector('#{section} .legend').textContent"))
        return True

    def test_every_chart_and_heat_map_is_drawn(self):
        self.open("healthy", "broken")
        self.every_curve_is_drawn()
        drawn = 0
        for quantity in self.options("maps", "Quantity"):
            self.choose("maps", "Quantity", quantity)
            for axis in self.options("maps", "Of"):
                self.choose("maps", "Of", axis)
                drawn += self.heat_map_is_drawn("maps")
        self.assertGreater(drawn, 15)
        for site in self.options("exponents", "Site")[::17]:
            self.choose("exponents", "Site", site)
            self.assertTrue(self.heat_map_is_drawn("exponents"))
        self.assertIn("lr", self.ask("document.querySelector('#configuration .config').textContent"))
        self.assertIn("recorded step took", self.ask("document.querySelector('#cost').textContent"))

    def test_an_event_leads_to_its_evidence_by_mouse(self):
        self.open("healthy", "broken")
        self.click("#event-table tbody tr:nth-child(2) td:last-child")
        self.browser.wait("!document.getElementById('evidence').hidden")
        text = self.ask("document.getElementById('evidence').textContent")
        for part in ("What moved first", "--probes full", "./train locate", "Largest token losses", "Sequences of this step", "Expected"):
            self.assertIn(part, text)
        self.assertTrue(re.fullmatch(r"#event-1-\d+", self.ask("location.hash")))
        for drawn in self.ask("[...document.querySelectorAll('#evidence .plot')].map(p => Math.max(...[...p.querySelectorAll('canvas')]"
                              f".map(c => {DRAWN}(c)[0])))"):
            self.assertGreater(drawn, 200)
        self.assertEqual(self.ask("document.querySelectorAll('#evidence .plot').length"), 3)
        self.click("#back")
        self.browser.wait("document.getElementById('evidence').hidden")

    def test_an_event_leads_to_its_evidence_by_keyboard(self):
        self.open("broken")
        self.ask("document.querySelector('#event-controls select').focus()")
        for _ in range(30):
            self.browser.key("Tab")
            if self.ask("document.activeElement.matches('#event-table tbody a')"):
                break
        link = self.ask("document.activeElement.getAttribute('href')")
        self.browser.key("Enter")
        self.browser.wait("!document.getElementById('evidence').hidden")
        self.assertEqual(self.ask("location.hash"), link)
        self.assertEqual(self.ask("document.activeElement.id"), "evidence-title")
        self.browser.key("Escape")
        self.browser.wait("document.getElementById('evidence').hidden")
        self.assertEqual(self.ask("document.activeElement.getAttribute('href')"), link, "the focus is where it was")

    def test_charts_zoom_together_by_mouse_and_keyboard(self):
        self.open("healthy", "broken")
        self.every_curve_is_drawn()
        left, top, width, height = self.see("#curves .plot[data-key=loss]")
        furthest = lambda key: (f"Math.max(...[...document.querySelectorAll('#curves .plot[data-key={key}] .dygraph-axis-label-x')]"
                                ".map(l => Number(l.textContent)))")
        whole = self.ask(furthest("clip"))
        b = self.browser
        b("Input.dispatchMouseEvent", type="mousePressed", x=left + width * 0.3, y=top + height / 2, button="left", clickCount=1)
        b("Input.dispatchMouseEvent", type="mouseMoved", x=left + width * 0.45, y=top + height / 2, button="left", buttons=1)
        b("Input.dispatchMouseEvent", type="mouseMoved", x=left + width * 0.5, y=top + height / 2, button="left", buttons=1)
        b("Input.dispatchMouseEvent", type="mouseReleased", x=left + width * 0.5, y=top + height / 2, button="left", clickCount=1)
        b.wait(f"{furthest('clip')} < {whole}")
        self.ask("document.querySelector('#curves .plot[data-key=lr]').focus()")
        b.key("0")
        b.wait(f"{furthest('loss')} >= {whole}")
        b.key("+")
        b.wait(f"{furthest('loss')} < {whole}")
        b.key("ArrowRight")
        self.assertIn("step", self.ask("document.getElementById('spoken').textContent"))

    def test_runs_can_be_left_out(self):
        self.open("healthy", "broken")
        self.assertGreater(self.ask("document.querySelectorAll('#event-table tbody tr').length"), 0)
        self.click("#runs button:nth-child(2)")
        self.assertEqual(self.ask("document.querySelector('#runs button:nth-child(2)').getAttribute('aria-pressed')"), "false")
        self.assertEqual(self.ask("document.querySelectorAll('#event-table tbody tr').length"), 0)

    def test_heat_maps_are_read_by_keyboard_and_mouse(self):
        self.open("healthy")
        self.see("#maps .map-frame")
        self.ask("document.querySelector('#maps canvas').focus()")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
            self.browser.key(key)
        self.assertRegex(self.ask("document.querySelector('#maps .readout').textContent"), r"h\.0\.\S+ step \d+ [\d.e-]+")
        self.assertIn("step", self.ask("document.getElementById('spoken').textContent"))
        left, top, width, height = self.see("#maps canvas")
        self.browser.move(left + width / 2, top + height / 2)
        self.assertRegex(self.ask("document.querySelector('#maps .readout').textContent"), r"h\.\d\.\S+ step \d+")

    def test_the_table_sorts_and_filters(self):
        self.open("broken")
        steps = lambda: self.ask("[...document.querySelectorAll('#event-table tbody tr td:first-child')].map(td => Number(td.textContent))")
        self.assertEqual(steps(), sorted(steps()))
        self.click("#event-table .sort")
        self.assertEqual(steps(), sorted(steps(), reverse=True))
        self.assertEqual(self.ask("document.querySelector('#event-table th').getAttribute('aria-sort')"), "descending")
        rows = self.ask("document.querySelectorAll('#event-table tbody tr').length")
        self.click("#event-controls button:nth-child(1)")
        self.click("#event-controls button:nth-child(2)")
        self.assertLess(self.ask("document.querySelectorAll('#event-table tbody tr').length"), rows)

    def test_runs_that_hold_little_make_a_good_page(self):
        for run in ("bare", "one", "nan", "nothing finite"):
            self.open(run)
            self.every_curve_is_drawn()
            self.heat_map_is_drawn("maps")
            self.heat_map_is_drawn("exponents")
            for empty in self.ask("['overview', 'curve-grid', 'event-table', 'map', 'exponent-map', 'configuration-tables', 'cost-text']"
                                  ".filter(id => !document.getElementById(id).textContent.trim() && !document.querySelector('#' + id + ' canvas'))"):
                self.fail(f"{run}: nothing in {empty}")
            self.assertEqual(self.browser.errors, [], run)

    def test_controls_have_names_and_can_be_reached(self):
        self.open("broken")
        for nameless in self.ask("[...document.querySelectorAll('button, select, canvas[tabindex], .plot, a')]"
                                 ".filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') "
                                 "|| e.closest('label')?.textContent.trim())).map(e => e.outerHTML.slice(0, 80))"):
            self.fail(nameless)
        self.assertEqual(self.ask("document.querySelectorAll('[onclick]').length"), 0)

    def test_pictures_in_light_and_dark(self):
        for scheme in ("light", "dark"):
            self.browser.colours(scheme)
            self.open("healthy", "broken")
            self.assertEqual(self.ask("document.documentElement.dataset.theme"), scheme)
            self.choose("maps", "Run", "1")
            self.browser.size(1400, self.ask("document.documentElement.scrollHeight"))
            time.sleep(0.5)
            self.browser.picture(PICTURES / f"report-{scheme}.png")
            self.browser.size(1400, 1000)
            self.ask("document.querySelector('#event-table tbody a').click()")
            time.sleep(0.3)
            self.browser.size(1400, self.ask("document.documentElement.scrollHeight"))
            time.sleep(0.3)
            self.browser.picture(PICTURES / f"evidence-{scheme}.png")
            self.browser.size(1400, 1000)
        self.browser.colours("light")
        self.open("healthy")
        self.click("#theme")
        self.assertEqual(self.ask("document.documentElement.dataset.theme"), "dark")
        self.every_curve_is_drawn()
        self.click("#theme")
        self.browser.size(420, 900)
        time.sleep(0.3)
        self.assertLessEqual(self.ask("document.documentElement.scrollWidth"), 420, "a narrow page does not scroll sideways")
        self.browser.picture(PICTURES / "report-narrow.png")
        self.browser.size(1400, 1000)

    def test_it_is_live(self):
        run = str(self.folder / "growing")
        with subprocess.Popen([TRAIN, "--run", run, *SMALL, "--steps", "100000", "--probes", "moments", "--probe-every", "10"],
                              stdout=subprocess.DEVNULL) as training:
            try:
                while not pathlib.Path(run, "run.db").exists():
                    time.sleep(0.1)
                with subprocess.Popen([TRAIN, "report", run, "--live"], stdout=subprocess.PIPE, text=True) as server:
                    try:
                        url = re.search(r"http://\S+", server.stdout.readline())[0]
                        self.browser.errors.clear(), self.browser.requests.clear()
                        self.browser.open(url)
                        steps = "Number(document.querySelector('#overview td').textContent.split('of')[0].replace(/\\D/g, ''))"
                        self.browser.wait(steps + " > 20")
                        self.see("#curves .plot[data-key=loss]")
                        self.browser.wait("document.querySelector('.plot[data-key=loss] canvas')")
                        self.ask("document.querySelector('.plot[data-key=loss]').focus()")
                        self.browser.key("+")
                        zoomed = "[...document.querySelectorAll('.plot[data-key=loss] .dygraph-axis-label-x')].map(l => l.textContent).join()"
                        time.sleep(0.3)
                        before, seen = self.ask(zoomed), self.ask(steps)
                        self.browser.wait(f"{steps} > {seen + 10}", 30)
                        self.assertEqual(self.ask(zoomed), before, "the zoom stays")
                        self.assertEqual(self.ask("performance.getEntriesByType('navigation').length"), 1)
                    finally:
                        server.send_signal(2)
                    self.assertEqual(server.wait(20), 0)
            finally:
                training.send_signal(2)
        self.browser.wait("document.getElementById('made').textContent.includes('ended')", 20)
        self.browser.errors[:] = [e for e in self.browser.errors if "ERR_CONNECTION_REFUSED" not in e]

    def test_a_hundred_thousand_steps_are_quick(self):
        run = str(self.folder / "long")
        make_long_run(TRAIN, run)
        begun = time.time()
        page = self.open("long")
        NUMBERS["opened_after_s"] = round(time.time() - begun, 2)
        begun = time.time()
        train("report", run, "-o", str(page))
        NUMBERS["made_in_s"] = round(time.time() - begun, 2)
        NUMBERS["megabytes"] = round(page.stat().st_size / 1e6, 2)
        NUMBERS["first_chart_s"] = int(self.ask("document.documentElement.dataset.firstChart")) / 1000
        self.assertLessEqual(NUMBERS["made_in_s"], 10)
        self.assertLessEqual(NUMBERS["megabytes"], 15)
        self.assertLessEqual(NUMBERS["first_chart_s"], 2)
        self.every_curve_is_drawn()
        self.assertTrue(self.heat_map_is_drawn("maps"))
        self.ask("document.querySelector('#event-table tbody a').click()")
        self.browser.wait("!document.getElementById('evidence').hidden")
        self.assertIn("h.7.mlp.fc", self.ask("document.querySelector('#evidence .movers li').textContent"), "what was planted moved first")


if __name__ == "__main__":
    TRAIN, PICTURES = sys.argv[1], pathlib.Path(sys.argv[2])
    PICTURES.mkdir(parents=True, exist_ok=True)
    result = unittest.main(argv=[sys.argv[0], *sys.argv[3:]], exit=False).result
    (PICTURES / "numbers.json").write_text(json.dumps(NUMBERS, indent=1) + "\n")
    print("100,000 steps of 12 layers: " + ", ".join(f"{key} {value}" for key, value in NUMBERS.items()))
    print(f"pictures: {PICTURES}")
    sys.exit(not result.wasSuccessful())
