"""A benchmark without the examples that overlap, each file in its own kind."""

from __future__ import annotations

import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core import shards, storage
from pipelines.core.compression import open_decompressed, strip_compression
from pipelines.core.errors import InputError
from pipelines.core.manifest import FileEntry
from pipelines.stages.overlap_report.benchmarks import Benchmark, benchmark_parts
from pipelines.stages.overlap_report.example_files import file_kind, parquet_batches
from pipelines.stages.overlap_report.hub import hub_batches, hub_schema

CLEAN = "clean"
# No hidden name, nor one that would be taken for a temporary and removed.
_UNSAFE = re.compile(r"[^\w.+-]|^\.+|\.(?=tmp-)")

Numbers = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class CleanBenchmark:
    """What was written: the files, and how many records were kept and left out.

    A record is a row of Parquet, a line of JSONL, or of plain text an example.
    """

    files: tuple[FileEntry, ...]
    kept: int
    left_out: int


@dataclasses.dataclass(frozen=True)
class _Examples:
    """Where the examples of one file begin (line or row, from 1), and which of them overlap."""

    begins: Numbers
    overlapping: npt.NDArray[np.bool_]

    @property
    def tainted(self) -> Numbers:
        """The lines or rows at which an example that overlaps begins, each once, in order."""
        return np.unique(self.begins[self.overlapping])


def clean_folders(labels: Sequence[str]) -> list[str]:
    """Return a folder for each benchmark of a run, `NAME[-SPLIT]`; those that would share one get a number behind it.

    Names that differ in case alone, or in how accents are written, are one folder on some disks, so they count as one.
    """
    names = [_safe(label.replace("/", "-")) for label in labels]
    keys = [_on_disk(name) for name in names]
    taken = set(keys)
    for place, name in enumerate(names):
        if keys.count(keys[place]) > 1:
            numbered = (f"{name}-{number}" for number in itertools.count(1))
            names[place] = next(each for each in numbered if _on_disk(each) not in taken)
            taken.add(_on_disk(names[place]))
    return names


def clean_names(benchmarks: Sequence[Benchmark]) -> list[str]:
    """Return the names in the output folder of all files that may be written for the benchmarks of a run."""
    folders = clean_folders([benchmark.label for benchmark in benchmarks])
    return [
        name for benchmark, folder in zip(benchmarks, folders, strict=True) for name in _names_of(benchmark, folder)
    ]


def write_clean_benchmark(
    benchmark: Benchmark,
    example: str,
    overlapping: npt.NDArray[np.bool_],
    output: str,
    folder: str | None = None,
) -> CleanBenchmark:
    """Write a benchmark without the examples that overlap to `clean/FOLDER/FILENAME` of an output folder.

    FOLDER is one of `clean_folders`, by default `NAME[-SPLIT]`, which another benchmark of the run may have as well.
    `overlapping` says so of each example as `read_example_batches` numbers them. A record goes when any of its examples
    overlaps, a line or paragraph of plain text when it does itself, a whole file when examples are documents. What
    stays is as it was: text and JSONL byte for byte (a compressed file uncompressed), Parquet with all its columns; a
    data set of the hub is written as Parquet. Raises InputError where the benchmark has other than so many examples.
    """
    files = _examples_by_file(benchmark, example, overlapping)
    names = _names_of(benchmark, folder or clean_folders([benchmark.label])[0])
    if benchmark.hub is not None:
        batches, schema = hub_batches(benchmark.hub), hub_schema(benchmark.hub)
        return _write_rows(batches, schema, files[0], example, output, names[0])
    results = [
        _write_file(path, examples, example, output, name)
        for path, name, examples in zip(benchmark.files, names, files, strict=True)
    ]
    return CleanBenchmark(
        tuple(entry for result in results for entry in result.files),
        sum(result.kept for result in results),
        sum(result.left_out for result in results),
    )


def _examples_by_file(benchmark: Benchmark, example: str, overlapping: npt.NDArray[np.bool_]) -> list[_Examples]:
    found = []
    first = 0
    for part in benchmark_parts(benchmark, example):
        begins = np.concatenate([np.empty(0, np.int64), *(numbers for _, numbers in part.texts)])
        found.append(_Examples(begins, overlapping[first : first + len(begins)]))
        first += len(begins)
    if first != len(overlapping):
        raise InputError(
            f"{benchmark.source}: {benchmark.label} has {first:,} examples, but {len(overlapping):,} were audited; it "
            "was changed, run `webtext overlap-report` again"
        )
    return found


