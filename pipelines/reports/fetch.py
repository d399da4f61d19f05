"""The report of a fetch as one page of HTML: outcomes by status and over time, and the domains with the most drops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pipelines.reports.charts import Axis, Series, line_chart
from pipelines.reports.render import render

_BINS = 60
_HOURS_FROM = 180
_ARCHIVES = ("commoncrawl", "wayback")
_FILES = ("warc", "files")


def render_fetch_report(
    outcomes: Sequence[tuple[str, int, int]],
    minutes: Mapping[int, Mapping[str, int]],
    domains: Sequence[tuple[str, int, int, str]],
) -> str:
    """Return the page.

    `outcomes` are triples of outcome, last HTTP status (0: none) and count of links; the name of an archive, or of a
    source on disk, stands for its pages. `minutes` are counts of `ok` and `dropped` by the minute since 1970, `domains`
    those with the most drops: domain, links, drops, most frequent reason.
    """
    totals: Counter[str] = Counter()
    statuses: dict[str, list[tuple[int, int]]] = {}
    for name, status, count in outcomes:
        totals[name] += count
        statuses.setdefault(name, []).append((count, status))
    pages = [name for name in ("ok", *_ARCHIVES, *_FILES) if totals[name]]
    names = sorted(totals, key=lambda name: (name not in pages, -totals[name], name))
    return render(
        "fetch.html",
        names=names,
        pages=pages,
        totals=totals,
        statuses={name: sorted(listed, reverse=True) for name, listed in statuses.items()},
        links=totals.total(),
        kept=sum(totals[name] for name in pages),
        archived=sum(totals[name] for name in _ARCHIVES),
        times=_times(minutes),
        domains=domains,
    )


def _times(minutes: Mapping[int, Mapping[str, int]]) -> object:
    """Draw links per minute, in bins of whole minutes."""
    first, last = min(minutes, default=0), max(minutes, default=0)
    width = (last - first) // _BINS + 1
    binned: dict[int, Counter[str]] = {start: Counter() for start in range(first, last + 1, width)}
    for minute, counts in minutes.items():
        binned[first + (minute - first) // width * width].update(counts)
    unit, per_unit = ("hours", 60) if last - first >= _HOURS_FROM else ("minutes", 1)
    curves = [
        Series(label, [((start - first) / per_unit, counts[key] / width) for start, counts in binned.items()], style)
        for key, label, style in (("ok", "pages", "primary"), ("dropped", "dropped", "reference"))
    ]
    caption = "Links per minute by the time of their last request."
    return line_chart("Links over time", caption, curves, Axis(f"{unit} since the first request"), Axis())
