"""Charts: everything is drawn, to scale and inside the frame."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reading import Page, render_figure

from pipelines.reports.charts import Axis, Series, line_chart

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
            assert 52 <= x <= 524.05
            assert 13.95 <= y <= 248.05
    ticks = [
        float(attributes["x"] or 0) for tag, attributes in page.tags if tag == "text" and attributes["class"] == "tick"
    ]
    assert ticks
    assert all(52 <= x <= 524.05 for x in ticks)
    assert len(ticks) <= 12


@pytest.mark.parametrize("value", [0.0, 1e-3, math.pi, 12345.6])
def test_a_single_point_is_drawn(value: float) -> None:
    drawing = render_figure(line_chart("t", "a", [Series("s", [(5, value)])], _LOG, _PLAIN))
    assert drawing.count("<circle") == 1
    assert "nan" not in drawing
