"""What one task reads: a shard of `webtext fetch`, anybody's WARC, or files of HTML."""

from __future__ import annotations

import dataclasses

from pipelines.core.inputs import InputFile


@dataclasses.dataclass(frozen=True)
class FetchedShard:
    """One shard of `webtext fetch` with its WARC files and, where they are given, the links.

    `in_order` tells that there is one file of links, and that the rows of the shard are its rows.
    """

    folder: str
    pages: InputFile
    warcs: tuple[InputFile, ...]
    links: tuple[InputFile, ...] = ()
    in_order: bool = False


@dataclasses.dataclass(frozen=True)
class WarcFile:
    """A WARC from elsewhere."""

    path: str


@dataclasses.dataclass(frozen=True)
class HtmlFiles:
    """Files of HTML: pairs of path and document id."""

    files: tuple[tuple[str, str], ...]


Source = FetchedShard | WarcFile | HtmlFiles
