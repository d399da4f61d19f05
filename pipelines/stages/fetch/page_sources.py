"""Pages from disk instead of the web: the responses in WARC and ARC files.

All are indexed in one pass; the index is then joined with the links like that of an archive.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import progress, storage
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import StageRun, TaskResult
from pipelines.errors import InputError, UsageError
from pipelines.records import inputs
from pipelines.records.archives import has_members, read_archive
from pipelines.stages.fetch.archives import INDEX_SCHEMA, Lookup, look_up
from pipelines.stages.fetch.captures import capture_of, page_of
from pipelines.stages.fetch.config import FetchConfig
from pipelines.stages.fetch.links import LinkShard
from pipelines.stages.fetch.outcomes import REDIRECTS
from pipelines.stages.fetch.segments import FetchContext
from pipelines.stages.fetch.visit import page_failure

# A join looks up all links of the index in memory for each row group: many rows, but not all of a large file.
_GROUP_ROWS = 1 << 16


def open_source(config: FetchConfig) -> list[str]:
    """Return the files to take pages from, none for the web and archives.

    Raises UsageError for missing options, InputError for a file whose records cannot be read one by one.
    """
    if config.source != "warc":
        return []
    if not config.pages:
        raise UsageError("--source warc: needs --pages, WARC or ARC files")
    files = inputs.expand_paths(config.pages, (".warc", ".arc"))
    if packed := next(itertools.filterfalse(has_members, files), None):
        raise InputError(f"{packed}: no single page can be read from this compression; decompress the file first")
    return files


def take_pages(
    run: StageRun, link_shards: Sequence[LinkShard], context: FetchContext, files: Sequence[str], fingerprint: str
) -> None:
    """Store the page of each link that files with a fingerprint have."""
    token = f"warc:{fingerprint[:8]}"
    phase, numbers, task = f"{token.replace(':', '-')}-source", range(len(files)), (context, files)
    run.map(_index_archive, numbers, task, name=str, phase=phase, work=True, total=len(files), unit="files")
    index = [storage.join(run.output, _index_name(number)) for number in numbers]
    path_of = functools.partial(_path_of, files)
    look_up(run, link_shards, Lookup(context, token, index, page_of, path_of, 1 + context.config.max_redirects))


def _index_name(number: int) -> str:
    """Return the name of the index of one of the files."""
    return f"{WORK}/source-{number:05d}.parquet"


def _index_archive(number: int, context: tuple[FetchContext, Sequence[str]]) -> TaskResult:
    """Write the position of each page and redirect in a WARC or ARC file, as rows of `INDEX_SCHEMA`."""
    fetch, files = context
    counts = Counter[str]()

    def rows() -> Iterator[tuple[Any, ...]]:
        for record in read_archive(files[number], capture_of):
            if (capture := record.content) is None:
                continue
            response = dataclasses.replace(capture.response, body=b"")
            counts["responses_in_source"] += 1
            if not record.is_intact:
                counts["damaged_records_in_source"] += 1
            elif (is_redirect := response.status in REDIRECTS) or page_failure(response) is None:
                counts["pages_in_source"] += not is_redirect
                # By number: a re-run may be in another folder, or name the files in another way.
                place = str(number), record.offset, record.length
                status = response.status if is_redirect else 200
                yield page_of(capture.url), capture.url, capture.captured_at, status, *place, "text/html"

    pages, path = rows(), storage.join(fetch.output, name := _index_name(number))
    with storage.atomic_write(path, durable=False) as stream, pq.ParquetWriter(stream, INDEX_SCHEMA) as writer:
        while part := list(itertools.islice(pages, _GROUP_ROWS)):
            writer.write_batch(pa.RecordBatch.from_arrays([*zip(*part, strict=True)], schema=INDEX_SCHEMA))
    progress.advance(1)
    return TaskResult(counts=counts, files=(FileEntry(name, stream.size_bytes, stream.checksum),))


def _path_of(files: Sequence[str], number: str) -> str:
    """Return the path of a file by its number in the index."""
    return files[int(number)]
