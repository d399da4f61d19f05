"""The columns of the overlap report, each defined once: `report.json`, the page and the terminal follow from COLUMNS.

To add a column, add an entry: its `value` is computed from the counts of a benchmark and stored under its `key`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.algorithms.ngrams.overlap_counts import ExampleCounts, percent

Row = Mapping[str, Any]

_CORPUS, _OWN_TRAIN, _EXAMPLES = "In this corpus", "In its own training split", "Examples"


class Column(NamedTuple):
    """A figure of each benchmark.

    `key` is its key in a benchmark of `report.json`, with a dot before the key of a nested object. `title` is its
    heading on the page, below that of its `group`; `terminal` its heading in the terminal, which has room for few
    columns. `{n}` stands for the words of an n-gram. Columns without a `value` are stored by other parts of the
    report.
    """

    key: str
    title: str
    value: Callable[[ExampleCounts], float] | None = None
    group: str = ""
    terminal: str | None = None
    is_percent: bool = False

    @property
    def is_of_paper(self) -> bool:
        """Whether the figure is the paper's."""
        return self.key.startswith("paper.")

    def read(self, benchmark: Row) -> Any:
        """Return the figure of a benchmark of `report.json`, None if it has none (or is older than the column)."""
        outer, _, inner = self.key.partition(".")
        value = benchmark.get(outer)
        return value.get(inner) if inner and value is not None else value


COLUMNS = (
    # With a hyphen at which no line ends.
    Column("ngrams", "{n}‑grams", lambda counts: int(counts.ngrams.sum()), terminal="{n}-grams"),
    Column(
        "percent_positions",
        "% of positions",
        lambda counts: percent(int(counts.overlaps.sum()), int(counts.ngrams.sum())),
        group=_CORPUS,
        terminal="% pos",
        is_percent=True,
    ),
    Column(
        "percent_distinct",
        "% of distinct",
        lambda counts: percent(counts.distinct_found, counts.distinct),
        group=_CORPUS,
        terminal="% dist",
        is_percent=True,
    ),
    Column("paper.webtext", "paper’s % in WebText", group=_CORPUS, is_percent=True),
    Column("own_train.percent_positions", "% of positions", group=_OWN_TRAIN, terminal="% own", is_percent=True),
    Column("own_train.percent_distinct", "% of distinct", group=_OWN_TRAIN, is_percent=True),
    Column("paper.own_train", "paper’s %", group=_OWN_TRAIN, is_percent=True),
    Column("examples", "all", lambda counts: len(counts.ngrams), group=_EXAMPLES, terminal="examples"),
    Column("examples_any", "any overlap", lambda counts: counts.examples_with(0), group=_EXAMPLES, terminal="any"),
    Column("examples_15", "≥15%", lambda counts: counts.examples_with(15), group=_EXAMPLES, terminal=">=15%"),
    Column("examples_50", "≥50%", lambda counts: counts.examples_with(50), group=_EXAMPLES, terminal=">=50%"),
    Column("too_short", "too short", lambda counts: counts.too_short, group=_EXAMPLES, terminal="short"),
)


def column_values(counts: ExampleCounts) -> dict[str, float]:
    """Return the figures of a benchmark that are computed from its counts, by key."""
    return {column.key: column.value(counts) for column in COLUMNS if column.value is not None}


def shown_columns(benchmarks: Sequence[Row]) -> list[Column]:
    """Return the columns of which any of the benchmarks has a figure."""
    return [column for column in COLUMNS if any(column.read(benchmark) is not None for benchmark in benchmarks)]
