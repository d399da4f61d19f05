"""Headless Chromium, controlled by the DevTools protocol over a pipe: opens pages, runs scripts, presses keys."""

from __future__ import annotations

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
from types import TracebackType
from typing import Any

# Elements that overflow, other than those that are meant to scroll.
CUT_OFF = """[...document.querySelectorAll("body, body *")].filter((element) =>
  element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).display !== "inline"
  && !element.closest("svg, .scroll")).map((element) => element.outerHTML)"""
# Shapes outside of their figure: labels lie in the padding around the plot.
OUTSIDE_OF_CHARTS = """[...document.querySelectorAll("svg :not(title, desc)")].filter((shape) => {
  const box = shape.getBoundingClientRect(), all = shape.closest("figure").getBoundingClientRect();
  return box.left < all.left - 1 || box.right > all.right + 1 || box.top < all.top - 1
    || box.bottom > all.bottom + 1; }).map((shape) => shape.outerHTML)"""
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_TIMEOUT_S = 60
# Chromium reads from file descriptor 3 and writes to 4.
_START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"
)


def chromium() -> str | None:
    """Return the path of Chromium, None if it is not installed."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """One page in Chromium; `problems` collects console messages, exceptions and what could not be loaded."""

    def __init__(self, program: str) -> None:
        self.problems: list[str] = []
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._program = program
        self._number = 0
        self._unread = b""
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        browser_in, self._write = _pipe()
        self._read, browser_out = _pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", "--hide-scrollbars", "--disable-background-networking"]
        flags += [f"--user-data-dir={self._folder.name}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(browser_in), str(browser_out), self._program, *flags, "about:blank"],
            pass_fds=(browser_in, browser_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_in)
        os.close(browser_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def open(self, page: Path, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        """Open a file in a window of this size, with the light or dark color scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._events.clear()
        self.call("Page.navigate", url=page.as_uri())
        self._wait_for("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """Return the value of an expression on the page; raise RuntimeError if it throws."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, userGesture=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key on the focused element."""
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **typed)

    def screenshot(self) -> bytes:
        """Return the whole page as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            received = self._receive()
            if received.get("id") == number:
                if "error" in received:
                    raise RuntimeError(f"{method}: {received['error']}")
                return dict(received["result"])

    def _wait_for(self, event: str) -> None:
        while not any(received["method"] == event for received in self._events):
            self._receive()

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self._unread:
            if not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"chromium did not answer within {_TIMEOUT_S} s")
            received = os.read(self._read, 1 << 20)
            if not received:
                raise RuntimeError("chromium exited")
            self._unread += received
        first, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        if "method" in message:
            self._events.append(message)
            self._note_problem(message)
        return message

    def _note_problem(self, event: dict[str, Any]) -> None:
        if event["method"] == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(event["params"]["exceptionDetails"]))
        elif event["method"] == "Runtime.consoleAPICalled":
            self.problems.append(json.dumps(event["params"]["args"]))
        elif event["method"] == "Log.entryAdded":
            self.problems.append(event["params"]["entry"]["text"])


def _pipe() -> tuple[int, int]:
    """Return a pipe whose file descriptors do not collide with 0 to 4."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]
