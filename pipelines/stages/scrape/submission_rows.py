"""The rows of the work files between reading and merging: one for each submission that makes a link."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.stages.scrape.submission import Submission
from pipelines.stages.scrape.submission_filter import FilterResult

# `original_url` is null if it equals the canonical one.
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


@functools.lru_cache(maxsize=65536)
def bucket_of_domain(domain: str, buckets: int) -> int:
    """Return the bucket of a registered domain: the same on every machine, unlike `hash`."""
    return zlib.crc32(domain.encode()) % buckets


def batch_buckets(batch: pa.RecordBatch, buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each row of a batch."""
    return np.array([bucket_of_domain(domain, buckets) for domain in batch.column("domain").to_pylist()], np.int32)


def submission_batch(rows: Sequence[tuple[Submission, FilterResult]]) -> pa.RecordBatch:
    """Return submissions with their links as a batch of SUBMISSION_SCHEMA."""
    columns = {
        "url": [link.url for _, link in rows],
        "original_url": [None if submission.url == link.url else submission.url for submission, link in rows],
        "domain": [link.domain for _, link in rows],
        "score": [submission.score or 0 for submission, _ in rows],
        "id": [submission.id for submission, _ in rows],
        "subreddit": [submission.subreddit for submission, _ in rows],
        "title": [submission.title for submission, _ in rows],
        "created_utc": [submission.created_utc for submission, _ in rows],
        "over_18": [submission.over_18 is True for submission, _ in rows],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SUBMISSION_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SUBMISSION_SCHEMA)
