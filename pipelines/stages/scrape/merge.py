"""The last phase: merges the submissions of each URL into one link, one task per bucket.

Between reading and merging, submissions that make a link are rows of work files, in buckets by domain. They
stay Arrow columns up to the shard: they are sorted by URL, grouped by URL, and aggregated. Only URLs that were
submitted more than once need a finer order.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.engine.journal import WORK
from pipelines.engine.run import TaskResult
from pipelines.records import shards
from pipelines.records.buckets import BucketPart, bucket_part, write_buckets
from pipelines.records.removals import NO_REMOVALS, REMOVED, Removals
from pipelines.records.schemas import LINK_SCHEMA, make_schema
from pipelines.stages.scrape.decision import Link, reaches_minimum

# `original_url` is null if it equals the canonical one.
SUBMISSION_SCHEMA = make_schema(
    url="string", original_url="string?", domain="string", score="int64", id="string", subreddit="string",
    author="string", title="string", created_utc="int64", over_18="bool",
)  # fmt: skip

# A larger bucket is sorted in ranges of its URLs: some domains have hundreds of millions of submissions.
_MAX_SORTED_BYTES = 160 << 20
_SAMPLES_PER_RANGE = 100
_SAMPLED_FRAMES = 8
_LINKS_PER_BATCH = 4096
_REPETITIVE = ("domain", "subreddits.list.element", "authors.list.element")

_INT64_MAX = 2**63 - 1

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@functools.lru_cache(maxsize=65536)
def bucket_of_domain(domain: str, buckets: int) -> int:
    """Return the bucket of a registered domain: the same on every machine, unlike `hash`."""
    return zlib.crc32(domain.encode()) % buckets


def batch_buckets(batch: pa.RecordBatch, buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each row of a batch."""
    return np.array([bucket_of_domain(domain, buckets) for domain in batch.column("domain").to_pylist()], np.int32)


def submission_batch(rows: Sequence[Link]) -> pa.RecordBatch:
    """Return submissions with their links as a batch of SUBMISSION_SCHEMA."""
    names = ("id", "subreddit", "title", "created_utc")
    columns = {
        **{name: [getattr(submission, name) for submission, _ in rows] for name in names},
        "url": [link.url for _, link in rows],
        "original_url": [None if submission.url == link.url else submission.url for submission, link in rows],
        "domain": [link.domain for _, link in rows],
        "score": [submission.score or 0 for submission, _ in rows],
        "author": [submission.author or "" for submission, _ in rows],
        "over_18": [submission.over_18 is True for submission, _ in rows],
    }
    return pa.RecordBatch.from_pydict(columns, SUBMISSION_SCHEMA)


@dataclasses.dataclass(frozen=True)
class MergeContext:
    """The context of all bucket tasks; `min_score` is None if the score was checked per submission."""

    work_files: tuple[str, ...]
    karma: str
    min_score: int | None
    output: str
    removals: Removals = NO_REMOVALS


def merge_bucket(bucket: int, context: MergeContext) -> TaskResult:
    """Write `links-N.parquet`, sorted by URL.

    Drops are counted in submissions: further records of one id and URL (`duplicate_submission`), further submissions of
    a URL (`merged_into_link`), and all submissions of a URL whose link has too low a score (`low_score`); of links that
    a request for removal names, in links (`removed`).
    """
    dropped: Counter[str] = Counter()
    name = shards.shard_name("links", bucket)
    with shards.write_shard(context.output, name, LINK_SCHEMA, repetitive=_REPETITIVE) as written:
        for batch in _in_equal_batches(_all_links(bucket, context, dropped), _LINKS_PER_BATCH):
            if context.removals:
                batch, removed = context.removals.split(batch, by_url=True)
                dropped[REMOVED] += removed.num_rows
            written.write_batch(batch)
    return TaskResult(records_out=written.records, dropped=+dropped, files=(written.entry,))


def _all_links(bucket: int, context: MergeContext, dropped: Counter[str]) -> Iterator[pa.RecordBatch]:
    for parts in _in_ranges(bucket, context):
        # No local refers to the rows, so that those of one range are freed before the next are read.
        yield from _links(_sorted_rows(parts), context, dropped)


