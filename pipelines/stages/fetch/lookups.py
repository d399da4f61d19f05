"""Lookups of links in the index of an archive: a join for all links at once, then one read per page.

Redirects are looked up again, so that they are followed within the archive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.engine.journal import WORK
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.buckets import read_bucket
from pipelines.stages.fetch.archive_index import CAPTURE_SCHEMA, IndexPart, join_index, write_wanted
from pipelines.stages.fetch.captures import (
    Capture,
    CaptureError,
    Wanted,
    is_same_page,
    record_answer,
    usable_capture,
    wanted_links,
)
from pipelines.stages.fetch.crawl import check_stop_file
from pipelines.stages.fetch.known import FetchContext
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.request_urls import BadUrlError, redirect_url
from pipelines.stages.fetch.segments import SegmentWriter
from pipelines.stages.fetch.visit import REDIRECTS

_THREADS = 16
_CHECKED_FILES = 10
# The links whose captures are dictionaries at a time: 750 bytes per capture.
_LINKS = 20_000
# As many pages as these threads read ahead of what is stored.
_READ_AHEAD = 64


class Lookup(NamedTuple):
    """A lookup of all links in the index of an archive, with the names of its work files.

    `key` returns the key of a URL in the index (None: it has none), `read` the response of a capture. A page is looked
    up at most `limit` times: once, and after each redirect. Captures are in files below a `folder`, if there is one.
    """

    token: str
    key: Callable[[str], str | None]
    read: Callable[[FetchContext, dict[str, Any]], Capture]
    limit: int
    folder: str | None = None
    number: int = 0

    @property
    def phase(self) -> str:
        """The beginning of the names of its phases."""
        return f"{self.token.replace(':', '-')}-{self.number}"

    def wanted(self, shard: LinkShard) -> str:
        """Return the name of the file with the links of a shard to look up."""
        return f"{WORK}/{self.phase}-wanted-{shard.index:05d}.parquet"

    @property
    def following(self) -> Lookup:
        """The lookup of the redirects of this one."""
        return self._replace(number=self.number + 1)


def look_up(
    run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext, lookup: Lookup, index: Sequence[IndexPart]
) -> None:
    """Look up all wanted links in the index, and store the nearest page of each; redirects are looked up again."""
    run.map(_find_wanted, link_shards, (context, lookup), phase=f"{lookup.phase}-wanted", work=True)
    while lookup.number < lookup.limit:
        wanted = [storage.join(run.output, lookup.wanted(shard)) for shard in link_shards]
        if not any(storage.map_files(_rows, wanted, are_local=storage.are_local(wanted))):
            return
        prefix = f"{WORK}/{lookup.phase}-"
        join = (run.output, prefix, wanted, context.config.archive_window)
        run.map(join_index, index, join, phase=f"{lookup.phase}-index", work=True, total=len(index), unit="index files")
        files = [storage.join(run.output, f"{prefix}{part.name}") for part in index]
        if lookup.folder:
            _check_folder(lookup.folder, files, len(link_shards))
        run.map(_store_pages, link_shards, (context, lookup, files), phase=f"{lookup.phase}-pages", work=True)
        lookup = lookup.following


def _check_folder(folder: str, captures: Sequence[str], count: int) -> None:
    """Raise InputError if a folder has none of the first files that captures name; single ones may be missing."""
    names: dict[str, None] = {}
    for index in range(count):
        for batch in read_bucket(captures, CAPTURE_SCHEMA, index):
            names.update(dict.fromkeys(batch.column("file").to_pylist()[:_CHECKED_FILES]))
        if len(names) >= _CHECKED_FILES:
            break
    if names and not any(storage.exists(storage.join(folder, name)) for name in list(names)[:_CHECKED_FILES]):
        raise InputError(f"{folder}: has none of the files that the index names, such as {next(iter(names))}")


def _rows(path: str) -> int:
    with shards.open_stream(path) as stream:
        return int(shards.open_parquet(stream, path).metadata.num_rows)


def _find_wanted(shard: LinkShard, context: tuple[FetchContext, Lookup]) -> TaskResult:
    fetch, lookup = context
    wanted = wanted_links(fetch, shard, lookup.token)
    keyed = [(key, one.link, one.at, None) for one in wanted if (key := lookup.key(one.url))]
    return write_wanted(fetch.output, lookup.wanted(shard), keyed)


def _store_pages(shard: LinkShard, context: tuple[FetchContext, Lookup, list[str]]) -> TaskResult:
    """Read the captures of a shard's links, nearest first, until one is a page; write the redirects to look up next."""
    fetch, lookup, files = context
    path = storage.join(fetch.output, lookup.wanted(shard))
    targets = {row["link"]: row["target"] for row in shards.read_rows(path)}
    wanted = {one.link: one for one in wanted_links(fetch, shard, lookup.token) if one.link in targets}
    captures = pa.Table.from_batches(read_bucket(files, CAPTURE_SCHEMA, shard.index), CAPTURE_SCHEMA)
    redirects: list[tuple[str, int, int | None, str | None]] = []
    counts: Counter[str] = Counter()
    with SegmentWriter(fetch.segments_folder(shard)) as writer, ThreadPoolExecutor(_THREADS) as threads:
        for part in _parts(list(wanted), captures):
            pages = threads.map(
                lambda item: _find_page(fetch, lookup, wanted[item[0]], targets[item[0]], item[1]), part
            )
            for (link, _), (capture, target, refused) in zip(part, pages, strict=True):
                counts.update(refused)
                if target is not None and lookup.number + 1 < lookup.limit and (key := lookup.key(target.url)):
                    redirects.append((key, link, int(target.captured_at.timestamp()), target.url))
                else:
                    record_answer(writer, wanted[link], lookup.token, capture, refused)
                progress.advance(1)
            writer.flush_if_due()
            check_stop_file(fetch.config)
    result = write_wanted(fetch.output, lookup.following.wanted(shard), redirects)
    return TaskResult(files=result.files, counts={f"refused_{reason}": count for reason, count in counts.items()})


