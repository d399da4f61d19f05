"""Charts: everything is drawn, to scale and inside the frame."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from headless_chromium import OUTSIDE_OF_CHARTS, BrowserPage, open_page
from hypothesis import given
from hypothesis import strategies as st
from page_reading import Page, render_figure

from pipelines.reports.charts import Axis, Series, line_chart
from pipelines.reports.training import render_training_page

_LOG, _PLAIN = Axis("x", is_log=True), Axis("y")


def test_a_chart_has_a_title_and_a_description() -> None:
    drawing = render_figure(line_chart("t", "a", [Series("s", [(1, 2)])], _PLAIN, _PLAIN))
    assert 'role="img"' in drawing
    assert re.search(r"<title>[^<]+</title><desc>[^<]+</desc>", drawing)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 10**12)), min_size=1, max_size=8), st.booleans())
def test_lines_stay_inside(points: list[tuple[int, int]], is_log: bool) -> None:
    drawing = render_figure(line_chart("t", "a", [Series("s", points)], _LOG, Axis("y", is_log=is_log)))
    page = Page(drawing)
    for line in page.all("polyline"):
        for place in (line["points"] or "").split():
            x, y = map(float, place.split(","))
            assert 0 <= x <= 100
            assert 0 <= y <= 234
    assert all(0 <= x <= 100 for x in page.numbers("text", "x"))
    ticks = [text for text in page.all("text") if text["class"] == "tick"]
    assert ticks
    assert len(ticks) <= 12


@pytest.mark.parametrize("value", [0.0, 1e-3, math.pi, 12345.6])
def test_a_single_point_is_drawn(value: float) -> None:
    drawing = render_figure(line_chart("t", "a", [Series("s", [(5, value)])], _LOG, _PLAIN))
    assert drawing.count("<circle") == 1
    assert "nan" not in drawing


def test_billions_are_b() -> None:
    assert ">1B<" in render_figure(line_chart("t", "a", [Series("s", [(1e8, 1), (1e9, 2)])], _LOG, _PLAIN))


def test_the_chance_level_is_within_the_axis_and_named() -> None:
    chart = line_chart("t", "a", [Series("s", [(1, 0.8), (2, 0.9)])], _PLAIN, Axis(from_zero=False), chance=0.25)
    [line] = [line for line in Page(render_figure(chart)).all("line") if line.get("class") == "threshold"]
    assert 0 <= float(line["y1"] or "") <= 234
    assert "chance" in render_figure(chart)


@pytest.mark.parametrize("width", [400, 1200])
def test_text_has_the_same_size_at_every_width(browser: BrowserPage, tmp_path: Path, width: int) -> None:
    path = tmp_path / "page.html"
    recipe = {"grad_clip": 1.0, "steps": 3, "batch_size": 1, "context": 8}
    about = {"title": "t", "parameters": 1, "vocab_size": 1, "facts": {}, "recipe": recipe}
    rows = [{"step": step, "loss": 3.0} for step in range(3)]
    path.write_text(render_training_page(rows, [], about), encoding="utf-8")
    open_page(browser, path, width)
    assert browser.evaluate(OUTSIDE_OF_CHARTS) == []
    height = browser.evaluate("document.querySelector('svg .tick').getBoundingClientRect().height")
    assert 12 <= height <= 18
    assert (
        browser.evaluate("Math.max(...[...document.querySelectorAll('figure')].map((one) => one.clientWidth))") <= 736
    )
