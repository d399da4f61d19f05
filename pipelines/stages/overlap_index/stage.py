"""Adds every n-gram of the corpus to one Bloom filter.

The n-grams are counted first, so that the filter is large enough; then parts of the corpus are added to filters of
that size, which are joined bit by bit at the end. How many parts there are depends on the input alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pybloom_live import BloomFilter

from pipelines.algorithms.bloom import estimated_items, false_positive_rate, fill, filter_bytes
from pipelines.algorithms.ngrams import NORMALISATION, ngrams, words
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.drops import Drops
from pipelines.core.errors import InputError, WebtextError
from pipelines.core.manifest import FileEntry, ShardEntry
from pipelines.core.records import DROPPED_SCHEMA
from pipelines.core.run import RunOptions, Stage, StageRun, Summary, TaskResult, stage_run
from pipelines.stages.overlap_index.config import OverlapIndexConfig

STAGE = Stage("overlap-index", 1, ("index.bloom", "index.json"))

INDEX, DESCRIPTION = "index.bloom", "index.json"
# Each part is a filter on disk until the end, so there are few, and never one a worker: equal inputs, equal parts.
_PARTS = 8
_READ_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class _CountTask:
    shard: inputs.DocumentShard
    ngram: int
    output: str

    @property
    def name(self) -> str:
        return self.shard.name


@dataclasses.dataclass(frozen=True)
class _AddTask:
    index: int
    shards: tuple[inputs.DocumentShard, ...]
    ngram: int
    capacity: int
    error_rate: float
    output: str
    work: str

    @property
    def name(self) -> str:
        return f"part-{self.index:05d}"


def overlap_index(
    config: OverlapIndexConfig, *, documents: str | Sequence[str], output: str, options: RunOptions
) -> Summary:
    """Write `index.bloom`, a pybloom-live filter with every n-gram of the documents, and `index.json` about it.

    An n-gram never crosses from one document into the next. The capacity is the number of n-grams, repeats included, so
    the error rate holds however few of them repeat. Raises WebtextError where the filter would exceed the memory limit,
    and InputError where no document is long enough for an n-gram. Paper, section 4.
    """
    source = inputs.open_documents(documents, config.text_field)
    with stage_run(STAGE, config, {"documents": source.fingerprint}, output, options) as run:
        if not run.finished:
            counted = run.map(
                _count_shard,
                [_CountTask(shard, config.ngram, output) for shard in source.shards],
                phase="count",
                total=source.records,
            )
            capacity = _capacity(config, counted, run)
            tasks = _add_tasks(config, source, capacity, run)
            parts = run.map(_add_part, tasks, phase="add", work=True, total=sum(entry.records_out for entry in counted))
            files = [file for part in parts for file in part.files]
            run.once("join", lambda: _join_parts(config, source.fingerprint, counted, files, output))
        return run.finish()


def _capacity(config: OverlapIndexConfig, counted: list[ShardEntry], run: StageRun) -> int:
    """Return the number of n-grams; say what memory that takes, and refuse what exceeds the limit."""
    capacity = sum(int(entry.counts["ngrams"]) for entry in counted)
    if not capacity:
        documents = sum(entry.records_in for entry in counted)
        raise InputError(
            f"overlap-index: none of {documents} documents has {config.ngram} words; lower --ngram or give longer texts"
        )
    needed_mb = filter_bytes(capacity, config.error_rate) / 1e6
    needs = f"a filter for {capacity:,} n-grams at an error rate of {config.error_rate:g} takes {needed_mb:,.1f} MB"
    if needed_mb > config.memory_limit_mb:
        raise WebtextError(
            f"overlap-index: {needs} in each worker, more than --memory-limit-mb {config.memory_limit_mb}; raise the "
            "limit and take fewer --workers, raise --error-rate, or audit with overlap-report, which needs no index"
        )
    run.note(f"{needs} in each worker, and up to {_PARTS} times that on disk until it is done")
    return capacity


def _count_shard(task: _CountTask) -> TaskResult:
    documents = found = 0
    with shards.write_shard(task.output, shards.shard_name("dropped", task.shard.index), DROPPED_SCHEMA) as dropped:
        drops = Drops(dropped.writer)
        for text in _texts(task.shard, drops):
            documents += 1
            found += max(0, len(words(text)) - task.ngram + 1)
    return TaskResult(
        records_in=inputs.documents_read(drops, documents),
        records_out=documents,
        dropped=drops.counts,
        counts={"ngrams": found},
        files=(dropped.entry,),
    )


def _add_tasks(
    config: OverlapIndexConfig, source: inputs.DocumentInput, capacity: int, run: StageRun
) -> list[_AddTask]:
    count = len(source.shards)
    parts = min(_PARTS, count)
    bounds = [count * part // parts for part in range(parts + 1)]
    work = storage.basename(run.work)
    return [
        _AddTask(part, source.shards[start:end], config.ngram, capacity, config.error_rate, run.output, work)
        for part, (start, end) in enumerate(itertools.pairwise(bounds))
    ]


def _add_part(task: _AddTask) -> TaskResult:
    bloom = BloomFilter(task.capacity, task.error_rate)
    for shard in task.shards:
        for text in _texts(shard, Drops()):
            for ngram in ngrams(words(text), task.ngram):
                bloom.add(ngram, skip_check=True)
    # How often a part met an n-gram before depends on where the parts begin; the whole filter gets its own figure.
    bloom.count = 0
    return TaskResult(files=(_write_filter(bloom, task.output, storage.join(task.work, f"{task.name}.bloom")),))


def _texts(shard: inputs.DocumentShard, drops: Drops) -> Iterator[str]:
    for batch in inputs.read_documents(shard, drops):
        for text in batch.column("text").to_pylist():
            yield str(text)
            progress.advance()


def _join_parts(
    config: OverlapIndexConfig, fingerprint: str, counted: list[ShardEntry], files: list[FileEntry], output: str
) -> TaskResult:
    bloom = _read_filter(storage.join(output, files[0].name))
    for file in files[1:]:
        _add_bits(bloom, storage.join(output, file.name))
    bloom.count = estimated_items(bloom)
    description = {
        "format": "pybloom-live",
        "n": config.ngram,
        "normalisation": NORMALISATION,
        "error_rate": config.error_rate,
        "error_bound": false_positive_rate(bloom),
        "fill": fill(bloom),
        "capacity": bloom.capacity,
        "items": bloom.count,
        "hashes": bloom.num_slices,
        "bits": bloom.num_bits,
        "documents": sum(entry.records_out for entry in counted),
        "corpus": fingerprint,
    }
    text = json.dumps(description, indent=1, sort_keys=True) + "\n"
    written = (_write_filter(bloom, output, INDEX), shards.write_file(output, DESCRIPTION, text.encode()))
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
    with storage.open_read(path) as stream:
        return BloomFilter.fromfile(stream)


def _write_filter(bloom: Any, folder: str, name: str) -> FileEntry:
    with storage.atomic_write(storage.join(folder, name)) as stream:
        bloom.tofile(stream)
    return FileEntry(name, stream.size_bytes, stream.sha256)
