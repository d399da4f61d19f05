"""The parts of a filter: ranges of its blocks, each made apart, which stand one behind the other in its file.

A part is made by one task that reads all documents and adds the hashes whose block lies in its range: to hash an n-gram
takes an eighth of the time that adding it does, and so the memory has a limit, whatever the size of the filter.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence

import numpy as np

from pipelines.algorithms.bloom.blocked import (
    BLOCK_BITS,
    BLOCK_BYTES,
    Bits,
    add_range,
    blocks_by_bits_set,
    empty_bits,
    measurement_of,
    merge,
)
from pipelines.algorithms.bloom.file_format import HEADER_BYTES, Header, write_header
from pipelines.algorithms.bloom.sizing import FilterSize
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.words import Normalization, describe
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.drops import Drops
from pipelines.core.manifest import FileEntry, ShardEntry
from pipelines.core.ngram_filter import BLOCKED, DESCRIPTION, INDEX, PIECE_BLOCKS, read_pieces
from pipelines.core.run import TaskResult
from pipelines.core.text_columns import text_arrays

SEED = 0
# Also a filter that would fit into one part is made in a few, so that several cores work on it, but for a small one.
_FEW_PARTS = 4
_SMALL_PART_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class BlockRange:
    """The blocks from `first` up to `last`, but without it, of a filter."""

    first: int
    last: int

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return self.last - self.first

    @property
    def size_bytes(self) -> int:
        """The memory that they take."""
        return self.blocks * BLOCK_BYTES

    @property
    def name(self) -> str:
        """The name of a task that makes them."""
        return f"blocks-{self.first:010d}-{self.last:010d}"


@dataclasses.dataclass(frozen=True)
class AddTask:
    """A range of blocks to be made from documents."""

    range: BlockRange
    shards: tuple[inputs.DocumentShard, ...]
    size: FilterSize
    ngram: int
    normalization: Normalization
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.range.name


@dataclasses.dataclass(frozen=True)
class MergeTask:
    """A range of blocks to be made from those of other filters."""

    range: BlockRange
    filters: tuple[str, ...]
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.range.name


def ranges_of(size: FilterSize, most_bytes: int) -> list[BlockRange]:
    """Cut a filter into ranges of at most so many bytes each."""
    few = min(_FEW_PARTS, -(-size.size_bytes // _SMALL_PART_BYTES))
    parts = min(size.blocks, max(few, -(-size.blocks // max(1, most_bytes // BLOCK_BYTES))))
    bounds = [size.blocks * part // parts for part in range(parts + 1)]
    return [BlockRange(first, last) for first, last in itertools.pairwise(bounds)]


def add_part(task: AddTask) -> TaskResult:
    """Write the blocks of a range, with the n-grams of all documents that fall into it."""
    bits = empty_bits(task.range.blocks)
    for shard in task.shards:
        for batch in inputs.read_documents(shard, Drops()):
            hashes = text_ngram_hashes(*text_arrays(batch.column("text")), task.ngram, task.normalization).hashes
            add_range(bits, hashes, task.size.k, SEED, task.range.first, task.size.blocks)
            progress.advance(batch.num_rows)
    return _written(bits, task.output, task.work, task.range)


def merge_part(task: MergeTask) -> TaskResult:
    """Write the blocks of a range, with the bits that any of the filters has there."""
    bits = empty_bits(task.range.blocks)
    for path in task.filters:
        first = 0
        for piece in read_pieces(path, HEADER_BYTES + task.range.first * BLOCK_BYTES, task.range.blocks):
            merge(bits[first : first + len(piece)], piece)
            first += len(piece)
        progress.advance(task.range.blocks)
    return _written(bits, task.output, task.work, task.range)


def _written(bits: Bits, output: str, work: str, blocks: BlockRange) -> TaskResult:
    name = f"{work}/{blocks.name}.bits"
    with storage.atomic_write(storage.join(output, name), durable=False) as stream:
        for first in range(0, len(bits), PIECE_BLOCKS):
            stream.write(bits[first : first + PIECE_BLOCKS].data)
    return TaskResult(files=(FileEntry(name, stream.size_bytes, stream.sha256),))


def join_parts(unmeasured: Header, corpora: Sequence[str], parts: Sequence[ShardEntry], output: str) -> TaskResult:
    """Write `index.bloom` from its parts, in their order, and `index.json`.

    What is measured of the bits, and their checksum, is put into the header: first all are read, then copied.
    """
    files = [file for part in parts for file in part.files]
    digest = hashlib.sha256()
    counted = np.zeros(BLOCK_BITS + 1, np.int64)
    for piece in _pieces(files, output):
        digest.update(piece.data)
        counted += blocks_by_bits_set(piece)
    measured = dataclasses.asdict(measurement_of(counted, unmeasured.k))
    header = dataclasses.replace(unmeasured, **measured, bits_sha256=digest.hexdigest())
    with storage.atomic_write(storage.join(output, INDEX)) as stream:
        stream.write(write_header(header))
        for piece in _pieces(files, output):
            stream.write(piece.data)
    index = FileEntry(INDEX, stream.size_bytes, stream.sha256)
    description = write_description(_description(header, corpora), output)
    return TaskResult(counts={"distinct_ngrams_estimated": header.items}, files=(index, description))


def _pieces(files: Sequence[FileEntry], output: str) -> Iterator[Bits]:
    for file in files:
        yield from read_pieces(storage.join(output, file.name), 0, file.size_bytes // BLOCK_BYTES)


def write_description(description: dict[str, object], output: str) -> FileEntry:
    """Write `index.json`."""
    text = json.dumps(description, indent=1, sort_keys=True) + "\n"
    return shards.write_file(output, DESCRIPTION, text.encode())


def _description(header: Header, corpora: Sequence[str]) -> dict[str, object]:
    fields = dataclasses.asdict(header)
    normalization = {name: value for name, value in fields.pop("normalisation").items() if name != "unicode"}
    return {
        "format": BLOCKED,
        "normalisation": describe(Normalization(**normalization)),
        **header.normalisation,
        "capacity": fields.pop("sketch_items"),
        "hashes": fields.pop("k"),
        "bits": header.blocks * BLOCK_BITS,
        "corpora": sorted(corpora),
        **fields,
    }
