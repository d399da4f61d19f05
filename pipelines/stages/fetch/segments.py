"""Segments: the parts of a shard while it is fetched, so that a killed run repeats only the requests under way.

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
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.errors import WebtextError
from pipelines.records.schemas import INSTANT
from pipelines.stages.fetch.outcomes import Outcome

# A segment ends when any of these is reached. Only then is it safe from a loss of power, or in an object store at all.
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
_TIMES = ("fetched_at", "captured_at")
# Not an outcome: the link keeps that which it has, with other `archives` and `detail`.
_ASKED = "asked"

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

    def add_outcome(self, outcome: Outcome) -> None:
        """Add the outcome of a link."""
        self._add(_row(outcome))

    def add_asked(self, link: int, archives: str, detail: str) -> None:
        """Record that archives were asked for a link, without an answer that changes its outcome."""
        asked = {"link": link, "outcome": _ASKED, "bytes": 0, "fetched_at": dt.datetime.now(dt.UTC)}
        self._add({**asked, "archives": archives, "detail": detail[:_DETAIL_CHARACTERS]})

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

    def _add(self, row: Mapping[str, object]) -> None:
        warc, journal = self._segment()
        line = msgspec.json.encode({**row, "warc_size_bytes": warc.size_bytes})
        warc.flush()
        journal.write(b"%08x %b\n" % (zlib.crc32(line, self._checksum), line))
        journal.flush()
        self._checksum = 0
        self._outcomes += 1


def latest_outcomes(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the latest outcome of each link in some tables of segments, with the archives that were asked since."""
    table = pa.concat_tables(tables, promote_options="default")
    rows, at = _last_by_link(table, pc.not_equal(table["outcome"], _ASKED))
    # If the segment with the outcome of a link was damaged, there is none that the answer could add to.
    has_outcome = pc.is_in(table["link"], value_set=rows["link"])
    asked, asked_at = _last_by_link(table, pc.and_(has_outcome, pc.equal(table["outcome"], _ASKED)))
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
            try:
                checksum, _, text = line.removesuffix(b"\n").partition(b" ")
                row = msgspec.json.decode(text)
                grown = row["warc_size_bytes"] - size_bytes
                records = warc.read(grown) if warc is not None and grown else b""
                if int(checksum, 16) != zlib.crc32(text, zlib.crc32(records)):
                    break
                row |= {name: dt.datetime.fromisoformat(row[name]) for name in _TIMES if row.get(name)}
            except (ValueError, TypeError, KeyError):  # whatever a disk may hold after a loss of power
                break
            rows.append(row)
            size_bytes += grown
    return Segment(stem + _WARC, size_bytes, pa.Table.from_pylist(rows, SEGMENT_SCHEMA))


def _number(name: str) -> int:
    """Return the number of the segment to which a file belongs."""
    return int(name.split("-")[1].split(".")[0])


def _row(outcome: Outcome) -> Mapping[str, object]:
    fields = {name: getattr(outcome, name) for name in SEGMENT_SCHEMA.names if name not in ("outcome", "detail")}
    # The detail can contain text of any length that a server sent.
    detail = outcome.failure.detail[:_DETAIL_CHARACTERS] if outcome.failure is not None else None
    return {**fields, "outcome": outcome.name, "detail": detail}
