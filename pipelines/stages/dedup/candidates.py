"""Phases 2 and 3: documents with the text of a better one, and pairs that agree in a band and may be near.

Each task reads some buckets of keys, sorts them, and reads the records of documents that share a key.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import progress, storage
from pipelines.algorithms.kernels.splitmix import STEP, mix
from pipelines.algorithms.minhash.pairing import ALL_PAIRS, EARLIER, KEPT, LEADER, NEW, near_pairs
from pipelines.engine.journal import WORK
from pipelines.engine.run import TaskResult
from pipelines.records import shards
from pipelines.records.buckets import write_buckets
from pipelines.stages.dedup.records import (
    Corpus,
    Numbers,
    Records,
    bucket_batch,
    buckets_of,
    part_of,
    read_columns,
    work_name,
)
from pipelines.stages.dedup.signatures import KEY_SCHEMA

# A document with the text of another one, and that one, the best of its text.
COPY_SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("document", "original")])
PAIR_SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("left", "right")])
_COPIES, _CANDIDATES = storage.join(WORK, "copies.npy"), storage.join(WORK, "candidates.npy")

# Records that are held at the same time: about 160 MB.
_CHUNK_MEMBERS = 1 << 20


def find_copies(part: int, corpus: Corpus) -> TaskResult:
    """Write the documents in a part of the keys with the text of a better one, by the shard of the better one."""
    records = Records(corpus)
    name = work_name("copies", part, "buckets")
    keys, numbers = _read_keys(corpus, part)
    with write_buckets(storage.join(corpus.output, name), COPY_SCHEMA) as written:
        _, members = _groups_of(keys, numbers)
        hashes = records.take(members, "text_hash")
        order = np.lexsort((records.ranks(members), hashes[:, 1], hashes[:, 0]))
        members, hashes = members[order], hashes[order]
        is_first = np.ones(len(members), bool)
        is_first[1:] = (hashes[1:] != hashes[:-1]).any(axis=1)
        originals = members[np.maximum.accumulate(np.where(is_first, np.arange(len(members)), 0))]
        copies = bucket_batch(COPY_SCHEMA, members[~is_first], originals[~is_first])
        written.writer.write(copies, corpus.shards_of(originals[~is_first]))
    progress.advance()
    return TaskResult(files=(written.entry(name),))


def mark_copies(corpus: Corpus) -> TaskResult:
    """Write one byte per document: whether it is a copy."""
    is_copy = np.zeros(corpus.documents, bool)
    for path in corpus.paths("copies", "buckets", corpus.key_parts):
        is_copy[read_columns([path], COPY_SCHEMA, None)[0]] = True
    return TaskResult(files=(shards.write_array(corpus.output, _COPIES, is_copy),))


def find_candidates(part: int, context: tuple[float, Corpus]) -> TaskResult:
    """Write the pairs of documents that share a key and may be near, and the documents in them.

    Also writes the members of large groups and which of them lead, for `find_more`. Which pairs these are depends on
    the contents of the documents, not on their order.
    """
    threshold, corpus = context
    keys, numbers = _read_keys(corpus, part, first_bucket=corpus.buckets)
    is_distinct = ~storage.read_array(storage.join(corpus.output, _COPIES))[numbers]
    starts, members = _groups_of(keys[is_distinct], numbers[is_distinct])
    roles = np.where(members < corpus.own_documents, NEW, EARLIER)
    result, candidates, leads = _write_pairs(part, starts, members, roles, threshold, corpus)
    sizes = np.diff(starts)
    is_large = np.repeat(sizes > ALL_PAIRS, sizes)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    large = np.stack((groups[is_large], members[is_large], leads[is_large]))
    files = (
        shards.write_array(corpus.output, _groups_name(part, corpus.round + 1), large),
        shards.write_array(corpus.output, work_name("candidates", part, "npy"), np.union1d(candidates, large[1])),
    )
    progress.advance()
    return TaskResult(counts=result.counts, files=(*result.files, *files))


def find_more(part: int, context: tuple[float, Corpus]) -> TaskResult:
    """Write the pairs of members of large groups that were kept in the latest round, but not compared with each other.

    They only followed a leader, which was dropped since. Now some of them lead, at least a number that grows with the
    rounds, so that they end soon; if none is left, all members that are kept have been compared.
    """
    threshold, corpus = context
    groups, members, leads, is_new = _read_groups(part, corpus)
    is_own = members < corpus.own_documents
    has_new = np.isin(groups, groups[is_new])
    chosen = np.flatnonzero(has_new & (is_new | (leads == 1) | ~is_own))
    starts = np.append(np.unique(groups[chosen], return_index=True)[1], len(chosen))
    roles = np.where(is_new, NEW, np.where(is_own, LEADER, EARLIER))[chosen]
    result, _, new_leads = _write_pairs(
        part, starts, members[chosen], roles, threshold, corpus, 4 ** (corpus.round + 1)
    )
    leads[chosen[new_leads]] = 1
    entry = shards.write_array(corpus.output, _groups_name(part, corpus.round + 1), np.stack((groups, members, leads)))
    progress.advance()
    return TaskResult(counts=result.counts, files=(*result.files, entry))


def count_new(corpus: Corpus) -> int:
    """Return how many members of large groups are kept after a round without being compared with all that are."""
    return sum(int(np.count_nonzero(_read_groups(part, corpus)[3])) for part in range(corpus.key_parts))


def _read_groups(part: int, corpus: Corpus) -> tuple[Numbers, Numbers, Numbers, npt.NDArray[np.bool_]]:
    """Return the large groups of a part of the keys after the latest round.

    These are the group, the document, whether it leads, and whether it has to: it is kept, and so may be near another
    one that is kept.
    """
    groups, members, leads = storage.read_array(storage.join(corpus.output, _groups_name(part, corpus.round))).copy()
    outcomes = storage.read_array(storage.join(corpus.output, outcomes_name(corpus.round)))
    return groups, members, leads, (members < corpus.own_documents) & (leads == 0) & (outcomes[members] == KEPT)


def _groups_name(part: int, round: int) -> str:
    """Return the name of the work file of large groups: the group, the document, and whether it leads."""
    return work_name(f"groups-{round}", part, "npy")


def _write_pairs(
    part: int,
    starts: Numbers,
    members: Numbers,
    roles: Numbers,
    threshold: float,
    corpus: Corpus,
    first_leaders: int = 0,
) -> tuple[TaskResult, Numbers, npt.NDArray[np.bool_]]:
    """Write the pairs in groups that may be near, shuffled by their first document.

    Returns with the result the documents in pairs, and which new members lead.
    """
    records = Records(corpus)
    name = work_name(f"pairs-{corpus.round + 1}", part, "buckets")
    candidates, partly_compared = [np.empty(0, np.int64)], 0
    leads = np.zeros(len(members), bool)
    with write_buckets(storage.join(corpus.output, name), PAIR_SCHEMA) as written:
        for first, last in _chunks(starts, _CHUNK_MEMBERS):
            begin, end = starts[first], starts[last]
            chunk, chunk_starts = members[begin:end], starts[first : last + 1] - begin
            groups = np.repeat(np.arange(last - first), np.diff(chunk_starts))
            chunk_roles = roles[begin:end].astype(np.uint8)
            created, score = (records.take(chunk, field) for field in ("created", "score"))
            order = np.lexsort((records.take(chunk, "text_hash")[:, 0], created, -score, chunk_roles, groups))
            chunk, chunk_leads = chunk[order], np.zeros(len(chunk), bool)
            sketches = records.take(chunk, "sketch")
            chunk_roles = chunk_roles[order]
            for pairs, limited in near_pairs(
                chunk_starts, sketches, chunk_roles, threshold, chunk_leads, first_leaders
            ):
                left, right = np.sort(chunk[pairs], axis=0)
                buckets = buckets_of(mix(left.astype(np.uint64) + STEP), corpus.buckets)
                written.writer.write(bucket_batch(PAIR_SCHEMA, left, right), buckets)
                candidates.append(np.unique(chunk[pairs]))
                partly_compared += limited
            leads[begin + order] = chunk_leads
    counts = {"partly_compared": partly_compared} if partly_compared else {}
    entry = written.entry(name)
    return TaskResult(counts=counts, files=(entry,)), np.unique(np.concatenate(candidates)), leads


def outcomes_name(round: int) -> str:
    """Return the name of the work file of what became of the documents, one byte per document, after a round."""
    return work_name("outcomes", round, "npy")


def mark_candidates(corpus: Corpus) -> TaskResult:
    """Write one byte per document: whether it is in a pair."""
    is_candidate = np.zeros(corpus.documents, bool)
    for path in corpus.paths("candidates", "npy", corpus.key_parts):
        is_candidate[storage.read_array(path)] = True
    return TaskResult(files=(shards.write_array(corpus.output, _CANDIDATES, is_candidate),))


def read_candidates(corpus: Corpus, shard: int) -> npt.NDArray[np.bool_]:
    """Return which documents of a shard are in a pair."""
    marks = storage.read_array(storage.join(corpus.output, _CANDIDATES))
    return np.asarray(marks[corpus.starts[shard] : corpus.starts[shard + 1]])


def _read_keys(corpus: Corpus, part: int, first_bucket: int = 0) -> tuple[npt.NDArray[np.uint64], Numbers]:
    """Return a part of the keys, from a bucket on, and their documents."""
    buckets = part_of(part, corpus.key_parts, corpus.buckets)
    buckets = range(first_bucket + buckets.start, first_bucket + buckets.stop)
    keys, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for path, start in zip(corpus.paths("keys", "buckets"), corpus.starts, strict=False):
        shard_keys, rows = read_columns([path], KEY_SCHEMA, buckets)
        keys.append(shard_keys)
        numbers.append(rows.astype(np.int64) + start)
    return np.concatenate(keys), np.concatenate(numbers)


def _groups_of(keys: npt.NDArray[np.uint64], numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return the documents that share their key with others, by key, and where each group of them begins and ends."""
    order = np.argsort(keys)
    keys, numbers = keys[order], numbers[order]
    bounds = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1], [True]))) if len(keys) else np.zeros(1, int)
    sizes = np.diff(bounds)
    members = numbers[np.repeat(sizes > 1, sizes)]
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes[sizes > 1]))), members


def _chunks(starts: Numbers, size: int) -> list[tuple[int, int]]:
    """Return ranges of groups with at most `size` members, or of one group."""
    chunks, first = [], 0
    while first < len(starts) - 1:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + size, side="right")) - 1)
        chunks.append((first, last))
        first = last
    return chunks
