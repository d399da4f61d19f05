"""Common Crawl's index, joined with links: the columnar index (Parquet), or `cluster.idx` with its `cdx-*.gz`.

Both are sorted by SURT key (`com,example)/path`), in blocks whose first and last key are known without reading them. Of
the links, which are sorted by key too, only those between the keys of some blocks are in memory. Blocks between whose
keys no link lies are never read, so that one pass over the index serves any number of links.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import itertools
import re
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import surt

from pipelines import progress, storage
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError
from pipelines.records import inputs, shards
from pipelines.records.buckets import write_buckets
from pipelines.records.schemas import INSTANT
from pipelines.storage.compression import open_decompressed, strip_compression

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
# The rows that are read from an index, and where they are in Common Crawl's columnar index.
ROW_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        *(pa.field(field.name, field.type) for field in list(CAPTURE_SCHEMA)[1:]),
        pa.field("mime", pa.string()),
    ]
)
_COLUMNS = {
    "url": "url",
    "captured_at": "fetch_time",
    "status": "fetch_status",
    "file": "warc_filename",
    "offset": "warc_record_offset",
    "length": "warc_record_length",
    "mime": "content_mime_detected",
}
_KEY = "url_surtkey"
_REDIRECTS = (301, 302, 303, 307, 308)
_PAGE_TYPES = ("text/html", "application/xhtml+xml", "text/plain")
# Of a page that was captured thousands of times, the nearest captures are enough; pages of several URLs have one key.
_CAPTURES_PER_URL = 8
# The links in memory at a time: about 200 bytes each.
_MAX_WANTED = 2_000_000
# cluster.idx of one crawl has a hundred megabytes.
_IDX_PARTS = 16
_IDX_LINE = re.compile(r"([^ \t]*)[^\t]*\t([^\t]*)\t(\d+)\t(\d+)(?![^\t\n])")
_PATHS_SUFFIX = ".paths"
_LAST_KEY = chr(0x10FFFF)


class Block(NamedTuple):
    """Rows of an index from the key `first` to `last` or before; `read` returns those with some keys (`ROW_SCHEMA`)."""

    first: str
    last: str
    read: Callable[[pa.StringArray], pa.Table]


_OpenBlocks = Callable[[], AbstractContextManager[Sequence[Block]]]


class IndexPart(NamedTuple):
    """The part of an index that one task joins with the links; its blocks can be read while they are open."""

    name: str
    open_blocks: _OpenBlocks


def surt_key(url: str) -> str | None:
    """Return the key of a URL in the indexes of web archives; None if it has none."""
    try:
        return str(surt.surt(url))
    except (ValueError, UnicodeError, AttributeError, TypeError):  # what the package raises for malformed URLs
        return None


def open_index(paths: Sequence[str], records: str) -> list[IndexPart]:
    """Return the parts of an index: Parquet files (also by folder or glob), `cluster.idx`, or lists `*.paths`.

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
    index = []
    for number, path in enumerate(files):
        if path.endswith(".idx"):
            opens: list[_OpenBlocks] = [functools.partial(_open_idx, path, part) for part in range(_IDX_PARTS)]
        elif path.endswith(".parquet"):
            opens = [functools.partial(_open_parquet, path)]
        else:
            raise InputError(f"{path}: is no index of Common Crawl; use *.parquet, cluster.idx or cc-index-table.paths")
        index += [IndexPart(f"index-{number:05d}-{part:02d}", open_blocks) for part, open_blocks in enumerate(opens)]
    if not index:
        raise InputError(f"{', '.join(paths)}: name no file of an index")
    if first := next((path for path in files if path.endswith(".parquet")), None):
        with _open_parquet(first):  # raises for other tables now, not after the live pages
            pass
    return index


def write_wanted(output: str, name: str, links: Sequence[tuple[str, int, int | None, str | None]]) -> TaskResult:
    """Write the links of a shard to ask for, as rows of `WANTED_SCHEMA`, as a work file."""
    rows = [dict(zip(WANTED_SCHEMA.names, link, strict=True)) for link in sorted(links, key=lambda link: link[:2])]
    with storage.atomic_write(storage.join(output, name), durable=False) as stream:
        pq.write_table(pa.Table.from_pylist(rows, WANTED_SCHEMA), stream, row_group_size=_WANTED_ROWS)
    return TaskResult(files=(FileEntry(name, stream.size_bytes, stream.checksum),))


