"""Documents by a filter: how many match, a page of them in some order, and their counts by the values of a column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipelines.algorithms.quality.redaction import SPAN_TYPE
from pipelines.corpus.statistics import GROUPS
from pipelines.corpus.tables import CorpusTables
from pipelines.engine.config import check_known
from pipelines.errors import UsageError
from pipelines.records.schemas import DOCUMENT_SCHEMA

UNKNOWN = "(unknown)"
# Filters by a value, and the value of a document.
_FACETS = {name: GROUPS[name] for name in ("language", "year")}
_FACETS |= {name: (name, name) for name in ("page_type", "license")}
_FACETS |= {name: GROUPS[name] for name in ("domain", "subreddit")}
# Filter -> the column that it needs, its condition, and the type of its value.
_FILTERS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    **{name: (column, f"{value} = ?", str) for name, (column, value) in _FACETS.items()},
    "domain": ("domain", "domain = ?", str.lower),
    "subreddit": ("subreddits", "list_contains(subreddits, ?)", str),
    "year": ("created_utc", f"{GROUPS['year'][1]} = ?", int),
    "words_min": ("words", "words >= ?", int),
    "words_max": ("words", "words <= ?", int),
    "score_min": ("score", "score >= ?", int),
    "score_max": ("score", "score <= ?", int),
    "quality_min": ("quality", "quality >= ?", float),
}
# Order -> a column, which is in ascending order, or with a sign in descending order.
_ORDERS = {"words": "-words", "-words": "words", "score": "-score", "quality": "-quality", "-quality": "quality"}
_ORDERS |= {"date": "-created_utc", "-date": "created_utc", "domain": "domain"}
_SHOWN = "id url title words score quality created_utc language page_type license signals redactions".split()
# Other programs may have written a time that is none. Not the name of the column, by which rows are sorted.
_DATE = "TRY(strftime(make_timestamp(created_utc * 1000000), '%Y-%m-%d')) AS date"
_TYPES = {field.name: field.type for field in DOCUMENT_SCHEMA} | {"quality": pa.float32(), "redactions": SPAN_TYPE}


class Selection:
    """The documents of a stage, by default the last one, that meet the filters in the query of a page.

    `columns` are those of a corpus that these documents have; `filters`, `facets` and `orders` those that they allow;
    `active` the filters that are set. Raises UsageError for a value that is not valid.
    """

    def __init__(self, tables: CorpusTables, query: Mapping[str, str]) -> None:
        stages = tables.document_stages
        if not stages:
            raise UsageError(f"{tables.name}: no stage has written documents yet")
        self.stage = query.get("stage") or stages[-1]
        check_known(self.stage, stages, "stage", "stage")
        self._tables, self._view = tables, tables.numbered_documents(self.stage)
        # Documents of other programs may have columns of these names with other types.
        schema = tables.schema(self._view)
        self.columns = [name for name, kind in _TYPES.items() if pa.field(name, kind) in schema]
        self.filters = [name for name, (column, *_) in _FILTERS.items() if column in self.columns]
        if absent := [name for name in _FILTERS if query.get(name) and name not in self.filters]:
            raise UsageError(f"{absent[0]}: the documents of {self.stage} have no column {_FILTERS[absent[0]][0]}")
        self.facets = [name for name in _FACETS if name in self.filters]
        self.orders = [name for name, value in _ORDERS.items() if value.removeprefix("-") in self.columns]
        self.active = {name: value for name in self.filters if (value := query.get(name, "").strip())}
        conditions = [self._condition(name, value) for name, value in self.active.items()]
        self._where = " AND ".join(["true", *(condition for condition, _ in conditions)])
        self._values = [value for _, values in conditions for value in values]

    def count(self) -> int:
        """Return the number of documents."""
        [row] = self._rows("count(*) AS documents")
        return int(row["documents"])

    def count_values(self, facet: str, limit: int) -> list[dict[str, Any]]:
        """Return the `limit` most frequent values of a facet, each with its number of documents."""
        check_known(facet, self.facets, "facet", "facet")
        grouped = f"GROUP BY value ORDER BY documents DESC, value NULLS LAST LIMIT {limit}"
        return self._rows(f"{_FACETS[facet][1]} AS value, count(*) AS documents", grouped)

    def page(
        self,
        order: str,
        seed: int | None,
        cursor: int | None,
        limit: int,
        characters: int,
        *,
        is_backward: bool = False,
    ) -> list[dict[str, Any]]:
        """Return documents with their `position` and the first `characters` of their texts as `beginning`.

        They are in the order of the corpus if no `order` is given, and in a random one with a `seed`. The page is the
        one after, or before, the document with the position `cursor`.
        """
        value = "position"
        if seed is not None:
            value = f"hash(position, {seed})"
        elif order:
            check_known(order, self.orders, "order", "sort")
            value = _ORDERS[order]
        where, place = "", list[Any]()
        if cursor is not None:
            row = self._tables.first(self._view, "position = ?", [cursor], f"{value} AS value")
            if row is None:
                raise UsageError(f"there is no document {cursor}; start with the first page")
            # A null is the last value in comparisons of rows.
            where, place = f"AND ({value}, position) {'<' if is_backward else '>'} (?, ?)", [row["value"], cursor]
        direction = "DESC NULLS FIRST" if is_backward else "ASC NULLS LAST"
        columns = ", ".join(name if name in self.columns else f"NULL AS {name}" for name in _SHOWN)
        rows = self._rows(
            f"position, {columns.replace(', created_utc', f', {_DATE}')}, left(text, {characters}) AS beginning",
            f"{where} ORDER BY {value} {direction}, position {direction} LIMIT {limit}",
            place,
        )
        return rows[::-1] if is_backward else rows

    def _condition(self, name: str, value: str) -> tuple[str, list[Any]]:
        _, condition, parse = _FILTERS[name]
        if value == UNKNOWN and name in self.facets:
            return f"{_FACETS[name][1]} IS NULL", []
        try:
            return condition, [parse(value)]
        except ValueError as error:
            raise UsageError(f"{name}: expected a number, found {value!r}") from error

    def _rows(self, columns: str, clauses: str = "", values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        query = f"SELECT {columns} FROM {self._view} WHERE {self._where} {clauses}"
        return self._tables.rows(query, [*self._values, *values])
