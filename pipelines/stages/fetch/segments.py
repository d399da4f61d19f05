"""Segments: the durable parts of a shard while it is fetched, so that a killed run loses minutes and not weeks.

A segment is a WARC file, a Parquet file with the outcomes of some links in the order in which they became known, and,
written last, a JSON file with the checksums of both: only a segment whose files match it counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import time
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core import shards, storage
from pipelines.core.errors import InputError, WebtextError
from pipelines.core.manifest import FileEntry, check_file
from pipelines.core.records import INSTANT
from pipelines.stages.fetch.outcomes import Outcome

# A segment ends when any of these is reached.
FLUSH_OUTCOMES = 1000
FLUSH_BYTES = 64 << 20
FLUSH_S = 30.0

_DETAIL_CHARACTERS = 300

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
# Not an outcome: the link keeps that which it has, with other `archives` and `detail`.
_ASKED = "asked"

_WARC = "warc.gz"
_OUTCOMES = "parquet"
_CHECKSUMS = "json"


@dataclasses.dataclass(frozen=True)
class Segment:
    """A complete segment; it has no WARC file if no request was answered."""

    folder: str
    number: int
    files: tuple[FileEntry, ...]

    @property
    def warc_path(self) -> str | None:
        """The path of the WARC file."""
        name = _file_name(self.number, _WARC)
        return storage.join(self.folder, name) if any(file.name == name for file in self.files) else None

    @property
    def warc_size_bytes(self) -> int:
        """The size of the WARC file, 0 if there is none."""
        return sum(file.size_bytes for file in self.files if file.name.endswith(_WARC))

    def read_outcomes(self) -> pa.Table:
        """Return the outcomes."""
        path = storage.join(self.folder, _file_name(self.number, _OUTCOMES))
        return pa.Table.from_batches(shards.read_batches(path), SEGMENT_SCHEMA)


class SegmentWriter:
    """Writes further segments into a folder; a context manager that makes pending outcomes durable after an error."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        segments = open_segments(folder)
        self._number = segments[-1].number + 1 if segments else 0
        self._rows: list[Mapping[str, object]] = []
        self._started_at = time.monotonic()
        self._open_file = contextlib.ExitStack()
        self._stream: storage.HashingWriter | None = None

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        # If an error ended the crawl, it is the one to report, even if the disk is full and this fails too.
        with contextlib.suppress(*(() if error_type is None else (WebtextError,))):
            self.flush()

    def append(self, records: bytes) -> int:
        """Append WARC records and return their offset in the file of the segment."""
        if self._stream is None:
            path = storage.join(self.folder, _file_name(self._number, _WARC))
            self._stream = self._open_file.enter_context(storage.atomic_write(path))
        offset = self._stream.size_bytes
        self._stream.write(records)
        return offset

    def add_outcome(self, outcome: Outcome) -> None:
        """Add the outcome of a link."""
        self._rows.append(_row(outcome))

    def add_asked(self, link: int, archives: str, detail: str) -> None:
        """Record that archives were asked for a link, without an answer that changes its outcome."""
        row = dict.fromkeys(SEGMENT_SCHEMA.names) | {"link": link, "outcome": _ASKED, "bytes": 0}
        row |= {"fetched_at": dt.datetime.now(dt.UTC), "archives": archives, "detail": detail[:_DETAIL_CHARACTERS]}
        self._rows.append(row)

    def flush_if_due(self) -> None:
        """Start a new segment if this one is large or old enough."""
        size_bytes = self._stream.size_bytes if self._stream is not None else 0
        too_old = time.monotonic() - self._started_at >= FLUSH_S
        if len(self._rows) >= FLUSH_OUTCOMES or size_bytes >= FLUSH_BYTES or too_old:
            self.flush()

    def flush(self) -> None:
        """Make the segment durable, its checksums last, and start the next one."""
        self._started_at = time.monotonic()
        if self._stream is None and not self._rows:
            return
        files = []
        if self._stream is not None:
            self._open_file.close()
            files.append(FileEntry(_file_name(self._number, _WARC), self._stream.size_bytes, self._stream.checksum))
            self._stream = None
        with shards.write_shard(self.folder, _file_name(self._number, _OUTCOMES), SEGMENT_SCHEMA) as written:
            for row in self._rows:
                written.writer.write(row)
        entries = [dataclasses.asdict(file) for file in (*files, written.entry)]
        storage.write_json(storage.join(self.folder, _file_name(self._number, _CHECKSUMS)), entries)
        self._rows.clear()
        self._number += 1


def latest_outcomes(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the latest outcome of each link in some tables of segments, with the archives that were asked since."""
    table = pa.concat_tables(tables, promote_options="default")
    rows, at = _last_by_link(table, pc.not_equal(table["outcome"], _ASKED))
    asked, asked_at = _last_by_link(table, pc.equal(table["outcome"], _ASKED))
    positions = pc.index_in(asked["link"], value_set=rows["link"]).to_numpy(zero_copy_only=False)
    is_later = asked_at > at[positions.astype(np.int64)]
    mask = np.zeros(rows.num_rows, bool)
    mask[positions[is_later]] = True
    for name in ("archives", "detail"):
        new = asked.filter(pa.array(is_later))[name].combine_chunks()
        column = pc.replace_with_mask(rows[name].combine_chunks(), pa.array(mask), new)
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def _last_by_link(table: pa.Table, mask: pa.ChunkedArray) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return the last row of each link among some rows, in order of the links, with their positions."""
    positions = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
    links = table["link"].to_numpy()[positions]
    order = np.argsort(links, kind="stable")
    positions = positions[order[np.append(np.diff(links[order]) != 0, True)]] if len(links) else positions
    return table.take(pa.array(positions)), positions


def open_segments(folder: str) -> list[Segment]:
    """Return the intact segments of a folder in order, and remove everything else that a killed run left there."""
    storage.remove_temporaries(folder)
    names = storage.list_folder(folder)
    segments = [segment for name in names if (segment := _read_intact(folder, name)) is not None]
    keep = {_file_name(segment.number, suffix) for segment in segments for suffix in (_WARC, _OUTCOMES, _CHECKSUMS)}
    for name in names:
        if name not in keep:
            storage.remove(storage.join(folder, name))
    return segments


def _file_name(number: int, suffix: str) -> str:
    return f"segment-{number:06d}.{suffix}"


def _read_intact(folder: str, name: str) -> Segment | None:
    """Return the segment of a file of checksums; None for another file, or if a checksum does not match."""
    if not name.endswith(_CHECKSUMS):
        return None
    try:
        files = msgspec.convert(storage.read_json(storage.join(folder, name)), tuple[FileEntry, ...])
    except (InputError, ValueError):
        return None
    if any(check_file(folder, file) for file in files):
        return None
    return Segment(folder, int(name.split("-")[1].split(".")[0]), files)


def _row(outcome: Outcome) -> Mapping[str, object]:
    fields = {name: getattr(outcome, name) for name in SEGMENT_SCHEMA.names if name not in ("outcome", "detail")}
    # The detail can contain text of any length that a server sent.
    detail = outcome.failure.detail[:_DETAIL_CHARACTERS] if outcome.failure is not None else None
    return {**fields, "outcome": outcome.name, "detail": detail}
