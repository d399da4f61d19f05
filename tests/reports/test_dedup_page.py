"""The report of a deduplication: its figures, marked differences, nothing unescaped, nothing cut off in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headless_chromium import CUT_OFF, OUTSIDE_OF_CHARTS, BrowserPage, open_page
from page_reading import Page

from pipelines.reports.dedup import compare_texts, render_dedup_report

_EVIL = '</title></style></script><script>window.planted = 1</script><img src=x onerror="planted = 1">'


def document(id: str, text: str | None = "one two three", **fields: Any) -> dict[str, Any]:
    return {"id": id, "url": f"https://example.com/{id}", "text": text, "characters": len(text or ""), **fields}


def report(**fields: Any) -> str:
    similarities = [0] * 16 + [30, 0, 10, 60]
    values = {
        "threshold": 0.8,
        "ngram": 5,
        "num_perm": 128,
        "records": 2000,
        "dropped": {"exact_duplicate": 50, "near_duplicate": 100, "repeated_paragraphs": 2},
        "similarities": similarities,
        "sizes": [(1, 40, 90), (3, 1, 62)],
        "clusters": [(62, document("head"), [(document("member"), 0.84), (document("other", url=None), 1.0)])],
        "pairs": [(0.8125, document("a", "One two three four"), document("b", "one TWO drei four"))],
        "domains": [("example.com", 300, 120), ("example.org", 40, 10)],
    }
    return render_dedup_report(values | fields)


def test_the_funnel_and_the_similarities() -> None:
    text = Page(report()).text
    assert "a Jaccard similarity of at least 0.8: the share of their shingles (runs of 5 words)" in text
    assert "Kept 1,848 92.4% of 2,000 Duplicates 150 50 exact, 100 near" in text
    assert (
        "in 2,000 dropped: near_duplicate 100 dropped: exact_duplicate 50 dropped: repeated_paragraphs 2 out 1,848"
        in text
    )
    assert "128 MinHash values in 21 bands of 6 find" in text
    # 1 - (1 - 0.8**6)**21 = 0.99834
    assert "0.80 to below 0.85 30 99.83% 0.85 to below 0.90 0 100.00% 0.90 to below 0.95 10" in text
    assert "0.95 to 1.00 60 100.00% All 100" in text


def test_the_curve_has_the_threshold_and_the_near_duplicates_per_step() -> None:
    page = Page(report())
    [marker] = [line for line in page.all("line") if line.get("class") == "marker"]
    assert "threshold 0.8" in page.text
    curve, shares = sorted(page.all("polyline"), key=lambda line: line["class"] or "")
    assert len((curve["points"] or "").split()) == 201
    points = [tuple(map(float, point.split(","))) for point in (shares["points"] or "").split()]
    assert points[0][0] == float((marker["x1"] or "").rstrip("%"))
    # 30%, 0%, 10% and 60%: each step is as wide.
    heights = [234 - y for _, y in points]
    assert heights[::2] == heights[1::2]
    assert [round(height / heights[0], 1) for height in heights[::2]] == [1.0, 0.0, 0.3, 2.0]


def test_a_threshold_within_a_step() -> None:
    text = Page(report(threshold=0.97)).text
    assert "0.97 to 1.00 60" in text
    assert "to below" not in text
    assert "1.00 to 1.00 60" in Page(report(threshold=1.0)).text


def test_clusters_and_domains() -> None:
    page = Page(report())
    assert "2 to 3 40 90 8 to 15 1 62 All 41 152" in page.text
    assert "https://example.com/head head 62 0.84 https://example.com/member 1.00 other" in page.text
    assert "example.com 300 120 40.0% example.org 40 10 25.0%" in page.text
    assert {link["href"] for link in page.all("a")} == {
        f"https://example.com/{id}" for id in ("head", "member", "a", "b")
    }


def test_a_page_without_duplicates_and_urls() -> None:
    text = Page(report(dropped={}, similarities=[0] * 20, sizes=[], clusters=[], pairs=[], domains=[])).text
    for sentence in (
        "No document has a duplicate.",
        "There are no near-duplicates.",
        "No dropped document has a URL.",
    ):
        assert sentence in text


def test_differences_are_marked_by_words() -> None:
    kept, dropped = compare_texts("One, two three four.", "one  TWO drei, four five")
    assert kept == [("same", "One, two "), ("changed", "three"), ("same", " four.")]
    assert dropped == [("same", "one  TWO "), ("changed", "drei"), ("same", ", four "), ("changed", "five")]
    page = Page(report())
    assert "Similarity 0.812" in page.text
    assert page.text.count("three") == page.text.count("drei") == 1
    assert len(page.all("mark")) == 1 + 2
    assert compare_texts("天地玄黄宇宙", "天地玄黃宇宙")[0] == [("same", "天地玄"), ("changed", "黄"), ("same", "宇宙")]


def test_long_passages_without_differences_are_folded() -> None:
    words = [f"word{number}" for number in range(1000)]
    text = " ".join(words)
    words[500] = "other"
    kept, dropped = compare_texts(text, " ".join(words))
    assert [kind for kind, _ in kept] == ["same", "folded", "same", "changed", "same", "folded", "same"][1:-1]
    assert kept[2] == ("changed", "word500")
    assert [part for part in dropped if part[0] == "folded"] == [part for part in kept if part[0] == "folded"]
    shown = "".join(str(part) for kind, part in kept if kind != "folded")
    assert sum(int(part) for kind, part in kept if kind == "folded") + len(shown) == len(text)
    assert len(shown) < 1000
    same, _ = compare_texts(text, text)
    assert [kind for kind, _ in same] == ["same", "folded"]


def test_a_text_that_is_not_known_is_said_and_nothing_is_marked() -> None:
    text = Page(report(pairs=[(0.9, document("a", None), document("b", "one two", characters=9000))])).text
    assert "The text is not available: only the signatures of the earlier corpus were kept." in text
    assert "The first 7 of 9,000 characters." in text
    assert "Similarity 0.900, estimated" in text
    assert compare_texts(None, "one two") == ([], [("same", "one two")])


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off(browser: BrowserPage, tmp_path: Path, width: int, scheme: str) -> None:
    path = tmp_path / "report.html"
    long = document("x" * 300, "word " * 1000 + "y" * 400, characters=9999)
    path.write_text(report(pairs=[(0.9, long, long)] * 3, clusters=[(2, long, [(long, 0.9)])]), encoding="utf-8")
    open_page(browser, path, width, scheme=scheme)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(CUT_OFF) == []
    assert browser.evaluate(OUTSIDE_OF_CHARTS) == []
    # In a narrow window the cells of the largest clusters stand below each other, so that none is hidden.
    box, cell = "document.querySelector('.scroll:has(.stack)')", "document.querySelector('.stack td')"
    assert browser.evaluate(f"{box}.scrollWidth <= {box}.clientWidth")
    assert browser.evaluate(f"getComputedStyle({cell}, '::before').content") == (
        '"Documents: "' if width == 400 else "none"
    )
    # A table that scrolls has a shade where it continues.
    assert "gradient" in browser.evaluate(f"getComputedStyle({box}).backgroundImage")


def test_a_planted_script_does_not_run(browser: BrowserPage, tmp_path: Path) -> None:
    evil = document(_EVIL, _EVIL, url=_EVIL)
    path = tmp_path / "report.html"
    page = report(
        pairs=[(0.9, evil, evil | {"text": f"{_EVIL} b"})],
        clusters=[(2, evil, [(evil, 0.9)])],
        domains=[(_EVIL, 2, 1)],
        dropped={_EVIL: 3},
    )
    path.write_text(page, encoding="utf-8")
    open_page(browser, path)
    assert browser.evaluate("window.planted") is None
    assert browser.evaluate("document.scripts.length") == 1
    assert browser.evaluate("document.images.length") == 0
    assert browser.evaluate("document.body.textContent").count(_EVIL) >= 8
