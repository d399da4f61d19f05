"""The report of a fetch as one page of HTML: outcomes by status and over time, and the domains with the most drops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pipelines.reports.charts import Axis, Chart, Series, line_chart
from pipelines.reports.render import render

_BINS = 60
_HOURS_FROM = 180
_ARCHIVES = ("commoncrawl", "wayback")


def render_fetch_report(
    outcomes: Sequence[tuple[str, int, int]],
    minutes: Mapping[str, Mapping[int, int]],
    domains: Sequence[tuple[str, int, int, str]],
) -> str:
    """Return the page.

    `outcomes` are triples of outcome, last HTTP status (0: none) and count of links; the name of an archive, or of a
    source on disk, stands for its pages. `minutes` are counts by the minute since 1970, of `ok` and of `dropped` links,
    `domains` those with the most drops: domain, links, drops, most frequent reason.
    """
    totals: Counter[str] = Counter()
    statuses: dict[str, list[tuple[int, int]]] = {}
    for name, status, count in outcomes:
        totals[name] += count
        statuses.setdefault(name, []).append((count, status))
    pages = [name for name in ("ok", *_ARCHIVES, "warc") if totals[name]]
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


def _times(minutes: Mapping[str, Mapping[int, int]]) -> Chart | None:
    """Draw links per minute, in bins of whole minutes; None if a single minute has all links."""
    every = [minute for counts in minutes.values() for minute in counts]
    first, last = min(every, default=0), max(every, default=0)
    if first == last:
        return None
    width = (last - first) // _BINS + 1
    unit, per_unit = ("hours", 60) if last - first >= _HOURS_FROM else ("minutes", 1)
    curves = []
    for key, label, style in (("ok", "pages", "primary"), ("dropped", "dropped", "reference")):
        binned = dict.fromkeys(range(first, last + 1, width), 0)
        for minute, count in minutes[key].items():
            binned[first + (minute - first) // width * width] += count
        points = [((start - first) / per_unit, count / width) for start, count in binned.items()]
        curves.append(Series(label, points, style))
    caption = "Links per minute by the time of their last request."
    return line_chart("Links over time", caption, curves, Axis(f"{unit} since the first request"), Axis())
