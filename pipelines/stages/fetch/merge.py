"""Makes a shard's final files of its segments: one WARC file, one row a link in the order of the links."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core import shards, storage
from pipelines.core.errors import WebtextError
from pipelines.core.manifest import FileEntry
from pipelines.core.records import DROPPED_SCHEMA, PAGE_SCHEMA
from pipelines.core.run import TaskResult
from pipelines.stages.fetch.outcomes import OK
from pipelines.stages.fetch.segments import SEGMENT_SCHEMA, Segment, read_outcomes
from pipelines.stages.fetch.warc import warcinfo_record

_COPY_BYTES = 1 << 20
_BATCH_ROWS = 8192
_SOURCE = "live"
_DROPPED = "dropped."


@dataclasses.dataclass(frozen=True)
class Target:
    """Where a shard's files go, and what the WARC file says of its making."""

    output: str
    index: int
    warcinfo: dict[str, str]

    @property
    def warc_name(self) -> str:
        """The name of the WARC file."""
        return shards.shard_name("pages", self.index, "warc.gz")


def merge(segments: Sequence[Segment], links: Sequence[str], target: Target) -> TaskResult:
    """Write `pages-N.warc.gz`, `pages-N.parquet` and `dropped-N.parquet`; equal segments give equal files."""
    tables = [read_outcomes(segment) for segment in segments]
    begun_at = min((moment for table in tables if (moment := pc.min(table["fetched_at"]).as_py())), default=None)
    info = warcinfo_record(target.warc_name, begun_at or dt.datetime.now(dt.UTC), target.warcinfo)
    warc = _joined(segments, info, target)
    tables = _with_final_offsets(tables, segments, len(info))
    outcomes = _in_link_order(pa.concat_tables([SEGMENT_SCHEMA.empty_table(), *tables]), len(links))
    outcomes = outcomes.append_column("url", pa.array(links, pa.string()))
    pages = _write(target, "pages", PAGE_SCHEMA, _pages(outcomes, target.warc_name))
    refused = outcomes.filter(pc.not_equal(outcomes["outcome"], OK))
    reasons = pc.utf8_slice_codeunits(refused["outcome"], len(_DROPPED))
    dropped = _write(target, "dropped", DROPPED_SCHEMA, _dropped(refused, reasons))
    counts = {str(each["values"]): int(each["counts"]) for each in pc.value_counts(reasons).to_pylist()}
    return TaskResult(
        records_in=len(links),
        records_out=len(links) - refused.num_rows,
        dropped=counts,
        counts={"page_bytes": int(pc.sum(outcomes["bytes"]).as_py() or 0)},
        files=(warc, pages, dropped),
    )


def _joined(segments: Sequence[Segment], info: bytes, target: Target) -> FileEntry:
    """Write the warcinfo record and, behind it, the records of all segments: gzip members can simply be joined."""
    with storage.atomic_write(storage.join(target.output, target.warc_name)) as stream:
        stream.write(info)
        for segment in segments:
            if segment.warc_path is not None:
                with storage.open_read(segment.warc_path) as source:
                    while block := source.read(_COPY_BYTES):
                        stream.write(block)
    return FileEntry(target.warc_name, stream.size_bytes, stream.sha256)


def _with_final_offsets(tables: Sequence[pa.Table], segments: Sequence[Segment], first: int) -> list[pa.Table]:
    shifted, base = [], first
    column = SEGMENT_SCHEMA.get_field_index("warc_offset")
    for table, segment in zip(tables, segments, strict=True):
        moved = pc.add(table["warc_offset"], pa.scalar(base, pa.int64()))
        shifted.append(table.set_column(column, SEGMENT_SCHEMA.field(column), moved))
        base += segment.warc_size_bytes
    return shifted


def _in_link_order(outcomes: pa.Table, count: int) -> pa.Table:
    positions = outcomes["link"].to_numpy()
    order = np.argsort(positions, kind="stable")
    if not np.array_equal(positions[order], np.arange(count)):
        raise WebtextError(
            f"{len(positions)} outcomes do not match {count} links; this is a bug in webtext, please report it"
        )
    return outcomes.take(pa.array(order))


def _pages(outcomes: pa.Table, warc_name: str) -> dict[str, Any]:
    stored = outcomes["warc_offset"].is_valid()
    made = {
        "source": pa.repeat(pa.scalar(_SOURCE), outcomes.num_rows),
        "warc_file": pc.if_else(stored, pa.scalar(warc_name), pa.scalar(None, pa.string())),
    }
    return {name: made[name] if name in made else outcomes[name] for name in PAGE_SCHEMA.names}


def _dropped(refused: pa.Table, reasons: Any) -> dict[str, Any]:
    return {"id": refused["url"], "url": refused["url"], "reason": reasons, "detail": refused["detail"]}


def _write(target: Target, noun: str, schema: pa.Schema, columns: dict[str, Any]) -> FileEntry:
    table = pa.table(columns, schema=schema)
    with shards.write_shard(target.output, shards.shard_name(noun, target.index), schema) as written:
        for batch in table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS):
            written.writer.write_batch(batch)
    return written.entry
