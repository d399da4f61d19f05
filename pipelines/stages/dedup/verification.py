"""Third phase: the true Jaccard similarity of every candidate pair.

Only documents that stand in a pair are shingled again; their shingles go into files that are read at any place.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.minhash.signatures import Hashes, jaccard, pair_hashes, shingle_hashes
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.drops import Drops
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult
from pipelines.stages.dedup.candidates import PAIR_SCHEMA, read_pairs
from pipelines.stages.dedup.signatures import Numbers, SignedShard

# Pairs (with those that several bands found) that a task verifies; it holds some 300 bytes for each that is near.
PAIRS_A_TASK = 1 << 20
_CACHED_BYTES = 64 << 20
_OPEN_FILES = 64

_INDEX_SCHEMA = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("document", "offset", "shingles")])


@dataclasses.dataclass(frozen=True)
class ShingleTask:
    """Write the shingles of those documents of a shard that are marked as candidates."""

    shard: inputs.DocumentShard
    signed: SignedShard
    marks: str
    ngram: int
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.shard.name


@dataclasses.dataclass(frozen=True)
class VerifyTask:
    """Verify the candidate pairs that fall to one part of `parts`."""

    part: int
    parts: int
    pairs: tuple[str, ...]
    indexes: tuple[str, ...]
    threshold: float
    output: str
    work: str

    @property
    def name(self) -> str:
        """The part."""
        return f"part-{self.part:05d}"


def mark_candidates(pairs: tuple[str, ...], documents: int, output: str, work: str) -> TaskResult:
    """Write one bit a document: whether it stands in a candidate pair. Holds one byte a document."""
    marked = np.zeros(documents, dtype=bool)
    for left, right in read_pairs(pairs):
        marked[left] = marked[right] = True
    return TaskResult(
        files=(shards.write_file(output, storage.join(work, "marks.bin"), np.packbits(marked).tobytes()),)
    )


def write_shingles(task: ShingleTask) -> TaskResult:
    """Write the shingle hashes of the marked documents of a shard one after the other, and where each begins."""
    rows = _marked_rows(task)
    index_name = storage.join(task.work, shards.shard_name("shingles", task.shard.index))
    data_name = storage.join(task.work, shards.shard_name("shingles", task.shard.index, "bin"))
    with (
        shards.write_shard(task.output, index_name, _INDEX_SCHEMA) as index,
        storage.atomic_write(storage.join(task.output, data_name)) as data,
    ):
        offset = 0
        for row, text in _texts(task, rows):
            hashes = shingle_hashes(text, task.ngram).astype("<u8")
            data.write(hashes.tobytes())
            index.writer.write({"document": task.signed.start + row, "offset": offset, "shingles": len(hashes)})
            offset += hashes.nbytes
    return TaskResult(files=(index.entry, FileEntry(data_name, data.size_bytes, data.sha256)))


def _marked_rows(task: ShingleTask) -> npt.NDArray[np.bool_]:
    first_byte, first_bit = divmod(task.signed.start, 8)
    marks = np.frombuffer(storage.read_bytes(task.marks), dtype=np.uint8)[first_byte:]
    bits = np.unpackbits(marks, count=min(first_bit + task.signed.rows, 8 * len(marks)))
    return bits[first_bit:].astype(bool)


def _texts(task: ShingleTask, marked: npt.NDArray[np.bool_]) -> Iterator[tuple[int, str]]:
    """Yield row and text of the marked documents of a shard."""
    if not marked.any():
        return
    start = 0
    for batch in inputs.read_documents(task.shard, Drops()):
        texts = batch.column("text")
        for row in np.flatnonzero(marked[start : start + batch.num_rows]).tolist():
            yield start + row, texts[row].as_py()
        start += batch.num_rows
        progress.advance(batch.num_rows)


class ShingleFiles:
    """The shingles of all candidates, by document; holds 32 bytes a candidate and a cache of at most 64 MiB."""

    def __init__(self, indexes: tuple[str, ...]) -> None:
        self._paths = [index.removesuffix(".parquet") + ".bin" for index in indexes]
        parts = [_read_index(index) for index in indexes]
        self._documents, self._offsets, self._sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
        self._files = np.repeat(np.arange(len(parts)), [len(documents) for documents, _, _ in parts])
        self._open: OrderedDict[int, BinaryIO] = OrderedDict()
        self._cache: OrderedDict[int, Hashes] = OrderedDict()
        self._cached_bytes = 0

    def __enter__(self) -> ShingleFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as closing:
            for stream in self._open.values():
                closing.callback(stream.close)

    def size_of(self, document: int) -> int:
        """Return the number of shingles of a document."""
        return int(self._sizes[self._place(document)])

    def read(self, document: int) -> Hashes:
        """Return the shingles of a document."""
        if document in self._cache:
            self._cache.move_to_end(document)
            return self._cache[document]
        place = self._place(document)
        stream = self._stream(int(self._files[place]))
        stream.seek(int(self._offsets[place]))
        hashes: Hashes = np.frombuffer(stream.read(8 * int(self._sizes[place])), dtype="<u8")
        self._remember(document, hashes)
        return hashes

    def jaccard(self, left: int, right: int) -> float:
        """Return the true Jaccard similarity of two documents."""
        return jaccard(self.read(left), self.read(right))

    def _place(self, document: int) -> int:
        place = int(np.searchsorted(self._documents, document))
        assert self._documents[place] == document
        return place

    def _stream(self, file: int) -> BinaryIO:
        if file not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self._open.popitem(last=False)[1].close()
            self._open[file] = storage.open_read(self._paths[file])
        self._open.move_to_end(file)
        return self._open[file]

    def _remember(self, document: int, hashes: Hashes) -> None:
        self._cache[document] = hashes
        self._cached_bytes += hashes.nbytes
        while self._cached_bytes > _CACHED_BYTES and len(self._cache) > 1:
            self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes


def _read_index(path: str) -> tuple[Numbers, Numbers, Numbers]:
    columns: list[list[Numbers]] = [[np.zeros(0, dtype=np.int64)] for _ in _INDEX_SCHEMA.names]
    for batch in shards.read_batches(path):
        for column, name in zip(columns, _INDEX_SCHEMA.names, strict=True):
            column.append(batch.column(name).to_numpy())
    documents, offsets, sizes = (np.concatenate(column) for column in columns)
    return documents, offsets, sizes


class Forest:
    """Groups of numbers that were joined, directly or through others."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def root(self, number: int) -> int:
        """Return the number that stands for the group of a number."""
        parents = self._parents
        while (parent := parents.get(number, number)) != number:
            grandparent = parents.get(parent, parent)
            parents[number] = grandparent
            number = grandparent
        return number

    def join(self, left: int, right: int) -> None:
        """Make the groups of two numbers one; the smallest number stands for it."""
        low, high = sorted((self.root(left), self.root(right)))
        self._parents[high] = low


