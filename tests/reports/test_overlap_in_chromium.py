"""The overlap page in a browser: no console messages, tables sort, passages unfold, nothing is cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headless_chromium import CUT_OFF, OUTSIDE_OF_CHARTS, BrowserPage, open_page
from small_overlap_report import benchmark, full_report

from pipelines.reports.overlap import render_overlap_report
from pipelines.reports.overlap_text import COLUMNS

_FIRST_CELLS = "[...document.querySelectorAll('.main tbody tr')].map((row) => row.children[0].textContent).join()"
_STATES = "[...document.querySelectorAll('.main th[aria-sort]')].map((head) => head.getAttribute('aria-sort'))"
_BUTTON = "[...document.querySelectorAll('.main thead button')]"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(render_overlap_report(full_report()), encoding="utf-8")
    return path


def test_tables_sort_by_mouse_and_by_keyboard(browser: BrowserPage, page: Path) -> None:
    open_page(browser, page)
    assert browser.evaluate(_FIRST_CELLS) == "wikitext2,gsm8k,shakespeare"
    positions = f"{_BUTTON}.find((button) => button.textContent === '% of positions')"
    browser.evaluate(f"{positions}.click()")
    assert browser.evaluate(_FIRST_CELLS) == "shakespeare,wikitext2,gsm8k"
    assert browser.evaluate(_STATES)[3] == "descending"
    browser.evaluate(f"{positions}.focus()")
    browser.keyboard.press("Enter")
    assert browser.evaluate(_FIRST_CELLS) == "gsm8k,wikitext2,shakespeare"
    assert browser.evaluate(_STATES)[3] == "ascending"
    browser.evaluate(f"{_BUTTON}[0].click()")
    assert browser.evaluate(_FIRST_CELLS) == "gsm8k,shakespeare,wikitext2"
    assert browser.evaluate(_STATES) == ["ascending"] + ["none"] * (1 + len(COLUMNS))
    # Rows without a figure stay last in both directions.
    for _ in range(2):
        browser.evaluate(f"{_BUTTON}[5].click()")
        assert browser.evaluate(_FIRST_CELLS).startswith("wikitext2,")


def test_passages_are_shown_from_their_marks(browser: BrowserPage, page: Path) -> None:
    open_page(browser, page)
    distance = "(box) => box.querySelector('mark').getBoundingClientRect().top - box.getBoundingClientRect().top"
    boxes = "[...document.querySelectorAll('{} .blocks')]"
    assert all(0 <= top <= 49 for top in browser.evaluate(f"{boxes.format('.passages')}.map({distance})"))
    visible = "document.querySelector('.more mark').checkVisibility()"
    assert not browser.evaluate(visible)
    browser.evaluate("document.querySelector('.more summary').click()")
    assert browser.evaluate(visible)


@pytest.mark.parametrize("width", [400, 800, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off(browser: BrowserPage, page: Path, width: int, scheme: str) -> None:
    open_page(browser, page, width, scheme=scheme)
    browser.evaluate("document.querySelectorAll('details').forEach((details) => details.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(CUT_OFF) == []
    assert browser.evaluate(OUTSIDE_OF_CHARTS) == []
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(251, 251, 250)" if scheme == "light" else "rgb(20, 23, 27)"
    )


def test_the_table_fits_a_window_of_1200_pixels(browser: BrowserPage, tmp_path: Path) -> None:
    large: dict[str, Any] = {
        "ngrams": 123_456_789,
        "examples": 1_234_567,
        "examples_any": 1_234_567,
        "examples_15": 123_456,
        "examples_50": 123_456,
        "too_short": 123_456,
        "paper": {"name": "WikiText-103", "own_train": 13.19, "webtext": 6.31},
        "own_train": {"split": "train", "overlapping": 9, "percent_positions": 100.0, "percent_distinct": 100.0},
    }
    names = ("wikitext-103", "a-benchmark-with-a-name-as-long-as-some-are")
    rows = [benchmark(name, split, 100.0, **large) for name, split in zip(names, ("validation", None), strict=True)]
    path = tmp_path / "report.html"
    path.write_text(render_overlap_report(full_report(benchmarks=rows, sensitivity=None)), encoding="utf-8")
    open_page(browser, path)
    box = "document.querySelector('.scroll:has(.main)')"
    assert browser.evaluate(f"{box}.scrollWidth - {box}.clientWidth") <= 0


def test_printed_pages_show_whole_tables_and_passages(browser: BrowserPage, page: Path) -> None:
    open_page(browser, page, 718)
    browser.emulate_media(media="print")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 718
    box = "document.querySelector('.passages .blocks')"
    assert browser.evaluate(f"{box}.scrollHeight <= {box}.clientHeight")


def test_a_planted_script_does_not_run(browser: BrowserPage, tmp_path: Path) -> None:
    evil = '</title></style></script><script>window.planted = 1</script><img src=x onerror="planted = 1">'
    report = full_report(corpus=evil, normalisation=evil)
    for row in report["benchmarks"]:
        row["name"] = row["split"] = evil
        for passage in row["passages"]:
            passage |= {
                "before": evil,
                "text": evil,
                "after": evil,
                "place": evil,
                "sources": [{"id": evil, "url": evil}],
            }
    for common in report["common_ngrams"]:
        common |= {"ngram": evil, "benchmarks": [evil]}
    path = tmp_path / "report.html"
    path.write_text(render_overlap_report(report), encoding="utf-8")
    open_page(browser, path)
    assert browser.evaluate("window.planted") is None
    assert browser.evaluate("document.scripts.length") == 1
    assert browser.evaluate("document.body.innerText").count(evil) >= 10
