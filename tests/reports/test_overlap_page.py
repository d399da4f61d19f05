"""The page of the overlap report: complete, on its own, and safe with whatever the texts hold."""

from __future__ import annotations

import re
from typing import Any

from page_reading import Page

from pipelines.algorithms.overlap import Match, Tally
from pipelines.reports.overlap import BenchmarkView, render_overlap

_EVIL = "<script>alert(1)</script>"


def _view(name: str, texts: list[str], held: dict[str, Match], split: str | None = None) -> BenchmarkView:
    tally = Tally(3)
    for number, text in enumerate(texts):
        tally.add(f"{name}:{number}", text, held)
    return BenchmarkView(tally.row(name, split), tuple(tally.histogram), tuple(tally.longest_passages(12)))


def _page(views: list[BenchmarkView], **changed: Any) -> str:
    report = {
        "corpus": "0123456789abcdef" * 4,
        "method": "exact",
        "n": 3,
        "normalisation": "words",
        "error_bound": 0.0,
        "benchmarks": [dict(view.row) for view in views],
        **changed,
    }
    return render_overlap(report, views)


def test_what_a_text_holds_stays_text() -> None:
    held = {
        "one two three": Match(1, f"id {_EVIL}", f'https://example.org/?q="onload={_EVIL}'),
        "two three script": Match(1, 'id" onclick="x', "javascript:alert(1)"),
    }
    view = _view(f"bench {_EVIL}", [f"{_EVIL} One <b> two", f"one <two> three {_EVIL}"], held, _EVIL)
    raw = _page([view], corpus=_EVIL, normalisation=_EVIL)
    page = Page(raw)
    assert raw.count("<script>") == 1
    assert {tag for tag, _ in page.tags}.isdisjoint({"b", "iframe", "img"})
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links == ["#benchmark-0", f'https://example.org/?q="onload={_EVIL}']
    assert page.text.count(_EVIL) >= 5


def test_nothing_is_loaded_from_anywhere() -> None:
    raw = _page([_view("b", ["a b c d"], {"a b c": Match(1, "d", "https://example.org")})])
    page = Page(raw)
    assert not any({"src", "srcset", "action"} & set(attributes) for _, attributes in page.tags)
    assert "link" not in {tag for tag, _ in page.tags}
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp", raw)
    policies = [attributes.get("content") for tag, attributes in page.tags if tag == "meta"]
    assert any(policy and policy.startswith("default-src 'none'") for policy in policies)


def test_the_table_holds_the_figures() -> None:
    views = [
        _view("first", ["a b c d", "x y z"], {"a b c": Match(4, "doc", None)}, "test"),
        _view("second", ["k l m"] * 1500, {}),
    ]
    page = Page(_page(views))
    cells = [float(attributes["data-value"] or 0) for tag, attributes in page.tags if tag == "td"]
    assert cells[:9] == [3, 1, 33.333333, 33.333333, 2, 1, 1, 1, 0]
    assert cells[9:] == [1500, 0, 0, 0, 1500, 0, 0, 0, 0]
    assert "first/test" in page.text
    assert "1,500 of 1,500 examples (100.0%) share no 3-gram with the corpus." in page.text
    assert "Not one of its 3-grams is in the corpus." in page.text
    assert "exact: the whole corpus was read" in page.text


def test_the_matching_words_are_marked_with_their_source() -> None:
    raw = _page(
        [_view("b", ["He said: One TWO, three and left."], {"one two three": Match(1, "doc", "http://e.org/p")})]
    )
    assert "He said: <mark>One TWO, three</mark> and left." in raw
    assert '<a href="http://e.org/p" title="doc" rel="noreferrer noopener">http://e.org/p</a>' in raw
    assert "3 words" in raw


def test_bars_are_as_high_as_their_counts() -> None:
    texts = ["a b c x"] * 4 + ["a b c"] * 2 + ["q r s"] * 7
    page = Page(_page([_view("b", texts, {"a b c": Match(1, "d")})]))
    bars = [(float(each["x"] or 0), float(each["height"] or 0)) for tag, each in page.tags if tag == "rect"]
    (half, half_height), (whole, whole_height) = bars
    assert half == 9 * 36 + 2
    assert whole == 19 * 36 + 2
    assert half_height == 2 * whole_height
    assert "7 of 13 examples (53.8%)" in page.text


def test_a_bloom_filter_states_its_error() -> None:
    page = Page(_page([_view("b", ["a b c"], {"a b c": Match()})], method="bloom", error_bound=9.6e-9))
    assert "probability of 9.6e-09" in page.text
    assert "· in" not in page.text
