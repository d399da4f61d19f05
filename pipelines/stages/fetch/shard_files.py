"""The final files of a shard, assembled from its segments: one WARC file, and one row per link in link order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import WebtextError
from pipelines.records import shards
from pipelines.records.schemas import DROPPED_SCHEMA, PAGE_SCHEMA
from pipelines.stages.fetch.outcomes import LIVE, OK
from pipelines.stages.fetch.report import write_tally
from pipelines.stages.fetch.segments import SEGMENT_SCHEMA, Segment, latest_outcomes
from pipelines.stages.fetch.warc import warcinfo_record

_COPY_BYTES = 1 << 20
_BATCH_ROWS = 8192


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
    tables = [segment.outcomes for segment in segments]
    started_at = min((time for table in tables if (time := pc.min(table["fetched_at"]).as_py())), default=None)
    warc_name = _next_warc_name(index, warcs)
    info = warcinfo_record(warc_name, started_at or dt.datetime.now(dt.UTC), warcinfo)
    if not warcs or any(segment.warc_size_bytes for segment in segments):
        warcs = (*warcs, _write_warc(output, warc_name, info, segments))
    outcomes = _with_final_offsets(tables, segments, len(info))
    has_record = outcomes["warc_offset"].is_valid()
    warc_files = pc.if_else(has_record, pa.scalar(warc_name), pa.scalar(None, pa.string()))
    outcomes = outcomes.append_column("warc_file", warc_files)
    outcomes = _complete(latest_outcomes([known, outcomes]), len(links))
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
            left = segment.warc_size_bytes
            if left:
                with storage.open_read(segment.warc_path) as source:
                    while left and (block := source.read(min(_COPY_BYTES, left))):
                        stream.write(block)
                        left -= len(block)
    return FileEntry(name, stream.size_bytes, stream.checksum)


def _with_final_offsets(tables: Sequence[pa.Table], segments: Sequence[Segment], offset: int) -> pa.Table:
    """Return the outcomes of all segments, with offsets in the joined WARC file, where they begin at `offset`."""
    moved = [SEGMENT_SCHEMA.empty_table()]
    column = SEGMENT_SCHEMA.get_field_index("warc_offset")
    for table, segment in zip(tables, segments, strict=True):
        offsets = pc.add(table["warc_offset"], pa.scalar(offset, pa.int64()))
        moved.append(table.set_column(column, SEGMENT_SCHEMA.field(column), offsets))
        offset += segment.warc_size_bytes
    return pa.concat_tables(moved)


def _complete(outcomes: pa.Table, count: int) -> pa.Table:
    if not np.array_equal(outcomes["link"].to_numpy(), np.arange(count)):
        raise WebtextError(
            f"{outcomes.num_rows} outcomes do not match {count} links; this is a bug in webtext, please report it"
        )
    return outcomes


def _write_table(output: str, name: str, schema: pa.Schema, columns: dict[str, Any]) -> FileEntry:
    table = pa.table(columns, schema=schema)
    with shards.write_shard(output, name, schema) as written:
        for batch in table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS):
            written.writer.write_batch(batch)
    return written.entry
