"""Counts the documents, words and bytes of a corpus by domain, language, year, subreddit, length or any column."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pipelines.core.errors import UsageError
from pipelines.corpus.tables import CorpusTables

# Name -> the value by which documents are grouped. A document counts once for each of its subreddits.
GROUPS = {
    "domain": "domain",
    "language": "language",
    "year": "year(make_timestamp(created_utc * 1000000))",
    "subreddit": "unnest(list_distinct(subreddits))",
    # By powers of two.
    "length": "CASE WHEN words > 0 THEN 1 << CAST(floor(log2(words)) AS INTEGER) ELSE 0 END",
}
_COLUMNS = {"domain": "domain", "language": "language", "year": "created_utc", "subreddit": "subreddits"}
_WORDS = r"len(regexp_split_to_array(trim(text), '\s+'))"


@dataclasses.dataclass(frozen=True)
class Counts:
    """The documents, words and bytes of a group, or of all documents; `value` is None if it is not known."""

    value: Any
    documents: int
    words: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Statistics:
    """All documents, the groups with most documents of each kind, and how many groups there are."""

    total: Counts
    groups: dict[str, list[Counts]]
    sizes: dict[str, int]

    def named_groups(self) -> dict[str, list[tuple[str, Counts]]]:
        """Return the groups of each kind with their names."""
        return {kind: [(_name(counts.value, kind), counts) for counts in rows] for kind, rows in self.groups.items()}


def count_documents(tables: CorpusTables, by: Sequence[str], limit: int | None) -> Statistics:
    """Return the counts of all documents, and of the `limit` largest groups (None: all) of each kind in `by`.

    A kind is one of `GROUPS` or a column; without any, those of `GROUPS` of which something is known. Raises UsageError
    if the documents have no such column.
    """
    columns = tables.columns("documents")
    usual = [name for name in GROUPS if name == "length" or _COLUMNS[name] in columns]
    values = {name: _value(name, columns) for name in by or usual}
    words = f"coalesce(words, {_WORDS})" if "words" in columns else _WORDS
    needed = sorted({_COLUMNS.get(name, name) for name in by or usual if name != "length"} & set(columns))
    # The texts are read once, whatever the number of groups.
    tables.rows(
        "CREATE OR REPLACE TEMP TABLE measured AS "
        f"SELECT {', '.join([*map(_quoted, needed), f'{words} AS words', 'strlen(text) AS bytes'])} FROM documents"
    )
    [total] = _counts(tables, "NULL", 1)
    groups = {name: _counts(tables, value, limit) for name, value in values.items()}
    if not by:  # of the usual kinds, those of which something is known
        groups = {name: counts for name, counts in groups.items() if any(count.value is not None for count in counts)}
        values = {name: values[name] for name in groups}
    sizes = {
        name: tables.rows(f"SELECT count(*) AS size FROM (SELECT DISTINCT {value} AS value FROM measured)")[0]["size"]
        for name, value in values.items()
    }
    return Statistics(total, groups, sizes)


def _name(value: Any, kind: str) -> str:
    if value is None:
        return "(unknown)"
    return f"{value:,} to {2 * value - 1:,} words" if kind == "length" and value else str(value)


def _value(name: str, columns: Sequence[str]) -> str:
    """Return the value of a kind of groups as SQL; raise UsageError if it needs a column that is not there."""
    if name != "length" and _COLUMNS.get(name, name) not in columns:
        raise UsageError(
            f"--by {name}: the documents have no column {_COLUMNS.get(name, name)}; there are {', '.join(columns)}"
        )
    return GROUPS.get(name, _quoted(name))


def _counts(tables: CorpusTables, value: str, limit: int | None) -> list[Counts]:
    rows = tables.rows(
        f"SELECT {value} AS value, count(*) AS documents, coalesce(sum(words), 0)::BIGINT AS words, "
        "coalesce(sum(bytes), 0)::BIGINT AS bytes "
        f"FROM measured GROUP BY value ORDER BY documents DESC, value NULLS LAST {f'LIMIT {limit}' if limit else ''}"
    )
    return [Counts(**row) for row in rows]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
