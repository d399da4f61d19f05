"""The filter of the library pybloom-live, whose file others read: each n-gram is added as its words."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from pipelines.algorithms.bloom.pybloom import estimated_items, false_positive_rate, fill, filter_bytes
from pipelines.algorithms.ngrams.words import Normalization, describe, text_ngrams
from pipelines.core import inputs, progress, storage
from pipelines.core.drops import Drops
from pipelines.core.errors import WebtextError
from pipelines.core.manifest import FileEntry
from pipelines.core.ngram_filter import INDEX, PYBLOOM_LIVE
from pipelines.core.run import StageRun, TaskResult
from pipelines.stages.overlap_index.config import OverlapIndexConfig
from pipelines.stages.overlap_index.parts import write_description
from pipelines.stages.overlap_index.sketch import Counted

# Each part is a filter on disk until the end, so there are few, and never one a worker: equal inputs, equal parts.
_PARTS = 8
_READ_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class _AddTask:
    index: int
    shards: tuple[inputs.DocumentShard, ...]
    ngram: int
    normalization: Normalization
    capacity: int
    error_rate: float
    output: str
    work: str

    @property
    def name(self) -> str:
        return f"part-{self.index:05d}"


def write_pybloom_filter(
    config: OverlapIndexConfig, source: inputs.DocumentInput, counted: Counted, capacity: int, run: StageRun
) -> None:
    """Write `index.bloom`, a file of pybloom-live, and `index.json`.

    Raises WebtextError where the filter would exceed the memory limit: it is in memory as a whole, in each worker.
    """
    _say_memory(config, capacity, run)
    tasks = _add_tasks(config, source, capacity, run)
    parts = run.map(_add_part, tasks, phase="add", work=True, total=counted.documents)
    files = [file for part in parts for file in part.files]
    run.once("join", lambda: _join_parts(config, source.fingerprint, counted.documents, files, run.output))


def _say_memory(config: OverlapIndexConfig, capacity: int, run: StageRun) -> None:
    needed_mb = filter_bytes(capacity, config.error_rate) / 1e6
    needs = (
        f"a filter of pybloom-live for {capacity:,} n-grams at an error rate of {config.error_rate:g} takes "
        f"{needed_mb:,.1f} MB in each worker"
    )
    if needed_mb > config.memory_limit_mb:
        raise WebtextError(
            f"overlap-index: {needs}, more than --memory-limit-mb {config.memory_limit_mb}; raise the limit and take "
            "fewer --workers, raise --error-rate, or leave --filter out: our own filter is made in parts"
        )
    run.note(f"{needs}, and up to {_PARTS} times that on disk until it is done")


def _add_tasks(
    config: OverlapIndexConfig, source: inputs.DocumentInput, capacity: int, run: StageRun
) -> list[_AddTask]:
    count = len(source.shards)
    parts = min(_PARTS, count)
    bounds = [count * part // parts for part in range(parts + 1)]
    made = (config.ngram, config.normalization, capacity, config.error_rate, run.output, storage.basename(run.work))
    return [
        _AddTask(part, source.shards[start:end], *made) for part, (start, end) in enumerate(itertools.pairwise(bounds))
    ]


def _add_part(task: _AddTask) -> TaskResult:
    from pybloom_live import BloomFilter

    bloom = BloomFilter(task.capacity, task.error_rate)
    for shard in task.shards:
        for text in _texts(shard):
            for _, ngram in text_ngrams(text, task.ngram, task.normalization):
                # It counts repeats too, and refuses more than its capacity; the whole filter gets its own figure.
                bloom.count = 0
                bloom.add(ngram, skip_check=True)
    bloom.count = 0
    return TaskResult(files=(_write_filter(bloom, task.output, storage.join(task.work, f"{task.name}.bloom")),))


def _texts(shard: inputs.DocumentShard) -> Iterator[str]:
    for batch in inputs.read_documents(shard, Drops()):
        for text in batch.column("text").to_pylist():
            yield str(text)
            progress.advance()


def _join_parts(
    config: OverlapIndexConfig, fingerprint: str, documents: int, files: list[FileEntry], output: str
) -> TaskResult:
    bloom = _read_filter(storage.join(output, files[0].name))
    for file in files[1:]:
        _add_bits(bloom, storage.join(output, file.name))
    bloom.count = estimated_items(bloom)
    description = {
        "format": PYBLOOM_LIVE,
        "n": config.ngram,
        "normalisation": describe(config.normalization),
        **dataclasses.asdict(config.normalization),
        "error_rate": config.error_rate,
        "error_bound": false_positive_rate(bloom),
        "fill": fill(bloom),
        "capacity": bloom.capacity,
        "items": bloom.count,
        "hashes": bloom.num_slices,
        "bits": bloom.num_bits,
        "documents": documents,
        "corpus": fingerprint,
        "corpora": [fingerprint],
    }
    written = (_write_filter(bloom, output, INDEX), write_description(description, output))
    return TaskResult(counts={"distinct_ngrams_estimated": bloom.count}, files=written)


def _add_bits(bloom: Any, path: str) -> None:
    """Set the bits that are set in the filter of a file, a piece at a time."""
    bits = np.frombuffer(bloom.bitarray, dtype=np.uint8)
    with storage.open_read(path) as stream:
        stream.seek(storage.size_bytes(path) - len(bits))
        position = 0
        while block := stream.read(_READ_BYTES):
            bits[position : position + len(block)] |= np.frombuffer(block, dtype=np.uint8)
            position += len(block)


def _read_filter(path: str) -> Any:
    from pybloom_live import BloomFilter

    with storage.open_read(path) as stream:
        return BloomFilter.fromfile(stream)


def _write_filter(bloom: Any, folder: str, name: str) -> FileEntry:
    with storage.atomic_write(storage.join(folder, name)) as stream:
        bloom.tofile(stream)
    return FileEntry(name, stream.size_bytes, stream.sha256)
