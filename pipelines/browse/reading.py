"""A text as it is read: paragraphs, code and tables, with the passages that are in benchmarks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pipelines.algorithms.ngrams.hashing import word_spans
from pipelines.algorithms.ngrams.words import Normalization
from pipelines.corpus.tables import CorpusTables, parquet_files

_BETWEEN_CELLS = {True: re.compile(r"(?<!\\)\|"), False: re.compile("\t")}
_TABLE_RULE = re.compile(r"[\s|:=+-]+")

Span = tuple[int, int]
# Some text, and whether it is marked.
Part = tuple[str, bool]


def set_text(text: str, marks: Sequence[Span]) -> Iterator[tuple[str, list[list[list[Part]]]]]:
    """Yield the blocks of a text: `text`, `code` or `table`, and the rows of cells of a table, else a single cell."""
    lines, start = text.split("\n"), 0
    for kind, block in itertools.groupby(zip(_kinds(lines), lines, strict=True), key=lambda pair: pair[0]):
        listed = [line for _, line in block]
        spans = [[(start, start + sum(map(len, listed)) + len(listed) - 1)]]
        if kind == "table":
            starts = itertools.accumulate((len(line) + 1 for line in listed), initial=start)
            rows = zip(listed, starts, strict=False)
            spans = [_cells(line, first) for line, first in rows if not _TABLE_RULE.fullmatch(line)]
        yield kind, [[_parts(text, *span, marks) for span in row] for row in spans]
        start += sum(map(len, listed)) + len(listed)


def find_benchmarks(tables: CorpusTables, text: str) -> tuple[list[Span], list[dict[str, Any]]]:
    """Return the passages of a text whose n-grams are in benchmarks, by the overlap report, and these benchmarks."""
    report = tables.stages.get("overlap-report")
    if report is None:
        return [], []
    config = report.manifest.identity.config
    spans = word_spans(text, Normalization(config["apostrophes"], config["letters"], config["lines"]))
    words = [re.sub("['\u2019]", "", text[start:end].lower()) for start, end in spans]
    ngrams = [" ".join(words[first : first + config["ngram"]]) for first in range(len(words) - config["ngram"] + 1)]
    benchmarks = tables.rows(
        "SELECT benchmark, split, min(place) AS place, list(DISTINCT ngram) AS ngrams "
        f"FROM {parquet_files([report.file('hits.parquet').path])} WHERE ngram IN (SELECT unnest(?::VARCHAR[])) "
        "GROUP BY ALL ORDER BY len(ngrams) DESC, benchmark, split",
        [ngrams],
    )
    found = {ngram for benchmark in benchmarks for ngram in benchmark["ngrams"]}
    marks: list[Span] = []
    for first, ngram in enumerate(ngrams):
        if ngram in found:
            start, end = spans[first][0], spans[first + config["ngram"] - 1][1]
            if marks and start <= marks[-1][1]:
                start, _ = marks.pop()
            marks.append((start, end))
    return marks, benchmarks


def _kinds(lines: Sequence[str]) -> Iterator[str]:
    kind, is_fenced = "text", False
    for line in lines:
        is_fence = line.startswith("```")
        if is_fenced or is_fence or line.startswith(("    ", "\t")):
            kind, is_fenced = "code", is_fenced != is_fence
        elif line.startswith(("|", "+-", "+=")) or "\t" in line:
            kind = "table"
        elif line.strip() or kind == "table":  # empty lines are part of code
            kind = "text"
        yield kind


def _cells(line: str, start: int) -> list[Span]:
    is_markdown = line.startswith("|")
    cells = []
    for cell in _BETWEEN_CELLS[is_markdown].split(line):
        cells.append((start, start + len(cell)))
        start += len(cell) + 1
    return cells[1 : -1 if line.rstrip().endswith("|") else None] if is_markdown else cells


def _parts(text: str, start: int, end: int, marks: Sequence[Span]) -> list[Part]:
    parts: list[Part] = []
    for first, last in marks:
        if first < end and last > start:
            first, last = max(first, start), min(last, end)
            parts += [(text[start:first], False), (text[first:last], True)]
            start = last
    return [part for part in [*parts, (text[start:end], False)] if part[0]]
