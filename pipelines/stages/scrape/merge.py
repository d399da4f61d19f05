"""The second phase: one task a bucket, which makes one link of all submissions of a URL."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pipelines.algorithms.urls import registered_domain
from pipelines.core import progress, shards, storage
from pipelines.core.records import LINK_SCHEMA, Link
from pipelines.core.run import TaskResult
from pipelines.stages.scrape.buckets import BucketPart, bucket_part, write_buckets
from pipelines.stages.scrape.partition import SUBMISSION_SCHEMA

# A bucket beyond this is sorted in ranges of its URLs: some domains have hundreds of millions of submissions.
_SORTED_BYTES = 96 << 20
_SAMPLES_PER_RANGE = 100
_ROWS_AT_ONCE = 1024

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class MergeTask:
    """One bucket of all work files. `least_score` is None where the scores were judged before."""

    bucket: int
    work_files: tuple[str, ...]
    karma: str
    least_score: int | None
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"links-{self.bucket:05d}"


def merge_bucket(task: MergeTask) -> TaskResult:
    """Write `links-N.parquet`, sorted by URL.

    The drops are submissions: those of one id and URL but one (`duplicate_submission`), those of a URL but one
    (`merged_into_link`), and all of a URL whose link has too low a score (`low_score`).
    """
    dropped: Counter[str] = Counter()
    with shards.write_shard(task.output, shards.shard_name("links", task.bucket), LINK_SCHEMA) as written:
        for rows in _submissions_by_url(task):
            distinct = distinct_submissions(rows)
            dropped["duplicate_submission"] += len(rows) - len(distinct)
            link = merge_submissions(distinct, task.karma)
            if task.least_score is not None and link.score < task.least_score:
                dropped["low_score"] += len(distinct)
            else:
                dropped["merged_into_link"] += len(distinct) - 1
                written.writer.write(link)
            progress.advance(len(rows))
    counted = {reason: count for reason, count in dropped.items() if count}
    return TaskResult(records_out=written.writer.records, dropped=counted, files=(written.entry,))


def distinct_submissions(rows: list[Row]) -> list[Row]:
    """Return the submissions of one URL in order of time, then id, each id once.

    Of two records of one submission the one with the higher score stays: dumps were taken at different times, and
    scores grow. Rows without an id (lists of URLs) are all different submissions.
    """
    best: dict[str, Row] = {}
    for number, row in enumerate(sorted(rows, key=lambda row: (-row["score"], *_order(row)))):
        best.setdefault(row["id"] or f" {number}", row)
    return sorted(best.values(), key=_order)


def merge_submissions(rows: list[Row], karma: str) -> Link:
    """Make the link of the distinct submissions of one URL, given in order of time."""
    first = rows[0]
    scores = [row["score"] for row in rows]
    score = {"max": max(scores), "sum": sum(scores), "first": scores[0]}[karma]
    with_id = [row for row in rows if row["id"]]
    return Link(
        url=first["url"],
        original_url=first["original_url"] or first["url"],
        domain=registered_domain(first["url"]) or "",
        score=score,
        submission_ids=[row["id"] for row in with_id],
        subreddits=[row["subreddit"] for row in with_id],
        title=first["title"],
        created_utc=first["created_utc"],
        over_18=any(row["over_18"] for row in rows),
    )


def _order(row: Row) -> tuple[Any, ...]:
    """Order by time, then id; the rest only so that equal inputs in another order give equal links."""
    keys = ("created_utc", "id", "original_url", "title", "subreddit", "over_18")
    return tuple("" if row[key] is None else row[key] for key in keys)


def _submissions_by_url(task: MergeTask) -> Iterator[list[Row]]:
    """Yield the rows of each URL of the bucket, in order of the URLs."""
    parts = [bucket_part(storage.join(task.output, name), task.bucket) for name in task.work_files]
    rows = itertools.chain.from_iterable(_sorted_rows(each) for each in _in_ranges(task, parts))
    for _, group in itertools.groupby(rows, key=lambda row: row["url"]):
        yield list(group)


def _sorted_rows(parts: list[BucketPart]) -> Iterator[Row]:
    batches = [batch for part in parts for batch in part.batches()]
    table = pa.Table.from_batches(batches, schema=SUBMISSION_SCHEMA).combine_chunks().sort_by("url")
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from batch.to_pylist()


def _in_ranges(task: MergeTask, parts: list[BucketPart]) -> Iterator[list[BucketPart]]:
    """Yield the bucket in pieces that fit into memory, each of one range of URLs, in order of the ranges."""
    ranges = -(-sum(part.size_bytes for part in parts) // _SORTED_BYTES)
    if ranges <= 1:
        yield parts
        return
    bounds = _range_bounds(parts, ranges)
    path = storage.join(task.output, f"{task.work}/{shards.shard_name('ranges', task.bucket)}")
    with write_buckets(path, SUBMISSION_SCHEMA) as written:
        for batch in itertools.chain.from_iterable(part.batches() for part in parts):
            written.writer.write(batch, [bisect.bisect_right(bounds, url) for url in batch.column("url").to_pylist()])
    for number in range(len(bounds) + 1):
        yield [bucket_part(path, number)]
    storage.remove(path)


def _range_bounds(parts: list[BucketPart], ranges: int) -> list[str]:
    """Return URLs that cut the bucket into about equal ranges, from an even sample."""
    step = max(1, sum(part.rows for part in parts) // (ranges * _SAMPLES_PER_RANGE))
    urls = itertools.chain.from_iterable(
        batch.column("url").to_pylist() for part in parts for batch in part.batches(["url"])
    )
    sample = sorted(itertools.islice(urls, 0, None, step))
    return sorted({sample[len(sample) * number // ranges] for number in range(1, ranges)})
