"""The exact indexes of the benchmarks' n-grams, one per way to count, as work files that every scanning task maps."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import progress, storage
from pipelines.algorithms.ngrams.index import NgramIndex, settings_of
from pipelines.algorithms.ngrams.index_builder import Examples, IndexBuilder
from pipelines.algorithms.ngrams.overlap_counts import ExampleCounts, count_examples
from pipelines.algorithms.ngrams.words import Normalization
from pipelines.benchmark_sets.benchmarks import Benchmark, read_example_batches
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.text_columns import text_arrays
from pipelines.stages.overlap_report.layout import EXAMPLE_COUNTS, index_name, places_name

_PLACES_SCHEMA = pa.schema([pa.field("place", pa.string(), nullable=False)])
# The sizes in use at the paper's time: GPT-2 counted 8-grams, GPT-3 13-grams.
_SENSITIVITY_NGRAMS = (8, 13)

Flags = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Variant:
    """An index: the words of an n-gram, the normalization, and whether it is of the samples, not of the benchmarks.

    Number 0 is the index of the report; of the others, only the n-grams that are in the corpus are recorded.
    """

    number: int
    n: int
    normalization: Normalization
    of_samples: bool = False


@dataclasses.dataclass(frozen=True)
class StoredIndex:
    """An index in work files; its hash distinguishes it from an earlier one in the same place."""

    output: str
    number: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class IndexedBenchmark:
    """A benchmark in the index: the n-gram at each of its words (-1 for none), and the first word of each example."""

    benchmark: Benchmark
    number: int
    ids: npt.NDArray[Any]
    words: npt.NDArray[np.int64]

    def counts(self, found: Flags) -> ExampleCounts:
        """Count the n-grams of each example, and those that are found."""
        return count_examples(self.ids, self.words, found)


def list_variants(n: int, normalization: Normalization, *, sensitivity: bool, samples: bool) -> list[Variant]:
    """Return the index of the report, those of all ways to count for the sensitivity, and that of the samples."""
    settings = [(n, normalization)]
    if sensitivity:
        options = itertools.product(_SENSITIVITY_NGRAMS, ("split", "drop"), ("unicode", "ascii"), ("cross", "stop"))
        every = ((n, Normalization(apostrophes, letters, lines)) for n, apostrophes, letters, lines in options)  # type: ignore[arg-type]
        settings += [setting for setting in every if setting != settings[0]]
    variants = [Variant(number, *setting) for number, setting in enumerate(settings)]
    return [*variants, Variant(len(settings), n, normalization, of_samples=True)] if samples else variants


def write_indexes(
    benchmarks: Sequence[Benchmark],
    samples: Sequence[Benchmark],
    example: str,
    variants: Sequence[Variant],
    output: str,
) -> TaskResult:
    """Write the index of each variant, and the places of the benchmarks' examples.

    Raises InputError for a benchmark without examples, or without an example of the length of an n-gram.
    """
    files: list[FileEntry] = []
    counts: list[int] = []
    for variant in variants:
        builder = IndexBuilder(variant.n, variant.normalization)
        texts, first = (samples, len(benchmarks)) if variant.of_samples else (benchmarks, 0)
        for number, benchmark in enumerate(texts, first):
            if variant.number and not variant.of_samples:
                for batch in read_example_batches(benchmark, example):
                    builder.add(*text_arrays(batch.texts))
                continue
            places, examples_read = _add_with_places(builder, benchmark, example=example, output=output, number=number)
            files.append(places)
            counts.append(examples_read)
        index, examples = builder.finish()
        if not variant.number:
            for indexed in _slice_examples(benchmarks, counts, examples):
                _check_has_ngrams(indexed, variant.n)
        arrays = index._asdict() | examples._asdict()
        files += [
            shards.write_array(output, index_name(variant.number, field), array) for field, array in arrays.items()
        ]
    # As a file, because counts of the task would be part of the summary.
    files.append(shards.write_file(output, EXAMPLE_COUNTS, json.dumps(counts).encode()))
    return TaskResult(files=tuple(files))


def read_example_counts(output: str) -> list[int]:
    """Return the number of examples of each benchmark, then of each of the samples."""
    counts: list[int] = storage.read_json(storage.join(output, EXAMPLE_COUNTS))
    return counts


def load_benchmarks(stored: StoredIndex, benchmarks: Sequence[Benchmark]) -> list[IndexedBenchmark]:
    """Return the benchmarks as they are in an index."""
    return _slice_examples(benchmarks, read_example_counts(stored.output), _load_examples(stored))


def load_samples(stored: StoredIndex, samples: Sequence[Benchmark]) -> list[IndexedBenchmark]:
    """Return the samples as they are in their index."""
    return _slice_examples(samples, read_example_counts(stored.output)[-len(samples) :], _load_examples(stored))


def stored_index(files: Sequence[FileEntry], output: str, variant: Variant) -> StoredIndex:
    """Return the index of a variant among the files that `write_indexes` wrote."""
    prefix = index_name(variant.number, "").removesuffix(".npy")
    parts = sorted((file.name, file.sha256) for file in files if file.name.startswith(prefix))
    return StoredIndex(output, variant.number, hashlib.sha256(repr(parts).encode()).hexdigest())


@functools.lru_cache(maxsize=32)
def load_index(stored: StoredIndex) -> NgramIndex:
    """Return an index, memory-mapped where the files are local; loaded once per process."""
    return NgramIndex(*(_load_array(stored, field) for field in NgramIndex._fields))


def ngram_texts(stored: StoredIndex, ids: npt.NDArray[np.int64]) -> pa.StringArray:
    """Return the words of n-grams, separated by single spaces."""
    index, word_ends = load_index(stored), _find_word_ends(stored)
    starts = np.asarray(index.starts[ids], np.int64)
    ends = word_ends[np.searchsorted(word_ends, starts) + settings_of(index).n - 1]
    offsets = np.concatenate([[0], np.cumsum(ends - starts)])
    positions = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], ends - starts)
    data = np.asarray(index.text)[positions]
    return pa.LargeStringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(data)).cast(pa.string())


@functools.lru_cache(maxsize=1)
def _find_word_ends(stored: StoredIndex) -> npt.NDArray[np.int64]:
    return np.flatnonzero(np.asarray(load_index(stored).text) == ord(" "))


def _load_examples(stored: StoredIndex) -> Examples:
    return Examples(*(_load_array(stored, field) for field in Examples._fields))


def _load_array(stored: StoredIndex, field: str) -> npt.NDArray[Any]:
    return storage.read_array(storage.join(stored.output, index_name(stored.number, field)))


def _slice_examples(
    benchmarks: Sequence[Benchmark], counts: Sequence[int], examples: Examples
) -> list[IndexedBenchmark]:
    indexed = []
    first = 0
    for number, (benchmark, count) in enumerate(zip(benchmarks, counts, strict=False)):
        words = np.asarray(examples.words[first : first + count + 1])
        indexed.append(IndexedBenchmark(benchmark, number, examples.ids[words[0] : words[-1]], words - words[0]))
        first += count
    return indexed


def _add_with_places(
    builder: IndexBuilder, benchmark: Benchmark, example: str, output: str, number: int
) -> tuple[FileEntry, int]:
    """Add a benchmark and write the places of its examples; return the file and the number of examples."""
    with shards.write_shard(output, places_name(number), _PLACES_SCHEMA) as places:
        for batch in read_example_batches(benchmark, example):
            builder.add(*text_arrays(batch.texts))
            column = pa.array(batch.places, pa.string())
            places.writer.write_batch(pa.RecordBatch.from_arrays([column], schema=_PLACES_SCHEMA))
            progress.advance(len(batch.texts))
    if not places.writer.records:
        raise InputError(f"{benchmark.source}: the benchmark {benchmark.label} is empty: it has no examples")
    return places.entry, places.writer.records


def _check_has_ngrams(indexed: IndexedBenchmark, n: int) -> None:
    if not (indexed.ids >= 0).any():
        benchmark, longest = indexed.benchmark, int(np.diff(indexed.words).max())
        raise InputError(
            f"{benchmark.source}: all {len(indexed.words) - 1:,} examples of the benchmark {benchmark.label} are too "
            f"short: the longest has {longest} words, an n-gram needs {n}; lower --ngram, or join lines with --example "
            "paragraph or document"
        )