def _parts(links: Sequence[int], captures: pa.Table) -> Iterator[list[tuple[int, list[dict[str, Any]]]]]:
    """Yield the links with their captures, in parts that are read at a time."""
    for start in range(0, len(links), _LINKS):
        rows: dict[int, list[dict[str, Any]]] = {link: [] for link in links[start : start + _LINKS]}
        for row in captures.filter(pc.is_in(captures["link"], value_set=pa.array(rows, pa.int32()))).to_pylist():
            rows[row["link"]].append(row)
        # In order of the files of the archive, which a store of whole files reads faster.
        order = sorted(
            rows.items(), key=lambda item: min(((row["file"], row["offset"]) for row in item[1]), default=("", 0))
        )
        yield from (order[number : number + _READ_AHEAD] for number in range(0, len(order), _READ_AHEAD))


def _find_page(
    fetch: FetchContext, lookup: Lookup, wanted: Wanted, target: str | None, captures: Sequence[dict[str, Any]]
) -> tuple[Capture | None, Capture | None, Counter[str]]:
    """Return the nearest capture that is a page, else the nearest redirect with its target as URL; count the others."""
    at = wanted.at

    def distance(row: dict[str, Any]) -> tuple[bool, float]:
        seconds = row["captured_at"].timestamp()
        return row["status"] != 200, -seconds if at is None else abs(seconds - at)

    refused: Counter[str] = Counter()
    for row in sorted(captures, key=distance):
        try:
            if not is_same_page(row["url"], target or wanted.url):
                raise CaptureError("other_page")
            capture = lookup.read(fetch, row)
            if not is_same_page(capture.url, row["url"]):
                raise CaptureError("other_page")  # the index does not belong to these files
            if capture.response.status in REDIRECTS:
                location = redirect_url(capture.url, capture.response.header("location") or "")
                if is_same_page(location, capture.url) and location == (target or wanted.url):
                    raise CaptureError("redirect_loop")
                return None, capture._replace(url=location), refused
            return usable_capture(capture, wanted, fetch.config), None, refused
        except (CaptureError, BadUrlError) as error:
            refused[str(error) if isinstance(error, CaptureError) else "bad_redirect"] += 1
    return None, None, refused
