"""The page of a tokenizer's report: complete, self-contained, and safe with any text in its entries."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from headless_chromium import CUT_OFF, OUTSIDE_OF_CHARTS, Browser
from hypothesis import given
from hypothesis import strategies as st
from page_reading import Page, render_figure

from pipelines.reports.charts import Axis, Bars, Series, bar_chart, histogram, line_chart
from pipelines.reports.tokenizer import render_tokenizer_report

_EVIL = "<script>alert(1)</script>"
_LOG, _PLAIN = Axis("x", is_log=True), Axis("y")


def _entry(token: str, **changed: Any) -> dict[str, Any]:
    return {"id": 300, "token": token, "bytes": 7, "count": 2, "held_out": 1, "when_merged": 9} | changed


def _card(**changed: Any) -> dict[str, Any]:
    """A report of 1,000 entries with a reference."""
    figures = {
        "tokens": 400,
        "bytes_per_token": 2.5,
        "fertility": 1.25,
        "continued_words": 0.2,
        "renyi_efficiency": 0.41,
        "shannon_efficiency": 0.62,
    }
    use = {"measured_on": "all words", "bytes": 100, "tokens": 40, "bytes_per_token": 2.5}
    use |= {"entries_used": 30, "share_used": 0.03003}
    step = {"step": 1, "pair": ["␣", "t"], "count": 50, "found_pair": ["␣", "t"], "found_count": 50, "is_right": True}
    row = {"documents": 2, "bytes": 100, "tokens": 40, "bytes_per_token": 2.5}
    row |= {"reference_tokens": 50, "reference_bytes_per_token": 2.0}
    return {
        "vocabulary": {"entries": 1000, "merges": 743},
        "corpus": {"bytes": 1000, "words": 200, "distinct_words": 90, **figures},
        "reference": {"name": "GPT-2", "entries": 50257, **figures, "held_out": use},
        "groups": [row | {"group": "a.org"}, row | {"group": "b.org"}],
        "held_out": use | {"was_trained_on": False, "unused": [_entry("unused")]},
        "rare": {"below": 100, "entries": 5, "single_bytes": 3, "never": 1, "by_powers_of_ten": [1, 4, 995]}
        | {"listed": [_entry("rarest")]},
        "longest": [_entry("␣" * 80, bytes=80)],
        "strange": [{"kind": "controls", "what": "Odd.", "entries": 12, "listed": [_entry("\\u{200B}")]}],
        "verification": {"checked": 1, "right": 1, "steps": [step]},
        "curves": {
            "frequency_by_rank": [[1, 90], [10, 8], [100, 1]],
            "reference_frequency_by_rank": [[1, 80], [90, 1]],
            "share_of_tokens": [[1, 0.2], [100, 1.0]],
            "reference_share_of_tokens": [[1, 0.3], [90, 1.0]],
            "count_by_step": [[1, 50], [743, 2]],
            "bytes_per_token_by_entries": [[257, 1.0], [1000, 2.5]],
            "reference_bytes_per_token_by_entries": [[50257, 2.1]],
            "entries_by_bytes": [[1, 256], [2, 743]],
            "reference_entries_by_bytes": [[1, 256], [40, 7]],
        },
        "run": {"peak_memory_bytes": 5_000_000, "seconds": {"count": 1.5}, "cores": 2},
    } | changed


def test_the_page_shows_the_figures() -> None:
    page = Page(render_tokenizer_report(_card()))
    for text in (
        "Bytes per token 2.50 GPT-2: 2.50",
        "0.410",
        "3.0% 30 of 999",
        "1 of 1 correct",
        "␣ ×80",
        "a.org",
        "peak memory 5 MB",
    ):
        assert text in page.text, text
    assert "12" in page.text.split("Controls: ")[1][:3]
    assert "was trained on" not in page.text
    assert len(page.all("svg")) == 6


def test_every_chart_has_a_title_and_a_description() -> None:
    for drawing in re.findall(r"<svg.*?</svg>", render_tokenizer_report(_card()), re.DOTALL):
        assert 'role="img"' in drawing
        assert re.search(r"<title>[^<]+</title><desc>[^<]+</desc>", drawing)


def test_nothing_is_loaded_from_anywhere() -> None:
    raw = render_tokenizer_report(_card())
    page = Page(raw)
    assert not any({"src", "srcset", "href", "action"} & set(attributes) for _, attributes in page.tags)
    assert {"script", "link", "img", "iframe"}.isdisjoint({tag for tag, _ in page.tags})
    assert not re.search(r"url\(|@import", raw)
    assert any((attributes.get("content") or "").startswith("default-src 'none'") for _, attributes in page.tags)


def test_markup_in_texts_is_escaped() -> None:
    entry = _entry(_EVIL)
    card = _card()
    evil = _card(
        groups=[card["groups"][0] | {"group": f'" onload="x{_EVIL}'}],
        reference=card["reference"] | {"name": _EVIL},
        longest=[entry],
        strange=[{"kind": "controls", "what": _EVIL, "entries": 1, "listed": [entry]}],
        rare=card["rare"] | {"listed": [entry]},
        held_out=card["held_out"] | {"unused": [entry]},
        verification={"checked": 1, "right": 0, "steps": [card["verification"]["steps"][0] | {"pair": [_EVIL, "<b>"]}]},
        run={_EVIL: _EVIL},
    )
    page = Page(render_tokenizer_report(evil))
    assert {tag for tag, _ in page.tags}.isdisjoint({"b", "script"})
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count(_EVIL) >= 10


def test_unprintable_characters_are_escaped() -> None:
    odd = "\x1b[2Ja\x00\x9b\u202eb\ud800"
    card = _card()
    shown = render_tokenizer_report(
        _card(
            groups=[card["groups"][0] | {"group": odd}], reference=card["reference"] | {"name": odd}, run={"ended": odd}
        )
    )
    assert shown.replace("\n", "").isprintable()
    assert shown.count(r"\x1b[2Ja\x00\x9b\u202eb\ud800") >= 3


def test_held_out_text_that_was_trained_on_is_marked() -> None:
    card = _card()
    page = Page(render_tokenizer_report(_card(held_out=card["held_out"] | {"was_trained_on": True})))
    assert "but this tokenizer was trained on them" in page.text
    assert "but the tokenizer was trained on this text" in page.text


def test_a_wrong_merge_stands_out() -> None:
    step = _card()["verification"]["steps"][0] | {"is_right": False, "found_pair": ["a", "b"], "found_count": 60}
    page = Page(render_tokenizer_report(_card(verification={"checked": 1, "right": 0, "steps": [step]})))
    assert "Some of the checked merges are wrong." in page.text
    assert "expected a b 60" in page.text


def test_a_card_without_data() -> None:
    nothing = dict.fromkeys(_card()["reference"])
    card = _card(
        corpus=nothing | {"bytes": 0, "words": 0, "distinct_words": 0},
        reference=None,
        groups=[],
        held_out={"measured_on": "the sample", "was_trained_on": True, "bytes": 0, "tokens": 0, "unused": []}
        | dict.fromkeys(("bytes_per_token", "entries_used", "share_used")),
        strange=[],
        verification={"checked": 0, "right": 0, "steps": []},
        curves={name: [] for name in _card()["curves"]},
        run={},
    )
    page = Page(render_tokenizer_report(card))
    assert page.text.count("No data.") == 6
    assert "There is no held-out text." in page.text


def test_bar_lengths_are_proportional_to_values() -> None:
    groups = [Bars("long name " * 9, (4.0, 2.0)), Bars("b", (1.0, None))]
    series = [Series("this", []), Series("other", [], "reference")]
    page = Page(render_figure(bar_chart("t", "a", series, groups)))
    first, second, third = page.numbers("rect", "width")
    assert first == 2 * second == 4 * third
    assert "long name long name lon…" in page.text.replace(" …", "…")


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**12)), min_size=1, max_size=8), st.booleans())
def test_lines_stay_inside(points: list[tuple[int, int]], is_log: bool) -> None:
    drawing = render_figure(line_chart("t", "a", [Series("s", points)], _LOG, Axis("y", is_log=is_log)))
    page = Page(drawing)
    for line in page.all("polyline"):
        for place in (line["points"] or "").split():
            x, y = map(float, place.split(","))
            assert 52 <= x <= 524.05
            assert 13.95 <= y <= 248.05
    ticks = [
        float(attributes["x"] or 0) for tag, attributes in page.tags if tag == "text" and attributes["class"] == "tick"
    ]
    assert ticks
    assert all(52 <= x <= 524.05 for x in ticks)
    assert len(ticks) <= 12


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 10**6)), max_size=20))
def test_histograms_include_every_count(points: list[tuple[int, int]]) -> None:
    drawing = render_figure(histogram("t", "a", [Series("s", points)], Axis("bytes"), _PLAIN, max_value=24))
    titles = re.findall(r"<title>s: ([\d,]+) of", drawing)
    assert sum(int(title.replace(",", "")) for title in titles) == sum(count for _, count in points)


@pytest.mark.parametrize("value", [0.0, 1e-3, math.pi, 12345.6])
def test_a_single_point_is_drawn(value: float) -> None:
    drawing = render_figure(line_chart("t", "a", [Series("s", [(5, value)])], _LOG, _PLAIN))
    assert drawing.count("<circle") == 1
    assert "nan" not in drawing


@pytest.mark.parametrize("width", [400, 800, 1600])
def test_no_chart_is_cut_off_in_a_browser(browser: Browser, tmp_path: Path, width: int) -> None:
    card = _card()
    card["groups"].append(card["groups"][0] | {"group": "a-name-of-a-site-that-is-too-long.example.org"})
    path = tmp_path / "report.html"
    path.write_text(render_tokenizer_report(card), encoding="utf-8")
    browser.problems.clear()
    browser.open(path, width)
    assert browser.problems == []
    assert browser.run(CUT_OFF) == []
    assert browser.run(OUTSIDE_OF_CHARTS) == []
    assert browser.run("document.documentElement.scrollWidth") == width
