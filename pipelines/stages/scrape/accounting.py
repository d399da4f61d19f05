"""The lists beside the links: the rejected lines, the files, the months, and the scores that were fetched again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from pipelines.core import shards, storage
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.linter import MONTH_SCHEMA, MonthReport
from pipelines.stages.scrape.partition import PartitionTask
from pipelines.stages.scrape.reading import REJECT_SCHEMA

if TYPE_CHECKING:
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


def read_stats(tasks: Sequence[PartitionTask]) -> list[FileStats]:
    """Return what was counted of each file."""
    return [FileStats.from_json(storage.read_bytes(storage.join(task.output, task.stats_name))) for task in tasks]


def write_accounts(
    output: str,
    tasks: Sequence[PartitionTask],
    stats: Sequence[FileStats],
    reports: Sequence[MonthReport],
    fresh_months: int,
    refreshed: Refreshed | None,
) -> TaskResult:
    """Write the lists, and return the funnel of the reading: what came in and what was dropped before the merge.

    `fresh_months` is the number of months that were asked for although their scores were taken at ingestion.
    """
    dropped: Counter[str] = Counter()
    for each in stats:
        dropped.update(each.dropped)
        dropped["bad_line"] += each.bad_lines
    counts = {
        "kept_submissions": sum(each.kept for each in stats),
        "damaged_files": sum(bool(each.damage) for each in stats),
        "months_with_fresh_scores": fresh_months,
    }
    files = [
        _write_rejects(output, tasks),
        _write_rows(output, "files", FILE_SCHEMA, _file_rows(tasks, stats)),
        _write_rows(output, "months", MONTH_SCHEMA, (report.row() for report in reports)),
    ]
    if refreshed is not None:
        files.append(refreshed.write_scores(output))
        counts["refreshed_scores"] = refreshed.found
    return TaskResult(
        records_in=sum(each.lines for each in stats),
        dropped={reason: count for reason, count in dropped.items() if count},
        counts={name: count for name, count in counts.items() if count or name == "kept_submissions"},
        files=tuple(files),
    )


def _write_rejects(output: str, tasks: Sequence[PartitionTask]) -> FileEntry:
    """Put the rejected lines of all files into one list, by file and line."""
    with shards.write_shard(output, shards.shard_name("rejects", 0), REJECT_SCHEMA) as rejects:
        for task in tasks:
            for batch in shards.read_batches(storage.join(output, task.rejects_name)):
                rejects.writer.write_batch(batch)
    return rejects.entry


def _write_rows(output: str, name: str, schema: pa.Schema, rows: Iterator[dict[str, object]]) -> FileEntry:
    with shards.write_shard(output, shards.shard_name(name, 0), schema) as written:
        for row in rows:
            written.writer.write(row)
    return written.entry


def _file_rows(tasks: Sequence[PartitionTask], stats: Sequence[FileStats]) -> Iterator[dict[str, object]]:
    for task, each in zip(tasks, stats, strict=True):
        yield {
            "file": task.file.label,
            "lines": each.lines,
            "bad_lines": each.bad_lines,
            "kept_submissions": each.kept,
            "dropped": sorted(each.dropped.items()),
            "damaged_at": each.damaged_at,
            "damage": each.damage or None,
        }
