"""Counts the words of each shard into a work file, split into buckets by a hash of the word.

A task counts into a table, which is written to the work file once it is large. So memory is bounded whatever the size
of the shard, and each bucket of all shards can be added up separately. While a batch is counted, the next one is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.bpe.word_table import WordTable
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.records import inputs, shards
from pipelines.records.buckets import BucketWriter, write_buckets
from pipelines.records.document_filter import group_names, with_text
from pipelines.records.document_split import document_keys, hash_key, is_held_out, split_keys
from pipelines.records.drops import Drops
from pipelines.records.schemas import DROPPED_SCHEMA
from pipelines.records.text_columns import slices_within, text_arrays
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.counts import COUNTS_SCHEMA, Limits, work_file, write_bucketed
from pipelines.stages.train_bpe.sample import SampleWriter

_ROWS_WRITTEN = 100_000
# Documents are sampled by their place: a hash of their key, below this.
PLACES = 4096


@dataclasses.dataclass(frozen=True)
class CountContext:
    """What all shards share: only documents with a place below `sampled_below` are counted."""

    config: TrainBpeConfig
    sampled_below: int
    sample_bytes: int
    buckets: int
    output: str
    limits: Limits


def measure_shard(shard: inputs.DocumentShard, output: str) -> TaskResult:
    """Write how many bytes of text the documents of each place have: how much a sample by hash would contain."""
    sizes = np.zeros(PLACES, np.int64)
    for batch in inputs.read_documents(shard, Drops()):
        places = [_place(key) for key in split_keys(batch, document_keys(batch, shard))]
        np.add.at(sizes, places, pc.binary_length(batch.column("text")).to_numpy())
        progress.advance(batch.num_rows)
    name = storage.join(WORK, f"sizes-{shard.index:05d}")
    return TaskResult(files=(shards.write_file(output, name, sizes.tobytes()),))


def places_within(output: str, files: Sequence[FileEntry], max_bytes: int) -> int:
    """Return below which place documents have at most `max_bytes` of text in total, 0 if none is that small."""
    sizes = np.zeros(PLACES, np.int64)
    for file in files:
        sizes += np.frombuffer(storage.read_bytes(storage.join(output, file.name)), np.int64)
    totals = np.cumsum(sizes)
    below = int(np.searchsorted(totals, max_bytes, side="right"))
    return below if below and totals[below - 1] else 0


def count_shard(shard: inputs.DocumentShard, context: CountContext) -> TaskResult:
    """Count the words of a shard; write them, its part of the sample, and the dropped documents."""
    config = context.config
    with (
        shards.write_shard(context.output, shards.shard_name("dropped", shard.index), DROPPED_SCHEMA) as dropped,
        write_buckets(storage.join(context.output, work_file(shard.index)), COUNTS_SCHEMA) as written,
        _WordCounter(written.writer, context.buckets, context.limits) as words,
    ):
        drops = Drops(dropped.writer)
        sample = SampleWriter(context.sample_bytes)
        documents = 0
        for records in inputs.read_documents(shard, drops):
            progress.advance(records.num_rows)
            batch = select_documents(records, shard, context.sampled_below, drops)
            keys = split_keys(batch, document_keys(batch, shard))
            held_out = [is_held_out(key, config.held_out) for key in keys]
            words.add(batch.column("text"), held_out)
            sample.add(batch, keys, group_names(batch, config.group_field), held_out)
            documents += batch.num_rows
        words.finish()
    counts = written.entry(work_file(shard.index))
    files = (sample.write(context.output, shard.index), dropped.entry, counts)
    return drops.task_result(documents, files, {"text_bytes": words.text_bytes})


def select_documents(
    batch: pa.RecordBatch, shard: inputs.DocumentShard, sampled_below: int, drops: Drops
) -> pa.RecordBatch:
    """Return the documents of a batch that have a text and are in the sample; count the others as drops.

    Those outside the sample are not listed: their hash identifies them.
    """
    batch = with_text(batch, drops)
    if sampled_below == PLACES:
        return batch
    is_sampled = [_place(key) < sampled_below for key in split_keys(batch, document_keys(batch, shard))]
    drops.counts["not_in_sample"] += len(is_sampled) - sum(is_sampled)
    return batch.filter(pa.array(is_sampled, pa.bool_()))


def _place(key: str) -> int:
    return hash_key(key, "train-bpe") % PLACES


class _WordCounter:
    """Counts words separately for kept and held-out documents, in a thread of its own."""

    def __init__(self, writer: BucketWriter, buckets: int, limits: Limits) -> None:
        self._writer = writer
        self._buckets = buckets
        self._limits = limits
        self._table = WordTable(columns=2)
        self._thread = ThreadPoolExecutor(1)
        self._counting: Future[None] | None = None
        self.text_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown()

    def add(self, texts: pa.Array, held_out: Sequence[bool]) -> None:
        """Add the texts of documents; they are counted while the caller continues."""
        data, starts = text_arrays(texts)
        self.text_bytes += int(starts[-1]) - int(starts[0])
        self._wait()
        self._counting = self._thread.submit(self._table.add, data, starts, np.array(held_out, np.uint8))

    def finish(self) -> None:
        """Write the words that are still in memory."""
        self._wait()
        self._write()

    def _wait(self) -> None:
        if self._counting is not None:
            self._counting.result()
        if self._table.words > self._limits.table_words or self._table.word_bytes > self._limits.table_bytes:
            self._write()

    def _write(self) -> None:
        data, starts = self._table.column()
        counts = self._table.counts()
        for first, after in slices_within(starts, self._limits.batch_bytes, _ROWS_WRITTEN):
            offsets = (starts[first : after + 1] - starts[first]).astype(np.int32)
            texts = data[starts[first] : starts[after]]
            words = pa.StringArray.from_buffers(after - first, pa.py_buffer(offsets), pa.py_buffer(texts))
            columns = [words, *(pa.array(counts[first:after, column]) for column in range(2))]
            write_bucketed(self._writer, pa.RecordBatch.from_arrays(columns, schema=COUNTS_SCHEMA), self._buckets)
        self._table.clear()
