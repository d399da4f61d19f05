"""Counts the documents, words and bytes of a corpus by domain, language, year, subreddit, length or any column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.corpus.tables import CorpusTables
from pipelines.engine.config import check_known
from pipelines.errors import InputError

# Name -> the column of documents, and the value by which they are grouped. A document counts once for each of its
# subreddits; lengths are in powers of two.
GROUPS = {
    "domain": ("domain", "domain"),
    "language": ("language", "language"),
    "year": ("created_utc", "TRY(year(make_timestamp(created_utc * 1000000)))"),
    # Most lists have one subreddit, and `list_distinct` takes 3 s for 8,000,000.
    "subreddit": (
        "subreddits",
        "unnest(CASE WHEN len(subreddits) > 1 THEN list_distinct(subreddits) ELSE subreddits END)",
    ),
    "length": ("words", "CASE WHEN words > 0 THEN 1 << CAST(floor(log2(words)) AS INTEGER) ELSE 0 END"),
}
# Known of every document, even without such columns.
_MEASURED = {"words", "bytes"}


def count_documents(tables: CorpusTables, by: Sequence[str], limit: int) -> dict[str, Any]:
    """Return the documents, words and bytes of all documents, and of the `limit` largest groups of each kind in `by`.

    These are `total`, and `groups` with the largest first (years and lengths in their order), whose `value` is None if
    it is unknown; `sizes` are the numbers of all groups. A kind is one of `GROUPS` or a column; without any, those of
    `GROUPS` of which something is known.

    Raises UsageError if the documents have no such column, InputError if there are none.
    """
    columns = tables.schema("documents").names
    kinds = {name: GROUPS.get(name, (name, _quoted(name))) for name in by or GROUPS}
    absent = {name: column for name, (column, _) in kinds.items() if column not in _MEASURED.union(columns)}
    for name in absent if by else ():
        check_known(name, [key for key in dict.fromkeys((*GROUPS, *columns)) if key not in absent], "column", "--by")
    words = "coalesce(words, words_of(text))" if "words" in columns else "words_of(text)"
    needed = sorted({column for column, _ in kinds.values()} - _MEASURED - {*absent.values()})
    # The texts are read once, whatever the number of groups.
    tables.rows(
        "CREATE OR REPLACE TEMP TABLE measured AS "
        f"SELECT {', '.join([*map(_quoted, needed), f'{words} AS words', 'strlen(text) AS bytes'])} FROM documents"
    )
    if not (totals := _counts(tables, "NULL", 1)):
        raise InputError("the input has no documents")
    groups = {name: _counts(tables, value, limit) for name, (_, value) in kinds.items() if name not in absent}
    if not by:  # kinds without any known value are omitted
        groups = {name: counts for name, counts in groups.items() if any(row["value"] is not None for row in counts)}
    for name in {"year", "length"}.intersection(groups):
        groups[name].sort(key=lambda row: (row["value"] is None, row["value"]))
    sizes = {
        name: tables.rows(f"SELECT count(*) AS size FROM (SELECT DISTINCT {kinds[name][1]} FROM measured)")[0]["size"]
        for name in groups
    }
    return {"total": totals[0], "groups": groups, "sizes": sizes}


def group_name(kind: str, value: Any) -> str:
    """Return how a group is shown."""
    if value is None:
        return "(unknown)"
    return f"{value:,} to {2 * value - 1:,} words" if kind == "length" and value else str(value)


def _counts(tables: CorpusTables, value: str, limit: int) -> list[dict[str, Any]]:
    return tables.rows(
        f"SELECT {value} AS value, count(*) AS documents, coalesce(sum(words), 0)::BIGINT AS words, "
        "coalesce(sum(bytes), 0)::BIGINT AS bytes "
        f"FROM measured GROUP BY value ORDER BY documents DESC, value NULLS LAST LIMIT {limit}"
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
