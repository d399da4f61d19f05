"""Pages from Common Crawl: a join with its index for all links at once, then one ranged read per page."""

from __future__ import annotations

import datetime as dt
import io
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow as pa
from warcio.archiveiterator import ArchiveIterator
from warcio.exceptions import ArchiveLoadFailed

from pipelines.core import progress, shards, storage
from pipelines.core.buckets import read_bucket
from pipelines.core.errors import InputError, StorageError
from pipelines.core.journal import WORK
from pipelines.core.run import StageRun, TaskResult
from pipelines.stages.fetch.archive_index import (
    CAPTURE_SCHEMA,
    IndexFile,
    join_index,
    open_index,
    surt_key,
    write_wanted,
)
from pipelines.stages.fetch.captures import (
    Capture,
    CaptureError,
    Wanted,
    is_same_page,
    record_capture,
    record_miss,
    usable_response,
    wanted_links,
)
from pipelines.stages.fetch.context import FetchContext
from pipelines.stages.fetch.exchange import Response
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.request_urls import BadUrlError, redirect_url
from pipelines.stages.fetch.segments import SegmentWriter
from pipelines.stages.fetch.visit import REDIRECTS

# How often a page is looked up: once, and after each redirect.
_LOOKUPS = 4
_THREADS = 16
# As many pages as these threads read ahead of what is stored.
_READ_AHEAD = 64


class _Lookup(NamedTuple):
    """The names of the work files of one lookup of all links."""

    token: str
    number: int

    @property
    def phase(self) -> str:
        return f"{self.token.replace(':', '-')}-{self.number}"

    def wanted(self, shard: LinkShard) -> str:
        return f"{WORK}/{self.phase}-wanted-{shard.index:05d}.parquet"

    def captures(self, index: IndexFile) -> str:
        return f"{WORK}/{self.phase}-{index.name}"

    @property
    def following(self) -> _Lookup:
        return self._replace(number=self.number + 1)


def ask_common_crawl(run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext, token: str) -> None:
    """Look up all wanted links in the index, and store the nearest page of each; redirects are looked up again."""
    config = context.config
    index = open_index(config.cc_index, config.cc_records)
    window_s = None if config.archive_window is None else config.archive_window * 86400.0
    lookup = _Lookup(token, 0)
    run.map(_find_wanted, link_shards, (context, lookup), phase=f"{lookup.phase}-wanted", work=True)
    while lookup.number < _LOOKUPS:
        wanted = [storage.join(run.output, lookup.wanted(shard)) for shard in link_shards]
        if not any(storage.map_files(_rows, wanted, are_local=storage.are_local(wanted))):
            return
        join = (run.output, lookup, wanted, window_s)
        run.map(_join, index, join, phase=f"{lookup.phase}-index", work=True, total=len(index), unit="index files")
        files = [storage.join(run.output, lookup.captures(file)) for file in index]
        run.map(_store_pages, link_shards, (context, lookup, files), phase=f"{lookup.phase}-pages", work=True)
        lookup = lookup.following


def _rows(path: str) -> int:
    with shards.open_stream(path) as stream:
        return int(shards.open_parquet(stream, path).metadata.num_rows)


def _find_wanted(shard: LinkShard, context: tuple[FetchContext, _Lookup]) -> TaskResult:
    fetch, lookup = context
    wanted = wanted_links(fetch, shard, lookup.token)
    keyed = [(key, one.link, one.at, None) for one in wanted if (key := surt_key(one.url))]
    return write_wanted(fetch.output, lookup.wanted(shard), keyed)


def _join(index: IndexFile, context: tuple[str, _Lookup, list[str], float | None]) -> TaskResult:
    output, lookup, wanted, window_s = context
    return join_index(index, output, lookup.captures(index), wanted, window_s)