def verify_pairs(task: VerifyTask) -> TaskResult:
    """Write the pairs of a part whose true Jaccard similarity reaches the threshold.

    A pair that earlier pairs of the part already join is not compared: the clusters are the same with or without it.
    """
    left, right = _pairs_of_part(task)
    name = storage.join(task.work, f"edges-{task.name}.parquet")
    joined = Forest()
    with (
        shards.write_shard(task.output, name, PAIR_SCHEMA) as written,
        ShingleFiles(task.indexes) as shingles,
    ):
        for one, other in zip(left.tolist(), right.tolist(), strict=True):
            if joined.root(one) != joined.root(other) and _are_near(shingles, one, other, task.threshold):
                joined.join(one, other)
                written.writer.write({"left": one, "right": other})
            progress.advance()
    return TaskResult(counts={"candidate_pairs": len(left)}, files=(written.entry,))


def _are_near(shingles: ShingleFiles, one: int, other: int, threshold: float) -> bool:
    sizes = sorted((shingles.size_of(one), shingles.size_of(other)))
    # Sets of very different sizes cannot be near, whatever they hold.
    return sizes[0] / sizes[1] >= threshold and shingles.jaccard(one, other) >= threshold


def _pairs_of_part(task: VerifyTask) -> tuple[Numbers, Numbers]:
    """Return the distinct pairs of the part, sorted."""
    lefts: list[Numbers] = [np.zeros(0, dtype=np.int64)]
    rights: list[Numbers] = [np.zeros(0, dtype=np.int64)]
    for left, right in read_pairs(task.pairs):
        ours = pair_hashes(left, right) % np.uint64(task.parts) == task.part
        lefts.append(left[ours])
        rights.append(right[ours])
    left, right = np.concatenate(lefts), np.concatenate(rights)
    order = np.lexsort((right, left))
    left, right = left[order], right[order]
    repeated = np.zeros(len(left), dtype=bool)
    repeated[1:] = (left[1:] == left[:-1]) & (right[1:] == right[:-1])
    progress.advance(int(repeated.sum()))
    return left[~repeated], right[~repeated]