def _sorted_rows(parts: list[BucketPart]) -> pa.RecordBatch:
    """Return the rows sorted by the bytes of their URLs, which is code point order."""
    none = pa.RecordBatch.from_pylist([], schema=SUBMISSION_SCHEMA)
    rows = pa.concat_batches([none, *(batch for part in parts for batch in part.batches())])
    # Reorder all columns at once, so that later reads are sequential instead of random.
    return rows.take(pc.sort_indices(rows.column("url")))


@dataclasses.dataclass(frozen=True)
class Groups:
    """The submissions of each URL: row numbers grouped by URL, and the start and end of each URL in them."""

    rows: Ints
    starts: Ints
    ends: Ints

    @property
    def sizes(self) -> Ints:
        """The number of submissions of each URL."""
        return self.ends - self.starts

    def select(self, kept: Bools | slice) -> Groups:
        """Return the groups of the selected URLs."""
        return Groups(self.rows, self.starts[kept], self.ends[kept])


def _links(rows: pa.RecordBatch, context: MergeContext, dropped: Counter[str]) -> Iterator[pa.RecordBatch]:
    """Yield the links of submissions in order of their URLs, and count the dropped submissions."""
    if rows.num_rows == 0:
        return
    groups = distinct_by_url(rows)
    dropped["duplicate_submission"] += rows.num_rows - len(groups.rows)
    scores = link_scores(rows, groups, context.karma)
    over_18 = np.logical_or.reduceat(_numpy(rows.column("over_18"))[groups.rows], groups.starts)
    kept = reaches_minimum(scores, context.min_score)
    dropped["low_score"] += int(groups.sizes[~kept].sum())
    dropped["merged_into_link"] += int((groups.sizes[kept] - 1).sum())
    groups, scores, over_18 = groups.select(kept), scores[kept], over_18[kept]
    for start in range(0, len(scores), _LINKS_PER_BATCH):
        part = slice(start, start + _LINKS_PER_BATCH)
        yield _batch(rows, groups.select(part), scores[part], over_18[part])
    progress.advance(rows.num_rows)


def distinct_by_url(rows: pa.RecordBatch) -> Groups:
    """Group rows, which are sorted by URL: the submissions of each URL by time, then id, without duplicate ids."""
    urls = rows.column("url")
    order = np.arange(rows.num_rows)
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = _numpy(pc.not_equal(urls[1:], urls[:-1]))
    group = np.cumsum(is_first) - 1
    repeated = (np.bincount(group) > 1)[group]
    if repeated.any():
        candidates = order[repeated]
        position, is_kept = _distinct(rows.take(candidates), group[repeated])
        order[repeated] = candidates[position]
        in_link = np.ones(len(order), dtype=bool)
        in_link[repeated] = is_kept
        order, group = order[in_link], group[in_link]
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return Groups(order, starts, np.append(starts[1:], len(order)))


def _distinct(rows: pa.RecordBatch, group: Ints) -> tuple[Ints, Bools]:
    """Sort the submissions of URLs that have several, and mark which are kept; the rows of a group are contiguous.

    They are sorted by time, then id; the other keys make the result independent of the input order. Of two records of
    one submission, the one with the higher score is kept: dumps were recorded at different times, and scores grow.
    Rows without an id (lists of URLs) are all different submissions.
    """
    keys = {name: rows.column(name) for name in ("created_utc", "id", "original_url", "title", "subreddit", "author")}
    keys["original_url"] = pc.fill_null(keys["original_url"], "")
    keys["over_18"] = rows.column("over_18").cast(pa.int8())
    score = ~_numpy(rows.column("score"))  # the highest first; `-` would overflow at the lowest number
    keyed = pa.record_batch({"group": group, **keys, "score": score})
    order = _numpy(pc.sort_indices(keyed, sort_keys=[(name, "ascending") for name in keyed.schema.names]))
    ids = keys["id"].take(order)
    id_number = _numpy(ids.dictionary_encode().indices)
    best_first = np.lexsort((score[order], id_number, group))
    is_kept = np.ones(len(order), dtype=bool)
    is_repeat = np.diff(group[best_first]) == 0
    is_repeat &= np.diff(id_number[best_first]) == 0
    is_kept[best_first[1:][is_repeat]] = False
    return order, is_kept | _numpy(pc.equal(ids, ""))


