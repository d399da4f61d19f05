"""The first phase: one task a source file, which judges its submissions and sorts the links of them into buckets."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from pipelines.core import shards, storage
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult
from pipelines.core.shards import ShardWriter
from pipelines.stages.scrape.buckets import BucketWriter, write_buckets
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.judging import JudgedRows, judged_dump
from pipelines.stages.scrape.reading import REJECT_SCHEMA, Rejects
from pipelines.stages.scrape.selection import Selection, Verdict
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.submission import RawSubmission
from pipelines.stages.scrape.url_lists import read_url_list

# A submission that makes a link; `original_url` is null where it equals the canonical one.
SUBMISSION_SCHEMA = pa.schema(
    [
        pa.field("url", pa.string(), nullable=False),
        pa.field("original_url", pa.string()),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("score", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("subreddit", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("created_utc", pa.int64(), nullable=False),
        pa.field("over_18", pa.bool_(), nullable=False),
    ]
)

_BATCH_ROWS = 4096

Judged = Iterator[JudgedRows]
Write = Callable[[list[tuple[RawSubmission, Verdict]]], None]


@dataclasses.dataclass(frozen=True)
class PartitionTask:
    """One source file.

    The work files are named by what the file is, not by its place among others, so that they stay good where another
    file is added or repaired. Submissions of `unscored_months` (YYYY-MM) are not judged by their score and lie apart.
    """

    file: SourceFile
    selection: Selection
    source: str
    url_column: str
    shards: int
    output: str
    work: str
    unscored_months: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The label of the file and what it holds."""
        return f"{self.file.label}-{self.file.key}"

    @property
    def submissions_name(self) -> str:
        """The name of the work file of submissions in the output folder."""
        return self._work_file("submissions", "buckets")

    @property
    def pending_name(self) -> str:
        """The name of the work file of submissions without score in the output folder."""
        return self._work_file("pending", "parquet")

    @property
    def rejects_name(self) -> str:
        """The name of the work file of rejected lines in the output folder."""
        return self._work_file("rejects", "parquet")

    @property
    def stats_name(self) -> str:
        """The name of the work file of what was counted in the output folder."""
        return self._work_file("stats", "json")

    def _work_file(self, what: str, suffix: str) -> str:
        return f"{self.work}/{what}-{self.file.key}{'-unscored' if self.unscored_months else ''}.{suffix}"


def partition_file(task: PartitionTask) -> TaskResult:
    """Read a source file and write its submissions by bucket, its bad lines, and what was counted.

    The counts of the result are of this phase; those of the stage are made from the stats, in the end.
    """
    stats = FileStats()
    with contextlib.ExitStack() as stack:
        rejected = stack.enter_context(shards.write_shard(task.output, task.rejects_name, REJECT_SCHEMA))
        path = storage.join(task.output, task.submissions_name)
        written = stack.enter_context(write_buckets(path, SUBMISSION_SCHEMA))
        writers = [_by_bucket(written.writer, task.shards)]
        parquet = [rejected]
        if task.unscored_months:
            parquet.append(stack.enter_context(shards.write_shard(task.output, task.pending_name, SUBMISSION_SCHEMA)))
            writers.append(_as_they_come(parquet[-1].writer))
        _write(_judged(task, Rejects(task.file, rejected.writer), stats), writers)
    entry = FileEntry(task.submissions_name, written.size_bytes, written.sha256)
    stats_entry = shards.write_file(task.output, task.stats_name, stats.to_json())
    return TaskResult(files=(entry, *(each.entry for each in parquet), stats_entry))


def bucket_of_domain(domain: str, buckets: int) -> int:
    """Return the bucket of a registered domain: the same on every machine, unlike `hash`."""
    return zlib.crc32(domain.encode()) % buckets


def submission_batch(judged: list[tuple[RawSubmission, Verdict]]) -> pa.RecordBatch:
    """Return submissions with their links as a batch of SUBMISSION_SCHEMA."""
    submissions, verdicts = zip(*judged, strict=True)
    ids, times, originals, scores, subreddits, titles, over_18, _, _ = zip(*submissions, strict=True)
    _, urls, domains = zip(*verdicts, strict=True)
    columns: dict[str, list[object] | tuple[object, ...]] = {
        "url": urls,
        "original_url": [None if mine == url else mine for mine, url in zip(originals, urls, strict=True)],
        "domain": domains,
        "score": [score or 0 for score in scores],
        "id": ids,
        "subreddit": subreddits,
        "title": titles,
        "created_utc": times,
        "over_18": over_18,
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SUBMISSION_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SUBMISSION_SCHEMA)


def _judged(task: PartitionTask, rejects: Rejects, stats: FileStats) -> Judged:
    if task.source == "urls":
        return _judged_list(task, rejects, stats)
    return judged_dump(task.file, task.selection, task.unscored_months, rejects, stats)


def _judged_list(task: PartitionTask, rejects: Rejects, stats: FileStats) -> Judged:
    for submission in read_url_list(task.file, rejects, task.url_column):
        stats.lines += 1
        verdict = task.selection.judge(submission)
        if verdict.reason is not None:
            stats.dropped[verdict.reason] += 1
        else:
            stats.kept += 1
            yield JudgedRows([(submission, verdict)], [])
    stats.bad_lines = rejects.count
    stats.lines += rejects.count


def _by_bucket(writer: BucketWriter, buckets: int) -> Write:
    bucket_of = functools.lru_cache(maxsize=1 << 16)(lambda domain: bucket_of_domain(domain, buckets))

    def write(rows: list[tuple[RawSubmission, Verdict]]) -> None:
        found = np.array([bucket_of(verdict.domain) for _, verdict in rows], np.int32)
        writer.write(submission_batch(rows), found)

    return write


def _as_they_come(writer: ShardWriter) -> Write:
    return lambda rows: writer.write_batch(submission_batch(rows))


def _write(judged: Judged, writers: list[Write]) -> None:
    """Hand the kept submissions to the first writer, those that are pending to the second, thousands at a time."""
    waiting: list[list[tuple[RawSubmission, Verdict]]] = [[] for _ in writers]
    for part in judged:
        for number, rows in enumerate(part[: len(writers)]):
            waiting[number] += rows
            if len(waiting[number]) >= _BATCH_ROWS:
                writers[number](waiting[number])
                waiting[number] = []
    for write, rows in zip(writers, waiting, strict=True):
        if rows:
            write(rows)
