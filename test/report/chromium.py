"""A headless Chromium that is driven from outside: its DevTools protocol over a WebSocket, by the standard library alone."""

import base64
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import time


class WebSocket:
    """RFC 6455, as far as one local peer needs it: text messages, masked on their way out."""

    def __init__(self, port, path):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
                             f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.socket.recv(65536)
        self.buffer = self.buffer.split(b"\r\n\r\n", 1)[1]

    def take(self, count):
        while len(self.buffer) < count:
            more = self.socket.recv(1 << 20)
            if not more:
                raise ConnectionError("the browser has gone")
            self.buffer += more
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = (struct.pack("!B", 0x80 | len(data)) if len(data) < 126 else struct.pack("!BH", 0xFE, len(data))
                if len(data) < 65536 else struct.pack("!BQ", 0xFF, len(data)))
        self.socket.sendall(b"\x81" + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def receive(self):
        message = b""
        while True:
            first, second = self.take(2)
            size = second & 127
            if size == 126:
                size = struct.unpack("!H", self.take(2))[0]
            elif size == 127:
                size = struct.unpack("!Q", self.take(8))[0]
            data = self.take(size)
            if first & 15 in (0, 1):
                message += data
                if first & 128:
                    return message.decode()


class Chromium:
    """One page. `errors`: what it complained of. `requests`: what it asked the network for."""

    def __init__(self, width=1400, height=1000):
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            raise FileNotFoundError("no chromium; apt-get install chromium")
        self.profile = tempfile.mkdtemp(prefix="wobble-chromium-")
        flags = ["--headless=new", "--remote-debugging-port=0", f"--user-data-dir={self.profile}", "--no-first-run",
                 "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}", "--disable-background-networking",
                 "--disable-component-update", "--disable-dev-shm-usage"]
        if os.geteuid() == 0:
            flags.append("--no-sandbox")  # which Chromium insists on for root
        self.process = subprocess.Popen([program, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        told = pathlib.Path(self.profile, "DevToolsActivePort")
        until = time.time() + 60
        while not (told.exists() and told.read_text().count("\n") >= 1):
            if time.time() > until:
                raise TimeoutError("chromium did not start")
            time.sleep(0.05)
        port, path = told.read_text().split("\n")[:2]
        self.socket = WebSocket(int(port), path)
        self.errors, self.requests, self.last, self.session = [], [], 0, None
        target = next(t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")
        self.size(width, height)

    def __call__(self, method, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            answer = json.loads(self.socket.receive())
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.note(answer)

    def note(self, event):
        method, what = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in what["args"]))
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.errors.append(what["entry"]["text"] + " " + what["entry"].get("url", ""))
        elif method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])

    def run(self, script):
        """The value of an expression in the page; promises are waited for."""
        answer = self("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer["result"].get("value")

    def wait(self, script, seconds=20):
        until = time.time() + seconds
        while time.time() < until:
            if self.run(f"Boolean({script})"):
                return True
            time.sleep(0.05)
        raise TimeoutError(f"never true: {script}")

    def open(self, url):
        self("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && !!document.documentElement.dataset.ready", 60)

    def size(self, width, height):
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def colours(self, scheme):
        self("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def key(self, name, shift=False):
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"text": "\r"} if name == "Enter" else {"text": name} if len(name) == 1 else {}
        common = {"key": name, "windowsVirtualKeyCode": codes.get(name, ord(name[0])), "modifiers": 8 if shift else 0}
        self("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        self("Input.dispatchKeyEvent", type="keyUp", **common)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def move(self, x, y):
        self("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path, whole=False):
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        shot = self("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        pathlib.Path(path).write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        try:
            self.session = None
            self("Browser.close")
            self.process.wait(20)
        except Exception:
            self.process.kill()
        shutil.rmtree(self.profile, ignore_errors=True)
