"""The first phase: one task per source file, which filters its submissions and sorts their links into buckets."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
import zlib
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from pipelines import storage
from pipelines.engine.journal import WORK
from pipelines.engine.run import TaskResult
from pipelines.records import shards
from pipelines.records.buckets import write_buckets
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.months import month_span
from pipelines.stages.scrape.reading import REJECT_SCHEMA, Rejects, count_submissions
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.submission import Submission
from pipelines.stages.scrape.submission_filter import FilterResult, SubmissionFilter
from pipelines.stages.scrape.submission_rows import SUBMISSION_SCHEMA, batch_buckets, submission_batch
from pipelines.stages.scrape.url_source import count_urls

# A task's name is part of a file's name, which may have 255 bytes.
_SHOWN_CHARACTERS = 40
# Waiting rows fragment the memory of decoded lines: with 4,096 of them, reading takes 1.1 to 1.2 times as long.
_BATCH_ROWS = 256


@dataclasses.dataclass(frozen=True)
class FileToRead:
    """One source file; submissions of its `unscored_months` (YYYY-MM) are kept apart, whatever their scores are.

    Work files are named by the content of the file, not by its position, so that they stay valid when another file is
    added or repaired.
    """

    file: SourceFile
    unscored_months: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A short name of the file's content and of the unscored months."""
        months = zlib.crc32(" ".join(self.unscored_months).encode())
        return f"{self.file.key}-unscored-{months:08x}" if self.unscored_months else self.file.key

    @property
    def name(self) -> str:
        """The label of the file and what is read of it."""
        return f"{self.file.label[:_SHOWN_CHARACTERS]}-{self.key}"

    @property
    def submissions_name(self) -> str:
        """The work file of submissions that make a link."""
        return f"{WORK}/submissions-{self.key}.buckets"

    @property
    def pending_name(self) -> str:
        """The work file of submissions of unscored months."""
        return f"{WORK}/pending-{self.key}.parquet"

    @property
    def rejects_name(self) -> str:
        """The work file of rejected lines."""
        return f"{WORK}/rejects-{self.key}.parquet"

    @property
    def stats_name(self) -> str:
        """The work file of the file's counts."""
        return f"{WORK}/stats-{self.key}.json"


@dataclasses.dataclass(frozen=True)
class ReadContext:
    """What the tasks of all source files share."""

    filter: SubmissionFilter
    source: str
    url_column: str
    shards: int
    output: str


def partition_file(item: FileToRead, context: ReadContext) -> TaskResult:
    """Read a source file and write its submissions by bucket, its bad lines, and its counts.

    The counts of the result belong to this phase; those of the stage are computed from the stats at the end.
    """
    stats = FileStats()
    output = context.output
    with contextlib.ExitStack() as stack:
        rejected = stack.enter_context(shards.write_shard(output, item.rejects_name, REJECT_SCHEMA))
        written = stack.enter_context(write_buckets(storage.join(output, item.submissions_name), SUBMISSION_SCHEMA))
        kept = pending = _RowBuffer(lambda batch: written.writer.write(batch, batch_buckets(batch, context.shards)))
        parquet = [rejected]
        if item.unscored_months:
            waiting = stack.enter_context(shards.write_shard(output, item.pending_name, SUBMISSION_SCHEMA))
            pending = _RowBuffer(waiting.writer.write_batch)
            parquet.append(waiting)
        batches = _read(item.file, context, Rejects(item.file, rejected.writer), stats)
        _filter_submissions(
            batches, item.unscored_months, filter=context.filter, stats=stats, kept=kept, pending=pending
        )
        kept.flush()
        pending.flush()
    entry = written.entry(item.submissions_name)
    if stats.damage:
        stats.sha256 = storage.sha256_of(item.file.path)
    stats_entry = shards.write_file(output, item.stats_name, stats.to_json())
    return TaskResult(files=(entry, *(shard.entry for shard in parquet), stats_entry))


def read_stats(items: Sequence[FileToRead], output: str) -> list[FileStats]:
    """Return the counts of each file."""
    return [FileStats.from_json(storage.read_bytes(storage.join(output, item.stats_name))) for item in items]


def file_bytes(item: FileToRead) -> int:
    """Return the size of the file, for the progress bar."""
    return storage.size_bytes(item.file.path)


def _read(file: SourceFile, context: ReadContext, rejects: Rejects, stats: FileStats) -> Iterable[Sequence[Submission]]:
    if context.source == "urls":
        submissions = count_urls(file, context.url_column, rejects, stats)
        return iter(lambda: list(itertools.islice(submissions, _BATCH_ROWS)), [])
    return (batch for _, batch in count_submissions(file, rejects, stats))


def _filter_submissions(
    batches: Iterable[Sequence[Submission]],
    unscored_months: Sequence[str],
    filter: SubmissionFilter,
    stats: FileStats,
    kept: _RowBuffer,
    pending: _RowBuffer,
) -> None:
    """Add the submissions that pass the filter to `kept`, those of unscored months to `pending`; count them all."""
    spans = [month_span(month) for month in unscored_months]
    filter_without_score = filter.without_score()
    for batch in batches:
        if spans:
            is_pending = [any(start <= post.created_utc < end for start, end in spans) for post in batch]
            unscored = list(itertools.compress(batch, is_pending))
            batch = list(itertools.compress(batch, map(operator.not_, is_pending)))
            stats.pending += pending.add(filter_without_score.select(unscored, stats.dropped))
        stats.kept += kept.add(filter.select(batch, stats.dropped))


class _RowBuffer:
    """Writes submissions in batches."""

    def __init__(self, write: Callable[[pa.RecordBatch], None]) -> None:
        self._write = write
        self._rows: list[tuple[Submission, FilterResult]] = []

    def add(self, rows: Sequence[tuple[Submission, FilterResult]]) -> int:
        """Add rows and return their number."""
        self._rows += rows
        if len(self._rows) >= _BATCH_ROWS:
            self.flush()
        return len(rows)

    def flush(self) -> None:
        if self._rows:
            self._write(submission_batch(self._rows))
            self._rows = []
