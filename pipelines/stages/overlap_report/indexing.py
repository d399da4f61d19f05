"""The benchmarks' n-grams: an exact index for each way to count, as work files that every scanning task maps."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.ngrams.index import NgramIndex
from pipelines.algorithms.ngrams.index_builder import Examples, IndexBuilder
from pipelines.algorithms.ngrams.words import Normalization
from pipelines.core import progress, shards, storage
from pipelines.core.errors import InputError
from pipelines.core.manifest import FileEntry
from pipelines.core.run import TaskResult
from pipelines.core.text_columns import text_arrays
from pipelines.stages.overlap_report.benchmarks import Benchmark, ExampleBatch, read_example_batches

_EXAMPLE_COUNTS = "examples.json"
_PLACES_SCHEMA = pa.schema([pa.field("place", pa.string(), nullable=False)])
# The sizes that the paper's time and the field use: GPT-2 counted 8-grams, GPT-3 13-grams.
_SENSITIVITY_NGRAMS = (8, 13)


@dataclasses.dataclass(frozen=True)
class Variant:
    """An index: the words of an n-gram, how words are made, and whether it is of the samples, not of the benchmarks.

    The report's own has the number 0; the others only tell which of their n-grams the corpus holds.
    """

    number: int
    n: int
    normalization: Normalization
    of_samples: bool = False


@dataclasses.dataclass(frozen=True)
class StoredIndex:
    """An index as it lies in work files, whose hash tells it from one that was there before."""

    folder: str
    work: str
    number: int
    sha256: str


class Extent(NamedTuple):
    """Which examples of the index are a benchmark's: from `first`, up to `last` but without it."""

    first: int
    last: int


def variants_of(n: int, normalization: Normalization, *, sensitivity: bool, samples: bool) -> list[Variant]:
    """Return the indexes: that of the report, for the table of sensitivity all ways to count, and that of samples."""
    ways = [(n, normalization)]
    if sensitivity:
        options = itertools.product(_SENSITIVITY_NGRAMS, ("split", "drop"), ("unicode", "ascii"), ("cross", "stop"))
        each = ((n, Normalization(apostrophes, letters, lines)) for n, apostrophes, letters, lines in options)  # type: ignore[arg-type]
        ways += [way for way in each if way != ways[0]]
    variants = [Variant(number, *way) for number, way in enumerate(ways)]
    return [*variants, Variant(len(ways), n, normalization, of_samples=True)] if samples else variants


def places_name(work: str, number: int) -> str:
    """Return the name of the work file that says where the examples of a benchmark stand."""
    return f"{work}/places-{number:05d}.parquet"


def write_indexes(
    benchmarks: Sequence[Benchmark],
    samples: Sequence[Benchmark],
    example: str,
    variants: Sequence[Variant],
    output: str,
    work: str,
) -> TaskResult:
    """Write the index of each variant, and where the examples of the benchmarks stand.

    Raises InputError for a benchmark without an example, or where none has the words of an n-gram.
    """
    files: list[FileEntry] = []
    counts: list[int] = []
    for variant in variants:
        builder = IndexBuilder(variant.n, variant.normalization)
        texts, before = (samples, len(benchmarks)) if variant.of_samples else (benchmarks, 0)
        for number, benchmark in enumerate(texts, before):
            batches = read_example_batches(benchmark, example)
            if variant.number and not variant.of_samples:
                _add(builder, batches)
                continue
            file, examples_read = _add_first(builder, benchmark, batches, output, work, number)
            files.append(file)
            counts.append(examples_read)
        index, examples = builder.finish()
        if not variant.number:
            _require_ngrams(benchmarks, counts, examples, variant.n)
        files += _write(index, examples, output, _stem(work, variant.number))
    # No counts of the task, which the summary would show.
    files.append(shards.write_file(output, f"{work}/{_EXAMPLE_COUNTS}", json.dumps(counts).encode()))
    return TaskResult(files=tuple(files))


