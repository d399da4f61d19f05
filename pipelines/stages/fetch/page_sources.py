"""Pages from disk instead of the web: the responses in WARC and ARC files.

All are indexed in one pass; the index is then joined with the links like that of an archive.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import progress, storage
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import UsageError
from pipelines.records import input_paths
from pipelines.records.archives import has_members, read_archive
from pipelines.stages.fetch.archives import INDEX_SCHEMA, Lookup, look_up
from pipelines.stages.fetch.captures import COPY_OF, capture_of, page_of
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.outcomes import REDIRECTS
from pipelines.stages.fetch.segments import FetchContext
from pipelines.stages.fetch.visit import page_failure

# A join looks up all links of the index in memory for each row group: many rows, but not all of a large file.
_GROUP_ROWS = 1 << 16


def open_source(config: FetchConfig) -> list[str]:
    """Return the files to take pages from, none for the web and archives; raise UsageError for missing options."""
    if config.source != "warc":
        return []
    if not config.pages:
        raise UsageError("--source warc: needs --pages, WARC or ARC files")
    return input_paths.expand_paths(config.pages, (".warc", ".arc"))


def take_pages(
    run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext, files: Sequence[str], fingerprint: str
) -> None:
    """Store the page of each link that files with a fingerprint have."""
    token = f"warc:{fingerprint[:8]}"
    phase, numbers, task = f"{token.replace(':', '-')}-source", range(len(files)), (context, files)
    run.map(_index_archive, numbers, task, name=str, phase=phase, work=True, total=len(files), unit="files")
    index = [storage.join(run.output, _index_name(number)) for number in numbers]
    path_of = functools.partial(_archive_path, files, run.output)
    look_up(run, link_shards, Lookup(context, token, index, page_of, path_of, 1 + context.config.max_redirects))


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


def _archive_path(files: Sequence[str], output: str, name: str) -> str:
    """Return the path of an archive by its number, or of a copy in the work folder by its name."""
    return files[int(name)] if name.isdigit() else storage.join(output, name)
