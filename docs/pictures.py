"""Takes the pictures in docs/pictures of a demo's reports: `python docs/pictures.py CORPUS`; needs Chromium."""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import FloatRect

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests" / "reports"))

from headless_chromium import BrowserPage, open_page, start_chromium  # noqa: E402

FOLDER = REPOSITORY / "docs" / "pictures"
WIDTH = 1000
MAX_BYTES = 200_000
# The page of each picture, the CSS selector of the element at its top, and its height.
PICTURES = {
    "index": ("index.html", "h1", 590),
    "dedup": ("dedup/report.html", ".pair:nth-of-type(3)", 500),
    "pretrain": ("pretrain/training.html", "h1", 857),
    "overlap": ("overlap-report/report.html", "#benchmarks", 760),
}


def take_picture(browser: BrowserPage, page: Path, top: str, height: int) -> bytes:
    """Return the part of a page that begins at an element, as PNG."""
    open_page(browser, page, WIDTH, height)
    y = browser.evaluate(f"document.querySelector({top!r}).getBoundingClientRect().top")
    # Without the footer, which has the path of the page.
    rest = browser.evaluate("document.querySelector('footer').getBoundingClientRect().top") - y
    clip: FloatRect = {"x": 0, "y": max(0, y - 10), "width": WIDTH, "height": min(height, rest)}
    return browser.screenshot(full_page=True, clip=clip)


def main(corpus: Path) -> None:
    """Take all pictures; exit with a message if a report is missing, or a picture is too large."""
    with start_chromium() as (browser, _):
        for name, (page, top, height) in PICTURES.items():
            if not (corpus / page).is_file():
                sys.exit(f"{corpus / page}: no such file; run `webtext demo --corpus {corpus}` first")
            picture = take_picture(browser, (corpus / page).absolute(), top, height)
            if len(picture) > MAX_BYTES:
                sys.exit(f"{name}.png: has {len(picture):,} bytes; at most {MAX_BYTES:,} are allowed")
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / f"{name}.png").write_bytes(picture)
            print(f"{FOLDER / name}.png: {len(picture):,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/pictures.py CORPUS")
    main(Path(sys.argv[1]))
