"""The lists alongside the links: the rejected lines, the files, the months, and the re-fetched scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import pyarrow as pa

from pipelines import storage
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.records import shards
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.month_reports import MONTH_SCHEMA, MonthReport
from pipelines.stages.scrape.partition import FileToRead
from pipelines.stages.scrape.reading import REJECT_SCHEMA
from pipelines.stages.scrape.refresh import Refreshed

FILE_SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("lines", pa.int64(), nullable=False),
        pa.field("bad_lines", pa.int64(), nullable=False),
        pa.field("kept_submissions", pa.int64(), nullable=False),
        pa.field("dropped", pa.map_(pa.string(), pa.int64()), nullable=False),
        pa.field("damaged_at", pa.int64()),
        pa.field("damage", pa.string()),
    ]
)


def write_accounts(
    output: str,
    files: Sequence[FileToRead],
    stats: Sequence[FileStats],
    reports: Sequence[MonthReport],
    fresh_months: int,
    refreshed: Refreshed | None,
) -> TaskResult:
    """Write the lists, and return the funnel of the reading: records in and drops before the merge.

    `fresh_months` is the number of requested months whose scores were recorded at ingestion.
    """
    dropped: Counter[str] = Counter()
    for stat in stats:
        dropped.update(stat.dropped)
        dropped["bad_line"] += stat.bad_lines
    counts = {
        "kept_submissions": sum(stat.kept for stat in stats),
        "damaged_files": sum(bool(stat.damage) for stat in stats),
        "months_with_fresh_scores": fresh_months,
    }
    file_rows = [_file_row(item.file.label, stat) for item, stat in zip(files, stats, strict=True)]
    entries = [
        _write_rejects(output, files),
        _write_rows(output, "files", FILE_SCHEMA, file_rows),
        _write_rows(output, "months", MONTH_SCHEMA, (report.row() for report in reports)),
    ]
    if refreshed is not None:
        entries.append(refreshed.write_scores(output))
        counts["refreshed_scores"] = refreshed.fetched
    return TaskResult(
        records_in=sum(stat.lines for stat in stats),
        dropped={reason: count for reason, count in dropped.items() if count},
        counts={name: count for name, count in counts.items() if count or name == "kept_submissions"},
        files=tuple(entries),
    )


def _write_rejects(output: str, files: Sequence[FileToRead]) -> FileEntry:
    """Write the rejected lines of all files as one list, by file and line."""
    with shards.write_shard(output, shards.shard_name("rejects", 0), REJECT_SCHEMA) as rejects:
        for item in files:
            for batch in shards.read_batches(storage.join(output, item.rejects_name)):
                rejects.writer.write_batch(batch)
    return rejects.entry


def _write_rows(output: str, name: str, schema: pa.Schema, rows: Iterable[dict[str, object]]) -> FileEntry:
    with shards.write_shard(output, shards.shard_name(name, 0), schema) as written:
        for row in rows:
            written.writer.write(row)
    return written.entry


def _file_row(label: str, stats: FileStats) -> dict[str, object]:
    return {
        "file": label,
        "lines": stats.lines,
        "bad_lines": stats.bad_lines,
        "kept_submissions": stats.kept,
        "dropped": sorted(stats.dropped.items()),
        "damaged_at": stats.damaged_at,
        "damage": stats.damage or None,
    }
