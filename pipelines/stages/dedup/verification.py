"""Phase 3: the true Jaccard similarity of the candidate pairs.

Only documents of candidate pairs are shingled again; their shingles are written to files with random access.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from pipelines.algorithms.kernels.union_find import DisjointSets
from pipelines.algorithms.minhash.signatures import Hashes, jaccard, pair_hashes, shingle_hashes
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.drops import Drops
from pipelines.core.journal import WORK
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult
from pipelines.stages.dedup.candidates import PAIR_SCHEMA, read_pairs
from pipelines.stages.dedup.signatures import Numbers, SignedShard, read_arrays, work_name

_MARKS = storage.join(WORK, "marks.bin")
_CACHED_BYTES = 64 << 20
_OPEN_FILES = 64

_INDEX_SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("document", "offset", "shingles")])


@dataclasses.dataclass(frozen=True)
class CandidatePairs:
    """The files of candidate pairs and of their documents' shingles; `parts` is the number of verification tasks."""

    pairs: tuple[str, ...]
    parts: int
    shingle_indexes: tuple[str, ...]
    threshold: float
    output: str


def mark_candidates(pairs: tuple[str, ...], documents: int, output: str) -> TaskResult:
    """Write a bit per document: whether it is in a candidate pair. Memory: a byte per document."""
    is_candidate = np.zeros(documents, dtype=bool)
    for left, right in read_pairs(pairs):
        is_candidate[left] = is_candidate[right] = True
    return TaskResult(files=(shards.write_file(output, _MARKS, np.packbits(is_candidate).tobytes()),))


def write_shingles(shard: SignedShard, context: tuple[int, str]) -> TaskResult:
    """Write the shingle hashes of the candidates in a shard to one file, and the offset of each to another."""
    ngram, output = context
    index_name = work_name("shingles", shard.documents.index)
    data_name = work_name("shingles", shard.documents.index, "bin")
    with (
        shards.write_shard(output, index_name, _INDEX_SCHEMA) as index,
        storage.atomic_write(storage.join(output, data_name)) as data,
    ):
        offset = 0
        for row, text in _candidate_texts(shard, storage.join(output, _MARKS)):
            hashes = shingle_hashes(text, ngram).astype("<u8")
            data.write(hashes.tobytes())
            index.writer.write({"document": shard.start + row, "offset": offset, "shingles": len(hashes)})
            offset += hashes.nbytes
    return TaskResult(files=(index.entry, FileEntry(data_name, data.size_bytes, data.sha256)))


def _candidate_texts(shard: SignedShard, marks_path: str) -> Iterator[tuple[int, str]]:
    """Yield row and text of the candidates in a shard."""
    first_byte, first_bit = divmod(shard.start, 8)
    marks = np.frombuffer(storage.read_bytes(marks_path), dtype=np.uint8)[first_byte:]
    bits = np.unpackbits(marks, count=min(first_bit + shard.rows, 8 * len(marks)))
    is_candidate = bits[first_bit:].astype(bool)
    if not is_candidate.any():
        return
    start = 0
    for batch in inputs.read_documents(shard.documents, Drops()):
        texts = batch.column("text")
        for row in np.flatnonzero(is_candidate[start : start + batch.num_rows]).tolist():
            yield start + row, texts[row].as_py()
        start += batch.num_rows
        progress.advance(batch.num_rows)