def read_extents(output: str, work: str, benchmarks: int) -> tuple[list[Extent], list[Extent]]:
    """Return which examples of their index are those of each benchmark, and of each of the samples."""
    counts: list[int] = storage.read_json(storage.join(output, f"{work}/{_EXAMPLE_COUNTS}"))
    return _extents(counts[:benchmarks]), _extents(counts[benchmarks:])


def _extents(counts: Sequence[int]) -> list[Extent]:
    ends = list(itertools.accumulate(counts))
    return [Extent(first, last) for first, last in zip([0, *ends], ends, strict=False)]


def stored_index(files: Sequence[FileEntry], output: str, work: str, variant: Variant) -> StoredIndex:
    """Return where the index of a variant lies."""
    stem = _stem(work, variant.number)
    parts = sorted((file.name, file.sha256) for file in files if file.name.startswith(f"{stem}-"))
    return StoredIndex(output, work, variant.number, hashlib.sha256(repr(parts).encode()).hexdigest())


@functools.lru_cache(maxsize=32)
def load_index(stored: StoredIndex) -> NgramIndex:
    """Return an index, mapped into memory where the files are local; once in a process."""
    return NgramIndex(*(_array(stored, field) for field in NgramIndex._fields))


def load_examples(stored: StoredIndex) -> Examples:
    """Return which n-gram begins at each word of each example."""
    return Examples(*(_array(stored, field) for field in Examples._fields))


def _array(stored: StoredIndex, field: str) -> npt.NDArray[Any]:
    return storage.read_array(storage.join(stored.folder, f"{_stem(stored.work, stored.number)}-{field}.npy"))


def _stem(work: str, number: int) -> str:
    return f"{work}/index-{number:02d}"


def _add(builder: IndexBuilder, batches: Iterator[ExampleBatch]) -> None:
    for batch in batches:
        builder.add(*text_arrays(batch.texts))


def _add_first(
    builder: IndexBuilder, benchmark: Benchmark, batches: Iterator[ExampleBatch], output: str, work: str, number: int
) -> tuple[FileEntry, int]:
    """Add a benchmark; write where its examples stand."""
    examples = 0
    with shards.write_shard(output, places_name(work, number), _PLACES_SCHEMA) as places:
        for batch in batches:
            builder.add(*text_arrays(batch.texts))
            column = pa.array(batch.places, pa.string())
            places.writer.write_batch(pa.RecordBatch.from_arrays([column], schema=_PLACES_SCHEMA))
            examples += len(batch.texts)
            progress.advance(len(batch.texts))
    if not examples:
        raise InputError(f"{benchmark.source}: the benchmark {benchmark.label} is empty: it holds no example at all")
    return places.entry, examples


def _require_ngrams(benchmarks: Sequence[Benchmark], counts: Sequence[int], examples: Examples, n: int) -> None:
    for benchmark, extent in zip(benchmarks, _extents(counts), strict=True):
        first, last = examples.words[extent.first], examples.words[extent.last]
        if not (examples.ids[first:last] >= 0).any():
            longest = int(np.diff(examples.words[extent.first : extent.last + 1]).max())
            raise InputError(
                f"{benchmark.source}: all {extent.last - extent.first:,} examples of the benchmark {benchmark.label} "
                f"are too short: the longest has {longest} words, an n-gram needs {n}; lower --ngram, or join lines "
                "with --example paragraph or document"
            )


def _write(index: NgramIndex, examples: Examples, output: str, stem: str) -> list[FileEntry]:
    arrays = [*index._asdict().items(), *examples._asdict().items()]
    files = []
    for field, array in arrays:
        name = f"{stem}-{field}.npy"
        with storage.atomic_write(storage.join(output, name), durable=False) as stream:
            np.lib.format.write_array(stream, array, allow_pickle=False)
        files.append(FileEntry(name, stream.size_bytes, stream.sha256))
    return files
