"""Counts the n-grams of each shard, and estimates the number of distinct ones, for which the filter is sized."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from pipelines import progress, storage
from pipelines.algorithms.bloom import hyperloglog
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError
from pipelines.records import inputs, shards
from pipelines.records.drops import Drops
from pipelines.records.schemas import DROPPED_SCHEMA
from pipelines.records.text_columns import text_arrays
from pipelines.stages.overlap_index.config import OverlapIndexConfig

_SKETCH = ".sketch"


@dataclasses.dataclass(frozen=True)
class NgramCounts:
    """The n-grams of the documents: all, the estimate of the distinct ones, and an upper bound of these.

    `seconds` is the time of the pass, None if an earlier run did part of it.
    """

    documents: int
    ngrams: int
    distinct: int
    max_distinct: int
    seconds: float | None


def sketch_shard(shard: inputs.DocumentShard, context: tuple[OverlapIndexConfig, str]) -> TaskResult:
    """Write a sketch of the distinct n-grams of a shard as a work file, and the list of dropped documents."""
    config, output = context
    registers = hyperloglog.empty_registers()
    documents = ngrams = 0
    with shards.write_shard(output, shards.shard_name("dropped", shard.index), DROPPED_SCHEMA) as dropped:
        drops = Drops(dropped.writer)
        for batch in inputs.read_documents(shard, drops):
            hashes = text_ngram_hashes(*text_arrays(batch.column("text")), config.ngram, config.normalization).hashes
            hyperloglog.add(registers, hashes)
            documents += batch.num_rows
            ngrams += len(hashes)
            progress.advance(batch.num_rows)
    name = storage.join(WORK, f"{shard.name}{_SKETCH}")
    with storage.atomic_write(storage.join(output, name), durable=False) as stream:
        stream.write(registers.data)
    files = (dropped.entry, FileEntry(name, stream.size_bytes, stream.checksum))
    return drops.task_result(documents, files, {"ngrams": ngrams})


def merge_sketches(entries: Sequence[ShardEntry], output: str, ngram: int, seconds: float | None) -> NgramCounts:
    """Merge the sketches of all shards; raise InputError if no document is long enough for an n-gram."""
    ngrams = sum(int(entry.counts["ngrams"]) for entry in entries)
    if not ngrams:
        documents = sum(entry.records_in for entry in entries)
        raise InputError(
            f"overlap-index: none of {documents} documents has {ngram} words; lower --ngram or use longer texts"
        )
    registers = hyperloglog.empty_registers()
    for entry in entries:
        for file in entry.files:
            if file.name.endswith(_SKETCH):
                sketch = storage.read_bytes(storage.join(output, file.name))
                hyperloglog.merge(registers, np.frombuffer(sketch, np.uint8))
    return NgramCounts(
        documents=sum(entry.records_out for entry in entries),
        ngrams=ngrams,
        distinct=min(ngrams, round(hyperloglog.estimate(registers))),
        max_distinct=min(ngrams, hyperloglog.upper_bound(registers)),
        seconds=seconds,
    )
