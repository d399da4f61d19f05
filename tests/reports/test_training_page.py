"""The page of a training run: complete, escaped, thinned without losing a peak, for short and long runs."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from headless_chromium import CUT_OFF, OUTSIDE_OF_CHARTS, BrowserPage, open_page
from page_reading import Page, render_figure

from pipelines.reports.charts import Axis, Series, line_chart
from pipelines.reports.training import extract_curve, raw_and_smoothed, render_training_page, smooth, thin

ABOUT = {
    "title": "tiny & <small>",
    "parameters": 7_242_624,
    "vocab_size": 50_257,
    "recipe": {"preset": "tiny", "steps": 300, "batch_size": 16, "context": 128, "grad_clip": 1.0},
    "facts": {"device": "<gpu>", "processes": 2},
}
SPIKES = [
    {"step": 70, "what": "loss", "value": 4.71, "mean": 3.2, "deviation": 0.1, "z": 15.1, "file": "spikes/<70>.json"},
    {"step": 80, "what": "gradient_norm", "value": "nan", "mean": None, "deviation": None, "z": None},
]


def run(steps: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A run whose loss decreases from 10.8 to about 3, with one peak of 20 in the middle."""
    source = random.Random(0)
    rows: list[dict[str, Any]] = [{"step": 0, "held_out_loss": 10.8, "held_out_tokens": 512}]
    timing: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        loss = 20.0 if step == steps // 2 else 3 + 7.8 * math.exp(-8 * step / steps) + source.gauss(0, 0.05)
        rows.append({"step": step, "loss": loss, "learning_rate": 1e-3, "gradient_norm": source.uniform(0.2, 1.2)})
        if step % max(1, steps // 5) == 0:
            rows[-1] |= {"held_out_loss": loss + 0.1, "held_out_tokens": 4096}
        timing.append({"step": step, "seconds": 2.0, "tokens_per_second": 1024, "utilisation": 0.412})
    rows[-1] |= {"held_out_loss": 3.14, "held_out_bits_per_byte": 1.012}
    return rows, timing


def page_of(steps: int, **more: Any) -> Page:
    rows, timing = run(steps)
    return Page(render_training_page(rows, timing, ABOUT, **more))


def text_with_figures(page: Page) -> str:
    charts = [svg for svg in page.all("svg") if svg.get("role") == "img"]
    assert len(page.all("figure")) == page.text.count("No data.") + len(charts)
    return page.text


@pytest.mark.parametrize("steps", [1, 2, 10, 19, 20, 300, 5000])
def test_every_curve_is_drawn_at_any_length(steps: int) -> None:
    page = page_of(steps, spikes=SPIKES)
    text = text_with_figures(page)
    for title in ("Gradient norm", "Learning rate", "Tokens per second", "Spikes", "Recipe"):
        assert title in text
    assert ("Loss, second half" in text) == (steps >= 20)
    assert "No data." not in text


def test_tiles_show_the_figures_of_the_run() -> None:
    text = page_of(300, spikes=SPIKES).text
    for part in (
        "tiny & <small>", "7,242,624 parameters, 50,257 vocabulary entries; device: <gpu>; processes: 2.",
        "of 300", "614,400 tokens", "mean of the last 6 steps",
        "3.140", "at step 300, on 4,096 tokens", "1.012 bits per byte", "1,024", "41.2% of peak FLOP/s",
        "10 min 00 s", "of the steps clipped at 1", "spikes/<70>.json", "nan", "15.1",
    ):  # fmt: skip
        assert part in text, part


def test_spikes_have_a_file_column_only_if_files_exist() -> None:
    rows, timing = run(300)
    with_file, without = (
        Page(render_training_page(rows, timing, ABOUT, spikes=spikes)).text for spikes in (SPIKES, SPIKES[1:])
    )
    assert "File" in with_file
    assert "File" not in without
    assert "gradient norm" in without


def test_unknown_peak_performance_is_stated() -> None:
    rows, timing = run(30)
    for row in timing:
        row["utilisation"] = None
    assert "share of peak FLOP/s unknown" in Page(render_training_page(rows, timing, ABOUT)).text


def test_empty_runs_and_non_finite_values() -> None:
    text = text_with_figures(Page(render_training_page([], [], ABOUT)))
    assert text.count("No data.") == 4
    rows = [{"step": 1, "loss": math.nan, "learning_rate": 1e-3, "gradient_norm": math.inf}, {"step": 2, "loss": 3.0}]
    assert "3.000" in Page(render_training_page(rows, [], ABOUT)).text


def test_the_page_loads_nothing() -> None:
    rows, timing = run(30)
    written = render_training_page(rows, timing, ABOUT, SPIKES)
    assert "default-src 'none'" in written
    tags = {tag for tag, _ in Page(written).tags}
    assert not tags & {"img", "link", "iframe"}
    assert "<gpu>" not in written
    assert written == render_training_page(rows, timing, ABOUT, SPIKES)


@pytest.mark.parametrize("count", [3, 800, 801, 12_345])
def test_thinning_keeps_the_extremes_and_both_ends(count: int) -> None:
    source = random.Random(count)
    points = [(float(step), source.gauss(0, 1)) for step in range(count)]
    points[count // 3] = (points[count // 3][0], 99.0)
    points[count // 2] = (points[count // 2][0], -99.0)
    kept = thin(points)
    assert len(kept) <= 802
    assert set(kept) <= set(points)
    assert kept == sorted(kept)
    assert {points[0], points[-1], points[count // 3], points[count // 2]} <= set(kept)


def test_smoothing_is_a_trailing_moving_average() -> None:
    points = [(float(step), step % 7 + 0.5 * step) for step in range(1, 401)]
    for step, mean in smooth(points):
        last = [value for at, value in points if step - 8 < at <= step]  # a fiftieth of 400
        assert mean == pytest.approx(sum(last) / len(last))
    assert smooth(points)[-1][0] == 400
    assert smooth(points[:60]) == []


def test_only_the_thin_line_is_clipped() -> None:
    points = [(float(step), 1000.0 if step == 500 else 3.0 + step / 1e6) for step in range(1, 1001)]
    averaged, raw = raw_and_smoothed(points, "loss", 400, 0.005)
    assert max(value for _, value in raw.points) < 3.01
    assert min(step for step, _ in raw.points) == 400
    assert max(value for _, value in averaged.points) > 40


def test_rows_without_a_finite_value_are_skipped() -> None:
    rows = [{"step": 1}, {"step": 2, "loss": None}, {"step": 3, "loss": math.nan}, {"step": 4, "loss": 2}]
    assert extract_curve(rows, "loss") == [(4, 2)]


def test_an_axis_can_start_at_the_minimum() -> None:
    series = [Series("loss", [(100.0, 3.1), (200.0, 3.4)])]
    svg = render_figure(line_chart("Loss", "", series, Axis("step", from_zero=False), Axis(from_zero=False)))
    ticks = Page(svg).text
    for shown in ("3.1", "3.4", "100", "200"):
        assert shown in ticks
    assert ">0<" not in svg
    assert ">0<" in render_figure(line_chart("Loss", "", series, Axis("step"), Axis()))


@pytest.mark.parametrize("width", [1600, 800, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_in_a_browser(browser: BrowserPage, tmp_path: Path, width: int, scheme: str) -> None:
    rows, timing = run(2000)
    path = tmp_path / "training.html"
    path.write_text(render_training_page(rows, timing, ABOUT, SPIKES), encoding="utf-8")
    open_page(browser, path, width, 900, scheme)
    assert browser.evaluate(CUT_OFF) == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(OUTSIDE_OF_CHARTS) == []
