"""The overlap report as one page of HTML: no network, nothing beside it, light and dark."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.algorithms.overlap import HISTOGRAM_STEPS, Passage
from pipelines.reports.overlap_style import SCRIPT, STYLE

_COLUMNS = (
    ("Benchmark", "name"),
    ("N-grams", "ngrams"),
    ("Overlapping", "overlapping"),
    ("% of positions", "percent_positions"),
    ("% of distinct", "percent_distinct"),
    ("Examples", "examples"),
    ("Any overlap", "examples_any"),
    ("≥ 15%", "examples_15"),
    ("≥ 50%", "examples_50"),
    ("Too short", "too_short"),
)
_CHART_WIDTH, _CHART_HEIGHT, _CHART_MARGIN = 720, 150, 26


@dataclasses.dataclass(frozen=True)
class BenchmarkView:
    """What the page shows of one benchmark: its row of `report.json`, its examples by share, its longest passages."""

    row: Mapping[str, Any]
    histogram: tuple[int, ...]
    passages: tuple[Passage, ...]


def render_overlap(report: Mapping[str, Any], views: Sequence[BenchmarkView]) -> str:
    """Return the page for a `report.json` and the views of its benchmarks; every text in it is escaped."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">",
        f"<title>Overlap report</title><style>{STYLE}</style></head><body><main>",
        _heading(report),
        _table(views),
        *(_section(report, view, number) for number, view in enumerate(views)),
        f"</main><script>{SCRIPT}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _heading(report: Mapping[str, Any]) -> str:
    n = report["n"]
    facts = [
        ("Corpus", f'<code title="{_escape(report["corpus"])}">{_escape(report["corpus"][:16])}</code>'),
        ("N-gram", f"{n} words"),
        ("Words", _escape(report["normalisation"])),
        ("Method", _method_in_words(report)),
    ]
    listed = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    return (
        "<h1>Overlap report</h1>"
        f'<p class="lead">How many of each benchmark’s {n}-grams, runs of {n} words, the corpus holds. An overlap is '
        "no proof of a leak: quotations, names and stock phrases are in many texts. Read the passages below before "
        f"judging.</p><dl>{listed}</dl>"
    )


def _method_in_words(report: Mapping[str, Any]) -> str:
    if report["method"] == "exact":
        return "exact: the whole corpus was read, there are no false positives"
    return (
        f"Bloom filter: an {report['n']}-gram that the corpus does not hold is reported with a probability of "
        f"{report['error_bound']:.2g}"
    )


def _table(views: Sequence[BenchmarkView]) -> str:
    heads = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{_escape(title)}</button></th>'
        for title, _ in _COLUMNS
    )
    rows = "".join(_table_row(view.row, number) for number, view in enumerate(views))
    return (
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        '<p class="note">Positions count an n-gram each time it stands in the benchmark, distinct ones once. “Any '
        "overlap” are the examples with at least one n-gram in the corpus; “≥ 15%” and “≥ 50%” those with that share "
        "of their n-grams in it. “Too short” are examples with fewer words than an n-gram: they cannot overlap, and "
        "are among the examples all the same.</p>"
    )


def _table_row(row: Mapping[str, Any], number: int) -> str:
    name = f'<th scope="row"><a href="#benchmark-{number}">{_escape(_label(row))}</a></th>'
    cells = "".join(_cell(row[key], key.startswith("percent")) for _, key in _COLUMNS[1:])
    return f"<tr>{name}{cells}</tr>"


def _cell(value: float, is_percent: bool) -> str:
    shown = f"{value:.2f}" if is_percent else f"{value:,}"
    bar = f' style="--share:{value:.2f}%"' if is_percent else ""
    return f'<td data-value="{value}"{bar}>{shown}</td>'


