"""Headless Chromium, driven over its DevTools protocol through a pipe: no driver and no library needed."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TIMEOUT = 60.0
# Chromium talks over file descriptors 3 and 4, which are other files in this process.
CONNECT = (
    "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """One page; `errors` holds exceptions and console errors, `requests` every address asked for."""

    def __init__(self, width: int = 1280, height: int = 900):
        assert CHROMIUM
        self.profile = tempfile.mkdtemp(prefix="p3o-chromium-")
        to_child, self.send = (_high(fd) for fd in os.pipe())
        self.receive, from_child = (_high(fd) for fd in os.pipe())

        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run")
        quiet = ("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", CONNECT, str(to_child), str(from_child)),
                *(CHROMIUM, *flags, *quiet, f"--user-data-dir={self.profile}", f"--window-size={width},{height}"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_child, from_child),
        )
        os.close(to_child)
        os.close(from_child)
        self.buffer = b""
        self.count = 0
        self.events: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(20)
        os.close(self.send)
        os.close(self.receive)
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + TIMEOUT
        while True:
            answer = self._next(end)
            if answer.get("id") == self.count:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.receive], [], [], max(end - time.monotonic(), 0))
            data = os.read(self.receive, 1 << 20) if ready else b""
            assert data, "Chromium does not answer"
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        self.events.append(event)
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, file: Path) -> None:
        self.events.clear()
        self.call("Page.navigate", url=file.resolve().as_uri())
        end = time.monotonic() + TIMEOUT
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self._note(self._next(end))

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        assert self.run(f"(e => {{ e?.click(); return !!e; }})(document.querySelector({json.dumps(selector)}))"), (
            selector
        )

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def colours(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, file: Path, is_whole: bool = False) -> None:
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)["data"]
        file.write_bytes(base64.b64decode(data))


def _high(fd: int) -> int:
    """The same pipe end under a number that is not 3 or 4, which the child needs."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return moved
