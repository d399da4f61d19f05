"""Pages from disk instead of the web: the responses in WARC and ARC files, or files that a table names with their URLs.

All are indexed in one pass; the index is then joined with the links like that of an archive.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

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
from pipelines.records.documents import parse_instant
from pipelines.records.reader import file_format, read_records, table_schema
from pipelines.records.text_columns import is_text
from pipelines.records.url_lists import JSON_SUFFIXES, TABLE_SUFFIXES
from pipelines.stages.fetch.archives import INDEX_SCHEMA, Lookup, look_up
from pipelines.stages.fetch.captures import COPY_OF, Capture, capture_of, page_of, read_record
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.exchange import Response
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.outcomes import LIVE, REDIRECTS, Failure
from pipelines.stages.fetch.segments import FetchContext
from pipelines.stages.fetch.visit import page_failure
from pipelines.storage.compression import open_decompressed, strip_compression

# A join looks up all links of the index in memory for each row group: many rows, but not all of a large file.
_GROUP_ROWS = 1 << 16
_TEXT_TYPES = {".txt": "text/plain", ".md": "text/markdown", ".xhtml": "application/xhtml+xml"}
_NAMED = 5


@dataclasses.dataclass(frozen=True)
class PageSource:
    """The files of `--source warc`, or of `--source files` the names below its folder; `paths` are all that is read."""

    files: Sequence[str]
    paths: Sequence[str]
    names: Sequence[str]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the names and of the content of all files, which are read for it."""
        return inputs.fingerprint_files(self.paths, self.names)


def open_source(config: FetchConfig) -> PageSource | None:
    """Return the files to take pages from, None for the web and archives; raise UsageError for missing options."""
    kind, table = config.source, config.urls
    if kind in (LIVE, "archives"):
        return None
    if kind == "warc":
        if not config.pages:
            raise UsageError("--source warc: needs --pages, WARC or ARC files")
        files = inputs.expand_paths(config.pages, (".warc", ".arc"))
        names = storage.names_below_common_folder(files)
        return PageSource(files, files, names)
    if len(config.pages) != 1 or not table:
        raise UsageError("--source files: needs --pages, the folder of the files, and --urls, the table of their URLs")
    if not storage.is_folder(config.pages[0]):
        raise UsageError(f"--pages {config.pages[0]}: is not a folder, which --source files needs")
    if not strip_compression(table).endswith((*TABLE_SUFFIXES, *JSON_SUFFIXES)):
        raise UsageError(f"--urls {table}: is not a table; use {', '.join((*TABLE_SUFFIXES, *JSON_SUFFIXES))}")
    folder = storage.absolute_path(config.pages[0]).rstrip("/")
    files = [path for path in storage.walk_files(folder) if path != storage.absolute_path(table)]
    names = [path.removeprefix(f"{folder}/") for path in files]
    return PageSource(names, [table, *files], [storage.basename(table), *names])


def take_pages(run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext, source: PageSource) -> None:
    """Store the page of each link that the source has."""
    config, table = context.config, context.config.urls
    token = f"{config.source}:{source.fingerprint[:8]}"
    phase, files = f"{token.replace(':', '-')}-source", [table] if table else source.files
    read: Callable[[dict[str, Any]], Capture]
    if table:
        read = functools.partial(_read_file, config.pages[0], config.max_page_bytes)
        run.once(phase, lambda: _index_table(run, table, config.pages[0], source.files), work=True)
    else:
        path_of = functools.partial(_archive_path, files, run.output)
        read = functools.partial(read_record, path_of, config.max_page_bytes)
        task = context, files
        run.map(
            _index_archive, range(len(files)), task, name=str, phase=phase, work=True, total=len(files), unit="files"
        )
    index = [storage.join(run.output, _index_name(number)) for number in range(len(files))]
    look_up(run, link_shards, Lookup(context, token, index, page_of, read, 1 + config.max_redirects))


def _index_name(number: int) -> str:
    """Return the name of the index of one of the files."""
    return f"{WORK}/source-{number:05d}.parquet"


def _write_index(output: str, number: int, rows: Iterator[tuple[Any, ...]]) -> FileEntry:
    """Write the rows of the index (`INDEX_SCHEMA`) of one of the files."""
    path = storage.join(output, name := _index_name(number))
    with storage.atomic_write(path, durable=False) as stream, pq.ParquetWriter(stream, INDEX_SCHEMA) as writer:
        while part := list(itertools.islice(rows, _GROUP_ROWS)):
            writer.write_batch(pa.RecordBatch.from_arrays([*zip(*part, strict=True)], schema=INDEX_SCHEMA))
    return FileEntry(name, stream.size_bytes, stream.checksum)


def _index_archive(number: int, context_and_files: tuple[FetchContext, Sequence[str]]) -> TaskResult:
    """Write the position of each page and redirect in a WARC or ARC file.

    If its records cannot be read one by one, these are copied to a WARC file whose records can.
    """
    context, files = context_and_files
    path, copy_file, counts = files[number], f"{WORK}/source-{number:05d}.warc.gz", Counter[str]()
    copied = storage.atomic_write(storage.join(context.output, copy_file), durable=False)
    with nullcontext() if has_members(path) else copied as copy:
        max_bytes = -1 if copy is None else context.config.max_page_bytes

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
                    yield page_of(capture.url), capture.url, capture.captured_at, status, *place, "text/html"

        entry = _write_index(context.output, number, rows())
    progress.advance(1)
    copies = () if copy is None else (FileEntry(copy_file, copy.size_bytes, copy.checksum),)
    return TaskResult(counts=counts, files=(entry, *copies))


def _index_table(run: StageRun, table: str, folder: str, names: Sequence[str]) -> TaskResult:
    """Write the URL of each file in the folder; say which rows of the table have no file, and which files no row."""
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
            yield page_of(url), url, at, 200, name, 0, 0, "text/html"
        with open_decompressed(table) as stream:
            if form.startswith("json") or not stream.read(1):  # read_records checks only a header
                shards.require_columns(table, sorted(columns), required)

    entry = _write_index(run.output, 0, rows())
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
        raise Failure("unreadable") from error
    name = strip_compression(path)
    kind = next((kind for suffix, kind in _TEXT_TYPES.items() if name.endswith(suffix)), "text/html")
    response = Response(200, "OK", "HTTP/1.1", (("Content-Type", kind),), body=body)
    return Capture(row["url"], row["fetch_time"], response, path)