def join_index(part: IndexPart, context: tuple[str, str, Sequence[str], int | None]) -> TaskResult:
    """Write the captures of wanted links in a part of an index as a work file with a bucket per shard.

    The context is the output folder, the beginning of the name of the work file, the files of `write_wanted` in order
    of the shards, and the most days from the time of a link to its captures.
    """
    output, prefix, wanted, window_days = context
    name = f"{prefix}{part.name}"
    with contextlib.ExitStack() as stack:
        groups = _wanted_groups(stack, wanted)
        blocks = stack.enter_context(part.open_blocks())
        with write_buckets(storage.join(output, name), CAPTURE_SCHEMA) as written:
            for neighbors in _divided(blocks, groups):
                for captures in _join_blocks(neighbors, groups, window_days):
                    for batch in captures.combine_chunks().to_batches():
                        written.writer.write(
                            batch.select(CAPTURE_SCHEMA.names).cast(CAPTURE_SCHEMA), batch["shard"].to_numpy()
                        )
    progress.advance(1)
    return TaskResult(files=(written.entry(name),))


class _WantedGroup(NamedTuple):
    """A row group of the wanted links of a shard."""

    file: pq.ParquetFile
    shard: int
    row_group: int
    first: str
    last: str
    rows: int

    def read(self) -> pa.Table:
        """Return the links with the number of their shard."""
        links = self.file.read_row_group(self.row_group, ["key", "link", "at"], use_threads=False)
        return links.append_column("shard", pa.repeat(pa.scalar(self.shard, pa.int32()), links.num_rows))


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


def _join_blocks(
    blocks: Sequence[Block], groups: Sequence[_WantedGroup], window_days: int | None
) -> Iterator[pa.Table]:
    chosen = _overlapping(blocks, groups)
    while chosen:
        # All at once, unless a single block has more links between its keys than memory should hold.
        count = max(1, int(np.searchsorted(np.cumsum([group.rows for group in chosen]), _MAX_WANTED, "right")))
        wanted = pa.concat_tables([group.read() for group in chosen[:count]]).sort_by("key")
        chosen = chosen[count:]
        counted = pc.value_counts(wanted["key"])
        keys = counted.field("values")
        ends = np.cumsum(counted.field("counts"))
        links_of_keys = pa.ListArray.from_arrays(np.append(0, ends), wanted.to_struct_array().combine_chunks())
        for block in blocks:
            start = bisect_left(keys, block.first, key=_text)
            between = keys[start : bisect_right(keys, block.last, start, key=_text)]
            if len(between) and (rows := block.read(between)).num_rows:
                key = pc.index_in(rows["key"].combine_chunks(), value_set=between)
                links = links_of_keys[start:].take(key)
                captures = rows.take(pc.list_parent_indices(links))
                for name in ("link", "at", "shard"):
                    captures = captures.append_column(name, links.flatten().field(name))
                yield _useful(captures, window_days)


def _text(key: pa.StringScalar) -> str:
    return str(key.as_py())


def _useful(captures: pa.Table, window_days: int | None) -> pa.Table:
    """Return pages and redirects, of each link and URL the nearest in time; without a time of the link, the latest."""
    status = captures["status"]
    is_page = pc.and_(pc.equal(status, 200), pc.is_in(captures["mime"], value_set=pa.array(_PAGE_TYPES)))
    captures = captures.filter(pc.or_(is_page, pc.is_in(status, value_set=pa.array(_REDIRECTS, status.type))))
    seconds = captures["captured_at"].cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    distance = pc.coalesce(pc.abs(pc.subtract(seconds, captures["at"])), pc.negate(seconds)).to_numpy()
    link, shard = captures["link"].to_numpy(), captures["shard"].to_numpy()
    url = captures["url"].combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.lexsort((distance, captures["status"].to_numpy() != 200, url, link, shard))
    if window_days is not None:
        order = order[~(distance[order] > window_days * 86400)]
    starts = np.flatnonzero(sum(np.diff(column[order], prepend=-1) != 0 for column in (url, link, shard)))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return captures.take(pa.array(order[rank < _CAPTURES_PER_URL]))


