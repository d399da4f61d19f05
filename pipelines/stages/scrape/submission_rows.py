"""The rows of the work files between reading and merging: one for each submission that makes a link."""

from __future__ import annotations

import zlib

import pyarrow as pa

from pipelines.stages.scrape.selection import Verdict
from pipelines.stages.scrape.submission import RawSubmission

# `original_url` is null where it equals the canonical one.
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
