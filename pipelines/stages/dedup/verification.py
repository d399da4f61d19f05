"""Phases 4 and 5: the shingles of candidates, and the true Jaccard similarity of their pairs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import progress, storage
from pipelines.algorithms.minhash.pairing import jaccard_of_pairs
from pipelines.algorithms.minhash.shingles import shingle_hashes_of, sorted_sets
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.records import inputs, shards
from pipelines.records.buckets import write_buckets
from pipelines.records.drops import Drops
from pipelines.stages.dedup.candidates import PAIR_SCHEMA, read_candidates
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.paragraphs import ParagraphRemover
from pipelines.stages.dedup.records import (
    Corpus,
    Numbers,
    Records,
    bucket_batch,
    part_of,
    read_columns,
    work_name,
)
from pipelines.stages.dedup.sources import SourceShard

# A verified pair: the document that is kept if one of both is, the other one, and their similarity.
EDGE_SCHEMA = pa.schema(
    [
        pa.field("better", pa.int64(), nullable=False),
        pa.field("worse", pa.int64(), nullable=False),
        pa.field("jaccard", pa.float64(), nullable=False),
    ]
)
# Pairs, and shingles of their documents (8 bytes each), that are held at the same time.
_CHUNK_PAIRS, _CHUNK_SHINGLES = 1 << 14, 1 << 23


def write_shingles(shard: SourceShard, context: tuple[DedupConfig, Corpus]) -> TaskResult:
    """Write the shingles of the candidates of a shard: their rows, where those of each begin, and all hashes.

    Without documents there are none, and the similarity of the candidates is estimated from their sketches.
    """
    config, corpus = context
    output = corpus.output
    is_candidate = read_candidates(corpus, shard.index)
    name = work_name("shingles", shard.index, "bin")
    if shard.documents is None:
        is_candidate = np.zeros_like(is_candidate)
    sizes = [np.zeros(1, np.int64)]
    row = 0
    with storage.atomic_write(storage.join(output, name), durable=False) as stream:
        remover = ParagraphRemover(shard, config, output)
        for batch in inputs.read_documents(shard.require_documents(), Drops()) if is_candidate.any() else ():
            chosen = is_candidate[row : row + batch.num_rows]
            row += batch.num_rows
            if chosen.any():
                candidates, _ = remover(batch.filter(pa.array(chosen)))
                hashes, starts = sorted_sets(*shingle_hashes_of(candidates.column("text"), config.ngram))
                stream.write(hashes.data)
                sizes.append(np.diff(starts))
            progress.advance(batch.num_rows)
    files = (
        FileEntry(name, stream.size_bytes, stream.checksum),
        shards.write_array(output, work_name("shingle-rows", shard.index, "npy"), np.flatnonzero(is_candidate)),
        shards.write_array(
            corpus.output, work_name("shingle-starts", shard.index, "npy"), np.cumsum(np.concatenate(sizes))
        ),
    )
    return TaskResult(files=files)


def verify_pairs(part: int, context: tuple[float, Corpus]) -> TaskResult:
    """Write the pairs of a part whose true Jaccard similarity reaches the threshold, by the shard of the worse."""
    threshold, corpus = context
    paths = corpus.paths(f"pairs-{corpus.round}", "buckets", corpus.key_parts)
    left, right = read_columns(paths, PAIR_SCHEMA, part_of(part, corpus.pair_parts[-1], corpus.buckets))
    pairs = _distinct(left, right)
    records, shingles = Records(corpus), _Shingles(corpus)
    name = work_name(f"edges-{corpus.round}", part, "buckets")
    total = estimated = 0
    with write_buckets(storage.join(corpus.output, name), EDGE_SCHEMA) as written:
        for chunk in shingles.chunks(pairs):
            is_known = shingles.are_known(chunk)
            similarity = np.empty(chunk.shape[1], np.float64)
            similarity[is_known] = shingles.similarity(chunk[:, is_known])
            similarity[~is_known] = records.estimate(chunk[:, ~is_known])
            is_near = similarity >= threshold
            near = chunk[:, is_near]
            total += near.shape[1]
            estimated += int(np.count_nonzero(~is_known[is_near]))
            ranks = records.ranks(near.reshape(-1)).reshape(near.shape)
            better, worse = (np.where(pick, near[0], near[1]) for pick in (ranks[0] < ranks[1], ranks[0] > ranks[1]))
            batch = bucket_batch(EDGE_SCHEMA, better, worse, similarity[is_near])
            written.writer.write(batch, corpus.shards_of(worse))
    progress.advance()
    counts = {"candidate_pairs": pairs.shape[1], "near_pairs": total}
    if estimated:
        counts["estimated_near_pairs"] = estimated
    return TaskResult(counts=counts, files=(written.entry(name),))


def _distinct(left: Numbers, right: Numbers) -> Numbers:
    """Return the distinct pairs, in order, shape (2, pairs)."""
    order = np.lexsort((right, left))
    pairs = np.stack((left[order], right[order]))
    is_first = np.ones(pairs.shape[1], bool)
    is_first[1:] = (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)
    return np.asarray(pairs[:, is_first])


class _Shingles:
    """The shingles of all candidates; of one shard after the other they are memory-mapped while they are read."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._rows, self._starts = corpus.paths("shingle-rows", "npy"), corpus.paths("shingle-starts", "npy")
        self._hashes = corpus.paths("shingles", "bin")
        storage.fetch_copies(self._starts)
        self._is_known = np.array([len(storage.read_array(path)) > 1 for path in self._starts])

    def chunks(self, pairs: Numbers) -> Iterator[Numbers]:
        """Yield the pairs in chunks of bounded memory, or of one pair."""
        sizes = self._locate(pairs.reshape(-1))[1]
        totals = np.cumsum(np.sum(sizes.reshape(pairs.shape), axis=0))
        first = 0
        while first < pairs.shape[1]:
            before = totals[first - 1] if first else 0
            last = int(np.searchsorted(totals, before + _CHUNK_SHINGLES, side="right"))
            last = min(max(last, first + 1), first + _CHUNK_PAIRS)
            yield pairs[:, first:last]
            first = last

    def similarity(self, pairs: Numbers) -> npt.NDArray[np.float64]:
        """Return the Jaccard similarity of pairs."""
        documents, places = np.unique(pairs, return_inverse=True)
        starts, sizes = self._locate(documents)
        sets = []
        for shard, _, members in self._corpus.by_shard(documents, self._hashes):  # in order, as the documents
            hashes = _map_hashes(self._hashes[shard])
            located = zip(starts[members].tolist(), sizes[members].tolist(), strict=True)
            sets.append(np.concatenate([hashes[start : start + size] for start, size in located]))
        bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        return jaccard_of_pairs(np.concatenate([np.empty(0, np.uint64), *sets]), bounds, places.reshape(pairs.shape))

    def are_known(self, pairs: Numbers) -> npt.NDArray[np.bool_]:
        """Return for which pairs the shingles of both documents are known."""
        owners = self._corpus.shards_of(pairs.reshape(-1))
        return np.asarray(self._is_known[owners].reshape(pairs.shape).all(axis=0))

    def _locate(self, documents: Numbers) -> tuple[Numbers, Numbers]:
        """Return where the shingles of documents begin in those of their shards, and how many they are."""
        starts, sizes = np.zeros((2, len(documents)), np.int64)
        for shard, rows, members in self._corpus.by_shard(documents, self._rows):
            if self._is_known[shard]:
                entries = np.searchsorted(storage.read_array(self._rows[shard]), rows)
                bounds = storage.read_array(self._starts[shard])
                starts[members], sizes[members] = bounds[entries], bounds[entries + 1] - bounds[entries]
        return starts, sizes


def _map_hashes(path: str) -> npt.NDArray[np.uint64]:
    copy = storage.mapped_path(path)
    if not storage.size_bytes(copy):  # an empty file cannot be mapped
        return np.zeros(0, np.uint64)
    return np.asarray(np.memmap(copy, np.uint64, "r"))
