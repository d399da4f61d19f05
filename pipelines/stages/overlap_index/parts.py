"""The parts of a filter: ranges of its blocks, built one by one and then concatenated.

A task builds a part by reading all documents and adding the hashes whose block is in its range: hashing an n-gram takes
an eighth of the time of adding it. So the memory is bounded whatever the size of the filter.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence

import numpy as np

from pipelines import progress, storage
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
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.engine.run import TaskResult
from pipelines.records import inputs, shards
from pipelines.records.drops import Drops
from pipelines.records.ngram_filter import BLOCKED, DESCRIPTION, INDEX, PIECE_BLOCKS, read_pieces
from pipelines.records.text_columns import text_arrays
from pipelines.stages.overlap_index.config import OverlapIndexConfig

SEED = 0
# Filters above this size are built in at least a few parts, so that several cores work on them.
SMALL_PART_BYTES = 16 << 20
_MIN_PARTS = 4


@dataclasses.dataclass(frozen=True)
class BlockRange:
    """The blocks of a filter from `first` up to, but not including, `last`."""

    first: int
    last: int

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return self.last - self.first

    @property
    def size_bytes(self) -> int:
        """Their size in memory."""
        return self.blocks * BLOCK_BYTES

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"blocks-{self.first:010d}-{self.last:010d}"


@dataclasses.dataclass(frozen=True)
class FilterSource:
    """What the parts of a filter are built from."""

    documents: tuple[inputs.DocumentShard, ...]
    size: FilterSize
    config: OverlapIndexConfig
    output: str


def split_blocks(size: FilterSize, max_bytes: int, small_part_bytes: int = SMALL_PART_BYTES) -> list[BlockRange]:
    """Split a filter into ranges of at most `max_bytes`."""
    min_parts = min(_MIN_PARTS, -(-size.size_bytes // small_part_bytes))
    parts = min(size.blocks, max(min_parts, -(-size.blocks // max(1, max_bytes // BLOCK_BYTES))))
    bounds = [size.blocks * part // parts for part in range(parts + 1)]
    return [BlockRange(first, last) for first, last in itertools.pairwise(bounds)]


def add_part(blocks: BlockRange, source: FilterSource) -> TaskResult:
    """Write the blocks of a range, with the n-grams of all documents that belong there."""
    bits = empty_bits(blocks.blocks)
    for shard in source.documents:
        for batch in inputs.read_documents(shard, Drops()):
            texts = text_arrays(batch.column("text"))
            hashes = text_ngram_hashes(*texts, source.config.ngram, source.config.normalization).hashes
            add_range(bits, hashes, source.size.k, SEED, blocks.first, source.size.blocks)
            progress.advance(batch.num_rows)
    return _write_part(bits, blocks, source.output)


def merge_part(blocks: BlockRange, context: tuple[tuple[str, ...], str]) -> TaskResult:
    """Write the blocks of a range, with the bits that are set in any of the filters."""
    paths, output = context
    bits = empty_bits(blocks.blocks)
    for path in paths:
        first = 0
        for piece in read_pieces(path, HEADER_BYTES + blocks.first * BLOCK_BYTES, blocks.blocks):
            merge(bits[first : first + len(piece)], piece)
            first += len(piece)
        progress.advance(blocks.blocks)
    return _write_part(bits, blocks, output)


def _write_part(bits: Bits, blocks: BlockRange, output: str) -> TaskResult:
    name = storage.join(WORK, f"{blocks.name}.bits")
    with storage.atomic_write(storage.join(output, name), durable=False) as stream:
        for first in range(0, len(bits), PIECE_BLOCKS):
            stream.write(bits[first : first + PIECE_BLOCKS].data)
    return TaskResult(files=(FileEntry(name, stream.size_bytes, stream.checksum),))


def join_parts(unmeasured: Header, corpora: Sequence[str], parts: Sequence[ShardEntry], output: str) -> TaskResult:
    """Write `index.bloom` from its parts in order, and `index.json`.

    The parts are read twice: the header at the beginning contains measurements of the bits and their checksum.
    """
    files = [file for part in parts for file in part.files]
    digest = hashlib.sha256()
    bits_set = np.zeros(BLOCK_BITS + 1, np.int64)
    for piece in _read_parts(files, output):
        digest.update(piece.data)
        bits_set += blocks_by_bits_set(piece)
    measured = dataclasses.asdict(measurement_of(bits_set, unmeasured.k))
    header = dataclasses.replace(unmeasured, **measured, bits_sha256=digest.hexdigest())
    with storage.atomic_write(storage.join(output, INDEX)) as stream:
        stream.write(write_header(header))
        for piece in _read_parts(files, output):
            stream.write(piece.data)
    index = FileEntry(INDEX, stream.size_bytes, stream.checksum)
    description = write_description(_describe_header(header, corpora), output)
    return TaskResult(counts={"distinct_ngrams_estimated": header.items}, files=(index, description))


def _read_parts(files: Sequence[FileEntry], output: str) -> Iterator[Bits]:
    for file in files:
        yield from read_pieces(storage.join(output, file.name), 0, file.size_bytes // BLOCK_BYTES)


def write_description(description: dict[str, object], output: str) -> FileEntry:
    """Write `index.json`."""
    text = json.dumps(description, indent=1, sort_keys=True) + "\n"
    return shards.write_file(output, DESCRIPTION, text.encode())


def _describe_header(header: Header, corpora: Sequence[str]) -> dict[str, object]:
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
