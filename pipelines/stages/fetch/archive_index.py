"""Common Crawl's index, joined with links: the columnar index (Parquet), or `cluster.idx` with its `cdx-*.gz`.

Both are sorted by SURT key (`com,example)/path`), in blocks whose first and last key are known without reading them. Of
the links, which are sorted by key too, only those between the keys of some blocks are in memory. Blocks between whose
keys no link lies are never read, so that one pass over the index serves any number of links.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import surt

from pipelines.core import inputs, progress, shards, storage
from pipelines.core.buckets import write_buckets
from pipelines.core.compression import open_decompressed, strip_compression
from pipelines.core.errors import InputError
from pipelines.core.manifest import FileEntry
from pipelines.core.records import INSTANT
from pipelines.core.run import TaskResult

# A link that an archive is asked for, sorted by `key`; `at` is when it was posted (seconds since 1970). If an archived
# page redirected to a `target`, the key is that of the target.
WANTED_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("link", pa.int32(), nullable=False),
        pa.field("at", pa.int64()),
        pa.field("target", pa.string()),
    ]
)
# Small, so that few rows outside the keys of some blocks are read.
_WANTED_ROWS = 4096
CAPTURE_SCHEMA = pa.schema(
    [
        pa.field("link", pa.int32(), nullable=False),
        pa.field("url", pa.string(), nullable=False),
        pa.field("captured_at", INSTANT, nullable=False),
        pa.field("status", pa.int32(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
    ]
)
_COLUMNS = {
    "url": "url",
    "captured_at": "fetch_time",
    "status": "fetch_status",
    "mime": "content_mime_detected",
    "file": "warc_filename",
    "offset": "warc_record_offset",
    "length": "warc_record_length",
}
_KEY = "url_surtkey"
_REDIRECTS = (301, 302, 303, 307, 308)
_PAGE_TYPES = ("text/html", "application/xhtml+xml", "text/plain")
# Of a page that was captured thousands of times, the nearest captures are enough.
_CAPTURES_PER_LINK = 8
# The links in memory at a time: about 200 bytes each.
_MAX_WANTED = 2_000_000
# cluster.idx of one crawl has a hundred megabytes.
_IDX_PARTS = 16
_PATHS_SUFFIX = ".paths"
_LAST_KEY = chr(0x10FFFF)


@dataclasses.dataclass(frozen=True)
class IndexFile:
    """The part of an index that one task joins: a Parquet file, or one of `parts` of a `cluster.idx`."""

    path: str
    number: int
    part: int = 0
    parts: int = 1

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"index-{self.number:05d}-{self.part:02d}"

    def open_blocks(self, stack: contextlib.ExitStack) -> Sequence[Block]:
        """See `IndexPart`."""
        return _idx_blocks(self) if self.path.endswith(".idx") else _parquet_blocks(stack, self.path)


class IndexPart(Protocol):
    """The part of an index that one task joins with the links."""

    @property
    def name(self) -> str:
        """The name of the task."""

    def open_blocks(self, stack: contextlib.ExitStack) -> Sequence[Block]:
        """Return its blocks, whose files are open until the stack is closed."""


class Block(Protocol):
    """Rows of an index between two keys."""

    @property
    def first(self) -> str:
        """The first key."""

    @property
    def last(self) -> str:
        """The last key, or one after it."""

    def read(self, keys: pa.StringArray) -> pa.Table:
        """Return the rows with one of the keys: `key` and the names of `_COLUMNS`."""


def surt_key(url: str) -> str | None:
    """Return the key of a URL in the indexes of web archives; None if it has none."""
    try:
        return str(surt.surt(url))
    except (ValueError, UnicodeError, AttributeError, TypeError):  # what the package raises for malformed URLs
        return None


def open_index(paths: Sequence[str], records: str) -> list[IndexFile]:
    """Return the tasks of an index: Parquet files (also by folder or glob), `cluster.idx`, or lists `*.paths`.

    A list, also compressed, names files relative to `records`, one per line, as Common Crawl publishes them. Raises
    InputError for other files.
    """
    files: list[str] = []
    for path in paths:
        if strip_compression(path).endswith(_PATHS_SUFFIX):
            with open_decompressed(path) as stream:
                names = [line.decode().strip() for line in stream]
            files += [storage.join(records, name) for name in names if "subset=robotstxt" not in name and name]
        elif "://" in path or path.endswith(".idx"):
            storage.size_bytes(path)  # raises for a missing file now, not after the live pages
            files.append(path)
        else:
            files += inputs.expand_paths([path], (".parquet",), check_types=False)
    tasks = []
    for number, path in enumerate(files):
        if not path.endswith((".parquet", ".idx")):
            raise InputError(f"{path}: is no index of Common Crawl; use *.parquet, cluster.idx or cc-index-table.paths")
        parts = _IDX_PARTS if path.endswith(".idx") else 1
        tasks += [IndexFile(path, number, part, parts) for part in range(parts)]
    if not tasks:
        raise InputError(f"{', '.join(paths)}: name no file of an index")
    if first := next((path for path in files if path.endswith(".parquet")), None):
        with contextlib.ExitStack() as stack:
            _parquet_blocks(stack, first)  # raises for other tables now, not after the live pages
    return tasks


def write_wanted(output: str, name: str, links: Sequence[tuple[str, int, int | None, str | None]]) -> TaskResult:
    """Write the links of a shard to ask for, as rows of `WANTED_SCHEMA`, as a work file."""
    rows = [dict(zip(WANTED_SCHEMA.names, link, strict=True)) for link in sorted(links, key=lambda link: link[:2])]
    with storage.atomic_write(storage.join(output, name), durable=False) as stream:
        pq.write_table(pa.Table.from_pylist(rows, WANTED_SCHEMA), stream, row_group_size=_WANTED_ROWS)
    return TaskResult(files=(FileEntry(name, stream.size_bytes, stream.checksum),))


def join_index(index: IndexPart, output: str, name: str, wanted: Sequence[str], window_s: float | None) -> TaskResult:
    """Write the captures of wanted links in a part of an index as a work file with a bucket per shard.

    `wanted` are the files of `write_wanted`, in order of the shards. Captures further than `window_s` from the time of
    the link are left out.
    """
    with contextlib.ExitStack() as stack:
        groups = _wanted_groups(stack, wanted)
        blocks = index.open_blocks(stack)
        with write_buckets(storage.join(output, name), CAPTURE_SCHEMA) as written:
            for part in _divided(blocks, groups):
                _join_part(part, groups, window_s, written.writer)
    progress.advance(1)
    return TaskResult(files=(written.entry(name),))


@dataclasses.dataclass(frozen=True)
class _WantedGroup:
    """A row group of the wanted links of a shard."""

    file: pq.ParquetFile
    shard: int
    row_group: int
    first: str
    last: str
    rows: int


def _wanted_groups(stack: contextlib.ExitStack, paths: Sequence[str]) -> list[_WantedGroup]:
    groups = []
    for shard, path in enumerate(paths):
        file = shards.open_parquet(stack.enter_context(shards.open_stream(path)), path)
        for number in range(file.num_row_groups):
            meta = file.metadata.row_group(number)
            groups.append(_WantedGroup(file, shard, number, *_key_range(meta.column(0)), meta.num_rows))
    return groups


def _key_range(column: Any) -> tuple[str, str]:
    """Return the first and last key of a row group; any key may occur if there are no statistics, or they are cut."""
    keys = column.statistics
    return (keys.min, keys.max) if keys is not None and keys.has_min_max else ("", _LAST_KEY)


def _divided(blocks: Sequence[Block], groups: Sequence[_WantedGroup]) -> Iterator[Sequence[Block]]:
    """Yield the blocks in parts between whose keys few links lie."""
    pending = [blocks]
    while pending:
        part = pending.pop()
        if part and (rows := sum(group.rows for group in _overlapping(part, groups))):
            if rows > _MAX_WANTED and len(part) > 1:
                pending += [part[len(part) // 2 :], part[: len(part) // 2]]
            else:
                yield part


def _overlapping(part: Sequence[Block], groups: Sequence[_WantedGroup]) -> list[_WantedGroup]:
    first, last = min(block.first for block in part), max(block.last for block in part)
    return [group for group in groups if group.first <= last and group.last >= first]


def _join_part(part: Sequence[Block], groups: Sequence[_WantedGroup], window_s: float | None, writer: Any) -> None:
    chosen = _overlapping(part, groups)
    while chosen:
        # All at once, unless a single block has more links between its keys than memory should hold.
        count = max(1, int(np.searchsorted(np.cumsum([group.rows for group in chosen]), _MAX_WANTED, "right")))
        tables = [
            table.append_column("shard", pa.repeat(pa.scalar(group.shard, pa.int32()), table.num_rows))
            for group in chosen[:count]
            for table in [group.file.read_row_group(group.row_group, use_threads=False)]
        ]
        chosen = chosen[count:]
        wanted = pa.concat_tables(tables).sort_by("key")
        counted = pc.value_counts(wanted["key"])
        keys, counts = counted.field("values"), counted.field("counts").to_numpy()
        ends = np.cumsum(counts)
        for block in part:
            start = bisect_left(keys, block.first, key=_text)
            between = keys[start : bisect_right(keys, block.last, start, key=_text)]
            if len(between) and (rows := block.read(between)).num_rows:
                # Every row with every link that has its key.
                which = start + pc.index_in(rows["key"], value_set=between).to_numpy()
                repeats = counts[which]
                repeated = np.repeat(np.arange(len(which)), repeats)
                within = np.arange(len(repeated)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
                links = wanted.take(ends[which][repeated] - repeats[repeated] + within).drop_columns(["key"])
                captures = _useful(pa.table({**_columns(rows.take(repeated)), **_columns(links)}), window_s)
                for batch in captures.combine_chunks().to_batches():
                    writer.write(batch.select(CAPTURE_SCHEMA.names).cast(CAPTURE_SCHEMA), batch["shard"].to_numpy())


def _text(key: pa.StringScalar) -> str:
    return str(key.as_py())


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _useful(captures: pa.Table, window_s: float | None) -> pa.Table:
    """Return pages and redirects, of each link the nearest in time; without a time of the link, the latest."""
    status = captures["status"]
    is_page = pc.and_(pc.equal(status, 200), pc.is_in(captures["mime"], value_set=pa.array(_PAGE_TYPES)))
    captures = captures.filter(pc.or_(is_page, pc.is_in(status, value_set=pa.array(_REDIRECTS, status.type))))
    at = captures["at"].to_numpy()
    seconds = captures["captured_at"].cast(pa.timestamp("s")).cast(pa.int64()).to_numpy()
    distance = np.where(np.isnan(at), -seconds, abs(seconds - at)) if at.dtype.kind == "f" else abs(seconds - at)
    link, shard = captures["link"].to_numpy(), captures["shard"].to_numpy()
    order = np.lexsort((distance, captures["status"].to_numpy() != 200, link, shard))
    if window_s is not None:
        order = order[~(distance[order] > window_s)]
    starts = np.flatnonzero(np.diff(link[order], prepend=-1) | np.diff(shard[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return captures.take(pa.array(order[rank < _CAPTURES_PER_LINK]))


@dataclasses.dataclass(frozen=True)
class _ParquetBlock:
    """A row group of the columnar index."""

    path: str
    file: pq.ParquetFile
    row_group: int
    first: str
    last: str

    def read(self, keys: pa.StringArray) -> pa.Table:
        """See `Block.read`. The other columns are read only if the key occurs."""
        with shards.damage_reported(self.path):
            read = self.file.read_row_group
            found = read(self.row_group, [_KEY], use_threads=False)[_KEY].cast(pa.string())
            is_wanted = pc.is_in(found, value_set=keys)
            if not pc.any(is_wanted).as_py():
                return pa.table({"key": found[:0], **{name: pa.nulls(0, _TYPES[name]) for name in _COLUMNS}})
            rows = read(self.row_group, list(_COLUMNS.values()), use_threads=False).filter(is_wanted)
            columns = {name: rows[column].cast(_TYPES[name]) for name, column in _COLUMNS.items()}
            return pa.table({"key": found.filter(is_wanted), **columns})


_TYPES = {name: CAPTURE_SCHEMA.field(name).type if name != "mime" else pa.string() for name in _COLUMNS}


def _parquet_blocks(stack: contextlib.ExitStack, path: str) -> list[Block]:
    file = shards.open_parquet(stack.enter_context(shards.open_stream(path)), path)
    shards.require_columns(path, file.schema_arrow.names, [_KEY, *_COLUMNS.values()])
    column = file.schema_arrow.names.index(_KEY)
    return [
        _ParquetBlock(path, file, number, *_key_range(file.metadata.row_group(number).column(column)))
        for number in range(file.num_row_groups)
    ]


@dataclasses.dataclass(frozen=True)
class _CdxBlock:
    """A gzip member of a `cdx-*.gz`."""

    path: str
    offset: int
    length: int
    first: str
    last: str

    def read(self, keys: pa.StringArray) -> pa.Table:
        """See `Block.read`."""
        wanted = {key.encode(): key for key in keys.to_pylist()}
        data = storage.read_range(self.path, self.offset, self.length)
        rows: dict[str, list[Any]] = {name: [] for name in ("key", *_COLUMNS)}
        try:
            for line in zlib.decompress(data, 16 + zlib.MAX_WBITS).splitlines():
                key, _, rest = line.partition(b" ")
                if key in wanted:
                    time, _, text = rest.partition(b" ")
                    fields = msgspec.json.decode(text, type=dict[str, str])
                    values = [wanted[key], fields["url"], _instant(time.decode()), _status(fields)]
                    values += [fields.get("mime-detected") or fields.get("mime"), fields["filename"]]
                    for column, value in zip(
                        rows, [*values, int(fields["offset"]), int(fields["length"])], strict=True
                    ):
                        rows[column].append(value)
        except (zlib.error, ValueError, KeyError) as error:
            raise InputError(f"{self.path}: is damaged at offset {self.offset} ({error})") from error
        return pa.table({name: pa.array(values, _TYPES.get(name, pa.string())) for name, values in rows.items()})


def _status(fields: dict[str, str]) -> int:
    return int(status) if (status := fields.get("status", "")).isdigit() else 0


def _instant(digits: str) -> dt.datetime:
    return dt.datetime.strptime(digits, "%Y%m%d%H%M%S").replace(tzinfo=dt.UTC)


def _idx_blocks(index: IndexFile) -> list[Block]:
    """Return the blocks whose lines of a `cluster.idx` begin in one part of it."""
    size = storage.size_bytes(index.path)
    start, end = (size * (index.part + step) // index.parts for step in (0, 1))
    blocks: list[Block] = []
    previous: list[str] = []
    folder = storage.parent(index.path)
    with storage.open_read(index.path, start=max(0, start - 1), size=end - start) as stream:
        if start:
            stream.readline()  # the rest of the line that begins in the part before
        while True:
            is_last = stream.tell() >= end
            line = stream.readline().decode("utf-8", "replace")
            fields = line.rstrip("\n").split("\t")
            if line and (len(fields) < 4 or not (fields[2].isdigit() and fields[3].isdigit())):
                raise InputError(f"{index.path}: {line[:80]!r} is no line of a cluster.idx")
            first = fields[0].partition(" ")[0] if line else _LAST_KEY
            if previous:
                path = storage.join(folder, previous[1])
                key = previous[0].partition(" ")[0]
                blocks.append(_CdxBlock(path, int(previous[2]), int(previous[3]), key, first))
            if is_last or not line:
                return blocks
            previous = fields
