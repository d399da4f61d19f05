"""The exact indexes of the benchmarks' n-grams, one per combination of options, in memory-mapped work files."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines import progress, storage
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.index import Examples, IndexArrays, NgramIndex, Texts, build_index
from pipelines.algorithms.ngrams.overlap_counts import ExampleCounts, Flags, Numbers, count_examples
from pipelines.algorithms.ngrams.words import Normalization
from pipelines.benchmark_sets.benchmarks import Benchmark, read_example_batches
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.ngram_options import NgramConfig

_EXAMPLE_COUNTS = storage.join(WORK, "examples.json")
# The sizes in use at the paper's time: GPT-2 counted 8-grams, GPT-3 13-grams.
_SENSITIVITY_NGRAMS = (8, 13)


@dataclasses.dataclass(frozen=True)
class Variant:
    """An index: the length of its n-grams, its normalization, and whether it is of samples instead of benchmarks.

    Number 0 is the index of the report; for the others, only which n-grams are in the corpus is recorded. The files are
    in `output`; their hash distinguishes the index from an earlier one in the same folder.
    """

    output: str
    number: int
    n: int
    normalization: Normalization
    of_samples: bool = False
    sha256: str = ""

    def file_name(self, field: str) -> str:
        """Return the name of the file with an array of the index."""
        return storage.join(WORK, f"index-{self.number:02d}-{field}.npy")

    def stored(self, files: Sequence[FileEntry]) -> Variant:
        """Return the variant with the hash of its files, which are among those that `write_indexes` wrote."""
        names = [self.file_name(field) for field in (*IndexArrays._fields, *Examples._fields)]
        parts = sorted((file.name, file.sha256) for file in files if file.name in names)
        return dataclasses.replace(self, sha256=hashlib.sha256(repr(parts).encode()).hexdigest())

    def load_array(self, field: str) -> npt.NDArray[Any]:
        """Return an array of the index, memory-mapped where the files are local."""
        return storage.read_array(storage.join(self.output, self.file_name(field)))


@dataclasses.dataclass(frozen=True)
class IndexedBenchmark:
    """A benchmark in the index: the n-gram at each of its words (-1 for none), and the first word of each example."""

    benchmark: Benchmark
    ids: npt.NDArray[Any]
    words: Numbers

    def counts(self, is_found: Flags) -> ExampleCounts:
        """Count the n-grams of each example, and those that are found."""
        return count_examples(self.ids, self.words, is_found)


def list_variants(output: str, config: NgramConfig, *, sensitivity: bool, samples: bool) -> list[Variant]:
    """Return the index of the report, those of all combinations of options for `sensitivity`, and that of samples."""
    settings = [(config.ngram, config.normalization)]
    if sensitivity:
        options = itertools.product(_SENSITIVITY_NGRAMS, ("split", "drop"), ("unicode", "ascii"), ("cross", "stop"))
        combinations = ((n, Normalization(apostrophes, letters, lines)) for n, apostrophes, letters, lines in options)  # type: ignore[arg-type]
        settings += [setting for setting in combinations if setting != settings[0]]
    variants = [Variant(output, number, *setting) for number, setting in enumerate(settings)]
    return [*variants, Variant(output, len(settings), *settings[0], of_samples=True)] if samples else variants


def write_indexes(
    variants: Sequence[Variant], benchmarks: Sequence[Benchmark], samples: Sequence[Benchmark], example: str
) -> TaskResult:
    """Write the index of each variant.

    Raises InputError for a benchmark without examples, or without an example of the length of an n-gram.
    """
    files: list[FileEntry] = []
    counts: list[int] = []
    for variant in variants:
        texts = samples if variant.of_samples else benchmarks
        sizes: list[int] = []
        batches = (batch for benchmark in texts for batch in _read_texts(benchmark, example, sizes))
        index, examples = build_index(batches, variant.n, variant.normalization)
        if not variant.number:
            for indexed in _slice_examples(benchmarks, sizes, examples):
                _check_has_ngrams(indexed, variant.n)
        if not variant.number or variant.of_samples:
            progress.advance(sum(sizes))
            counts += sizes
        arrays = index.arrays._asdict() | examples._asdict()
        files += [
            shards.write_array(variant.output, variant.file_name(field), array) for field, array in arrays.items()
        ]
    # As a file, because counts of the task would be part of the summary.
    files.append(shards.write_file(variants[0].output, _EXAMPLE_COUNTS, json.dumps(counts).encode()))
    return TaskResult(files=tuple(files))


def _read_texts(benchmark: Benchmark, example: str, sizes: list[int]) -> Iterator[Texts]:
    """Yield the examples of a benchmark, and append their number to `sizes`."""
    examples = 0
    for batch in read_example_batches(benchmark, example):
        yield text_arrays(batch.texts)
        examples += len(batch.texts)
    if not examples:
        raise InputError(f"{benchmark.source}: the benchmark {benchmark.label} is empty: it has no examples")
    sizes.append(examples)


def _check_has_ngrams(indexed: IndexedBenchmark, n: int) -> None:
    if not (indexed.ids >= 0).any():
        benchmark, longest = indexed.benchmark, int(np.diff(indexed.words).max())
        raise InputError(
            f"{benchmark.source}: all {len(indexed.words) - 1:,} examples of the benchmark {benchmark.label} are too "
            f"short: the longest has {longest} words, an n-gram needs {n}; lower --ngram, or join lines with --example "
            "paragraph or document"
        )


def read_example_counts(output: str) -> list[int]:
    """Return the number of examples of each benchmark, then of each of the samples."""
    return list(storage.read_json(storage.join(output, _EXAMPLE_COUNTS)))


def load_examples(variant: Variant, texts: Sequence[Benchmark]) -> list[IndexedBenchmark]:
    """Return the benchmarks, or the samples, with their n-grams in an index."""
    counts = read_example_counts(variant.output)
    counts = counts[-len(texts) :] if variant.of_samples else counts[: len(texts)]
    return _slice_examples(texts, counts, Examples(*map(variant.load_array, Examples._fields)))


def _slice_examples(
    benchmarks: Sequence[Benchmark], counts: Sequence[int], examples: Examples
) -> list[IndexedBenchmark]:
    slices = []
    first = 0
    for benchmark, count in zip(benchmarks, counts, strict=True):
        words = np.asarray(examples.words[first : first + count + 1])
        slices.append(IndexedBenchmark(benchmark, examples.ids[words[0] : words[-1]], words - words[0]))
        first += count
    return slices


@functools.lru_cache(maxsize=32)
def load_index(variant: Variant) -> NgramIndex:
    """Return an index; loaded once per process."""
    return NgramIndex(variant.n, variant.normalization, IndexArrays(*map(variant.load_array, IndexArrays._fields)))
