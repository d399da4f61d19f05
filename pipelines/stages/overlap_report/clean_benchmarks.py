"""Writes benchmarks without the examples that overlap, each file in its own format."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines import storage
from pipelines.algorithms.ngrams.overlap_counts import Flags, Numbers
from pipelines.benchmark_sets.benchmarks import Benchmark, benchmark_parts
from pipelines.benchmark_sets.examples import example_format
from pipelines.engine.manifest import FileEntry
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.reader import table_batches, table_schema
from pipelines.storage.compression import open_decompressed, strip_compression

CLEAN = "clean"
# Hidden names, and those that look like a temporary file and would be removed.
_UNSAFE = re.compile(r"[^\w.+-]|^\.+|\.(?=tmp-)")


class CleanBenchmark(NamedTuple):
    """The files written, and how many records were kept and removed: rows of Parquet, lines of JSONL, or examples."""

    files: tuple[FileEntry, ...]
    kept: int
    removed: int


class _FileExamples(NamedTuple):
    """The lines or rows at which the examples of a file begin, from 1, and which of them overlap."""

    numbers: Numbers
    overlapping: Flags

    @property
    def overlapping_numbers(self) -> Numbers:
        """The lines or rows at which an overlapping example begins, each once, in order."""
        return np.unique(self.numbers[self.overlapping])


def clean_folders(labels: Sequence[str]) -> list[str]:
    """Return a folder per benchmark, `NAME[-SPLIT]`, with a number appended if several would share it.

    Names that differ only in case, or in the encoding of accents, are the same folder on some disks.
    """
    names = [_safe_name(label.replace("/", "-")) for label in labels]
    keys = [_disk_key(name) for name in names]
    keys_in_use = set(keys)
    for index, name in enumerate(names):
        if keys.count(keys[index]) > 1:
            numbered = (f"{name}-{number}" for number in itertools.count(1))
            names[index] = next(candidate for candidate in numbered if _disk_key(candidate) not in keys_in_use)
            keys_in_use.add(_disk_key(names[index]))
    return names


def clean_names(benchmarks: Sequence[Benchmark]) -> list[str]:
    """Return the names in the output folder of all files that may be written for the benchmarks of a run."""
    folders = clean_folders([benchmark.label for benchmark in benchmarks])
    return [
        name for benchmark, folder in zip(benchmarks, folders, strict=True) for name in _output_names(benchmark, folder)
    ]


def write_clean_benchmark(
    benchmark: Benchmark, example: str, overlapping: Flags, output: str, folder: str
) -> CleanBenchmark:
    """Write a benchmark without the examples that overlap to `clean/FOLDER/FILENAME` of an output folder.

    `overlapping` has a flag per example of `read_example_batches`. What is removed is the record with an overlapping
    example; of plain text, the overlapping line or paragraph; or the whole file if examples are documents. The rest is
    unchanged: text and JSONL byte for byte (decompressed), Parquet with all columns. A data set of the hub is written
    as Parquet.
    Raises InputError if the benchmark has another number of examples.
    """
    examples_by_file = _split_by_file(benchmark, example, overlapping)
    names = _output_names(benchmark, folder)
    paths = benchmark.files if benchmark.hub is None else (None,)
    results = []
    for path, name, examples in zip(paths, names, examples_by_file, strict=True):
        if example == "document" and examples.overlapping.any():
            results.append(CleanBenchmark((), 0, _count_records(benchmark, path)))
        elif path is None or example_format(path) == "parquet":
            schema, rows = _read_table(benchmark, path)
            results.append(_write_rows(rows, schema, examples=examples, output=output, name=name))
        else:
            results.append(_write_lines(path, examples, example=example, output=output, name=name))
    return CleanBenchmark(
        tuple(entry for result in results for entry in result.files),
        sum(result.kept for result in results),
        sum(result.removed for result in results),
    )


def _split_by_file(benchmark: Benchmark, example: str, overlapping: Flags) -> list[_FileExamples]:
    files = []
    first = 0
    for _, examples in benchmark_parts(benchmark, example):
        numbers = np.concatenate([np.zeros(0, np.int64), *(part.numbers for part in examples)])
        files.append(_FileExamples(numbers, overlapping[first : first + len(numbers)]))
        first += len(numbers)
    if first != len(overlapping):
        raise InputError(
            f"{benchmark.source}: {benchmark.label} has {first:,} examples, but {len(overlapping):,} were checked; "
            "the file has changed: re-run `webtext overlap-report`"
        )
    return files


def _read_table(benchmark: Benchmark, path: str | None) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    if path is not None:
        return table_schema(path), table_batches(path)
    assert benchmark.hub is not None
    return benchmark.hub.schema, benchmark.hub.batches()


def _count_records(benchmark: Benchmark, path: str | None) -> int:
    """Return the rows or lines of a file; a text is one record."""
    if path is None or example_format(path) == "parquet":
        return sum(batch.num_rows for batch in _read_table(benchmark, path)[1])
    if example_format(path) == "text":
        return 1
    with open_decompressed(path) as stream:
        return sum(bool(line.strip()) for line in stream)


def _write_rows(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, examples: _FileExamples, output: str, name: str
) -> CleanBenchmark:
    removed = examples.overlapping_numbers
    row = 1
    with shards.write_shard(output, name, schema) as shard:
        for batch in batches:
            is_kept = np.ones(batch.num_rows, np.bool_)
            first, last = np.searchsorted(removed, [row, row + batch.num_rows])
            is_kept[removed[first:last] - row] = False
            row += batch.num_rows
            shard.write_batch(batch.filter(pa.array(is_kept)))
    return CleanBenchmark((shard.entry,), shard.records, row - 1 - shard.records)


def _write_lines(path: str, examples: _FileExamples, example: str, output: str, name: str) -> CleanBenchmark:
    """Write the lines of JSONL or text without overlapping examples; a paragraph is removed with its blank lines."""
    (numbers, overlapping), starts, is_json = examples, examples.overlapping_numbers, example_format(path) == "jsonl"
    ends = starts + 1
    if example == "paragraph" and not is_json:
        ends = np.append(numbers[1:], np.iinfo(np.int64).max)[overlapping]
    records = 0
    with open_decompressed(path) as stream, storage.atomic_write(storage.join(output, name)) as writer:
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        start, end = next(spans, (0, 0))
        for number, line in enumerate(stream, 1):
            if number == end:
                start, end = next(spans, (0, 0))
            if not start <= number < end:
                records += bool(line.strip())
                writer.write(line)
    kept = records if is_json else len(numbers) - len(starts)
    return CleanBenchmark((FileEntry(name, writer.size_bytes, writer.checksum),), kept, len(starts))


def _output_names(benchmark: Benchmark, folder: str) -> list[str]:
    if benchmark.hub is not None:
        names = [f"{_safe_name(benchmark.label.replace('/', '-'))}.parquet"]
    else:
        bases = map(storage.basename, benchmark.files)
        names = [_safe_name(base[: len(strip_compression(base))]) for base in bases]
        if len(set(map(_disk_key, names))) < len(names):
            names = [f"{number:05d}-{name}" for number, name in enumerate(names)]
    return [storage.join(CLEAN, folder, name) for name in names]


def _safe_name(name: str) -> str:
    return _UNSAFE.sub("_", name)


def _disk_key(name: str) -> str:
    """Return what identifies a name on a disk that ignores case and the encoding of accents."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
