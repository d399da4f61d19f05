"""Segments, the parts of a shard while it is fetched, and the final files of the shard, assembled from them.

A killed run repeats only the requests under way.

A segment is a WARC file and a journal of the outcomes of some links, in the order in which they became known. A line of
the journal is the outcome and the size of the WARC file at that time, as JSON, behind a CRC-32 of both this JSON and
the records since the line before. So a line counts only if the records to which it refers are on the disk, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import WebtextError
from pipelines.records import shards
from pipelines.records.schemas import DROPPED_SCHEMA, INSTANT, PAGE_SCHEMA
from pipelines.stages.fetch.outcomes import LIVE, OK, Outcome
from pipelines.stages.fetch.report import write_tally
from pipelines.stages.fetch.warc import warcinfo_record

# A segment ends when any of these is reached. Only then is it safe from a loss of power, or in an object store at all.
FLUSH_OUTCOMES = 1000
FLUSH_BYTES = 64 << 20
FLUSH_S = 30.0

_COPY_BYTES = 1 << 20
_BATCH_ROWS = 8192

SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("link", pa.int32(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("final_url", pa.string()),
        pa.field("status", pa.int32()),
        pa.field("fetched_at", INSTANT, nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("warc_offset", pa.int64()),
        pa.field("source", pa.string()),
        pa.field("captured_at", INSTANT),
        pa.field("captured_days", pa.int32()),
        pa.field("archives", pa.string()),
        pa.field("detail", pa.string()),
    ]
)
# Not an outcome: the link keeps that which it has, with the `archives` and `detail` of this row.
ASKED = "asked"
_OFFSET_COLUMN = SEGMENT_SCHEMA.get_field_index("warc_offset")
_WARC = "warc.gz"
_JOURNAL = "journal"


@dataclasses.dataclass(frozen=True)
class Segment:
    """The intact part of a segment: its outcomes, and the bytes of the WARC file to which they refer."""

    warc_path: str
    warc_size_bytes: int
    outcomes: pa.Table


class SegmentWriter:
    """Writes further segments into a folder; a context manager that makes pending outcomes durable after an error."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._number = 1 + max(map(_number, storage.list_folder(folder)), default=-1)
        self._started_at = time.monotonic()
        self._outcomes = 0
        self._checksum = 0
        self._open_files = contextlib.ExitStack()
        self._files: tuple[storage.HashingWriter, storage.HashingWriter] | None = None

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        # If an error ended the crawl, it is the one to report, even if the disk is full and this fails too.
        with contextlib.suppress(*(() if error_type is None else (WebtextError,))):
            self.flush()

    def append(self, records: bytes) -> int:
        """Append WARC records and return their offset in the file of the segment."""
        warc, _ = self._segment()
        offset = warc.size_bytes
        warc.write(records)
        self._checksum = zlib.crc32(records, self._checksum)
        return offset

    def add(self, outcome: Outcome) -> None:
        """Add the outcome of a link, whose records were appended before."""
        warc, journal = self._segment()
        line = msgspec.json.encode((warc.size_bytes, outcome))
        warc.flush()
        journal.write(b"%08x %b\n" % (zlib.crc32(line, self._checksum), line))
        journal.flush()
        self._checksum = 0
        self._outcomes += 1

    def flush_if_due(self) -> None:
        """Start a new segment if this one is large or old enough, and its last records are those of an outcome."""
        if self._checksum:
            return  # no line refers to these records yet, such as those of a redirect
        size_bytes = self._files[0].size_bytes if self._files is not None else 0
        too_old = time.monotonic() - self._started_at >= FLUSH_S
        if self._outcomes >= FLUSH_OUTCOMES or size_bytes >= FLUSH_BYTES or too_old:
            self.flush()

    def flush(self) -> None:
        """Make the segment durable, and start the next one."""
        self._started_at = time.monotonic()
        self._outcomes = self._checksum = 0
        self._files = None
        self._open_files.close()

    def _segment(self) -> tuple[storage.HashingWriter, storage.HashingWriter]:
        """Return the WARC file and the journal that are being written."""
        if self._files is None:
            stem = storage.join(self.folder, f"segment-{self._number:06d}")
            self._number += 1
            # Closed in reverse: in an object store, the journal must not be without its records.
            journal = self._open_files.enter_context(storage.gradual_write(f"{stem}.{_JOURNAL}"))
            self._files = self._open_files.enter_context(storage.gradual_write(f"{stem}.{_WARC}")), journal
        return self._files


