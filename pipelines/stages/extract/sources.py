"""What one task reads: a shard of `webtext fetch`, a WARC from elsewhere, or HTML files."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.inputs import InputFile

_PAGE_COLUMNS = ["url", "final_url", "outcome", "fetched_at", "warc_file", "warc_offset"]
_LINK_COLUMNS = ["url", "domain", "score", "submission_ids", "subreddits", "title", "created_utc"]

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class FetchedShard:
    """One shard of `webtext fetch` with its WARC files and, if given, the links.

    `in_order` means that there is one file of links, with the same rows as the shard.
    """

    folder: str
    pages: InputFile
    warcs: tuple[InputFile, ...]
    links: tuple[InputFile, ...] = ()
    in_order: bool = False


# A shard of a fetch, a WARC from elsewhere, or HTML files as pairs of path and document id.
Source = FetchedShard | InputFile | tuple[tuple[str, str], ...]


def rows_with_links(source: FetchedShard) -> Iterator[tuple[Row, Row | None]]:
    """Yield the rows of a shard of pages, each with its link, None if the links do not contain its URL.

    Raises InputError if pages that were fetched from these links do not have the same URLs, row by row.
    """
    for file in source.links:
        file.verify()
    pages = shards.read_rows(source.pages.path, _PAGE_COLUMNS)
    if not source.in_order:
        links_by_url = _read_links_by_url(source)
        yield from ((page, links_by_url.get(page["url"])) for page in pages)
        return
    # fetch writes a row for each link, in their order, so neither side has to be in memory.
    [file] = source.links
    links = shards.read_rows(file.path, _LINK_COLUMNS)
    for number, (page, link) in enumerate(itertools.zip_longest(pages, links)):
        if page is None or link is None or page["url"] != link["url"]:
            raise InputError(
                f"{source.pages.path}: row {number} is {_url_of(page)}, but in {file.path} it is {_url_of(link)}; "
                "one of the two files was changed; restore it, or fetch the links again into another --output"
            )
        yield page, link


def _url_of(row: Row | None) -> str:
    return str(row["url"])[:200] if row is not None else "missing"


def _read_links_by_url(source: FetchedShard) -> dict[str, Row]:
    """Return the links of the shard's pages: all links are read, only those of this shard are kept in memory."""
    if not source.links:
        return {}
    pages = shards.read_rows(source.pages.path, ["url", "outcome"])
    urls = {page["url"] for page in pages if page["outcome"] == "ok"}
    links: dict[str, Row] = {}
    for file in source.links:
        for batch in shards.read_batches(file.path, _LINK_COLUMNS):
            is_needed = pa.array([url in urls for url in batch.column("url").to_pylist()], pa.bool_())
            for row in batch.filter(is_needed).to_pylist():
                links.setdefault(row["url"], row)
    return links
