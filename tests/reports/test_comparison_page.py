"""The page of a comparison of corpora: complete, escaped, the same for the same content, also with a single seed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headless_chromium import CUT_OFF, OUTSIDE_OF_CHARTS, BrowserPage, open_page
from page_reading import Page, render_figure

from pipelines.comparison.statistics import Measure, Scores, compare_runs, summarize_pairs
from pipelines.reports.charts import Axis, Interval, Series, interval_chart, line_chart
from pipelines.reports.comparison import mean_and_deviation, render_comparison_page

# By corpus: what its models lose against the best one, in bits per byte.
LOSSES = {"filter": 0.0, "extract & all": 0.001, "<shuffled>": 0.4}
SETS = [
    {"name": "filter held-out", "kind": "held-out", "corpus": "filter"},
    {"name": "wikitext2", "kind": "text", "corpus": None},
    {"name": "hellaswag", "kind": "task", "corpus": None},
]
MEASURES = [
    Measure("filter held-out: bits per byte", "filter held-out", "bits_per_byte", "bits per byte", False, False),
    Measure("wikitext2: bits per byte", "wikitext2", "bits_per_byte", "bits per byte", False, True),
    Measure("hellaswag: probability", "hellaswag", "gold_probability", "share", True, True),
    Measure("hellaswag: accuracy", "hellaswag", "accuracy", "share", True, True),
]


def content_of(seeds: int) -> dict[str, Any]:
    source = np.random.default_rng(0)
    examples = source.uniform(1.0, 2.0, 60)
    scores = []
    for measure in MEASURES:
        numerators = {}
        for name, loss in LOSSES.items():
            effect = -loss / 4 if measure.higher_is_better else loss
            numerators[name] = (
                examples + effect + source.normal(0, 0.01, (seeds, 1)) + source.normal(0, 0.1, (seeds, 60))
            )
        scores.append(Scores(measure, numerators, np.ones(60)))
    comparisons = compare_runs(scores)
    runs = [
        {
            "corpus": name, "seed": seed, "training_seed": 4_000_000_000 + seed, "folder": f"models/{name}/seed-{seed}",
            "curve": [[step, 8.0 / (1 + step / 40) + loss + seed / 10] for step in range(0, 201, 20)],
        }
        for (name, loss), seed in itertools.product(LOSSES.items(), range(seeds))
    ]  # fmt: skip
    content = {
        "format": 1,
        "corpora": [
            {
                "name": name, "path": f"my-corpus/{name}", "fingerprint": "0123456789abcdef" * 4, "documents": 12_345,
                "train_tokens": 1_234_567, "held_out_documents": 321,
            }
            for name in LOSSES
        ],
        "protocol": {
            "preset": "tiny", "parameters": 1_071_872, "vocab_size": 2048, "tokenizer": "trained",
            "tokens_per_run": 102_400, "steps": 200, "seeds": list(range(seeds)), "recipe": {"layers": 4, "width": 128},
            "averaged_checkpoints": 0, "max_overlap": 0.15, "ngram": 8, "text": "We trained <one> model per corpus.",
        },
        "runs": runs,
        "sets": [
            row | {"examples": 70, "excluded": {"filter": 7, "<shuffled>": 4}, "excluded_in_all": 10, "used": 60}
            for row in SETS
        ],
        "measures": [
            {**vars(one.measure), "values": {name: one.values(name).tolist() for name in LOSSES}} for one in scores
        ],
        "comparisons": comparisons,
        "summary": summarize_pairs(comparisons),
    }  # fmt: skip
    return json.loads(json.dumps(content))  # type: ignore[no-any-return]


def test_the_page_has_verdicts_intervals_and_the_matrix() -> None:
    content = content_of(3)
    page = Page(render_comparison_page(content))
    assert [pair["verdict"] for pair in content["summary"]] == ["not distinguishable", "filter", "extract & all"]
    for pair in content["summary"]:
        assert pair["text"] in page.text
    row = next(row for row in content["comparisons"] if row["better"] == "filter")
    for part in (
        "9 models, 1,071,872 parameters and 102,400 training tokens each",
        "filter and <shuffled> filter is better filter and <shuffled>, 3 measures",
        "We trained <one> model per corpus.",
        f"{row['difference']:+.3g} {row['low']:+.3g} to {row['high']:+.3g}",
        "does not decide",
        "seeds would be needed",
        "if more than 15% of its 8-grams",
        "wikitext2 text 70 7 0 4 10 60",
        "my-corpus/extract & all 12,345 1,234,567 321 0123456789abcdef",
        "<shuffled> 2 4000000002 models/<shuffled>/seed-2",
        "layers 4",
    ):
        assert part in page.text, part
    cells = [mean_and_deviation(measure["values"]["filter"]) for measure in content["measures"][:2]]
    assert f"filter {cells[0]} {cells[1]} extract & all" in page.text
    # A chart of each unit for each pair, and the curves.
    assert len(page.all("figure")) == 3 * 2 + 1
    assert len(page.all("polygon")) == len(page.all("polyline")) == 3


def test_the_page_loads_nothing_and_is_reproducible() -> None:
    written = render_comparison_page(content_of(3))
    assert written == render_comparison_page(content_of(3))
    assert "default-src 'none'" in written
    assert not {tag for tag, _ in Page(written).tags} & {"img", "link", "iframe"}
    assert "<shuffled>" not in written
    assert 'style="' not in written


def test_a_single_seed_has_no_intervals() -> None:
    page = Page(render_comparison_page(content_of(1)))
    assert page.text.count("no interval") == 3 * (3 + 1)  # deciding measures, and the verdicts
    assert "±" not in page.text.partition("Every model on every text")[2].partition("Training")[0]
    assert "nan" not in page.text


def test_an_interval_chart_is_to_scale() -> None:
    rows = [Interval("loss", -0.5, -0.75, -0.25), Interval("one run", 0.5, None, None, "color-none")]
    figure = render_figure(interval_chart("Bits", "a minus b", rows, "bits"))
    page = Page(figure)
    low, high = (float((page.all("line")[-1][end] or "").rstrip("%")) for end in ("x1", "x2"))
    [zero] = [float((line["x1"] or "").rstrip("%")) for line in page.all("line") if line.get("class") == "floor"]
    first, second = page.numbers("circle", "cx")
    assert first == pytest.approx((low + high) / 2, abs=0.01)
    assert zero - first == pytest.approx(second - zero, abs=0.02)
    assert zero - low == pytest.approx(1.5 * (zero - first), abs=0.02)
    assert all(
        0 <= x <= 100 for tag, name in (("line", "x1"), ("line", "x2"), ("text", "x")) for x in page.numbers(tag, name)
    )
    for part in ("loss", "-0.5 (-0.75 to -0.25)", "one run", "0.5"):
        assert part in page.text


def test_a_band_surrounds_its_curve() -> None:
    series = [Series("s", [(0, 2), (10, 1)], band=[(0, 1, 3), (10, 0.5, 2)])]
    page = Page(render_figure(line_chart("t", "c", series, Axis("step"), Axis())))
    [area], [curve] = (
        [[tuple(map(float, point.split(","))) for point in (one["points"] or "").split()] for one in page.all(tag)]
        for tag in ("polygon", "polyline")
    )
    assert [x for x, _ in area] == [0, 100, 100, 0]
    assert area[0][1] < curve[0][1] < area[3][1]
    assert area[0][1] >= 0


@pytest.mark.parametrize("width", [1600, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_in_a_browser(browser: BrowserPage, tmp_path: Path, width: int, scheme: str) -> None:
    path = tmp_path / "compare.html"
    path.write_text(render_comparison_page(content_of(3)), encoding="utf-8")
    open_page(browser, path, width, 900, scheme)
    assert browser.evaluate(CUT_OFF) == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(OUTSIDE_OF_CHARTS) == []
