"""The report of an extraction: its figures, its order, nothing unescaped, and nothing cut off in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headless_chromium import CUT_OFF, BrowserPage, open_page
from page_reading import Page

from pipelines.reports.extract import render_extract_report

_EVIL = '</title></style></script><script>window.planted = 1</script><img src=x onerror="planted = 1">'
_LONG = "Related: " + "another page of this site, " * 40
OUTCOMES = {("article", ""): 1500, ("forum", ""): 400, ("article", "too_short"): 100, ("", "not_html"): 2000}
CONFIDENCES = [0] * 10 + [3] + [0] * 8 + [1997]


def sample(confidence: float, **fields: Any) -> dict[str, Any]:
    blocks = [("Home", 0.01, False), ("The river rises in the hills.", 0.98, True), (_LONG, 0.2, False)]
    page = {"id": f"id{confidence}", "url": f"https://example.com/{confidence}", "title": f"Page {confidence}"}
    known = {"type": "article", "confidence": confidence, "reason": None, "words": 1234, "blocks": blocks}
    return {**page, **known, "total_blocks": 3, **fields}


def report(samples: list[dict[str, Any]], extractor: str = "fast") -> str:
    return render_extract_report(extractor, OUTCOMES, [], CONFIDENCES, samples, (300, 20_000))


def test_signals_are_counted() -> None:
    text = render_extract_report(
        "fast", {("", ""): 4}, [("noai:header", 3), ("robots:GPTBot", 1)], [0] * 20, [], (300, 9)
    )
    assert "noai:header 3 robots:GPTBot 1" in Page(text).text
    assert "Wishes" not in Page(report([])).text


def test_outcomes_are_a_table_by_type() -> None:
    text = Page(report([])).text
    assert "4,000 pages, extracted with fast. Documents 1,900 47.5% of the pages Dropped 2,100 for 2 reasons" in text
    assert "Outcome Pages article forum not detected kept 1,900 1,500 400 –" in text
    assert "not_html 2,000 – – 2,000 too_short 100 100 – – All 4,000 1,600 400 2,000" in text
    page = Page(report([]))
    bars = [cell["class"] for cell in page.all("td") if "class" in cell]
    assert bars[:4] == ["bar share-48", "bar share-94", "bar share-100", "bar share-0"]
    assert "over 50% and up to 55%: 3; over 95% and up to 100%: 1,997" in text
    assert "No page has blocks." in text


def test_blocks_are_in_order_with_a_sign_and_pages_with_the_lowest_confidence_first() -> None:
    page = Page(report([sample(0.9), sample(0.41), sample(0.6, url=None, total_blocks=700, reason="too_short")]))
    titles = [page.text.index(f"Page {confidence}") for confidence in (0.41, 0.6, 0.9)]
    assert titles == sorted(titles)
    assert "https://example.com/0.41 article · confidence 0.41 · 1,234 words · kept" in page.text
    assert "id0.6 article · confidence 0.60 · 1,234 words · dropped: too_short" in page.text
    assert "✗ 0.01 Home ✓ 0.98 The river rises in the hills. ✗ 0.20 Related: another page" in page.text
    assert "The first 3 of 700 blocks: at most 300 blocks or 20,000 characters are shown." in page.text
    classes = [item["class"] for item in page.all("li")]
    assert classes == ["dropped", "kept", "dropped"] * 3
    # Only the long block that was dropped is folded; its beginning is one line.
    assert len(page.all("details")) == 3
    labels = [span.get("aria-label") for span in page.all("span") if span.get("role") == "img"]
    assert labels == classes


def test_several_dropped_blocks_in_a_row_are_folded() -> None:
    text = ("The river rises in the hills.", 0.98, True)
    menu = [(f"Menu {number}", 0.01, False) for number in range(4)]
    page = Page(report([sample(0.5, blocks=[*menu, text, *menu[:3], text, (_LONG, 0.1, False), *menu])]))
    folds = [tag for tag, attributes in page.tags if attributes.get("class") == "run"]
    assert folds == ["details", "details"]
    assert "✗ 4 blocks: Menu 0 ✗ 0.01 Menu 0 ✗ 0.01 Menu 1" in page.text
    assert f"✗ 5 blocks: {_LONG[:60]}… ✗ 0.10 {_LONG[:60]}…" in page.text


def test_kept_blocks_are_in_view(browser: BrowserPage, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    blocks = [(f"Menu {number}", 0.01, False) for number in range(100)] + [("The river rises.", 0.98, True)] * 60
    path.write_text(report([sample(0.5, blocks=blocks, total_blocks=160)]), encoding="utf-8")
    open_page(browser, path)
    bottom = "document.querySelector('{}').getBoundingClientRect().bottom"
    assert browser.evaluate(f"{bottom.format('.blocks > .kept')} < {bottom.format('.blocks')}")
    assert browser.evaluate(
        "document.querySelector('.blocks').scrollHeight > document.querySelector('.blocks').clientHeight"
    )
    assert not browser.evaluate("document.querySelector('.run li').checkVisibility()")
    browser.evaluate("document.querySelector('.run > summary').click()")
    assert browser.evaluate("document.querySelector('.run li').checkVisibility()")


def test_other_extractors_have_outcomes_only() -> None:
    page = Page(render_extract_report("trafilatura", {("", ""): 3, ("", "empty_text"): 1}, [], [0] * 20, [], (300, 9)))
    assert "Outcome Pages kept 3 empty_text 1 All 4" in page.text
    assert "Confidence" not in page.text
    assert "Sampled" not in page.text


def test_a_page_of_no_blocks_and_unprintable_text() -> None:
    empty = sample(0.0, title=None, type=None, blocks=[], total_blocks=0)
    page = Page(report([empty, sample(0.5, blocks=[("a\x1b[31m\u202eb\n  c", 0.5, True)], total_blocks=1)]))
    assert "No title" in page.text
    assert "type not detected · confidence 0.00" in page.text
    assert "The page has no text." in page.text
    assert r"a\x1b[31m\u202eb c" in page.text


def test_only_web_pages_are_linked() -> None:
    page = Page(report([sample(0.5, url="javascript:alert(1)")]))
    assert page.all("a") == []
    assert "javascript:alert(1)" in page.text


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off(browser: BrowserPage, tmp_path: Path, width: int, scheme: str) -> None:
    path = tmp_path / "report.html"
    pages = [sample(0.5 + number / 100, title="x" * 300, url=f"https://e.com/{'y' * 300}") for number in range(3)]
    path.write_text(report(pages), encoding="utf-8")
    open_page(browser, path, width, scheme=scheme)
    folded = "document.querySelector('.blocks details').lastElementChild.checkVisibility()"
    assert not browser.evaluate(folded)
    browser.evaluate("document.querySelector('.blocks summary').click()")
    assert browser.evaluate(folded)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(CUT_OFF) == []


def test_a_planted_script_does_not_run(browser: BrowserPage, tmp_path: Path) -> None:
    evil = sample(0.5, blocks=[(_EVIL, 0.5, True), (_EVIL * 9, 0.1, False)], title=_EVIL, id=_EVIL, url=_EVIL)
    evil |= {"type": _EVIL, "reason": _EVIL}
    text = render_extract_report("fast", {(_EVIL, _EVIL): 1}, [(_EVIL, 1)], CONFIDENCES, [evil], (300, 9))
    path = tmp_path / "report.html"
    path.write_text(text, encoding="utf-8")
    open_page(browser, path)
    assert browser.evaluate("window.planted") is None
    assert browser.evaluate("document.scripts.length") == 1
    assert browser.evaluate("document.images.length") == 0
    assert browser.evaluate("document.body.textContent").count(_EVIL) >= 8
