"""Counts the n-grams of each shard, and sketches how many different ones there are: the filter's size is no guess."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from pipelines.algorithms.bloom import hyperloglog as distinct_count
from pipelines.algorithms.ngrams.hashing import text_ngram_hashes
from pipelines.algorithms.ngrams.words import Normalization
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.drops import Drops
from pipelines.core.errors import InputError
from pipelines.core.manifest import FileEntry, ShardEntry
from pipelines.core.records import DROPPED_SCHEMA
from pipelines.core.run import TaskResult
from pipelines.core.text_columns import text_arrays

_SKETCH = ".sketch"


@dataclasses.dataclass(frozen=True)
class SketchTask:
    """A shard whose n-grams are to be counted."""

    shard: inputs.DocumentShard
    ngram: int
    normalization: Normalization
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.shard.name


@dataclasses.dataclass(frozen=True)
class Counted:
    """What the documents hold: n-grams with repeats, about how many different ones, and surely not more than `most`."""

    documents: int
    ngrams: int
    distinct: int
    most: int


def sketch_shard(task: SketchTask) -> TaskResult:
    """Write a sketch of the different n-grams of a shard, as a work file, and list what was dropped."""
    registers = distinct_count.empty_registers()
    documents = found = 0
    with shards.write_shard(task.output, shards.shard_name("dropped", task.shard.index), DROPPED_SCHEMA) as dropped:
        drops = Drops(dropped.writer)
        for batch in inputs.read_documents(task.shard, drops):
            hashes = text_ngram_hashes(*text_arrays(batch.column("text")), task.ngram, task.normalization).hashes
            distinct_count.add(registers, hashes)
            documents += batch.num_rows
            found += len(hashes)
            progress.advance(batch.num_rows)
    name = f"{task.work}/{task.name}{_SKETCH}"
    with storage.atomic_write(storage.join(task.output, name), durable=False) as stream:
        stream.write(registers.data)
    return TaskResult(
        records_in=inputs.count_records_in(drops, documents),
        records_out=documents,
        dropped=drops.counts,
        counts={"ngrams": found},
        files=(dropped.entry, FileEntry(name, stream.size_bytes, stream.sha256)),
    )


def lists_of_dropped(entries: Sequence[ShardEntry]) -> TaskResult:
    """Make the lists of what was dropped part of the result, which the sketches beside them are not."""
    written = (file for entry in entries for file in entry.files)
    return TaskResult(files=tuple(file for file in written if not file.name.endswith(_SKETCH)))


def count_of_all(entries: Sequence[ShardEntry], output: str, ngram: int) -> Counted:
    """Join the sketches of all shards; raise InputError where no document is long enough for an n-gram."""
    ngrams = sum(int(entry.counts["ngrams"]) for entry in entries)
    if not ngrams:
        documents = sum(entry.records_in for entry in entries)
        raise InputError(
            f"overlap-index: none of {documents} documents has {ngram} words; lower --ngram or give longer texts"
        )
    registers = distinct_count.empty_registers()
    for entry in entries:
        for file in entry.files:
            if file.name.endswith(_SKETCH):
                written = storage.read_bytes(storage.join(output, file.name))
                distinct_count.merge(registers, np.frombuffer(written, np.uint8))
    most = distinct_count.upper_bound(registers)
    return Counted(
        sum(entry.records_out for entry in entries),
        ngrams,
        min(ngrams, round(distinct_count.estimate(registers))),
        min(ngrams, most),
    )
