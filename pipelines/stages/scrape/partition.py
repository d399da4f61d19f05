"""The first phase: one task a source file, which judges its submissions and sorts the links of them into buckets."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core import shards, storage
from pipelines.core.buckets import write_buckets
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.judging import Judged, judged_dump
from pipelines.stages.scrape.reading import REJECT_SCHEMA, Rejects
from pipelines.stages.scrape.selection import Selection, Verdict
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.submission import RawSubmission
from pipelines.stages.scrape.submission_rows import SUBMISSION_SCHEMA, bucket_of_domain, submission_batch
from pipelines.stages.scrape.url_lists import counted_urls

# A task's name is part of a file's name, which may have 255 bytes.
_SHOWN_CHARACTERS = 40
_BATCH_ROWS = 4096

Write = Callable[[pa.RecordBatch, npt.NDArray[np.int32]], None]


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
    def key(self) -> str:
        """A short name for what the file holds and for the months that are not judged."""
        months = zlib.crc32(" ".join(self.unscored_months).encode())
        return f"{self.file.key}-unscored-{months:08x}" if self.unscored_months else self.file.key

    @property
    def name(self) -> str:
        """The label of the file and what is read of it."""
        return f"{self.file.label[:_SHOWN_CHARACTERS]}-{self.key}"

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
        return f"{self.work}/{what}-{self.key}.{suffix}"


def partition_file(task: PartitionTask) -> TaskResult:
    """Read a source file and write its submissions by bucket, its bad lines, and what was counted.

    The counts of the result are of this phase; those of the stage are made from the stats, in the end.
    """
    stats = FileStats()
    with contextlib.ExitStack() as stack:
        rejected = stack.enter_context(shards.write_shard(task.output, task.rejects_name, REJECT_SCHEMA))
        path = storage.join(task.output, task.submissions_name)
        written = stack.enter_context(write_buckets(path, SUBMISSION_SCHEMA))
        writing = [_Writing(written.writer.write, task.shards)]
        parquet = [rejected]
        if task.unscored_months:
            pending = stack.enter_context(shards.write_shard(task.output, task.pending_name, SUBMISSION_SCHEMA))
            parquet.append(pending)
            writing.append(_Writing(lambda batch, _: pending.writer.write_batch(batch), task.shards))
        for parts in _judged(task, Rejects(task.file, rejected.writer), stats):
            for each, judged in zip(writing, parts, strict=False):
                each.add(judged)
        for each in writing:
            each.flush()
    entry = FileEntry(task.submissions_name, written.size_bytes, written.sha256)
    if stats.damage:
        stats.sha256 = storage.sha256_of(task.file.path)
    stats_entry = shards.write_file(task.output, task.stats_name, stats.to_json())
    return TaskResult(files=(entry, *(each.entry for each in parquet), stats_entry))


def file_bytes(task: PartitionTask) -> int:
    """Return the bytes that a task reads, which are what it costs."""
    return storage.size_bytes(task.file.path)


def _judged(task: PartitionTask, rejects: Rejects, stats: FileStats) -> Iterator[tuple[Judged, Judged]]:
    if task.source == "urls":
        return _judged_list(task, rejects, stats)
    return judged_dump(task.file, task.selection, task.shards, task.unscored_months, rejects, stats)


def _judged_list(task: PartitionTask, rejects: Rejects, stats: FileStats) -> Iterator[tuple[Judged, Judged]]:
    """Judge the URLs of a list one by one."""
    none = Judged([], [])
    for submission in counted_urls(task.file, task.url_column, rejects, stats):
        verdict = task.selection.judge(submission)
        if verdict.reason is not None:
            stats.dropped[verdict.reason] += 1
        else:
            stats.kept += 1
            yield Judged([], [(submission, verdict)]), none


class _Writing:
    """Hands submissions to a writer as batches; those that come one by one, thousands at a time."""

    def __init__(self, write: Write, buckets: int) -> None:
        self._write = write
        self._bucket_of = functools.lru_cache(maxsize=1 << 16)(lambda domain: bucket_of_domain(domain, buckets))
        self._waiting: list[tuple[RawSubmission, Verdict]] = []

    def add(self, judged: Judged) -> None:
        for part in judged.plain:
            if part.batch.num_rows:
                self._write(part.batch, part.buckets)
        self._waiting += judged.others
        if len(self._waiting) >= _BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            buckets = np.array([self._bucket_of(verdict.domain) for _, verdict in self._waiting], np.int32)
            self._write(submission_batch(self._waiting), buckets)
            self._waiting = []
