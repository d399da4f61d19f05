"""The tasks of overlap-index: they count the n-grams of a shard, and build a part of the filter.

A part is a range of the filter's blocks. A task builds it by reading all documents and adding the hashes whose block is
in the range: hashing an n-gram takes an eighth of the time of adding it. So the memory is bounded whatever the size of
the filter. The parts are then concatenated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from pipelines import progress, storage
from pipelines.algorithms.bloom import hyperloglog
from pipelines.algorithms.bloom.blocked import (
    BLOCK_BITS,
    BLOCK_BYTES,
    Bits,
    add_range,
    blocks_by_bits_set,
    empty_bits,
    measurement_of,
)
from pipelines.algorithms.bloom.sizing import FilterSize
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.words import describe
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError
from pipelines.format import plural
from pipelines.records import inputs, shards
from pipelines.records.drops import Drops
from pipelines.records.ngram_filter import (
    BLOCKED,
    DESCRIPTION,
    HEADER_BYTES,
    INDEX,
    PIECE_BLOCKS,
    Header,
    read_pieces,
    write_header,
)
from pipelines.records.schemas import DROPPED_SCHEMA
from pipelines.stages.overlap_index.config import OverlapIndexConfig

SEED = 0
# Filters above this size are built in at least a few parts, so that several cores work on them.
SMALL_PART_BYTES = 16 << 20
_MIN_PARTS = 4


@dataclasses.dataclass(frozen=True)
class NgramCounts:
    """The n-grams of the documents: all, the estimate of the distinct ones, and an upper bound of these."""

    documents: int
    ngrams: int
    distinct: int
    max_distinct: int


@dataclasses.dataclass(frozen=True)
class SketchContext:
    """The options of a run, and its output folder."""

    config: OverlapIndexConfig
    output: str


@dataclasses.dataclass(frozen=True)
class MergeSource:
    """The filters to be merged, and the output folder."""

    paths: tuple[str, ...]
    output: str


@dataclasses.dataclass(frozen=True)
class FilterSource:
    """What the parts of a filter are built from."""

    documents: list[inputs.DocumentShard]
    size: FilterSize
    config: OverlapIndexConfig
    output: str


def sketch_shard(shard: inputs.DocumentShard, context: SketchContext) -> TaskResult:
    """Write a sketch of the distinct n-grams of a shard as a work file, and the list of dropped documents."""
    config, output = context.config, context.output
    registers = hyperloglog.empty_registers()
    documents = ngrams = 0
    with shards.write_shard(output, shards.shard_name("dropped", shard.index), DROPPED_SCHEMA) as dropped:
        drops = Drops(dropped.write)
        for batch in inputs.read_documents(shard, drops):
            hashes = text_ngram_hashes(*text_arrays(batch.column("text")), config.ngram, config.normalization).hashes
            hyperloglog.add(registers, hashes)
            documents += batch.num_rows
            ngrams += len(hashes)
            progress.advance(batch.num_rows)
    sketch = _write_work_file(output, f"{shard.name}.sketch", [registers])
    return drops.task_result(documents, (dropped.entry, sketch), {"ngrams": ngrams})


def merge_sketches(entries: Sequence[ShardEntry], output: str, ngram: int) -> NgramCounts:
    """Merge the sketches of all shards; raise InputError if no document is long enough for an n-gram."""
    ngrams = sum(int(entry.counts["ngrams"]) for entry in entries)
    if not ngrams:
        documents = plural(sum(entry.records_in for entry in entries), "document")
        raise InputError(
            f"overlap-index: no document has {ngram} words (of {documents}); lower --ngram or use longer texts"
        )
    registers = hyperloglog.empty_registers()
    for entry in entries:
        _, sketch = entry.files
        sketch_bytes = storage.read_bytes(storage.join(output, sketch.name))
        hyperloglog.merge(registers, np.frombuffer(sketch_bytes, np.uint8))
    return NgramCounts(
        documents=sum(entry.records_out for entry in entries),
        ngrams=ngrams,
        distinct=min(ngrams, round(hyperloglog.estimate(registers))),
        max_distinct=min(ngrams, hyperloglog.upper_bound(registers)),
    )


def split_blocks(size: FilterSize, max_bytes: int) -> list[range]:
    """Split the blocks of a filter into ranges of at most `max_bytes`."""
    min_parts = min(_MIN_PARTS, -(-size.size_bytes // SMALL_PART_BYTES))
    parts = min(size.blocks, max(min_parts, -(-size.blocks // max(1, max_bytes // BLOCK_BYTES))))
    bounds = [size.blocks * part // parts for part in range(parts + 1)]
    return [range(first, last) for first, last in itertools.pairwise(bounds)]


def part_name(blocks: range) -> str:
    """Return the name of the task that builds a part."""
    return f"blocks-{blocks.start:010d}-{blocks.stop:010d}"


def add_part(blocks: range, source: FilterSource) -> TaskResult:
    """Write the blocks of a range, with the n-grams of all documents that belong there."""
    bits = empty_bits(len(blocks))
    for shard in source.documents:
        for batch in inputs.read_documents(shard, Drops()):
            texts = text_arrays(batch.column("text"))
            hashes = text_ngram_hashes(*texts, source.config.ngram, source.config.normalization).hashes
            add_range(bits, hashes, source.size.k, SEED, blocks.start, source.size.blocks)
            progress.advance(batch.num_rows)
    return _write_part(bits, blocks, source.output)


def merge_part(blocks: range, source: MergeSource) -> TaskResult:
    """Write the blocks of a range, with the bits that are set in any of the filters."""
    bits = empty_bits(len(blocks))
    for path in source.paths:
        first = 0
        for piece in read_pieces(path, HEADER_BYTES + blocks.start * BLOCK_BYTES, len(blocks)):
            bits[first : first + len(piece)] |= piece
            first += len(piece)
        progress.advance(len(blocks))
    return _write_part(bits, blocks, source.output)


def _write_part(bits: Bits, blocks: range, output: str) -> TaskResult:
    pieces = [bits[first : first + PIECE_BLOCKS] for first in range(0, len(bits), PIECE_BLOCKS)]
    return TaskResult(files=(_write_work_file(output, f"{part_name(blocks)}.bits", pieces),))


def _write_work_file(output: str, name: str, pieces: Sequence[Bits]) -> FileEntry:
    name = storage.join(WORK, name)
    with storage.atomic_write(storage.join(output, name), durable=False) as stream:
        for piece in pieces:
            stream.write(piece.data)
    return FileEntry(name, stream.size_bytes, stream.checksum)


def join_parts(template: Header, corpora: Sequence[str], parts: Sequence[ShardEntry], output: str) -> TaskResult:
    """Write `index.bloom` from its parts in order, and `index.json`.

    The parts are read twice: the header, which comes first, contains measurements of the bits and their checksum.
    """
    files = [file for part in parts for file in part.files]
    digest = hashlib.sha256()
    bits_set = np.zeros(BLOCK_BITS + 1, np.int64)
    for piece in _read_parts(files, output):
        digest.update(piece.data)
        bits_set += blocks_by_bits_set(piece)
    measurement = dataclasses.asdict(measurement_of(bits_set, template.k))
    header = dataclasses.replace(template, **measurement, bits_sha256=digest.hexdigest())
    with storage.atomic_write(storage.join(output, INDEX)) as stream:
        stream.write(write_header(header))
        for piece in _read_parts(files, output):
            stream.write(piece.data)
    index = FileEntry(INDEX, stream.size_bytes, stream.checksum)
    fields = dataclasses.asdict(header)
    description = {
        "capacity": fields.pop("sketch_items"),
        "hashes": fields.pop("k"),
        **fields,
        **header.normalisation,
        "format": BLOCKED,
        "normalisation": describe(header.normalization),
        "bits": header.blocks * BLOCK_BITS,
        "corpora": sorted(corpora),
    }
    files_written = (index, shards.write_file(output, DESCRIPTION, storage.json_bytes(description)))
    return TaskResult(counts={"estimated_distinct_ngrams": header.items}, files=files_written)


def _read_parts(files: Sequence[FileEntry], output: str) -> Iterator[Bits]:
    for file in files:
        yield from read_pieces(storage.join(output, file.name), 0, file.size_bytes // BLOCK_BYTES)
