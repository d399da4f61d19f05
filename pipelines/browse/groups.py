"""The largest groups of documents: domains, subreddits, and clusters of duplicates, counted once per finished stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipelines.browse.site import number_of, site_of
from pipelines.corpus.statistics import GROUPS
from pipelines.corpus.tables import CorpusTables, documents_of
from pipelines.engine.config import check_known
from pipelines.errors import InputError

_ROWS = 50
_MEMBERS = 5
# Further columns have the largest values first.
_ASCENDING = ("name", "lowest")


@dataclasses.dataclass(frozen=True)
class Groups:
    """A page of groups, counted by a query, which has `name`, `documents`, and other columns to sort by.

    `columns` are headings, and how a value is shown.
    """

    name: str
    lead: str
    columns: Mapping[str, tuple[str, str]]
    count: Callable[[CorpusTables], str]


def show_groups(request: Request) -> Response:
    """Show a page of the groups; until they are counted, one that loads this one."""
    groups, site = _BY_PATH[request.url.path], site_of(request)
    query = request.query_params
    sort, name, offset = query.get("sort") or "documents", query.get("name", ""), number_of(request, "offset") or 0
    check_known(sort, ["name", *groups.columns], "column", "sort")
    table = f"groups_of_{groups.name}"  # temporary: its connection ends when a stage finishes
    with site.tables(request) as tables:
        is_counted = tables.first("duckdb_tables()", "table_name = ?", [table], "table_name") is not None
        if not is_counted and "count" in query:
            tables.rows(f"CREATE TEMP TABLE {table} AS {groups.count(tables)}")
            is_counted = True
        rows, total = _find_groups(tables, table, sort, name, offset) if is_counted else ([], 0)
        members = _members(tables, [row["id"] for row in rows]) if groups is CLUSTERS else {}
    state: dict[str, Any] = {"groups": groups, "is_counted": is_counted, "members": members, "sort": sort}
    state["arrow"] = "↑" if sort in _ASCENDING else "↓"
    return site.render(request, "groups.html", rows=rows, total=total, offset=offset, page_rows=_ROWS, **state)


def _find_groups(
    tables: CorpusTables, table: str, sort: str, name: str, offset: int
) -> tuple[list[dict[str, Any]], int]:
    """Return a page of the groups whose names contain a text, and the number of all of these."""
    where, values = ("contains(lower(name), lower(?))", [name]) if name else ("true", [])
    order = f"{sort} {'ASC' if sort in _ASCENDING else 'DESC'} NULLS LAST, name"
    rows = tables.rows(f"FROM {table} WHERE {where} ORDER BY {order} LIMIT {_ROWS} OFFSET {offset}", values)
    [total] = tables.rows(f"SELECT count(*) AS groups FROM {table} WHERE {where}", values)
    return rows, total["groups"]


def _members(tables: CorpusTables, clusters: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the most similar duplicates of each cluster, with their URLs."""
    members: dict[str, list[dict[str, Any]]] = {cluster: [] for cluster in clusters}
    for row in tables.rows(
        "SELECT cluster, clusters.id AS id, kind, jaccard, url FROM clusters LEFT JOIN "
        "(FROM dropped WHERE stage = 'dedup' AND list_contains($1, detail)) AS dropped ON dropped.id = clusters.id "
        "WHERE kind <> 'kept' AND list_contains($1, cluster) QUALIFY row_number() OVER "
        f"(PARTITION BY cluster ORDER BY jaccard DESC, clusters.id) <= {_MEMBERS} ORDER BY jaccard DESC, clusters.id",
        [[*clusters]],
    ):
        members[row["cluster"]].append(row)
    return members


def _count_documents(by: str) -> str:
    return (
        f"SELECT {GROUPS[by][1]} AS name, count(*) AS documents, sum(words)::BIGINT AS words, "
        "count(*) / (SELECT count(*) FROM documents) AS share FROM documents GROUP BY 1"
    )


def _count_domains(tables: CorpusTables) -> str:
    """Return a query of the domains of kept and of dropped documents; those of the latter follow from their hosts."""
    if "dropped" not in tables.views:
        return f"SELECT *, 0 AS dropped, 0 AS duplicates, 0 AS exact, 0 AS near FROM ({_count_documents('domain')})"
    return f"""
        WITH kept AS ({_count_documents("domain")}), hosts AS (
            SELECT regexp_extract(url, '(?i)^[a-z]+://([^/?#]*)', 1) AS host, count(*) AS dropped,
                count(*) FILTER (reason = 'exact_duplicate') AS exact,
                count(*) FILTER (reason = 'near_duplicate') AS near
            FROM dropped GROUP BY 1
        ), domains AS (
            SELECT nullif(domain_of(concat('http://', host)), '') AS name, sum(dropped)::BIGINT AS dropped,
                sum(exact + near)::BIGINT AS duplicates, sum(exact)::BIGINT AS exact, sum(near)::BIGINT AS near
            FROM hosts GROUP BY 1
        )
        SELECT coalesce(kept.name, domains.name) AS name, coalesce(documents, 0) AS documents,
            coalesce(words, 0) AS words, coalesce(share, 0) AS share, coalesce(dropped, 0) AS dropped,
            coalesce(duplicates, 0) AS duplicates, coalesce(exact, 0) AS exact, coalesce(near, 0) AS near
        FROM kept FULL JOIN domains ON kept.name IS NOT DISTINCT FROM domains.name"""


def _count_clusters(tables: CorpusTables) -> str:
    if "clusters" not in tables.views:
        raise InputError(f"{tables.name}: has no clusters; `webtext dedup` finds them")
    return f"""
        WITH counted AS (
            SELECT cluster AS id, max(documents) AS documents, count(*) FILTER (kind = 'exact') AS exact,
                count(*) FILTER (kind = 'near') AS near, min(jaccard) AS lowest
            FROM clusters GROUP BY 1
        ), kept AS (
            SELECT id, any_value(url) AS name FROM {documents_of("dedup")} SEMI JOIN counted USING (id) GROUP BY 1
        )
        FROM counted LEFT JOIN kept USING (id)"""


_COUNTED = {"documents": ("Documents", "count"), "share": ("Share", "share"), "words": ("Words", "count")}
_DUPLICATES = {"exact": ("Exact duplicates", "count"), "near": ("Near-duplicates", "count")}
DOMAINS = Groups(
    "domains",
    "The registered domains of the documents, and of those that stages dropped after scrape. Duplicates are dropped "
    "by dedup: exact ones have the same text as a document that is kept, near-duplicates a similar one.",
    {**_COUNTED, "dropped": ("Dropped", "count"), "duplicates": ("Duplicates", "count"), **_DUPLICATES},
    _count_domains,
)
SUBREDDITS = Groups(
    "subreddits",
    "The subreddits in which the documents were submitted. A document counts for each of its subreddits.",
    _COUNTED,
    lambda _: _count_documents("subreddit"),
)
CLUSTERS = Groups(
    "clusters",
    "Documents of the same or a similar text, of which dedup keeps one. Similarity is that of a duplicate to the kept "
    "document: the share of common word sequences (Jaccard similarity), 1 for equal texts.",
    {
        "documents": ("Documents", "count"),
        **_DUPLICATES,
        "lowest": ("Lowest similarity", "decimal"),
    },
    _count_clusters,
)
_BY_PATH = {f"/{groups.name}": groups for groups in (DOMAINS, SUBREDDITS, CLUSTERS)}
NAVIGATION = tuple((path, groups.name.capitalize()) for path, groups in _BY_PATH.items())
ROUTES = tuple(Route(path, show_groups) for path in _BY_PATH)