def link_scores(rows: pa.RecordBatch, groups: Groups, karma: str) -> Ints:
    """Return the score of each URL's link."""
    scores = _numpy(rows.column("score"))[groups.rows]
    if karma == "first":
        return scores[groups.starts]
    if karma == "max":
        return np.maximum.reduceat(scores, groups.starts)
    # Only invalid scores overflow 64 bits; saturate, so that the sum does not change its sign.
    approximate = np.add.reduceat(scores.astype(np.float64), groups.starts)
    total = np.add.reduceat(scores, groups.starts)
    overflowed = np.abs(approximate - total) > 2.0**62
    return np.where(overflowed, np.where(approximate > 0, _INT64_MAX, -_INT64_MAX - 1), total)


def _batch(rows: pa.RecordBatch, groups: Groups, scores: Ints, over_18: Bools) -> pa.RecordBatch:
    """Return the links of some URLs."""
    first = rows.select(["url", "original_url", "domain", "title", "created_utc"]).take(groups.rows[groups.starts])
    url, original_url, domain, title, created_utc = first.columns
    has_original = pc.fill_null(pc.not_equal(original_url, ""), False)
    columns = [url, pc.if_else(has_original, original_url, url), domain, pa.array(scores), *_lists(rows, groups)]
    return pa.RecordBatch.from_arrays([*columns, title, created_utc, pa.array(over_18)], schema=LINK_SCHEMA)


def _lists(rows: pa.RecordBatch, groups: Groups) -> tuple[pa.ListArray, pa.ListArray, pa.ListArray]:
    """Return the ids and authors of each URL's submissions that have an id, subreddits of those that have either."""
    lengths = groups.sizes
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    members = np.repeat(groups.starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    listed = rows.select(["id", "subreddit", "author"]).take(groups.rows[members])
    has_id, has_subreddit, _ = (pc.not_equal(values, "") for values in listed.columns)

    def lists(values: pa.Array, is_listed: pa.Array) -> pa.ListArray:
        before = np.concatenate([[0], np.cumsum(_numpy(is_listed))])
        return pa.ListArray.from_arrays(pa.array(before[offsets], pa.int32()), values.filter(is_listed))

    subreddits = lists(listed.column("subreddit"), pc.or_(has_id, has_subreddit))
    return lists(listed.column("id"), has_id), subreddits, lists(listed.column("author"), has_id)


def _numpy(values: pa.Array) -> npt.NDArray[Any]:
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _in_equal_batches(batches: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield the links in batches of equal size, so that the shard's row groups do not depend on the ranges."""
    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        pending.append(batch)
        count += batch.num_rows
        while count >= size:
            combined = pa.concat_batches(pending)
            yield combined.slice(0, size)
            pending, count = [combined.slice(size)], count - size
    if count:
        yield pa.concat_batches(pending)


def _in_ranges(bucket: int, context: MergeContext) -> Iterator[list[BucketPart]]:
    """Yield the bucket in parts that fit into memory, one per range of URLs, in order of the ranges."""
    paths = [storage.join(context.output, name) for name in context.work_files]
    parts = [bucket_part(path, SUBMISSION_SCHEMA, bucket) for path in paths]
    ranges = -(-sum(part.size_bytes for part in parts) // _MAX_SORTED_BYTES)
    if ranges <= 1:
        yield parts
        return
    bounds = _range_bounds(parts, ranges)
    path = storage.join(context.output, WORK, shards.shard_name("ranges", bucket, "buckets"))
    with write_buckets(path, SUBMISSION_SCHEMA) as written:
        for batch in itertools.chain.from_iterable(part.batches() for part in parts):
            written.write(batch, [bisect.bisect_right(bounds, url) for url in batch.column("url").to_pylist()])
    for number in range(len(bounds) + 1):
        yield [bucket_part(path, SUBMISSION_SCHEMA, number)]
    storage.remove(path)


def _range_bounds(parts: list[BucketPart], ranges: int) -> list[str]:
    """Return URLs that split the bucket into roughly equal ranges, from every eighth frame of a file."""
    sampled = [dataclasses.replace(part, frames=part.frames[::_SAMPLED_FRAMES]) for part in parts]
    step = max(1, sum(part.rows for part in sampled) // (ranges * _SAMPLES_PER_RANGE))
    sample: list[str] = []
    rows_read = 0
    for batch in itertools.chain.from_iterable(part.batches() for part in sampled):
        sample += batch.column("url").take(np.arange(-rows_read % step, batch.num_rows, step)).to_pylist()
        rows_read += batch.num_rows
    sample.sort()
    return sorted({sample[len(sample) * number // ranges] for number in range(1, ranges)})
