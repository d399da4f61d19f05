"""The report of a tokenizer as one page of HTML, rendered from `report.json` and `timing.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.algorithms.bpe.suspicious_tokens import shortened_runs
from pipelines.format import format_bytes, format_count, format_duration
from pipelines.reports.charts import Axis, Bars, Chart, Series, bar_chart, histogram, line_chart
from pipelines.reports.render import render

_LONGEST_DRAWN = 24
_TOKEN_CHARACTERS = 90
_BY_SIZE = "bytes_per_token_by_entries"
# The key of the curve, title, caption, title of the x axis, y axis.
_LINE_CHARTS = (
    (
        _BY_SIZE,
        "Bytes per token by vocabulary size",
        "With only the first entries of this vocabulary, at the merges that were checked, and with all of them.",
        "entries",
        Axis("bytes per token"),
    ),
    (
        "frequency_by_rank",
        "Frequency by rank",
        "How often entries occur in the corpus, the most frequent first.",
        "rank",
        Axis("occurrences", is_log=True),
    ),
    (
        "share_of_tokens",
        "Share of all tokens",
        "The share of the corpus that the most frequent entries cover.",
        "most frequent entries",
        Axis("share", is_percent=True),
    ),
    (
        "count_by_step",
        "Count at each merge",
        "How often the pair occurred when it was merged; the end shows roughly what further entries would gain.",
        "merge",
        Axis("occurrences", is_log=True),
    ),
)

Report = Mapping[str, Any]


def render_tokenizer_report(report: Report) -> str:
    """Return the page of a report that `make_report_card` computed, with the figures of its run in `run`."""
    continued_share = report["corpus"]["continued_words"]
    return render(
        "tokenizer.html",
        report=report,
        single_token_share=None if continued_share is None else 1 - continued_share,
        charts=_charts(report),
        run=describe_run(report["run"]),
        shorten=_shorten_token,
    )


def describe_run(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of a run as names and texts: `_bytes` are sizes, `_seconds` and `seconds` durations."""
    figures: list[tuple[str, str]] = []
    for key, value in run.items():
        name = key.removesuffix("_bytes").removesuffix("_seconds").replace("_", " ")
        if isinstance(value, Mapping):
            figures += [(phase, format_duration(seconds)) for phase, seconds in value.items()]
        elif key.endswith("bytes"):
            figures.append((name, format_bytes(value)))
        elif key.endswith("seconds"):
            figures.append((name, format_duration(value)))
        else:
            figures.append((name, format_count(value) if isinstance(value, int) else str(value)))
    return figures


def _shorten_token(token: str) -> str:
    text, half = shortened_runs(token), _TOKEN_CHARACTERS // 2
    return text if len(text) <= _TOKEN_CHARACTERS else f"{text[:half]} … {text[-half:]}"


def _charts(report: Report) -> list[Chart]:
    names = [("this tokenizer", "primary")]
    if report["reference"] is not None:
        names.append((report["reference"]["name"], "reference"))

    def series(key: str) -> list[Series]:
        curves = (report["curves"][key], report["curves"].get(f"reference_{key}", ()))
        has_dots = key == _BY_SIZE
        return [Series(name, curve, style, has_dots) for (name, style), curve in zip(names, curves, strict=False)]

    by_group = bar_chart(
        "Bytes per token by group",
        "Documents of the sample, groups with the most bytes first. Longer bars mean fewer tokens.",
        [Series(name, [], style) for name, style in names],
        [
            Bars(row["group"], (row["bytes_per_token"], row["reference_bytes_per_token"])[: len(names)])
            for row in report["groups"]
        ],
    )
    lengths = histogram(
        "Entry length",
        f"Entries by length in bytes; the last bar includes all of {_LONGEST_DRAWN} bytes or more.",
        series=series("entries_by_bytes"),
        x_axis=Axis("bytes"),
        y_axis=Axis("entries"),
        max_value=_LONGEST_DRAWN,
    )
    lines = [
        line_chart(title, caption, series=series(key), x_axis=Axis(x_title, is_log=True), y_axis=y_axis)
        for key, title, caption, x_title, y_axis in _LINE_CHARTS
    ]
    return [by_group, *lines, lengths]
