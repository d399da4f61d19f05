"""The report of a filter as one page of HTML: the values of all documents by rule, and documents near its bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.algorithms.quality.lines import LINE_STATISTICS
from pipelines.algorithms.quality.statistics import STATISTICS
from pipelines.reports.charts import Axis, Chart, Mark, Series, line_chart
from pipelines.reports.overlap import document_text, is_web_url
from pipelines.reports.render import render


def render_filter_report(report: Mapping[str, Any]) -> str:
    """Return the page of `report.json`."""
    meanings = {**STATISTICS, **LINE_STATISTICS}
    shown = [
        {
            **rule,
            "bound": _bound(rule),
            "meaning": meanings.get(rule["statistic"], "a function of the user"),
            "chart": _distribution(rule),
        }
        for rule in report["rules"]
    ]
    return render(
        "filter.html",
        rules=shown,
        documents=sum(report["reasons"].values()),
        counts=[("Outcome", report["reasons"]), ("Language of what is kept", report["languages"])],
        quality=_qualities(report["qualities"]) if any(report["qualities"]) else None,
        is_web_url=is_web_url,
        document_text=document_text,
    )


def _qualities(bins: Sequence[int]) -> Chart:
    points = [((number + 0.5) / len(bins), count) for number, count in enumerate(bins)]
    return line_chart("quality", "Documents by quality.", [Series("documents", points)], Axis(), Axis())


def _bound(rule: Mapping[str, Any]) -> float:
    return float(rule["max"] if rule["min"] is None else rule["min"])


def _distribution(rule: Mapping[str, Any]) -> Chart:
    bound, bins = _bound(rule), rule["bins"]
    width = (2 * bound or 1) / (len(bins) - 1)
    points = [((number + 0.5) * width, count) for number, count in enumerate(bins[:-1])]
    more = f"; {bins[-1]:,} documents have more" if bins[-1] else ""
    caption = f"Documents by {rule['statistic']}{more}."
    markers = [Mark(f"threshold {bound:g}", bound)]
    return line_chart(rule["rule"], caption, [Series("documents", points)], Axis(), Axis(), markers=markers)
