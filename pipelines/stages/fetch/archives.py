"""The archives that a fetch asks for links that are gone, and the index of Common Crawl.

The index is columnar (Parquet), or `cluster.idx` with its `cdx-*.gz`; both are sorted by SURT key (`com,example)/x`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import hashlib
import itertools
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import surt

from pipelines import storage
from pipelines.engine.run import StageRun
from pipelines.errors import InputError, UsageError
from pipelines.format import mask_credentials
from pipelines.records import inputs, shards
from pipelines.stages.fetch.captures import read_record
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.lookups import LAST_KEY, ROW_SCHEMA, Block, IndexPart, Lookup, key_range, look_up
from pipelines.stages.fetch.segments import FetchContext
from pipelines.stages.fetch.wayback import query_wayback
from pipelines.storage.compression import open_decompressed, strip_compression

# How often a page is looked up in Common Crawl: once, and after each redirect.
_LOOKUPS = 4
# Where the fields of a row are in the columnar index.
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
# cluster.idx of one crawl has a hundred megabytes.
_IDX_PARTS = 64
_IDX_LINE = re.compile(r"([^ \t]*)[^\t]*\t([^\t]*)\t(\d+)\t(\d+)(?![^\t\n])")
_PATHS_SUFFIX = ".paths"


def archives_input(config: FetchConfig) -> str | None:
    """Return what stands for the archives in the manifest: other archives, or more requests, are an addition.

    None without archives. Raises UsageError for an archive without its index, InputError if that cannot be read.
    """
    if "commoncrawl" in config.archive and not config.cc_index:
        raise UsageError("--archive commoncrawl: needs --cc-index, the index of a crawl (see docs/fetch.md)")
    if not re.match("https?://[^/]", config.wayback_url):
        raise UsageError(f"--wayback-url {config.wayback_url}: is not an http or https URL")
    if not config.archive:
        if config.source == "archives":
            raise UsageError("--source archives: needs --archive, the archives to look up pages in")
        return None
    if config.cc_index:
        if storage.is_local(config.cc_records) and not storage.is_folder(config.cc_records):
            raise InputError(f"{config.cc_records}: --cc-records: no such folder")
        storage.file_system(config.cc_records)  # raises for an unknown scheme
        open_index(config.cc_index, config.cc_records)
    options = [config.archive, config.archive_for, config.archive_window, config.cc_index, config.wayback_requests]
    return hashlib.sha256(mask_credentials(json.dumps(options)).encode()).hexdigest()


def query_archives(run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext) -> None:
    """Look up the pages that are still missing in each archive."""
    config = context.config
    if config.archive_window is not None and link_shards[0].is_list:
        run.note("--archive-window has no effect: links from lists have no dates")
    for name in config.archive:
        if name == "commoncrawl":
            # A page that one index lacks, another may have.
            names = hashlib.sha256(mask_credentials("\n".join(config.cc_index)).encode()).hexdigest()[:8]
            index = open_index(config.cc_index, config.cc_records)
            read = functools.partial(
                read_record, functools.partial(storage.join, config.cc_records), config.max_page_bytes
            )
            lookup = Lookup(context, f"{name}:{names}", index, surt_key, read, _LOOKUPS, config.cc_records)
            look_up(run, link_shards, lookup)
        else:
            query_wayback(run, link_shards, context, name)


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
    index: list[IndexPart] = []
    for number, path in enumerate(files):
        name = f"index-{number:05d}"
        if path.endswith(".idx"):
            parts = range(_IDX_PARTS)
            index += [IndexPart(f"{name}-{part:02d}", functools.partial(_open_idx, path, part)) for part in parts]
        elif path.endswith(".parquet"):
            index.append(IndexPart(name, functools.partial(_open_parquet, path)))
        else:
            raise InputError(
                f"{path}: is not an index of Common Crawl; use *.parquet, cluster.idx or cc-index-table.paths"
            )
    if not index:
        raise InputError(f"{', '.join(paths)}: name no file of an index")
    if first := next((path for path in files if path.endswith(".parquet")), None):
        with _open_parquet(first):  # raises for other tables now, not after the live pages
            pass
    return index


@contextlib.contextmanager
def _open_parquet(path: str) -> Iterator[list[Block]]:
    """Yield the row groups of a file of the columnar index."""
    with shards.open_stream(path) as stream:
        file = shards.open_parquet(stream, path)
        names = file.schema_arrow.names
        shards.require_columns(path, names, [_KEY, *_COLUMNS.values()])
        columns = [file.metadata.row_group(number).column(names.index(_KEY)) for number in range(file.num_row_groups)]
        read = functools.partial(_read_row_group, path, file)
        yield [Block(*key_range(column), functools.partial(read, number)) for number, column in enumerate(columns)]


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
                raise InputError(f"{path}: {line[:80]!r} is not a line of a cluster.idx")
            key, name, offset, length = match.groups() if match else (LAST_KEY, "", "0", "0")
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