class ShingleFiles:
    """The shingles of all candidates by document; holds 32 bytes per candidate and a cache of at most 64 MiB."""

    def __init__(self, indexes: tuple[str, ...]) -> None:
        self._paths = [index.removesuffix(".parquet") + ".bin" for index in indexes]
        parts = [read_arrays([index], _INDEX_SCHEMA) for index in indexes]
        self._documents, self._offsets, self._sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
        self._files = np.repeat(np.arange(len(parts)), [len(documents) for documents, _, _ in parts])
        self._open_files: OrderedDict[int, BinaryIO] = OrderedDict()
        self._cache: OrderedDict[int, Hashes] = OrderedDict()
        self._cached_bytes = 0

    def __enter__(self) -> ShingleFiles:
        return self

    def __exit__(self, *_: Any) -> None:
        for stream in self._open_files.values():
            stream.close()

    def size_of(self, document: int) -> int:
        """Return the number of shingles of a document."""
        return int(self._sizes[self._position(document)])

    def jaccard(self, left: int, right: int) -> float:
        """Return the true Jaccard similarity of two documents."""
        return jaccard(self._read(left), self._read(right))

    def _read(self, document: int) -> Hashes:
        if document in self._cache:
            self._cache.move_to_end(document)
            return self._cache[document]
        position = self._position(document)
        stream = self._open(int(self._files[position]))
        stream.seek(int(self._offsets[position]))
        hashes: Hashes = np.frombuffer(stream.read(8 * int(self._sizes[position])), dtype="<u8")
        self._cache[document] = hashes
        self._cached_bytes += hashes.nbytes
        while self._cached_bytes > _CACHED_BYTES and len(self._cache) > 1:
            self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes
        return hashes

    def _position(self, document: int) -> int:
        position = int(np.searchsorted(self._documents, document))
        assert self._documents[position] == document
        return position

    def _open(self, file: int) -> BinaryIO:
        if file not in self._open_files:
            if len(self._open_files) >= _OPEN_FILES:
                self._open_files.popitem(last=False)[1].close()
            self._open_files[file] = storage.open_read(self._paths[file])
        self._open_files.move_to_end(file)
        return self._open_files[file]


def verify_pairs(part: int, candidates: CandidatePairs) -> TaskResult:
    """Write the pairs of a part whose true Jaccard similarity reaches the threshold.

    Pairs that earlier pairs of the part already connect are not compared: the clusters are the same without them.
    """
    left, right = _pairs_of_part(part, candidates)
    documents, nodes = np.unique(np.concatenate((left, right)), return_inverse=True)
    clusters = DisjointSets(len(documents))
    with (
        shards.write_shard(
            candidates.output, storage.join(WORK, f"edges-{part_name(part)}.parquet"), PAIR_SCHEMA
        ) as edges,
        ShingleFiles(candidates.shingle_indexes) as shingles,
    ):
        for left_node, right_node in zip(nodes[: len(left)].tolist(), nodes[len(left) :].tolist(), strict=True):
            if clusters.find(left_node) != clusters.find(right_node):
                pair = int(documents[left_node]), int(documents[right_node])
                if _are_near(shingles, *pair, candidates.threshold):
                    clusters.union(left_node, right_node)
                    edges.writer.write(dict(zip(PAIR_SCHEMA.names, pair, strict=True)))
            progress.advance()
    return TaskResult(counts={"candidate_pairs": len(left)}, files=(edges.entry,))


def part_name(part: int) -> str:
    """Return the name of a verification task."""
    return f"part-{part:05d}"


def _are_near(shingles: ShingleFiles, left: int, right: int, threshold: float) -> bool:
    small, large = sorted((shingles.size_of(left), shingles.size_of(right)))
    # Sets of very different sizes cannot be near, whatever their elements are.
    return small / large >= threshold and shingles.jaccard(left, right) >= threshold


def _pairs_of_part(part: int, candidates: CandidatePairs) -> tuple[Numbers, Numbers]:
    """Return the distinct pairs of a part, sorted."""
    lefts, rights = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for left, right in read_pairs(candidates.pairs):
        in_part = pair_hashes(left, right) % np.uint64(candidates.parts) == part
        lefts.append(left[in_part])
        rights.append(right[in_part])
    left, right = np.concatenate(lefts), np.concatenate(rights)
    order = np.lexsort((right, left))
    left, right = left[order], right[order]
    is_repeated = np.zeros(len(left), dtype=bool)
    is_repeated[1:] = (left[1:] == left[:-1]) & (right[1:] == right[:-1])
    progress.advance(int(is_repeated.sum()))
    return left[~is_repeated], right[~is_repeated]
