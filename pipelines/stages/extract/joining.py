"""The rows of a shard of `webtext fetch`, each with the link that it came from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipelines.core import shards
from pipelines.core.errors import InputError
from pipelines.stages.extract.sources import FetchedShard

_PAGE_COLUMNS = ["url", "final_url", "outcome", "fetched_at", "warc_file", "warc_offset"]
_LINK_COLUMNS = ["url", "domain", "score", "submission_ids", "subreddits", "title", "created_utc"]

Row = dict[str, Any]


def rows_with_links(source: FetchedShard) -> Iterator[tuple[Row, Row | None]]:
    """Yield the rows of a shard of pages, each with its link, None where the links do not hold its URL.

    Raises InputError where pages that were fetched from these very links do not name them one by one.
    """
    for file in source.links:
        file.verify()
    pages = shards.read_rows(source.pages.path, _PAGE_COLUMNS)
    if source.in_order:
        yield from _side_by_side(pages, source)
    else:
        links = _links_by_url(source)
        for page in pages:
            yield page, links.get(page["url"])


def _side_by_side(pages: Iterator[Row], source: FetchedShard) -> Iterator[tuple[Row, Row | None]]:
    """Walk pages and links together: fetch writes a row for each link, in their order. Nothing is held in memory."""
    [file] = source.links
    links = shards.read_rows(file.path, _LINK_COLUMNS)
    for number, (page, link) in enumerate(itertools.zip_longest(pages, links)):
        if page is None or link is None or page["url"] != link["url"]:
            raise InputError(
                f"{source.pages.path}: row {number} is {_named(page)}, but in {file.path} it is {_named(link)}; "
                "one of the two was changed by hand: run `webtext fetch` with --overwrite"
            )
        yield page, link


def _named(row: Row | None) -> str:
    return str(row["url"])[:200] if row is not None else "missing"


def _links_by_url(source: FetchedShard) -> dict[str, Row]:
    """Return the links of the shard's pages: all links are read, those of one shard of pages are held in memory."""
    if not source.links:
        return {}
    pages = shards.read_rows(source.pages.path, ["url", "outcome"])
    wanted = {page["url"] for page in pages if page["outcome"] == "ok"}
    found: dict[str, Row] = {}
    for file in source.links:
        for batch in shards.read_batches(file.path, _LINK_COLUMNS):
            hits = batch.filter(pa.array([url in wanted for url in batch.column("url").to_pylist()], pa.bool_()))
            for row in hits.to_pylist():
                found.setdefault(row["url"], row)
    return found