def _section(report: Mapping[str, Any], view: BenchmarkView, number: int) -> str:
    row = view.row
    n = report["n"]
    parts = [
        f'<section id="benchmark-{number}"><h2>{_escape(_label(row))}</h2>',
        f'<p><strong class="share">{row["percent_positions"]:.2f}%</strong> of its {row["ngrams"]:,} {n}-grams are in '
        f"the corpus ({row['overlapping']:,}); of the distinct ones {row['percent_distinct']:.2f}%.</p>",
        _distribution(view, n),
        _passages(view, n),
        "</section>",
    ]
    return "\n".join(parts)


def _distribution(view: BenchmarkView, n: int) -> str:
    row = view.row
    judged = row["examples"] - row["too_short"]
    none = view.histogram[0]
    share = f" ({100 * none / judged:.1f}%)" if judged else ""
    short = f"; {row['too_short']:,} more are too short to have one" if row["too_short"] else ""
    text = f"{none:,} of {judged:,} examples{share} share no {n}-gram with the corpus{short}."
    return f"<h3>Examples by overlap</h3><p>{text}</p>" + (
        _chart(view.histogram[1:]) if any(view.histogram[1:]) else ""
    )


def _chart(counts: Sequence[int]) -> str:
    """Draw the examples that overlap as bars, one for each step of the share."""
    width = _CHART_WIDTH / HISTOGRAM_STEPS
    floor = _CHART_HEIGHT - _CHART_MARGIN
    room = floor - _CHART_MARGIN
    top = max(counts)
    drawn = []
    for step, count in enumerate(counts):
        if not count:
            continue
        height = max(1.5, room * count / top)
        left = step * width
        low, high = 100 * step // HISTOGRAM_STEPS, 100 * (step + 1) // HISTOGRAM_STEPS
        drawn.append(
            f'<g><title>{count:,} examples have over {low}% and up to {high}%</title><rect x="{left + 2:.1f}" '
            f'y="{floor - height:.1f}" width="{width - 4:.1f}" height="{height:.1f}" rx="2"/><text '
            f'x="{left + width / 2:.1f}" y="{floor - height - 5:.1f}">{count:,}</text></g>'
        )
    ticks = "".join(
        f'<text class="tick" x="{_CHART_WIDTH * percent / 100:.0f}" y="{_CHART_HEIGHT - 8}" '
        f'style="text-anchor:{anchor}">{percent}%</text>'
        for percent, anchor in ((0, "start"), (25, "middle"), (50, "middle"), (75, "middle"), (100, "end"))
    )
    return (
        f'<figure><svg viewBox="0 0 {_CHART_WIDTH} {_CHART_HEIGHT}" role="img" aria-label="Examples by overlap">'
        f'<line x1="0" y1="{floor}" x2="{_CHART_WIDTH}" y2="{floor}"/>{"".join(drawn)}{ticks}</svg>'
        "<figcaption>The examples with any overlap, by the share of their n-grams that is in the corpus.</figcaption>"
        "</figure>"
    )


def _passages(view: BenchmarkView, n: int) -> str:
    if not view.passages:
        return f'<p class="note">Not one of its {n}-grams is in the corpus.</p>'
    items = "".join(_passage(passage) for passage in view.passages)
    return f"<h3>Longest passages in the corpus</h3><ol>{items}</ol>"


def _passage(passage: Passage) -> str:
    quoted = f"{_escape(passage.before)}<mark>{_escape(passage.text)}</mark>{_escape(passage.after)}"
    sources = ", ".join(_source(id, url) for id, url in passage.sources)
    held = f" · in {sources}" if sources else ""
    return (
        f"<li><blockquote>{quoted}</blockquote>"
        f'<p class="source"><span>{passage.words:,} words</span> · {_escape(passage.place)}{held}</p></li>'
    )


def _source(id: str, url: str | None) -> str:
    if url is None or not url.startswith(("http://", "https://")):
        return f"<code>{_escape(id)}</code>"
    return f'<a href="{_escape(url)}" title="{_escape(id)}" rel="noreferrer noopener">{_escape(url)}</a>'


def _label(row: Mapping[str, Any]) -> str:
    return str(row["name"]) if row["split"] is None else f"{row['name']}/{row['split']}"


def _escape(text: str) -> str:
    return html.escape(text, quote=True)
