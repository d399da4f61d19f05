"""Phases 2 and 3: documents with the text of a better one, and pairs that agree in a band and may be near.

Each task reads one bucket of keys, sorts it, and reads the records of documents that share a key.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.kernels.splitmix import STEP, mix
from pipelines.algorithms.minhash.pairing import DROPPED_EARLY, FOLLOWS, KEPT, LEADS, LEADS_AND_FOLLOWS, near_pairs
from pipelines.core import progress, storage
from pipelines.core.buckets import write_buckets
from pipelines.core.journal import WORK
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult
from pipelines.stages.dedup.records import (
    Corpus,
    Numbers,
    Records,
    bucket_batch,
    read_columns,
    save_array,
    work_name,
)
from pipelines.stages.dedup.signatures import KEY_SCHEMA

# A document with the text of another one, and that one, the best of its text.
COPY_SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("document", "original")])
PAIR_SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("left", "right")])
_COPIES, _CANDIDATES = storage.join(WORK, "copies.npy"), storage.join(WORK, "candidates.npy")

# In a group of at most this many documents all pairs are compared; larger ones are compared in waves.
_ALL_PAIRS = 64
_WAVE_SAMPLE = 1 << 16
# Records that are held at the same time: about 160 MB.
_CHUNK_MEMBERS = 1 << 20


def find_copies(bucket: int, corpus: Corpus) -> TaskResult:
    """Write the documents of a bucket whose texts equal that of a better one, by the shard of the better one."""
    records = Records(corpus)
    name = work_name("copies", bucket, "buckets")
    keys, numbers = _read_keys(corpus, bucket)
    with write_buckets(storage.join(corpus.output, name), COPY_SCHEMA) as written:
        _, members = _groups_of(keys, numbers)
        hashes = records.take(members)["text_hash"]
        order = np.lexsort((records.ranks(members), hashes[:, 1], hashes[:, 0]))
        members, hashes = members[order], hashes[order]
        is_first = np.ones(len(members), bool)
        is_first[1:] = (hashes[1:] != hashes[:-1]).any(axis=1)
        originals = members[np.maximum.accumulate(np.where(is_first, np.arange(len(members)), 0))]
        copies = bucket_batch(COPY_SCHEMA, members[~is_first], originals[~is_first])
        written.writer.write(copies, corpus.shards_of(originals[~is_first]))
    progress.advance()
    return TaskResult(files=(FileEntry(name, written.size_bytes, written.sha256),))


def mark_copies(corpus: Corpus) -> TaskResult:
    """Write one byte per document: whether it is a copy."""
    is_copy = np.zeros(corpus.documents, bool)
    for path in corpus.paths("copies", "buckets", corpus.buckets):
        is_copy[read_columns([path], COPY_SCHEMA, None)[0]] = True
    return TaskResult(files=(save_array(corpus.output, _COPIES, is_copy),))


def find_candidates(bucket: int, context: tuple[float, Corpus]) -> TaskResult:
    """Write the pairs of documents that share a key of the bucket and may be near, and the documents in them.

    Of large groups only the members are written: `compare_wave` compares them. Which pairs these are depends on the
    contents of the documents, not on their order.
    """
    threshold, corpus = context
    keys, numbers = _read_keys(corpus, corpus.buckets + bucket)
    is_distinct = ~storage.read_array(storage.join(corpus.output, _COPIES))[numbers]
    starts, members = _groups_of(keys[is_distinct], numbers[is_distinct])
    sizes = np.diff(starts)
    is_large = np.repeat(sizes > _ALL_PAIRS, sizes)
    large = np.stack((np.repeat(np.arange(len(sizes)), sizes)[is_large], members[is_large]))
    sizes = sizes[sizes <= _ALL_PAIRS]
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    members = members[~is_large]
    roles = np.where(members < corpus.own_documents, LEADS_AND_FOLLOWS, LEADS)
    result, candidates = _write_pairs(bucket, starts, members, roles, threshold, corpus)
    files = (
        save_array(corpus.output, work_name("large", bucket, "npy"), large),
        save_array(corpus.output, work_name("candidates", bucket, "npy"), np.union1d(candidates, large[1])),
    )
    progress.advance()
    return TaskResult(counts=result.counts, files=(*result.files, *files))


def _write_pairs(
    bucket: int, starts: Numbers, members: Numbers, roles: Numbers, threshold: float, corpus: Corpus
) -> tuple[TaskResult, Numbers]:
    """Write the pairs in groups that may be near, shuffled by their first document; return the documents in them."""
    records = Records(corpus)
    name = work_name(f"pairs-{corpus.round}", bucket, "buckets")
    candidates, partly_compared = [np.empty(0, np.int64)], 0
    with write_buckets(storage.join(corpus.output, name), PAIR_SCHEMA) as written:
        for first, last in _chunks(starts, _CHUNK_MEMBERS):
            chunk, chunk_starts = members[starts[first] : starts[last]], starts[first : last + 1] - starts[first]
            rows = records.take(chunk)
            groups = np.repeat(np.arange(last - first), np.diff(chunk_starts))
            chunk_roles = roles[starts[first] : starts[last]].astype(np.uint8)
            # Those that only lead stand first.
            order = np.lexsort((rows["text_hash"][:, 0], rows["created"], ~rows["score"], chunk_roles != LEADS, groups))
            chunk = chunk[order]
            for pairs, limited in near_pairs(chunk_starts, rows["sketch"][order], chunk_roles[order], threshold):
                left, right = np.sort(chunk[pairs], axis=0)
                buckets = mix(left.astype(np.uint64) + STEP) % np.uint64(corpus.buckets)
                written.writer.write(bucket_batch(PAIR_SCHEMA, left, right), buckets.astype(np.int32))
                candidates.append(np.unique(chunk[pairs]))
                partly_compared += limited
    counts = {"partly_compared": partly_compared} if partly_compared else {}
    entry = FileEntry(name, written.size_bytes, written.sha256)
    return TaskResult(counts=counts, files=(entry,)), np.unique(np.concatenate(candidates))


def ends_of_waves(corpus: Corpus) -> tuple[Numbers, bool]:
    """Return the documents at which waves end, and whether there are large groups.

    A quarter of the documents of a wave are in earlier ones. In the largest group, the first wave has about as many
    members as are compared without waves.
    """
    largest, samples = 0, [np.empty(0, np.int64)]
    for bucket in range(corpus.buckets):
        groups, members = _read_large(bucket, corpus)
        largest = max(largest, int(np.unique(groups, return_counts=True)[1].max(initial=0)))
        samples.append(members[:: 1 + len(members) * corpus.buckets // _WAVE_SAMPLE])
    if not largest:
        return samples[0], False
    waves = 1 + math.ceil(math.log(largest / _ALL_PAIRS, 4))
    sample = np.unique(np.concatenate(samples))
    ordered = sample[np.argsort(Records(corpus).ranks(sample))]
    return ordered[[len(ordered) // 4 ** (waves - 1 - wave) for wave in range(waves - 1)]], True


def waves_of(numbers: Numbers, ends: Numbers, records: Records) -> npt.NDArray[np.uint8]:
    """Return the wave of each document: how many of the documents at which a wave ends are better."""
    if not len(ends):
        return np.zeros(len(numbers), np.uint8)
    ranks = records.ranks(np.concatenate((ends, numbers)))
    return np.searchsorted(np.sort(ranks[: len(ends)]), ranks[len(ends) :]).astype(np.uint8)


def find_waves(bucket: int, context: tuple[Numbers, Corpus]) -> TaskResult:
    """Write the waves of the members of large groups."""
    ends, corpus = context
    waves = waves_of(_read_large(bucket, corpus)[1], ends, Records(corpus))
    progress.advance()
    return TaskResult(files=(save_array(corpus.output, work_name("waves", bucket, "npy"), waves),))


def compare_wave(bucket: int, context: tuple[int, bool, float, Corpus]) -> TaskResult:
    """Write the pairs in large groups of documents of one wave that may be near.

    First each is compared with the kept documents of earlier waves (`is_within` False), then those that are near none
    of these with each other. So few are compared in a group of near-duplicates, and none that are kept are missed.
    """
    wave, is_within, threshold, corpus = context
    groups, numbers = _read_large(bucket, corpus)
    waves = storage.read_array(storage.join(corpus.output, work_name("waves", bucket, "npy")))
    outcomes = storage.read_array(storage.join(corpus.output, outcomes_name(corpus.round - 1)))[numbers]
    is_in_wave = (waves == wave) & (numbers < corpus.own_documents)
    is_earlier = ((waves < wave) | (numbers >= corpus.own_documents)) & (outcomes == KEPT)
    chosen = is_in_wave & (outcomes != DROPPED_EARLY) if is_within else is_in_wave | is_earlier
    starts, members = _groups_of(groups[chosen].astype(np.uint64), np.flatnonzero(chosen))
    roles = np.full(len(members), LEADS_AND_FOLLOWS) if is_within else np.where(is_in_wave[members], FOLLOWS, LEADS)
    result, _ = _write_pairs(bucket, starts, numbers[members], roles, threshold, corpus)
    progress.advance()
    return result


def _read_large(bucket: int, corpus: Corpus) -> tuple[Numbers, Numbers]:
    """Return the members of large groups of a bucket: the number of the group, and the document."""
    groups, numbers = storage.read_array(storage.join(corpus.output, work_name("large", bucket, "npy")))
    return groups, numbers


def outcomes_name(round: int) -> str:
    """Return the name of the work file of what became of the documents, one byte per document, after a round."""
    return work_name("outcomes", round, "npy")


def mark_candidates(corpus: Corpus) -> TaskResult:
    """Write one byte per document: whether it is in a pair."""
    is_candidate = np.zeros(corpus.documents, bool)
    for path in corpus.paths("candidates", "npy", corpus.buckets):
        is_candidate[storage.read_array(path)] = True
    return TaskResult(files=(save_array(corpus.output, _CANDIDATES, is_candidate),))


def read_candidates(corpus: Corpus, shard: int) -> npt.NDArray[np.bool_]:
    """Return which documents of a shard are in a pair."""
    marks = storage.read_array(storage.join(corpus.output, _CANDIDATES))
    return np.asarray(marks[corpus.starts[shard] : corpus.starts[shard + 1]])


def _read_keys(corpus: Corpus, bucket: int) -> tuple[npt.NDArray[np.uint64], Numbers]:
    """Return the keys of a bucket and their documents."""
    keys, numbers = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for path, start in zip(corpus.paths("keys", "buckets"), corpus.starts, strict=False):
        shard_keys, rows = read_columns([path], KEY_SCHEMA, bucket)
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
