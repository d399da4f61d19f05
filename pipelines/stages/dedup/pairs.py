"""Phases 2 to 5: copies of better texts, pairs that may be near, and the true Jaccard similarity of these.

A task reads some buckets of keys, sorts them, and reads the records of the documents that share a key. Shingles are
computed for the documents in pairs only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import progress, storage
from pipelines.algorithms.kernels.splitmix import STEP, mix
from pipelines.algorithms.minhash.pairing import ALL_PAIRS, EARLIER, KEPT, LEADER, NEW, jaccard_of_pairs, near_pairs
from pipelines.algorithms.minhash.signing import shingle_hashes_of, sorted_sets
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.records import inputs
from pipelines.records.buckets import write_buckets
from pipelines.records.drops import Drops
from pipelines.records.schemas import make_schema
from pipelines.records.text_columns import slices_within
from pipelines.stages.dedup.documents import (
    Corpus,
    Numbers,
    Records,
    SourceShard,
    buckets_of,
    part_of,
    read_columns,
    work_name,
)
from pipelines.stages.dedup.paragraphs import ParagraphRemover
from pipelines.stages.dedup.signatures import KEY_SCHEMA

# A copy, and the best document with the same text.
COPY_SCHEMA = make_schema(document="int64", original="int64")
PAIR_SCHEMA = make_schema(left="int64", right="int64")
# A verified pair: the better document, the worse one, and their similarity.
EDGE_SCHEMA = pa.schema([("better", pa.int64()), ("worse", pa.int64()), ("jaccard", pa.float64())])

# Records in memory at the same time: about 160 MB.
_CHUNK_MEMBERS = 1 << 20
# Pairs, and shingles of their documents (8 bytes each), in memory at the same time.
_CHUNK_PAIRS, _CHUNK_SHINGLES = 1 << 14, 1 << 23


def find_copies(part: int, corpus: Corpus) -> TaskResult:
    """Write the copies among the documents of a part of the keys, by the shard of the better document."""
    records = Records(corpus)
    _, members = _groups_of(*_read_keys(corpus, part))
    hashes = records.take(members, "text_hash")
    order = np.lexsort((records.ranks(members), hashes[:, 1], hashes[:, 0]))
    members, hashes = members[order], hashes[order]
    is_first = np.ones(len(members), bool)
    is_first[1:] = (hashes[1:] != hashes[:-1]).any(axis=1)
    originals = members[np.maximum.accumulate(np.where(is_first, np.arange(len(members)), 0))][~is_first]
    columns = (members[~is_first], originals)
    progress.advance()
    return TaskResult(files=(corpus.write_buckets("copies", part, COPY_SCHEMA, columns, corpus.shards_of(originals)),))


def mark_copies(corpus: Corpus) -> TaskResult:
    """Write one byte per document: whether it is a copy."""
    is_copy = np.zeros(corpus.documents, bool)
    for path in corpus.paths("copies", "buckets", corpus.key_parts):
        is_copy[read_columns([path], COPY_SCHEMA, None)[0]] = True
    return TaskResult(files=(corpus.write_array("is-copy", 0, is_copy),))


def find_candidates(part: int, corpus: Corpus) -> TaskResult:
    """Write the pairs of documents that share a key and may be near.

    Also writes the members of large groups and which of them are leaders, for `find_more`. The pairs depend on the
    contents of the documents, not on their order.
    """
    keys, numbers = _read_keys(corpus, part, first_bucket=corpus.buckets)
    is_distinct = ~corpus.read_array("is-copy", 0)[numbers]
    starts, members = _groups_of(keys[is_distinct], numbers[is_distinct])
    roles = np.where(members < corpus.own_documents, NEW, EARLIER)
    pairs, counts, leads = _write_pairs(part, starts, members, roles, corpus)
    sizes = np.diff(starts)
    is_large = np.repeat(sizes > ALL_PAIRS, sizes)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    large = np.stack((groups[is_large], members[is_large], leads[is_large]))
    progress.advance()
    return TaskResult(counts=counts, files=(pairs, corpus.write_array(f"groups-{corpus.round + 1}", part, large)))


def mark_candidates(corpus: Corpus) -> TaskResult:
    """Write one byte per document: whether it is in a pair, or may be in a pair of a later round."""
    is_candidate = np.zeros(corpus.documents, bool)
    for part, path in enumerate(corpus.paths("pairs-0", "buckets", corpus.key_parts)):
        _, members, _ = corpus.read_array("groups-0", part)
        for documents in (*read_columns([path], PAIR_SCHEMA, None), members):
            is_candidate[documents] = True
    return TaskResult(files=(corpus.write_array("is-candidate", 0, is_candidate),))


def find_more(part: int, corpus: Corpus) -> TaskResult:
    """Write the pairs of members of large groups that were kept in the latest round without being compared.

    They followed a leader that has been dropped since. Now some of them become leaders, at least a number that grows
    with the rounds, so that there are few rounds. Afterwards, all members that are kept have been compared.
    """
    groups, members, leads, is_new = _read_groups(part, corpus)
    is_own = members < corpus.own_documents
    has_new = np.isin(groups, groups[is_new])
    chosen = np.flatnonzero(has_new & (is_new | (leads == 1) | ~is_own))
    starts = np.append(np.unique(groups[chosen], return_index=True)[1], len(chosen))
    roles = np.where(is_new, NEW, np.where(is_own, LEADER, EARLIER))[chosen]
    pairs, counts, new_leads = _write_pairs(part, starts, members[chosen], roles, corpus, 4 ** (corpus.round + 1))
    leads[chosen[new_leads]] = 1
    large = corpus.write_array(f"groups-{corpus.round + 1}", part, np.stack((groups, members, leads)))
    progress.advance()
    return TaskResult(counts=counts, files=(pairs, large))


def count_new(corpus: Corpus) -> int:
    """Return how many kept members of large groups have not been compared with all other kept members."""
    return sum(int(np.count_nonzero(_read_groups(part, corpus)[3])) for part in range(corpus.key_parts))


def _read_groups(part: int, corpus: Corpus) -> tuple[Numbers, Numbers, Numbers, npt.NDArray[np.bool_]]:
    """Return the large groups of a part of the keys after the latest round.

    These are the group, the document, whether it is a leader, and whether it must become one: a follower that is kept
    may be near another kept document.
    """
    groups, members, leads = corpus.read_array(f"groups-{corpus.round}", part).copy()
    outcomes = corpus.read_array("outcomes", corpus.round)
    return groups, members, leads, (members < corpus.own_documents) & (leads == 0) & (outcomes[members] == KEPT)


def _write_pairs(
    part: int, starts: Numbers, members: Numbers, roles: Numbers, corpus: Corpus, first_leaders: int = 0
) -> tuple[FileEntry, dict[str, float], npt.NDArray[np.bool_]]:
    """Write the pairs in groups that may be near, shuffled by their documents; also return which members lead."""
    records = Records(corpus)
    name = work_name(f"pairs-{corpus.round + 1}", part, "buckets")
    partly_compared = 0
    leads = np.zeros(len(members), bool)
    with write_buckets(storage.join(corpus.output, name), PAIR_SCHEMA) as written:
        for first, last in slices_within(starts, _CHUNK_MEMBERS):
            begin, end = starts[first], starts[last]
            chunk, chunk_starts = members[begin:end], starts[first : last + 1] - begin
            groups = np.repeat(np.arange(last - first), np.diff(chunk_starts))
            chunk_roles = roles[begin:end].astype(np.uint8)
            created, score = (records.take(chunk, field) for field in ("created", "score"))
            order = np.lexsort((records.take(chunk, "text_hash")[:, 0], created, -score, chunk_roles, groups))
            chunk, chunk_leads = chunk[order], np.zeros(len(chunk), bool)
            sketches = records.take(chunk, "sketch")
            for pairs, limited in near_pairs(
                chunk_starts, sketches, chunk_roles[order], corpus.config.threshold, chunk_leads, first_leaders
            ):
                left, right = np.sort(chunk[pairs], axis=0)
                buckets = buckets_of(mix(left.astype(np.uint64) + STEP), corpus.buckets)
                written.write(pa.RecordBatch.from_arrays([left, right], schema=PAIR_SCHEMA), buckets)
                partly_compared += limited
            leads[begin + order] = chunk_leads
    return written.entry(name), {"partly_compared": partly_compared} if partly_compared else {}, leads


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
    """Return the bounds of the groups of documents that share a key, and the documents of all groups."""
    order = np.argsort(keys)
    keys, numbers = keys[order], numbers[order]
    bounds = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1], [True]))) if len(keys) else np.zeros(1, int)
    sizes = np.diff(bounds)
    members = numbers[np.repeat(sizes > 1, sizes)]
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes[sizes > 1]))), members


def write_shingles(shard: SourceShard, corpus: Corpus) -> TaskResult:
    """Write the hashes of the shingles of the candidates of a shard, and where those of each document begin.

    Without the texts, no shingles are written, and the similarity of the candidates is estimated from their sketches.
    """
    begin, end = corpus.starts[shard.index : shard.index + 2]
    is_candidate = corpus.read_array("is-candidate", 0)[begin:end] & (shard.documents is not None)
    name = work_name("shingles", shard.index, "bin")
    sizes = np.zeros(end - begin, np.int64)
    first = 0
    with storage.atomic_write(storage.join(corpus.output, name), durable=False) as stream:
        remover = ParagraphRemover(shard, corpus)
        for batch in inputs.read_documents(shard.require_documents(), Drops()) if is_candidate.any() else ():
            rows = np.flatnonzero(is_candidate[first : first + batch.num_rows])
            if len(rows):
                candidates, _ = remover(batch.take(pa.array(rows)))
                hashes, starts = sorted_sets(*shingle_hashes_of(candidates.column("text"), corpus.config.ngram))
                stream.write(hashes.data)
                sizes[first + rows] = np.diff(starts)
            first += batch.num_rows
            progress.advance(batch.num_rows)
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes[:first])))
    files = (
        FileEntry(name, stream.size_bytes, stream.checksum),
        corpus.write_array("shingle-starts", shard.index, starts),
    )
    return TaskResult(files=files)


def verify_pairs(part: int, corpus: Corpus) -> TaskResult:
    """Write the pairs of a part whose true Jaccard similarity reaches the threshold, by the shard of the worse."""
    paths = corpus.paths(f"pairs-{corpus.round}", "buckets", corpus.key_parts)
    left, right = read_columns(paths, PAIR_SCHEMA, part_of(part, corpus.pair_parts[-1], corpus.buckets))
    order = np.lexsort((right, left))
    pairs = np.stack((left[order], right[order]))
    is_first = np.ones(pairs.shape[1], bool)
    is_first[1:] = (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)
    pairs = pairs[:, is_first]
    records, shingles = Records(corpus), _Shingles(corpus)
    name = work_name(f"edges-{corpus.round}", part, "buckets")
    total = estimated = 0
    with write_buckets(storage.join(corpus.output, name), EDGE_SCHEMA) as written:
        for first, last in shingles.slices(pairs):
            chunk = pairs[:, first:last]
            is_known = np.asarray(shingles.is_known[corpus.shards_of(chunk)].all(axis=0))
            similarity = np.empty(chunk.shape[1], np.float64)
            similarity[is_known] = shingles.similarity(chunk[:, is_known])
            similarity[~is_known] = records.estimate(chunk[:, ~is_known])
            is_near = similarity >= corpus.config.threshold
            near = chunk[:, is_near]
            total += near.shape[1]
            estimated += int(np.count_nonzero(~is_known[is_near]))
            ranks = records.ranks(near.reshape(-1)).reshape(near.shape)
            better, worse = (np.where(pick, near[0], near[1]) for pick in (ranks[0] < ranks[1], ranks[0] > ranks[1]))
            batch = pa.RecordBatch.from_arrays([better, worse, similarity[is_near]], schema=EDGE_SCHEMA)
            written.write(batch, corpus.shards_of(worse))
    progress.advance()
    counts = {"candidate_pairs": pairs.shape[1], "near_duplicate_pairs": total}
    if estimated:
        counts["estimated_near_duplicate_pairs"] = estimated
    return TaskResult(counts=counts, files=(written.entry(name),))


class _Shingles:
    """The shingles of all candidates, memory-mapped one shard at a time."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._starts, self._hashes = corpus.paths("shingle-starts", "npy"), corpus.paths("shingles", "bin")
        storage.fetch_copies(self._starts)
        self.is_known = np.array([len(storage.read_array(path)) > 1 for path in self._starts])

    def slices(self, pairs: Numbers) -> Iterator[tuple[int, int]]:
        """Yield slices of the pairs, or single pairs, whose shingles fit into memory."""
        sizes = self._locate(pairs.reshape(-1))[1].reshape(pairs.shape)
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.sum(sizes, axis=0))))
        return slices_within(ends, _CHUNK_SHINGLES, _CHUNK_PAIRS)

    def similarity(self, pairs: Numbers) -> npt.NDArray[np.float64]:
        """Return the Jaccard similarity of pairs."""
        documents, places = np.unique(pairs, return_inverse=True)
        starts, sizes = self._locate(documents)
        sets = [np.empty(0, np.uint64)]
        for shard, _, members in self._corpus.by_shard(documents, self._hashes):  # in order, as the documents
            path = storage.mapped_path(self._hashes[shard])
            if storage.size_bytes(path):  # an empty file cannot be mapped
                hashes = np.asarray(np.memmap(path, np.uint64, "r"))
                located = zip(starts[members].tolist(), sizes[members].tolist(), strict=True)
                sets += [hashes[start : start + size] for start, size in located]
        bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        return jaccard_of_pairs(np.concatenate(sets), bounds, places.reshape(pairs.shape))

    def _locate(self, documents: Numbers) -> tuple[Numbers, Numbers]:
        """Return the start of the shingles of each document in those of its shard, and their number."""
        starts, sizes = np.zeros((2, len(documents)), np.int64)
        for shard, rows, members in self._corpus.by_shard(documents, self._starts):
            if self.is_known[shard]:
                bounds = storage.read_array(self._starts[shard])
                starts[members], sizes[members] = bounds[rows], bounds[rows + 1] - bounds[rows]
        return starts, sizes