@contextlib.contextmanager
def _open_parquet(path: str) -> Iterator[list[Block]]:
    """Yield the row groups of a file of the columnar index."""
    with shards.open_stream(path) as stream:
        file = shards.open_parquet(stream, path)
        names = file.schema_arrow.names
        shards.require_columns(path, names, [_KEY, *_COLUMNS.values()])
        columns = [file.metadata.row_group(number).column(names.index(_KEY)) for number in range(file.num_row_groups)]
        read = functools.partial(_read_row_group, path, file)
        yield [Block(*_key_range(column), functools.partial(read, number)) for number, column in enumerate(columns)]


def _read_row_group(path: str, file: pq.ParquetFile, number: int, keys: pa.StringArray) -> pa.Table:
    """See `Block`. The other columns are read only if a key occurs."""
    with shards.damage_reported(path):
        present = file.read_row_group(number, [_KEY], use_threads=False)[_KEY].cast(pa.string())
        is_wanted = pc.is_in(present, value_set=keys)
        if not pc.any(is_wanted).as_py():
            return ROW_SCHEMA.empty_table()
        rows = file.read_row_group(number, list(_COLUMNS.values()), use_threads=False).filter(is_wanted)
        columns = [present.filter(is_wanted), *(rows[column] for column in _COLUMNS.values())]
        return pa.table(columns, ["key", *_COLUMNS]).cast(ROW_SCHEMA)


def _open_idx(path: str, part: int) -> AbstractContextManager[list[Block]]:
    """Return the blocks whose lines of a `cluster.idx` begin in one part of it: gzip members of a `cdx-*.gz`."""
    size = storage.size_bytes(path)
    start, end = (size * step // _IDX_PARTS for step in (part, part + 1))
    members: list[tuple[str, str, int, int]] = []  # the last begins in the next part
    position = -1
    with storage.open_read(path, start=max(0, start - 1), size=end - start) as stream:
        if start:
            stream.readline()  # the rest of the line that begins in the part before
        while position < end:
            position = stream.tell()
            line = stream.readline().decode("utf-8", "replace")
            match = _IDX_LINE.match(line)
            if line and not match:
                raise InputError(f"{path}: {line[:80]!r} is no line of a cluster.idx")
            key, name, offset, length = match.groups() if match else (_LAST_KEY, "", "0", "0")
            members.append((key, storage.join(storage.parent(path), name), int(offset), int(length)))
            if not line:
                break
    return nullcontext(
        [
            Block(key, following[0], functools.partial(_read_cdx, path, offset, length))
            for (key, path, offset, length), following in itertools.pairwise(members)
        ]
    )


def _read_cdx(path: str, offset: int, length: int, keys: pa.StringArray) -> pa.Table:
    """See `Block`."""
    wanted = {key.encode(): key for key in keys.to_pylist()}
    rows = []
    try:
        for line in zlib.decompress(storage.read_range(path, offset, length), 16 + zlib.MAX_WBITS).splitlines():
            key, _, rest = line.partition(b" ")
            if key in wanted:
                time, _, text = rest.partition(b" ")
                fields = msgspec.json.decode(text, type=dict[str, str])
                rows.append(
                    {
                        "key": wanted[key],
                        "url": fields["url"],
                        "captured_at": dt.datetime.strptime(time.decode(), "%Y%m%d%H%M%S").replace(tzinfo=dt.UTC),
                        "status": int(status) if (status := fields.get("status", "")).isdigit() else 0,
                        "file": fields["filename"],
                        "offset": int(fields["offset"]),
                        "length": int(fields["length"]),
                        "mime": fields.get("mime-detected") or fields.get("mime"),
                    }
                )
    except (zlib.error, ValueError, KeyError) as error:
        raise InputError(f"{path}: is damaged at offset {offset} ({error})") from error
    return pa.Table.from_pylist(rows, ROW_SCHEMA)
