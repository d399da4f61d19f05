"""The first phase: one task a source file, which judges its submissions and sorts the links of them into buckets."""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipelines.core import shards, storage
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult
from pipelines.stages.scrape.buckets import write_buckets
from pipelines.stages.scrape.reading import REJECT_SCHEMA, Rejects, read_dump
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


@dataclasses.dataclass(frozen=True)
class PartitionTask:
    """One source file. The work files are `WORK/submissions-N.parquet` and `WORK/rejects-N.parquet`."""

    index: int
    file: SourceFile
    selection: Selection
    source: str
    shards: int
    output: str
    work: str

    @property
    def name(self) -> str:
        """The label of the file."""
        return self.file.label

    @property
    def submissions_name(self) -> str:
        """The name of the work file of submissions in the output folder."""
        return f"{self.work}/{shards.shard_name('submissions', self.index, 'buckets')}"

    @property
    def rejects_name(self) -> str:
        """The name of the work file of rejected lines in the output folder."""
        return f"{self.work}/{shards.shard_name('rejects', self.index)}"


def partition_file(task: PartitionTask) -> TaskResult:
    """Read a source file and write its submissions by bucket, and its bad lines.

    What is kept counts as `kept_submissions` and not as records out: those are the links, which the merge makes.
    """
    read = read_url_list if task.source == "urls" else read_dump
    with shards.write_shard(task.output, task.rejects_name, REJECT_SCHEMA) as rejected:
        rejects = Rejects(task.file, rejected.writer)
        entry, kept, dropped = _write_kept(task, read(task.file, rejects))
    if rejects.count:
        dropped["bad_line"] = rejects.count
    return TaskResult(
        records_in=kept + sum(dropped.values()),
        dropped=dropped,
        counts={"kept_submissions": kept},
        files=(entry, rejected.entry),
    )


def bucket_of_domain(domain: str, buckets: int) -> int:
    """Return the bucket of a registered domain: the same on every machine, unlike `hash`."""
    return zlib.crc32(domain.encode()) % buckets


def _write_kept(task: PartitionTask, submissions: Iterator[RawSubmission]) -> tuple[FileEntry, int, Counter[str]]:
    """Write the submissions that make a link; return the file, their number, and the drops of the others."""
    dropped: Counter[str] = Counter()
    kept = 0
    rows: list[dict[str, Any]] = []
    buckets: list[int] = []
    with write_buckets(storage.join(task.output, task.submissions_name), SUBMISSION_SCHEMA) as written:
        for submission in submissions:
            verdict = task.selection.judge(submission)
            if verdict.reason is not None:
                dropped[verdict.reason] += 1
            else:
                kept += 1
                rows.append(_row(submission, verdict))
                buckets.append(bucket_of_domain(verdict.domain, task.shards))
            if len(rows) == _BATCH_ROWS:
                written.writer.write(_batch(rows), buckets)
                rows, buckets = [], []
        if rows:
            written.writer.write(_batch(rows), buckets)
    return FileEntry(task.submissions_name, written.size_bytes, written.sha256), kept, dropped


def _row(submission: RawSubmission, verdict: Verdict) -> dict[str, Any]:
    return {
        "url": verdict.url,
        "original_url": None if submission.url == verdict.url else submission.url,
        "domain": verdict.domain,
        "score": submission.score or 0,
        "id": submission.id,
        "subreddit": submission.subreddit,
        "title": submission.title,
        "created_utc": submission.created_utc,
        "over_18": submission.over_18,
    }


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SUBMISSION_SCHEMA)
