"""Headless Chromium by playwright: a page that collects its problems, and scripts that find what is cut off."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page, Request, sync_playwright

# Elements that overflow, other than those that are meant to scroll.
CUT_OFF = """[...document.querySelectorAll("body, body *")].filter((element) =>
  element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).display !== "inline"
  && !element.closest("svg, .scroll, input, textarea")).map((element) => element.outerHTML)"""
# Shapes outside of their figure: labels lie in the padding around the plot.
OUTSIDE_OF_CHARTS = """[...document.querySelectorAll("svg :not(title, desc)")].filter((shape) => {
  const box = shape.getBoundingClientRect(), all = shape.closest("figure").getBoundingClientRect();
  return box.left < all.left - 1 || box.right > all.right + 1 || box.top < all.top - 1
    || box.bottom > all.bottom + 1; }).map((shape) => shape.outerHTML)"""
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_TIMEOUT_MS = 120_000  # the first archived page waits for the compilation of the extractor

BrowserPage = Page  # `Page` of page_reading is HTML without a browser


@contextmanager
def start_chromium() -> Iterator[tuple[BrowserPage, list[str]]]:
    """Yield a page of the installed Chromium and the list that its problems are added to.

    Problems are console messages, exceptions, requests that failed, unless by leaving the page, and requests to other
    machines. Raises FileNotFoundError if Chromium is not installed.
    """
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        raise FileNotFoundError("Chromium is not installed; install it, e.g. by `apt-get install chromium`")
    problems: list[str] = []

    def note_failure(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":
            problems.append(f"request failed: {request.url}")

    def check_address(request: Request) -> None:
        if urlsplit(request.url).hostname not in (None, "127.0.0.1"):
            problems.append(f"request to another machine: {request.url}")

    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=program) as browser:
        page = browser.new_page()
        page.set_default_timeout(_TIMEOUT_MS)
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("requestfailed", note_failure)
        page.on("request", check_address)
        yield page, problems


def resize(browser: BrowserPage, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
    """Give the window this size and the light or dark color scheme."""
    browser.set_viewport_size({"width": width, "height": height})
    browser.emulate_media(media="screen", color_scheme="dark" if scheme == "dark" else "light")


def open_page(browser: BrowserPage, path: Path, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
    """Open a file in a window of this size, with the light or dark color scheme."""
    resize(browser, width, height, scheme)
    browser.goto(path.as_uri())


@contextmanager
def serve_corpus(browser: BrowserPage, *source: str) -> Iterator[str]:
    """Run `webtext browse` on a source, give the browser its cookie, and yield the beginning of its addresses."""
    command = [sys.executable, "-m", "webtext_cli", "browse", *source, "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address.startswith("http://"), "webtext browse did not start; see its error above"
            browser.goto(address)
            yield address.partition("/?")[0]
        finally:
            server.kill()


def visit(browser: BrowserPage, address: str) -> None:
    """Open a page of a server in the present window, and wait for the parts that are loaded after it."""
    response = browser.goto(address)
    assert response is not None
    assert response.status == 200, browser.evaluate("document.body.innerText")
    browser.wait_for_selector("[aria-busy=true]", state="detached")
