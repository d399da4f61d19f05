"""The report of a filter as one page of HTML: the values of all documents by rule, and documents near its bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.algorithms.quality.lines import LINE_STATISTICS
from pipelines.algorithms.quality.statistics import STATISTICS
from pipelines.reports.charts import Axis, Chart, Series, line_chart
from pipelines.reports.render import render


def render_filter_report(report: Mapping[str, Any]) -> str:
    """Return the page of `report.json`."""
    meanings = {**STATISTICS, **LINE_STATISTICS}
    rules = []
    for rule in report["rules"]:
        bound, bins = float(rule["max"] if rule["min"] is None else rule["min"]), rule["bins"]
        more = f"; {bins[-1]:,} documents have more" if bins[-1] else ""
        caption, markers = f"Documents by {rule['statistic']}{more}.", [(f"threshold {bound:g}", bound)]
        meaning = meanings.get(rule["statistic"], "a function of the user")
        chart = _distribution(rule["rule"], caption, bins[:-1], 2 * bound or 1, markers)
        rules.append({**rule, "bound": bound, "meaning": meaning, "chart": chart})
    qualities = report["qualities"]
    counts = [
        ("Outcome", "Documents", report["reasons"]),
        ("Language of kept documents", "Documents", report["languages"]),
        ("Personal data", "Placeholders", report.get("redactions", {})),
    ]
    return render(
        "filter.html",
        rules=rules,
        documents=sum(report["reasons"].values()),
        counts=[table for table in counts if table[2]],
        quality=_distribution("quality", "Documents by quality.", qualities, 1) if any(qualities) else None,
    )


def _distribution(
    title: str, caption: str, bins: Sequence[int], end: float, markers: Sequence[tuple[str, float]] = ()
) -> Chart:
    """Draw counts in bins of equal width from 0 to `end`."""
    width = end / len(bins)
    points = [((number + 0.5) * width, count) for number, count in enumerate(bins)]
    return line_chart(title, caption, [Series("documents", points)], Axis(), Axis(), markers=markers)