def _store_pages(shard: LinkShard, context: tuple[FetchContext, _Lookup, list[str]]) -> TaskResult:
    """Read the captures of a shard's links, nearest first, until one is a page; write the redirects to look up next."""
    fetch, lookup, files = context
    path = storage.join(fetch.output, lookup.wanted(shard))
    targets = {row["link"]: row["target"] for row in shards.read_rows(path)}
    wanted = {one.link: one for one in wanted_links(fetch, shard, lookup.token) if one.link in targets}
    captures: dict[int, list[dict[str, Any]]] = {link: [] for link in wanted}
    for row in pa.Table.from_batches(read_bucket(files, CAPTURE_SCHEMA, shard.index), CAPTURE_SCHEMA).to_pylist():
        if row["link"] in captures:
            captures[row["link"]].append(row)
    # In order of the files of the archive, which a store of whole files reads faster.
    order = sorted(
        wanted, key=lambda link: min(((row["file"], row["offset"]) for row in captures[link]), default=("", 0))
    )
    redirects: list[tuple[str, int, int | None, str | None]] = []
    counts: Counter[str] = Counter()
    with SegmentWriter(fetch.segments_folder(shard)) as writer, ThreadPoolExecutor(_THREADS) as threads:
        for start in range(0, len(order), _READ_AHEAD):
            part = order[start : start + _READ_AHEAD]
            found = threads.map(lambda link: _find_page(fetch, wanted[link], targets[link], captures[link]), part)
            for link, (capture, target, refused) in zip(part, found, strict=True):
                counts.update(refused)
                if capture is not None:
                    record_capture(writer, wanted[link], lookup.token, capture)
                elif target is not None and lookup.number + 1 < _LOOKUPS and (key := surt_key(target.url)):
                    redirects.append((key, link, int(target.captured_at.timestamp()), target.url))
                else:
                    why = ", ".join(f"{reason} {count}" for reason, count in sorted(refused.items())) or "no capture"
                    record_miss(writer, wanted[link], lookup.token, why)
                progress.advance(1)
            writer.flush_if_due()
    result = write_wanted(fetch.output, lookup.following.wanted(shard), redirects)
    return TaskResult(files=result.files, counts={f"refused_{reason}": count for reason, count in counts.items()})


def _find_page(
    fetch: FetchContext, wanted: Wanted, target: str | None, captures: Sequence[dict[str, Any]]
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
            capture = read_capture(fetch.config.cc_records, row["file"], row["offset"], row["length"])
            if capture.response.status in REDIRECTS:
                location = redirect_url(capture.url, capture.response.header("location") or "")
                if is_same_page(location, capture.url) and location == (target or wanted.url):
                    raise CaptureError("redirect_loop")
                return None, capture._replace(url=location), refused
            response = usable_response(capture.response, capture.url, wanted, fetch.config)
            return capture._replace(response=response), None, refused
        except (CaptureError, BadUrlError) as error:
            refused[str(error) if isinstance(error, CaptureError) else "bad_redirect"] += 1
    return None, None, refused


def read_capture(records: str, file: str, offset: int, length: int) -> Capture:
    """Return the response in a WARC file of an archive; raise CaptureError if there is none at that place."""
    path = storage.join(records, file)
    try:
        data = storage.read_range(path, offset, length)
        record = next(iter(ArchiveIterator(io.BytesIO(data))))
        head = record.http_headers
        if record.rec_type != "response" or head is None:
            raise CaptureError("no_response_record")
        response = Response(
            int(head.get_statuscode()),
            head.statusline.partition(" ")[2],
            head.protocol if head.protocol in ("HTTP/1.0", "HTTP/1.1") else "HTTP/1.1",
            tuple((name, value) for name, value in head.headers),
            body=record.raw_stream.read(),
        )
        headers = record.rec_headers
        captured_at = dt.datetime.fromisoformat(headers.get_header("WARC-Date"))
        return Capture(headers.get_header("WARC-Target-URI"), captured_at, response, f"{path}#{offset}+{length}")
    except (InputError, StorageError) as error:
        raise CaptureError("unreadable") from error
    except (ArchiveLoadFailed, StopIteration, ValueError, TypeError, zlib.error, EOFError, OSError) as error:
        raise CaptureError("damaged_record") from error
