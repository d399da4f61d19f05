"""The overlap report as one page of HTML, rendered from `report.json` alone. Paper, section 4."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.reports import overlap_text
from pipelines.reports.charts import Axis, Chart, Series, line_chart, percent_histogram
from pipelines.reports.overlap_text import Report, shown_columns
from pipelines.reports.render import render

# The columns "≥15%" and "≥50%" of the table.
_THRESHOLDS = (15, 50)
# The chart of samples ends at the first of these percentages that nearly all texts do not exceed.
_AXIS_ENDS = (5, 10, 20, 50, 100)
_NEARLY_ALL = 0.995


def render_overlap_report(report: Report) -> str:
    """Return the page of a `report.json`."""
    benchmarks, samples, settings = report["benchmarks"], report["samples"], report["sensitivity"] or []
    columns = shown_columns(benchmarks)
    return render(
        "overlap.html",
        report=report,
        n=report["n"],
        text=overlap_text,
        columns=columns,
        column_groups=[(name, len([*group])) for name, group in itertools.groupby(column.group for column in columns)],
        mean=overlap_text.mean_of_tests(benchmarks),
        histograms=[examples_chart(benchmark["histogram"], report["n"]) for benchmark in benchmarks],
        samples_chart=samples_chart(samples) if samples else None,
        has_own_setting=any(overlap_text.is_this_report(setting, report) for setting in settings),
        setting_groups=[("", 4), *((f"{overlap_text.label(row)}, % of", 2) for row in settings[0]["benchmarks"])]
        if settings
        else [],
    )


def examples_chart(histogram: Sequence[int], n: int) -> Chart:
    """Draw examples by the share of their n-grams in the corpus; those without any, the first bin, are not drawn."""
    return percent_histogram(
        "Examples by overlap",
        f"Examples with any overlap, by the share of their {n}-grams that is in the corpus.",
        histogram[1:],
        noun="example",
        x_title="share of an example’s n-grams; examples above the bars",
        thresholds=_THRESHOLDS,
    )


def samples_chart(samples: Mapping[str, Any]) -> Chart:
    """Draw the cumulative distribution of overlap of the model's samples and of held-out text. Paper, figure 5."""
    distributions = overlap_text.distributions(samples)
    curves = [distribution["cumulative"] for _, distribution in distributions if distribution["cumulative"]]
    end = next((end for end in _AXIS_ENDS if all(curve[end] >= _NEARLY_ALL for curve in curves)), 100)
    series = [
        Series(name, [(step / 100, share) for step, share in enumerate(distribution["cumulative"][: end + 1])], style)
        for (name, distribution), style in zip(distributions, ("primary", "reference"), strict=False)
    ]
    axis_end = "" if end == 100 else f" The axis ends at {end}%: hardly any text overlaps more."
    return line_chart(
        "Texts by overlap, cumulative",
        f"The share of the texts that overlap by at most the share on the horizontal axis.{axis_end}",
        series=series,
        x_axis=Axis("at most this share of a text’s n-grams is in the corpus", is_percent=True),
        y_axis=Axis("share of the texts", is_percent=True),
    )
