"""Takes the pictures in docs/pictures of a demo's corpus: `python docs/pictures.py CORPUS`; needs Chromium."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import FloatRect

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests" / "reports"))

from headless_chromium import BrowserPage, resize, serve_corpus, start_chromium, visit  # noqa: E402

FOLDER = REPOSITORY / "docs" / "pictures"
MAX_BYTES = 200_000
_DROPPED_URL = "http://mirror.example/python/reprlib.html"
# The page of each picture in `webtext browse`, the CSS selector of the element at its top, its width and its height.
PICTURES = {
    "overview": ("/", "h1", 1200, 760),
    "document": (f"/document?url={quote(_DROPPED_URL)}", "h1", 1000, 760),
    "dropped": ("/dropped?stage=dedup&reason=near_duplicate&seed=1", "h1", 1000, 760),
    "dedup": ("/reports/dedup/report.html", ".pair:nth-of-type(3)", 1000, 500),
    "pretrain": ("/reports/pretrain/training.html", "h1", 1000, 857),
    "overlap": ("/reports/overlap-report/report.html", "#benchmarks", 1000, 760),
}


def take_picture(browser: BrowserPage, address: str, top: str, width: int, height: int) -> bytes:
    """Return the part of a page that begins at an element, as PNG."""
    resize(browser, width, height)
    visit(browser, address)
    y = browser.evaluate(f"document.querySelector({top!r}).getBoundingClientRect().top")
    # Without the footer of a report, which has the path of the page.
    ends = "[...document.querySelectorAll('main, footer')].map((end) => end.getBoundingClientRect())"
    rest = browser.evaluate(f"Math.min(...{ends}.map((box, index) => index ? box.top : box.bottom))") - y
    clip: FloatRect = {"x": 0, "y": max(0, y - 10), "width": width, "height": min(height, rest)}
    return browser.screenshot(full_page=True, clip=clip)


def main(corpus: str) -> None:
    """Take all pictures; exit with a message if one is too large."""
    FOLDER.mkdir(exist_ok=True)
    with start_chromium() as (browser, _), serve_corpus(browser, "--corpus", corpus) as site:
        for name, (path, top, width, height) in PICTURES.items():
            picture = take_picture(browser, site + path, top, width, height)
            if len(picture) > MAX_BYTES:
                sys.exit(f"{name}.png: has {len(picture):,} bytes; at most {MAX_BYTES:,} are allowed")
            (FOLDER / f"{name}.png").write_bytes(picture)
            print(f"{FOLDER / name}.png: {len(picture):,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/pictures.py CORPUS")
    main(sys.argv[1])
