"""Pages from disk instead of the web: the responses in WARC and ARC files, or files that a table names with their URLs.

All are indexed in one pass, by a hash of their page, which is then joined with the links like the index of an archive.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import progress, storage
from pipelines.algorithms.web.text_repair import replace_surrogates
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError, UsageError
from pipelines.format import plural
from pipelines.records import inputs, shards
from pipelines.records.archives import has_members, read_archive
from pipelines.records.buckets import read_bucket, write_buckets
from pipelines.records.documents import parse_instant
from pipelines.records.reader import file_format, read_records, table_schema
from pipelines.records.text_columns import is_text
from pipelines.records.url_lists import JSON_SUFFIXES, TABLE_SUFFIXES
from pipelines.stages.fetch.archives import INDEX_SCHEMA, KEY, IndexFile, Lookup, look_up
from pipelines.stages.fetch.captures import COPY_OF, Capture, CaptureError, capture_of, page_of, read_record
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.exchange import Response
from pipelines.stages.fetch.links import LinkShard, classify_links
from pipelines.stages.fetch.outcomes import LIVE, NOT_IN_SOURCE, REDIRECTS, Failure, dropped
from pipelines.stages.fetch.segments import FetchContext, SegmentWriter
from pipelines.stages.fetch.visit import page_failure
from pipelines.storage.compression import open_decompressed, strip_compression

_BATCH_ROWS = 4096
# The index has a bucket per so many bytes of the files and the links: a task joins those of one bucket.
_BUCKET_BYTES, _MAX_BUCKETS = 256 << 20, 256
_KEYS = 1 << 64
_GROUP_ROWS = 1 << 16
_TEXT_TYPES = {".txt": "text/plain", ".md": "text/markdown", ".xhtml": "application/xhtml+xml"}
_NAMED = 5


class PageSource(NamedTuple):
    """The files of `--source warc`, or of `--source files` the names below its folder."""

    files: Sequence[str]
    fingerprint: str


def open_source(config: FetchConfig) -> PageSource | None:
    """Return the files to take pages from, None for the web; raise UsageError for options that are missing."""
    kind, table = config.source, config.urls
    if kind == LIVE:
        return None
    if kind == "warc":
        if not config.pages:
            raise UsageError("--source warc: needs --pages, WARC or ARC files")
        files = inputs.expand_paths(config.pages, (".warc", ".arc"))
        names = storage.names_below_common_folder(files)
        return PageSource(files, inputs.fingerprint_files(files, names))
    if len(config.pages) != 1 or not table:
        raise UsageError("--source files: needs --pages, the folder of the files, and --urls, the table of their URLs")
    if not storage.is_folder(config.pages[0]):
        raise UsageError(f"--pages {config.pages[0]}: is not a folder, which --source files needs")
    if not strip_compression(table).endswith((*TABLE_SUFFIXES, *JSON_SUFFIXES)):
        raise UsageError(f"--urls {table}: is not a table; use {', '.join((*TABLE_SUFFIXES, *JSON_SUFFIXES))}")
    folder = storage.absolute_path(config.pages[0]).rstrip("/")
    files = [path for path in storage.walk_files(folder) if path != storage.absolute_path(table)]
    names = [path.removeprefix(f"{folder}/") for path in files]
    return PageSource(names, inputs.fingerprint_files([table, *files], [storage.basename(table), *names]))


def record_absent(links: Sequence[str], done: Collection[int], config: FetchConfig, writer: SegmentWriter) -> None:
    """Record each link whose position is not in `done` as absent, which it is until its page is found."""
    now = dt.datetime.now(dt.UTC)
    for link, _, failure in classify_links(links, config.max_pages_per_domain):
        if link not in done:
            writer.add(dropped(link, failure or Failure(NOT_IN_SOURCE, ""), fetched_at=now, source=config.source))
            progress.advance(1)


@dataclasses.dataclass(frozen=True)
class _SourceIndex:
    """The index of the files of a source, in one file per archive, with `buckets` of equal ranges of the key."""

    fetch: FetchContext
    files: Sequence[str]
    buckets: int

    def name(self, number: int) -> str:
        """Return the name of the index of one of the files."""
        return f"{WORK}/source-{number:05d}"

    def write(self, number: int, rows: Iterator[tuple[Any, ...]]) -> FileEntry:
        """Write the rows (`INDEX_SCHEMA`) of one of the files."""
        with write_buckets(storage.join(self.fetch.output, self.name(number)), INDEX_SCHEMA) as index:
            while part := list(itertools.islice(rows, _BATCH_ROWS)):
                buckets = [int(row[0], 16) * self.buckets // _KEYS for row in part]
                index.write(pa.RecordBatch.from_arrays([*zip(*part, strict=True)], schema=INDEX_SCHEMA), buckets)
        return index.entry(self.name(number))

    def bucket(self, bucket: int) -> IndexFile:
        """Return the file with the sorted rows of a bucket."""
        name = f"index-{bucket}"
        return IndexFile(name, storage.join(self.fetch.output, f"{WORK}/source-{name}.parquet"))


def take_pages(run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext, source: PageSource) -> None:
    """Store the page of each link that the source has."""
    config, table = context.config, context.config.urls
    token = f"{config.source}:{source.fingerprint[:8]}"
    files = [table] if table else source.files
    size_bytes = sum(storage.map_files(storage.size_bytes, files))
    size_bytes += sum({file.path: file.size_bytes for shard in link_shards for file in shard.files}.values())
    buckets = min(_MAX_BUCKETS, 1 + size_bytes // _BUCKET_BYTES)
    index, phase = _SourceIndex(context, files, buckets), f"{token.replace(':', '-')}-source"
    read: Callable[[dict[str, Any]], Capture]
    if table:
        read = functools.partial(_read_file, config.pages[0], config.max_page_bytes)
        run.once(phase, lambda: _index_table(run, index, source.files), work=True)
    else:
        path_of = functools.partial(_archive_path, files, run.output)
        read = functools.partial(read_record, path_of, config.max_page_bytes)
        numbers = range(len(files))
        run.map(_index_archive, numbers, index, name=str, phase=phase, work=True, total=len(files), unit="files")
    run.map(_sort_bucket, range(buckets), index, name=str, phase=f"{phase}-index", work=True)
    files_of_index = [index.bucket(bucket) for bucket in range(buckets)]
    look_up(run, link_shards, Lookup(context, token, files_of_index, _key, read, 1 + config.max_redirects))


def _sort_bucket(bucket: int, index: _SourceIndex) -> TaskResult:
    """Write a bucket of all files as a file of an index, sorted by key."""
    paths = [storage.join(index.fetch.output, index.name(number)) for number in range(len(index.files))]
    rows = pa.Table.from_batches(read_bucket(paths, INDEX_SCHEMA, bucket), INDEX_SCHEMA).sort_by(KEY)
    path = index.bucket(bucket).path
    with storage.atomic_write(path, durable=False) as stream:
        pq.write_table(rows, stream, row_group_size=_GROUP_ROWS)
    return TaskResult(files=(FileEntry(f"{WORK}/{storage.basename(path)}", stream.size_bytes, stream.checksum),))


def _key(url: str) -> str:
    return hashlib.blake2b(page_of(url).encode("utf-8", "replace"), digest_size=8).hexdigest()


def _index_archive(number: int, index: _SourceIndex) -> TaskResult:
    """Write the position of each page and redirect in a WARC or ARC file.

    If its records cannot be read one by one, these are copied to a WARC file whose records can.
    """
    path, copy_file, counts = index.files[number], f"{index.name(number)}.warc.gz", Counter[str]()
    copied = storage.atomic_write(storage.join(index.fetch.output, copy_file), durable=False)
    with nullcontext() if has_members(path) else copied as copy:
        max_bytes = -1 if copy is None else index.fetch.config.max_page_bytes

        def rows() -> Iterator[tuple[Any, ...]]:
            for record in read_archive(path, lambda record: capture_of(record, max_bytes)):
                if (capture := record.content) is None:
                    continue
                response = dataclasses.replace(capture.response, body=b"")
                counts["responses_in_source"] += 1
                if not record.is_intact:
                    counts["damaged_records_in_source"] += 1
                elif (is_redirect := response.status in REDIRECTS) or page_failure(response) is None:
                    # By number: a re-run may be in another folder, or name the files in another way.
                    place = str(number), record.offset, record.length
                    if copy is not None:
                        coded = dataclasses.replace(capture.response, coding=response.header("content-encoding"))
                        origin = {COPY_OF: f"{path}#{record.offset}+{record.length}"}
                        stored = capture._replace(response=coded).warc_record(origin)
                        place = copy_file, copy.size_bytes, len(stored)
                        copy.write(stored)
                    status = response.status if is_redirect else 200
                    counts["pages_in_source"] += not is_redirect
                    yield _key(capture.url), capture.url, capture.captured_at, status, *place, "text/html"

        entry = index.write(number, rows())
    progress.advance(1)
    copies = () if copy is None else (FileEntry(copy_file, copy.size_bytes, copy.checksum),)
    return TaskResult(counts=counts, files=(entry, *copies))


def _index_table(run: StageRun, index: _SourceIndex, names: Sequence[str]) -> TaskResult:
    """Write the URL of each file in the folder; say which rows of the table have no file, and which files no row."""
    table, folder = index.files[0], index.fetch.config.pages[0]
    unnamed, columns, missing = dict.fromkeys(names), set[str](), list[str]()
    known, required, form = frozenset(unnamed), ["url", "file"], file_format(table)
    types = {field.name: field.type for field in table_schema(table)} if form == "parquet" else {}
    for name in required:
        if name in types and not is_text(types[name]):
            raise InputError(f"{table}: column {name!r} has the type {types[name]}, not text")
    required += types.keys() & {"fetched_at"}

    def rows() -> Iterator[tuple[Any, ...]]:
        for number, (_, value, _) in enumerate(read_records(table, columns=required), 1):
            fields = value if isinstance(value, dict) else getattr(value, "fields", None) or {}
            columns.update(fields)
            url, file, date = (fields.get(column) for column in ("url", "file", "fetched_at"))
            name = file.strip().removeprefix("./") if isinstance(file, str) else ""
            if not isinstance(url, str) or replace_surrogates(url) != url or name not in known:
                missing.append(f"{name or 'row'} ({number:,})")
                continue
            unnamed.pop(name, None)
            at = parse_instant(str(date)) if isinstance(date, str | dt.date) else None
            if at is None and date not in (None, ""):
                raise InputError(f"{table}: fetched_at of row {number:,} is not an ISO 8601 date ({str(date)[:60]!r})")
            url, at = url.strip(), at or storage.modified_at(storage.join(folder, name))
            yield _key(url), url, at, 200, name, 0, 0, "text/html"
        with open_decompressed(table) as stream:
            if form.startswith("json") or not stream.read(1):  # read_records checks only a header
                shards.require_columns(table, sorted(columns), required)

    entry = index.write(0, rows())
    counts = {"rows_without_file": len(missing), "files_without_row": len(unnamed)}
    for names, noun, problem in ((missing, "row", "URL or file"), (list(unnamed), "file", "row")):
        if names:
            more = ", ..." if len(names) > _NAMED else ""
            without = plural(len(names), f"{noun} without a {problem}", f"{noun}s without a {problem}")
            run.note(f"{table}: {without} in {folder}: {', '.join(names[:_NAMED])}{more}")
    return TaskResult(counts=counts, files=(entry,))


def _archive_path(files: Sequence[str], output: str, name: str) -> str:
    """Return the path of an archive by its number, or of a copy in the work folder by its name."""
    return files[int(name)] if name.isdigit() else storage.join(output, name)


def _read_file(folder: str, max_bytes: int, row: dict[str, Any]) -> Capture:
    path = storage.join(folder, row["warc_filename"])
    try:
        with open_decompressed(path) as stream:
            body = stream.read(max_bytes + 1)
    except InputError as error:
        raise CaptureError("unreadable") from error
    name = strip_compression(path)
    kind = next((kind for suffix, kind in _TEXT_TYPES.items() if name.endswith(suffix)), "text/html")
    response = Response(200, "OK", "HTTP/1.1", (("Content-Type", kind),), body=body)
    return Capture(row["url"], row["fetch_time"], response, path)