def _write_file(path: str, examples: _Examples, example: str, output: str, name: str) -> CleanBenchmark:
    kind = file_kind(path)
    if kind == "parquet":
        with storage.open_read(path) as stream:
            schema = shards.open_parquet(stream, path).schema_arrow
        return _write_rows(parquet_batches(path), schema, examples, example, output, name)
    if kind == "jsonl":
        return _write_records(path, examples, example, output, name)
    return _write_plain(path, examples, example, output, name)


def _write_rows(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, examples: _Examples, example: str, output: str, name: str
) -> CleanBenchmark:
    if example == "document" and len(examples.tainted):
        return CleanBenchmark((), 0, sum(batch.num_rows for batch in batches))
    row = 1
    with shards.write_shard(output, name, schema) as shard:
        for batch in batches:
            stays = np.ones(batch.num_rows, np.bool_)
            stays[_between(examples.tainted, row, row + batch.num_rows) - row] = False
            row += batch.num_rows
            shard.writer.write_batch(batch.filter(pa.array(stays)))
    return CleanBenchmark((shard.entry,), shard.writer.records, row - 1 - shard.writer.records)


def _write_records(path: str, examples: _Examples, example: str, output: str, name: str) -> CleanBenchmark:
    """Write the lines of JSONL whose records have no example that overlaps; blank lines stay."""
    whole = example == "document" and bool(len(examples.tainted))
    tainted = set(examples.tainted.tolist())
    kept = left_out = 0
    with open_decompressed(path) as stream:
        if whole:
            return CleanBenchmark((), 0, sum(bool(line.strip()) for line in stream))
        with storage.atomic_write(storage.join(output, name)) as writer:
            for number, line in enumerate(stream, 1):
                if number in tainted:
                    left_out += 1
                    continue
                kept += bool(line.strip())
                writer.write(line)
    return CleanBenchmark((FileEntry(name, writer.size_bytes, writer.sha256),), kept, left_out)


def _write_plain(path: str, examples: _Examples, example: str, output: str, name: str) -> CleanBenchmark:
    """Write the lines of a text without those of examples that overlap; a paragraph goes with its blank lines."""
    left_out = int(examples.overlapping.sum())
    kept = len(examples.begins) - left_out
    if example == "document" and left_out:
        return CleanBenchmark((), 0, left_out)
    ends = np.append(examples.begins[1:], np.iinfo(np.int64).max) if example == "paragraph" else examples.begins + 1
    starts, ends = examples.begins[examples.overlapping], ends[examples.overlapping]
    with open_decompressed(path) as stream, storage.atomic_write(storage.join(output, name)) as writer:
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        start, end = next(spans, (0, 0))
        for number, line in enumerate(stream, 1):
            if number == end:
                start, end = next(spans, (0, 0))
            if not start <= number < end:
                writer.write(line)
    return CleanBenchmark((FileEntry(name, writer.size_bytes, writer.sha256),), kept, left_out)


def _between(numbers: Numbers, start: int, end: int) -> Numbers:
    return numbers[np.searchsorted(numbers, start) : np.searchsorted(numbers, end)]


def _names_of(benchmark: Benchmark, folder: str) -> list[str]:
    """Return the names in the output folder of a benchmark's files."""
    if benchmark.hub is not None:
        names = [f"{_safe(benchmark.label.replace('/', '-'))}.parquet"]
    else:
        names = _file_names(benchmark.files)
    return [storage.join(CLEAN, folder, name) for name in names]


def _file_names(paths: tuple[str, ...]) -> list[str]:
    """Return the names to write, without compression; where two would be one, all get a number before them."""
    names = [_safe(strip_compression(storage.basename(path))) for path in paths]
    if len(set(map(_on_disk, names))) == len(names):
        return names
    return [f"{number:05d}-{name}" for number, name in enumerate(names)]


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name)


def _on_disk(name: str) -> str:
    """Return what a name is to a disk that ignores case and how accents are written."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
