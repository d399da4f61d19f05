"""The page of a comparison of corpora, `compare.html`, rendered from `compare.json` alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipelines.reports.charts import COLORS, Axis, Chart, Interval, Series, interval_chart, line_chart
from pipelines.reports.render import render

Row = Mapping[str, Any]

_UNDECIDED = "color-none"


def render_comparison_page(content: Mapping[str, Any]) -> str:
    """Return the page of a `compare.json`; the same content gives the same bytes."""
    names = [corpus["name"] for corpus in content["corpora"]]
    styles = {name: f"color-{number % COLORS}" for number, name in enumerate(names)}
    measures = {measure["name"]: measure for measure in content["measures"]}
    pairs = []
    for pair in content["summary"]:
        rows = [row for row in content["comparisons"] if (row["a"], row["b"]) == (pair["a"], pair["b"])]
        pairs.append((pair, rows, _interval_charts(pair["a"], pair["b"], rows, measures, styles)))
    return render(
        "comparison.html",
        **{name: content[name] for name in ("corpora", "protocol", "runs", "sets")},
        names=names,
        pairs=pairs,
        measures=measures,
        bits=[measure for measure in content["measures"] if measure["metric"] == "bits_per_byte"],
        owners={row["name"]: row["corpus"] for row in content["sets"]},
        mean_and_deviation=mean_and_deviation,
        curves=_curves(content["runs"], styles),
    )


def mean_and_deviation(values: Sequence[float]) -> str:
    """Return the mean of the runs, with their standard deviation if there are several: `1.234 ± 0.005`."""
    mean = f"{statistics.fmean(values):.4g}"
    return f"{mean} ± {statistics.stdev(values):.2g}" if len(values) > 1 else mean


def _interval_charts(
    a: str, b: str, rows: Iterable[Row], measures: Mapping[str, Row], styles: Mapping[str, str]
) -> list[Chart]:
    """Return a chart of the differences for each unit, since others cannot share an axis."""
    groups: dict[tuple[str, bool], list[Interval]] = {}
    for row in rows:
        measure, style = measures[row["measure"]], styles.get(row["better"], _UNDECIDED)
        interval = Interval(row["measure"], row["difference"], row["low"], row["high"], style)
        groups.setdefault((measure["unit"], measure["higher_is_better"]), []).append(interval)
    legend = [Series(f"{name} is better", (), styles[name]) for name in (a, b)]
    legend.append(Series("not distinguishable, or does not decide", (), _UNDECIDED))
    caption = "Differences with 95% intervals over runs; {} of 0, {} is better."
    return [
        interval_chart(unit.capitalize(), caption.format("right" if higher else "left", a), intervals, unit, legend)
        for (unit, higher), intervals in groups.items()
    ]


def _curves(runs: Iterable[Row], styles: Mapping[str, str]) -> Chart:
    """Draw the mean over the runs of each corpus, with the band from the lowest to the highest."""
    values: dict[str, dict[float, list[float]]] = {name: {} for name in styles}
    for run in runs:
        for step, value in run["curve"]:
            values[run["corpus"]].setdefault(step, []).append(value)
    series = []
    for name, steps in values.items():
        points = [(step, statistics.fmean(at)) for step, at in sorted(steps.items())]
        band = [(step, min(at), max(at)) for step, at in sorted(steps.items())]
        series.append(Series(name, points, styles[name], band=band))
    caption = (
        "Bits per byte of the held-out documents of the model's own corpus, which differ: compare the shapes, not the "
        "heights. Lines are means over the runs, bands reach from the lowest to the highest run."
    )
    return line_chart("Held-out loss", caption, series, Axis("step"), Axis(from_zero=False))
