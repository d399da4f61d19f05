"""Lookups of links in the index of an archive: a join for all links at once, then one read per page.

An index is sorted by key, in blocks whose first and last key are known without reading them, as are the links. One pass
over it serves any number of links. Redirects are looked up again, so that they are followed within the archive.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines import progress, storage
from pipelines.algorithms.web.charset import TEXT_TYPES
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.buckets import read_bucket, write_buckets
from pipelines.records.schemas import make_schema
from pipelines.stages.fetch.captures import Capture, find_page, record_answer, wanted_links
from pipelines.stages.fetch.crawl import check_stop_file
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.outcomes import REDIRECTS
from pipelines.stages.fetch.segments import FetchContext, SegmentWriter

_THREADS = 16
_CHECKED_CAPTURES, _CHECKED_FILES = 1_000, 10
# The links whose captures are dictionaries at a time: 750 bytes per capture.
_LINKS = 20_000
# The links that a join has in memory, about 200 bytes each, apart from those of one key in one shard.
_MAX_WANTED = 2_000_000
# This many pages are read ahead of what is stored.
_READ_AHEAD = 64

# A link to look up in an archive, sorted by `key`; `at` is when it was posted (seconds since 1970). If an archived
# page redirected to a `target`, the key is that of the target.
WANTED_SCHEMA = make_schema(key="string", shard="int32", link="int32", at="int64?", target="string?")
_JOINED = ["key", "shard", "link", "at"]
# Small, so that few rows outside the keys of some blocks are read.
_WANTED_ROWS = 4096
# The captures of a link: pages before redirects, by the seconds between them and the link, which are their `rank`.
CAPTURE_SCHEMA = make_schema(
    link="int32", url="string", captured_at="instant", status="int32", file="string", offset="int64",
    length="int64", rank="int64",
)  # fmt: skip
# The rows that are read from an index.
ROW_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        *(pa.field(field.name, field.type) for field in list(CAPTURE_SCHEMA)[1:-1]),
        pa.field("mime", pa.string()),
    ]
)
LAST_KEY = chr(0x10FFFF)
_REDIRECT_RANK = 1 << 40
# Of a page that was captured thousands of times, the nearest captures are enough; pages of several URLs have one key.
_CAPTURES_PER_URL = 8


class Block(NamedTuple):
    """Rows of an index from the key `first` to `last` or before; `read` returns those with some keys (`ROW_SCHEMA`)."""

    first: str
    last: str
    read: Callable[[pa.Array], pa.Table]


class IndexPart(NamedTuple):
    """The part of an index that one task joins with the links; its blocks can be read while they are open."""

    name: str
    open_blocks: Callable[[], AbstractContextManager[Sequence[Block]]]


@dataclasses.dataclass(frozen=True)
class Lookup:
    """A lookup of all links in the index of an archive, or of the redirects of the one before; its tasks share it.

    `key` returns the key of a URL in the index (None: it has none), `read` the response of a capture. A page is looked
    up at most `limit` times: once, and after each redirect. Captures are in files below a `folder`, if there is one.
    """

    fetch: FetchContext
    token: str
    index: Sequence[IndexPart]
    key: Callable[[str], str | None]
    read: Callable[[dict[str, Any]], Capture]
    limit: int
    folder: str | None = None
    number: int = 0

    @property
    def phase(self) -> str:
        """The beginning of the names of its phases and work files."""
        return f"{self.token.replace(':', '-')}-{self.number}"

    def wanted(self, index: int) -> str:
        """Return the name of the file with the links of a shard to look up."""
        return f"{WORK}/{self.phase}-wanted-{index:05d}.parquet"

    @property
    def wanted_paths(self) -> list[str]:
        """The paths of these files of all shards."""
        return [storage.join(self.fetch.output, self.wanted(index)) for index in range(self.fetch.shard_count)]

    def captures(self, part: IndexPart) -> str:
        """Return the name of the file with the captures that a part of the index has of them."""
        return f"{WORK}/{self.phase}-{part.name}"

    @property
    def capture_paths(self) -> list[str]:
        """The paths of these files of all parts."""
        return [storage.join(self.fetch.output, self.captures(part)) for part in self.index]

    @property
    def following(self) -> Lookup:
        """The lookup of the redirects of this one."""
        return dataclasses.replace(self, number=self.number + 1)


def look_up(run: StageRun, link_shards: Sequence[LinkShard], lookup: Lookup) -> None:
    """Look up all wanted links in the index, and store the nearest page of each; redirects are looked up again."""
    run.map(_find_wanted, link_shards, lookup, phase=f"{lookup.phase}-wanted", work=True)
    while lookup.number < lookup.limit:
        wanted, index = lookup.wanted_paths, lookup.index
        if not any(storage.map_files(shards.count_rows, wanted)):
            return
        run.map(
            join_index, index, lookup, phase=f"{lookup.phase}-index", work=True, total=len(index), unit="index files"
        )
        if lookup.folder:
            _check_folder(lookup.folder, lookup)
        run.map(_store_pages, link_shards, lookup, phase=f"{lookup.phase}-pages", work=True)
        lookup = lookup.following


def _find_wanted(shard: LinkShard, lookup: Lookup) -> TaskResult:
    links = wanted_links(lookup.fetch, shard, lookup.token)
    keyed = [(key, shard.index, link.outcome.link, link.at, None) for link in links if (key := lookup.key(link.url))]
    return write_wanted(lookup.fetch.output, lookup.wanted(shard.index), keyed)


def write_wanted(output: str, name: str, links: Sequence[tuple[str, int, int, int | None, str | None]]) -> TaskResult:
    """Write the links of a shard to look up, as rows of `WANTED_SCHEMA`, as a work file."""
    rows = [dict(zip(WANTED_SCHEMA.names, link, strict=True)) for link in sorted(links, key=lambda link: link[:3])]
    with storage.atomic_write(storage.join(output, name), durable=False) as stream:
        pq.write_table(pa.Table.from_pylist(rows, WANTED_SCHEMA), stream, row_group_size=_WANTED_ROWS)
    return TaskResult(files=(FileEntry(name, stream.size_bytes, stream.checksum),))


def join_index(part: IndexPart, lookup: Lookup) -> TaskResult:
    """Write the captures of wanted links in a part of an index as a work file with a bucket per shard.

    Blocks between whose keys no link lies are not read.
    """
    name, window_days = lookup.captures(part), lookup.fetch.config.archive_window
    with (
        part.open_blocks() as blocks,
        write_buckets(storage.join(lookup.fetch.output, name), CAPTURE_SCHEMA) as written,
    ):
        first = min((block.first for block in blocks), default="")
        last = max((block.last for block in blocks), default="")
        for links in _wanted_between(lookup.wanted_paths, first, last):
            keys = links["key"]
            for block in blocks:
                start = bisect_left(keys, block.first, key=pa.StringScalar.as_py)
                end = bisect_right(keys, block.last, start, key=pa.StringScalar.as_py)
                if end > start and (rows := block.read(keys[start:end].combine_chunks())).num_rows:
                    captures = rows.join(links.slice(start, end - start), "key", join_type="inner", use_threads=False)
                    for batch in _useful(captures, window_days).combine_chunks().to_batches():
                        columns = batch.select(CAPTURE_SCHEMA.names).cast(CAPTURE_SCHEMA)
                        written.write(columns, batch["shard"].to_numpy())
    progress.advance(1)
    return TaskResult(files=(written.entry(name),))


def _wanted_between(paths: Sequence[str], first: str, last: str) -> Iterator[pa.Table]:
    """Yield the wanted links between two keys, sorted by key: some keys at a time, or one key in some shards."""

    def row_groups(path: str) -> list[tuple[str, int]]:
        with shards.open_stream(path) as stream:
            metadata = shards.open_parquet(stream, path).metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return [(key_range(group.column(0))[0], group.num_rows) for group in groups]

    bounds, rows = [first], 0
    for low, group_rows in sorted(itertools.chain.from_iterable(storage.map_files(row_groups, paths))):
        if rows >= _MAX_WANTED // 2 and bounds[-1] < low <= last:
            bounds, rows = [*bounds, low], 0
        rows += group_rows if first <= low else 0
    tables, rows = list[pa.Table](), 0
    for low, high in itertools.zip_longest(bounds, bounds[1:]):
        between = (pc.field("key") >= low) & (pc.field("key") <= last if high is None else pc.field("key") < high)
        for path in paths:
            with shards.open_stream(path) as stream, shards.damage_reported(path):
                tables.append(pq.read_table(stream, columns=_JOINED, filters=between, use_threads=False))
            rows += tables[-1].num_rows
            if rows >= _MAX_WANTED or path == paths[-1]:
                yield pa.concat_tables(tables).sort_by("key").combine_chunks()
                tables, rows = [], 0


def key_range(column: Any) -> tuple[str, str]:
    """Return the first and last key of a row group; any key may occur if there are no statistics, or they are cut."""
    keys = column.statistics
    return (keys.min, keys.max) if keys is not None and keys.has_min_max else ("", LAST_KEY)


def _useful(captures: pa.Table, window_days: int | None) -> pa.Table:
    """Return pages and redirects, of each link and URL the nearest in time; of a link without a time, the latest."""
    status = captures["status"]
    is_page = pc.and_(pc.equal(status, 200), pc.is_in(captures["mime"], value_set=pa.array(sorted(TEXT_TYPES))))
    captures = captures.filter(pc.or_(is_page, pc.is_in(status, value_set=pa.array(sorted(REDIRECTS), status.type))))
    seconds = captures["captured_at"].cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    distance = pc.coalesce(pc.abs(pc.subtract(seconds, captures["at"])), pc.negate(seconds)).to_numpy()
    link, shard = captures["link"].to_numpy(), captures["shard"].to_numpy()
    url = captures["url"].combine_chunks().dictionary_encode().indices.to_numpy()
    ranks = distance + np.where(captures["status"].to_numpy() == 200, 0, _REDIRECT_RANK)
    order = np.lexsort((ranks, url, link, shard))
    if window_days is not None:
        order = order[~(distance[order] > window_days * 86400)]
    starts = np.flatnonzero(sum(np.diff(column[order], prepend=-1) != 0 for column in (url, link, shard)))
    position = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    captures = captures.append_column("rank", pa.array(ranks))
    return captures.take(pa.array(order[position < _CAPTURES_PER_URL]))


def _check_folder(folder: str, lookup: Lookup) -> None:
    """Raise InputError if a folder has none of the first files that captures name; single ones may be missing."""
    buckets = (read_bucket(lookup.capture_paths, CAPTURE_SCHEMA, index) for index in range(lookup.fetch.shard_count))
    files = (name for batches in buckets for batch in batches for name in batch.column("file").to_pylist())
    names = list(dict.fromkeys(itertools.islice(files, _CHECKED_CAPTURES)))[:_CHECKED_FILES]
    if names and not any(storage.exists(storage.join(folder, name)) for name in names):
        raise InputError(f"{folder}: has none of the files that the index names, such as {names[0]}")


def _store_pages(shard: LinkShard, lookup: Lookup) -> TaskResult:
    """Read the captures of a shard's links, nearest first, until one is a page; write the redirects to look up next."""
    fetch = lookup.fetch
    path = storage.join(fetch.output, lookup.wanted(shard.index))
    targets = {row["link"]: row["target"] for row in shards.read_rows(path)}
    links = {
        link.outcome.link: link for link in wanted_links(fetch, shard, lookup.token) if link.outcome.link in targets
    }
    batches = read_bucket(lookup.capture_paths, CAPTURE_SCHEMA, shard.index)
    captures = pa.Table.from_batches(batches, CAPTURE_SCHEMA).sort_by("rank")

    def find(item: tuple[int, list[dict[str, Any]]]) -> tuple[Capture | None, Capture | None, Counter[str]]:
        link = links[item[0]]
        return find_page(item[1], lookup.read, link, targets[item[0]] or link.url, fetch.config)

    redirects: list[tuple[str, int, int, int | None, str | None]] = []
    counts: Counter[str] = Counter()
    with SegmentWriter(fetch.segments_folder(shard)) as writer, ThreadPoolExecutor(_THREADS) as threads:
        for part in _parts(list(links), captures):
            for (link, _), (page, target, refused) in zip(part, threads.map(find, part), strict=True):
                counts.update(refused)
                if target is not None and lookup.number + 1 < lookup.limit and (key := lookup.key(target.url)):
                    redirects.append((key, shard.index, link, int(target.captured_at.timestamp()), target.url))
                else:
                    record_answer(writer, links[link], lookup.token, page, refused)
                progress.advance(1)
            check_stop_file(fetch.config)
    result = write_wanted(fetch.output, lookup.following.wanted(shard.index), redirects)
    return TaskResult(files=result.files, counts={f"refused_{reason}": count for reason, count in counts.items()})


def _parts(links: Sequence[int], captures: pa.Table) -> Iterator[list[tuple[int, list[dict[str, Any]]]]]:
    """Yield the links with their captures, nearest first, in parts that are read at a time."""
    for start in range(0, len(links), _LINKS):
        rows: dict[int, list[dict[str, Any]]] = {link: [] for link in links[start : start + _LINKS]}
        for row in captures.filter(pc.is_in(captures["link"], value_set=pa.array(rows, pa.int32()))).to_pylist():
            rows[row["link"]].append(row)
        # In order of the files of the archive, which a store of whole files reads faster.
        order = sorted(
            rows.items(), key=lambda item: min(((row["file"], row["offset"]) for row in item[1]), default=("", 0))
        )
        yield from (order[number : number + _READ_AHEAD] for number in range(0, len(order), _READ_AHEAD))