def latest_outcomes(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the latest outcome of each link in some tables of segments, in order of the links.

    Later rows `ASKED` add to it. They count for nothing if the segment with the outcome was damaged.
    """
    table = pa.concat_tables(tables, promote_options="default")
    rows = _last_by_link(table.filter(pc.not_equal(table["outcome"], ASKED)))
    asked = _last_by_link(table.filter(pc.is_in(table["link"], value_set=rows["link"])))
    for name in ("archives", "detail"):
        rows = rows.set_column(rows.column_names.index(name), name, asked[name])
    return rows


def _last_by_link(table: pa.Table) -> pa.Table:
    links = table["link"].to_numpy()
    order = np.argsort(links, kind="stable")
    return table.take(pa.array(order[np.diff(links[order], append=-1) != 0]))


def open_segments(folder: str) -> list[Segment]:
    """Return the segments of a folder in order, up to the first damage in any of them."""
    names = sorted(name for name in storage.list_folder(folder) if name.endswith(_JOURNAL))
    return [_read_intact(storage.join(folder, name.removesuffix(_JOURNAL))) for name in names]


def _read_intact(stem: str) -> Segment:
    """Return a segment up to the first line that is torn, or that its records do not match."""
    rows: list[dict[str, Any]] = []
    size_bytes = 0
    with contextlib.ExitStack() as stack:
        journal = stack.enter_context(storage.open_read(stem + _JOURNAL))
        warc = stack.enter_context(storage.open_read(stem + _WARC)) if storage.exists(stem + _WARC) else None
        for line in journal:
            checksum, _, text = line.removesuffix(b"\n").partition(b" ")
            try:
                end, outcome = msgspec.json.decode(text, type=tuple[int, Outcome])
                records = warc.read(end - size_bytes) if warc is not None and end != size_bytes else b""
                if int(checksum, 16) != zlib.crc32(text, zlib.crc32(records)):
                    break
            except ValueError:  # whatever a disk may hold after a loss of power
                break
            rows.append(msgspec.structs.asdict(outcome))
            size_bytes = end
    return Segment(stem + _WARC, size_bytes, pa.Table.from_pylist(rows, SEGMENT_SCHEMA))


def _number(name: str) -> int:
    """Return the number of the segment to which a file belongs."""
    return int(name.split("-")[1].split(".")[0])


def write_shard_files(
    output: str,
    index: int,
    *,
    segments: Sequence[Segment],
    links: Sequence[str],
    warcinfo: Mapping[str, str],
    known: pa.Table,
    warcs: Sequence[FileEntry] = (),
) -> TaskResult:
    """Write `pages-N.warc.gz`, `pages-N.parquet` and `dropped-N.parquet`; equal segments give equal files.

    The shard takes over the outcomes `known` and the files `warcs` of an earlier result; new pages are then in
    `pages-N-00001.warc.gz` and so on.
    """
    times = [pc.max(segment.outcomes["fetched_at"]).as_py() for segment in segments if segment.outcomes.num_rows]
    warc_name = _next_warc_name(index, warcs)
    info = warcinfo_record(warc_name, max(times, default=dt.datetime.now(dt.UTC)), warcinfo)
    if not warcs or any(segment.warc_size_bytes for segment in segments):
        warcs = (*warcs, _write_warc(output, warc_name, info, segments))
    tables, start = [known], len(info)
    for segment in segments:
        offsets = pc.add(segment.outcomes["warc_offset"], pa.scalar(start, pa.int64()))
        warc_files = pc.if_else(offsets.is_valid(), pa.scalar(warc_name), pa.scalar(None, pa.string()))
        table = segment.outcomes.set_column(_OFFSET_COLUMN, SEGMENT_SCHEMA.field(_OFFSET_COLUMN), offsets)
        tables.append(table.append_column("warc_file", warc_files))
        start += segment.warc_size_bytes
    outcomes = latest_outcomes(tables)
    if not np.array_equal(outcomes["link"].to_numpy(), np.arange(len(links))):
        raise WebtextError(
            f"{outcomes.num_rows} outcomes do not match {len(links)} links; this is a bug in webtext, please report it"
        )
    outcomes = outcomes.append_column("url", pa.array(links, pa.string()))
    failed = outcomes.filter(pc.not_equal(outcomes["outcome"], OK))
    reasons = pc.utf8_slice_codeunits(failed["outcome"], len("dropped."))
    pages = _write_table(
        output, shards.shard_name("pages", index), PAGE_SCHEMA, {name: outcomes[name] for name in PAGE_SCHEMA.names}
    )
    dropped_columns = {"id": failed["url"], "url": failed["url"], "reason": reasons, "detail": failed["detail"]}
    dropped = _write_table(output, shards.shard_name("dropped", index), DROPPED_SCHEMA, dropped_columns)
    sources = pc.value_counts(outcomes.filter(pc.equal(outcomes["outcome"], OK))["source"]).to_pylist()
    archived = {f"pages_{row['values']}": int(row["counts"]) for row in sources if row["values"] != LIVE}
    return TaskResult(
        records_in=len(links),
        records_out=len(links) - failed.num_rows,
        dropped={str(row["values"]): int(row["counts"]) for row in pc.value_counts(reasons).to_pylist()},
        counts={"page_bytes": int(pc.sum(outcomes["bytes"]).as_py() or 0), **archived},
        files=(*warcs, pages, dropped, write_tally(output, index, outcomes)),
    )


def _next_warc_name(index: int, warcs: Sequence[FileEntry]) -> str:
    name = shards.shard_name("pages", index)
    stem = name.removesuffix(".parquet")
    number = sum(file.name.startswith(stem) for file in warcs)
    return f"{stem}-{number:05d}.warc.gz" if number else f"{stem}.warc.gz"


def _write_warc(output: str, name: str, info: bytes, segments: Sequence[Segment]) -> FileEntry:
    """Write the warcinfo record followed by the records of all segments: gzip members can simply be concatenated."""
    with storage.atomic_write(storage.join(output, name)) as stream:
        stream.write(info)
        for segment in segments:
            if left := segment.warc_size_bytes:
                with storage.open_read(segment.warc_path) as source:
                    while left and (block := source.read(min(_COPY_BYTES, left))):
                        stream.write(block)
                        left -= len(block)
    return FileEntry(name, stream.size_bytes, stream.checksum)


def _write_table(output: str, name: str, schema: pa.Schema, columns: dict[str, Any]) -> FileEntry:
    table = pa.table(columns, schema=schema)
    with shards.write_shard(output, name, schema) as written:
        for batch in table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS):
            written.writer.write_batch(batch)
    return written.entry
