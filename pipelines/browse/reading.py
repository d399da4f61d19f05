"""A text as it is read: paragraphs, code and tables, with the passages that are in benchmarks."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pipelines.algorithms.ngrams.hashing import word_spans
from pipelines.algorithms.ngrams.words import Normalization
from pipelines.corpus.tables import CorpusTables, parquet_files

# Of a table in Markdown or not; a backslash escapes a bar.
_CELLS = {True: re.compile(r"(?:\\.|[^|])+"), False: re.compile(r"[^\t]+")}
_TABLE_RULE = re.compile(r"[\s|:=+-]+")

Span = tuple[int, int]
# Some text, and whether it is marked.
Part = tuple[str, bool]


def set_text(text: str, marks: Sequence[Span]) -> Iterator[tuple[str, list[list[list[Part]]]]]:
    """Yield the blocks of a text: `text`, `code` or `table`, and its rows of cells; a line is a cell of its own."""
    lines = text.split("\n")
    starts = itertools.accumulate((len(line) + 1 for line in lines), initial=0)
    rows = ((kind, _cells(kind, line, start)) for kind, line, start in zip(_kinds(lines), lines, starts, strict=False))
    for kind, block in itertools.groupby(rows, key=lambda row: row[0]):
        yield kind, [[mark_parts(text, marks, *cell) for cell in cells] for _, cells in block if cells]


def mark_parts(text: str, marks: Sequence[Span], start: int = 0, end: int = sys.maxsize) -> list[Part]:
    """Return the characters of a text from `start` to `end` as parts; marks are in order, and may overlap."""
    parts: list[Part] = []
    for first, last in marks:
        if first < end and last > start:
            first, last = max(first, start), min(last, end)
            parts += [(text[start:first], False), (text[first:last], True)]
            start = last
    return [part for part in [*parts, (text[start:end], False)] if part[0]]


def find_benchmarks(tables: CorpusTables, text: str) -> tuple[list[Span], list[dict[str, Any]]]:
    """Return the passages of a text whose n-grams are in benchmarks, by the overlap report, and these benchmarks."""
    report = tables.stages.get("overlap-report")
    if report is None:
        return [], []
    config, n = report.manifest.identity.config, report.manifest.identity.config["ngram"]
    spans = word_spans(text, Normalization(config["apostrophes"], config["letters"], config["lines"]))
    words = [re.sub("['\u2019]", "", text[start:end].lower()) for start, end in spans]
    ngrams = [" ".join(words[first : first + n]) for first in range(len(words) - n + 1)]
    benchmarks = tables.rows(
        "SELECT benchmark, split, min(place) AS place, list(DISTINCT ngram) AS ngrams "
        f"FROM {parquet_files([report.file('hits.parquet').path])} WHERE ngram IN (SELECT unnest(?::VARCHAR[])) "
        "GROUP BY ALL ORDER BY len(ngrams) DESC, benchmark, split",
        [ngrams],
    )
    found = {ngram for benchmark in benchmarks for ngram in benchmark["ngrams"]}
    is_found = [not found.isdisjoint(ngrams[max(0, word + 1 - n) : word + 1]) for word in range(len(words))]
    runs = [[*run] for is_marked, run in itertools.groupby(range(len(words)), is_found.__getitem__) if is_marked]
    return [(spans[run[0]][0], spans[run[-1]][1]) for run in runs], benchmarks


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


def _cells(kind: str, line: str, start: int) -> list[Span]:
    if kind != "table":
        return [(start, start + len(line) + 1)]
    cells = [] if _TABLE_RULE.fullmatch(line) else _CELLS[line.startswith("|")].finditer(line)
    return [(start + cell.start(), start + cell.end()) for cell in cells]
