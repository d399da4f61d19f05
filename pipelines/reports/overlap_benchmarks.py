"""The section of the overlap page for one benchmark: its examples by overlap, their scores, its longest passages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.reports.overlap_html import Cell, link, note, row, running_text, table
from pipelines.reports.overlap_plots import examples_plot
from pipelines.reports.overlap_words import percent, split_in_words, times
from pipelines.reports.tokenizer_plots import escaped

_PASSAGES_IN_SIGHT = 5
_START_LINES, _START_CHARACTERS, _BEFORE_LINES = 5, 420, 2
_LINK_CHARACTERS = 90
_PARTS = (("All", "all"), ("Clean", "clean"), ("Overlapping", "overlapping"), ("Not tested", "not_tested"))


def benchmark_section(benchmark: Mapping[str, Any], number: int, n: int) -> str:
    """Return the section of a benchmark as `report.json` has it."""
    parts = [
        f'<section id="benchmark-{number}"><h2>{escaped(benchmark["name"])} '
        f'<span class="split">{escaped(split_in_words(benchmark))}</span></h2>',
        _shares(benchmark, n),
        _examples(benchmark, n),
        _scores(benchmark["scores"], n),
        _passages(benchmark["passages"], n),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _shares(benchmark: Mapping[str, Any], n: int) -> str:
    sentences = [
        f'<strong class="share">{percent(benchmark["percent_positions"])}%</strong> of its '
        f"{times(benchmark['ngrams'], f'{n}-gram')} are in the corpus ({benchmark['overlapping']:,}); of the distinct "
        f"ones {percent(benchmark['percent_distinct'])}%."
    ]
    own, paper = benchmark["own_train"], benchmark["paper"]
    if own is not None:
        sentences.append(
            f"In its own split “{escaped(own['split'])}” are {percent(own['percent_positions'])}% "
            f"({own['overlapping']:,}); of the distinct ones {percent(own['percent_distinct'])}%."
        )
    if paper is not None:
        sentences.append(
            f"The paper has {percent(paper['webtext'])}% of {escaped(paper['name'])} in WebText and "
            f"{percent(paper['own_train'])}% in its own training split."
        )
    return f"<p>{' '.join(sentences)}</p>"


def _examples(benchmark: Mapping[str, Any], n: int) -> str:
    judged = benchmark["examples"] - benchmark["too_short"]
    none = benchmark["histogram"][0]
    short = benchmark["too_short"]
    share = f" ({100 * none / judged:.1f}%)" if judged else ""
    untested = (
        f" {times(short, 'more example')} {'is' if short == 1 else 'are'} too short to test: nothing is known of "
        f"{'it' if short == 1 else 'them'}."
        if short
        else ""
    )
    text = f"{none:,} of {times(judged, 'example')}{share} share no {n}-gram with the corpus.{untested}"
    return f"<h3>Examples by overlap</h3><p>{text}</p>{examples_plot(benchmark['histogram'], n)}"


def _scores(scores: Sequence[Mapping[str, Any]], n: int) -> str:
    if not scores:
        return ""
    rows = [row(_metric(each), _score_cells(each)) for each in scores]
    about = (
        f"The mean over all examples, those without any {n}-gram in the corpus (clean), those with one (overlapping), "
        "and those too short to test; below each, how many they are. Where clean and all are close, the overlap does "
        "not carry the result, as the paper finds for LAMBADA."
    )
    heads = ["Metric", *(title for title, _ in _PARTS), "Clean − all"]
    return f"<h3>Scores</h3>{table(heads, rows, 'Scores')}{note(about)}"


def _metric(score: Mapping[str, Any]) -> str:
    missing = score.get("not_scored", 0)
    return escaped(score["metric"]) + (f"<small>{missing:,} without a score</small>" if missing else "")


def _score_cells(score: Mapping[str, Any]) -> list[Cell]:
    cells = [Cell(f"{_mean(score[key]['mean'])}<small>{score[key]['examples']:,}</small>") for _, key in _PARTS]
    clean, all_of_them = score["clean"]["mean"], score["all"]["mean"]
    known = clean is not None and all_of_them is not None
    return [*cells, Cell(f"{clean - all_of_them:+.4g}" if known else "–")]


def _mean(mean: float | None) -> str:
    return "–" if mean is None else f"{mean:,.4g}"


def _passages(passages: Sequence[Mapping[str, Any]], n: int) -> str:
    if not passages:
        return note(f"Not one of its {n}-grams is in the corpus.")
    shown, rest = passages[:_PASSAGES_IN_SIGHT], passages[_PASSAGES_IN_SIGHT:]
    more = (
        f'<details class="more"><summary>{times(len(rest), "more passage")}</summary>'
        f'<ol class="passages" start="{len(shown) + 1}">{"".join(map(_passage, rest))}</ol></details>'
        if rest
        else ""
    )
    listed = "".join(map(_passage, shown))
    return f'<h3>Longest passages in the corpus</h3><ol class="passages">{listed}</ol>{more}'


def _passage(passage: Mapping[str, Any]) -> str:
    sources = ", ".join(link(source, _LINK_CHARACTERS) for source in passage["sources"])
    held = f" · in {sources}" if sources else ""
    return (
        f'<li>{_quote(passage)}<p class="source"><b>{times(passage["words"], "word")}</b> · '
        f"{escaped(passage['place'])} · example {passage['example']:,}{held}</p></li>"
    )


def _quote(passage: Mapping[str, Any]) -> str:
    before, text, after = (str(passage[key]) for key in ("before", "text", "after"))
    whole = f"{running_text(before)}<mark>{running_text(text)}</mark>{running_text(after)}"
    start = _start(text)
    if start == text and before.count("\n") + after.count("\n") <= 2 * _BEFORE_LINES:
        return f'<blockquote dir="auto">{whole}</blockquote>'
    near = "\n".join(before.split("\n")[-_BEFORE_LINES:])
    return (
        f'<blockquote dir="auto" class="start">{running_text(near)}<mark>{running_text(start)}</mark>'
        f'{" …" if start != text else ""}</blockquote><details class="whole"><summary>The whole passage'
        f'</summary><blockquote dir="auto">{whole}</blockquote></details>'
    )


def _start(text: str) -> str:
    """Return the first lines of a text, and no more of them than a reader takes in at once."""
    start = "\n".join(text.split("\n")[:_START_LINES])
    if len(start) <= _START_CHARACTERS:
        return start
    return start[:_START_CHARACTERS].rpartition(" ")[0] or start[:_START_CHARACTERS]
