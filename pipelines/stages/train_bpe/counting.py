"""Counts the words of each shard into a work file, cut into buckets by a hash of the word.

A task counts into a table, which goes to the work file when it has grown large. So memory is bounded, whatever the size
of the shard; and each bucket of all shards can be added up by itself. While a batch is counted, the next one is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.bpe.word_table import WordTable
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.buckets import BucketWriter, write_buckets
from pipelines.core.document_filter import group_names, with_text
from pipelines.core.document_split import document_keys, hash_key, is_held_out, split_keys
from pipelines.core.drops import Drops
from pipelines.core.manifest import FileEntry
from pipelines.core.records import DROPPED_SCHEMA
from pipelines.core.run import TaskResult
from pipelines.core.text_columns import text_arrays
from pipelines.stages.train_bpe.counts import COUNTS_SCHEMA, write_bucketed
from pipelines.stages.train_bpe.sample import SampleWriter

# A word with its two counts takes about 100 bytes in the table, and twice that while the table grows.
WORDS_IN_MEMORY = 1_000_000
# Words may be long; so their bytes are bounded too.
_BYTES_IN_MEMORY = 128 << 20
_WORDS_WRITTEN, _BYTES_WRITTEN = 100_000, 32 << 20
PLACES = 4096


@dataclasses.dataclass(frozen=True)
class SizeTask:
    """A shard whose texts are to be measured."""

    shard: inputs.DocumentShard
    output: str
    work_file: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.shard.name


@dataclasses.dataclass(frozen=True)
class CountTask:
    """A shard whose words are to be counted: those of the documents whose place is below `sampled_below`."""

    shard: inputs.DocumentShard
    held_out: float
    group_field: str
    sampled_below: int
    sample_bytes: int
    buckets: int
    output: str
    work_file: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.shard.name


def measure_shard(task: SizeTask) -> TaskResult:
    """Write how many bytes of text the documents of each place have: how much a sample by hash would take."""
    sizes = np.zeros(PLACES, np.int64)
    for batch in inputs.read_documents(task.shard, Drops()):
        places = [_place(key) for key in split_keys(batch, document_keys(batch, task.shard))]
        np.add.at(sizes, places, pc.binary_length(batch.column("text")).to_numpy())
        progress.advance(batch.num_rows)
    return TaskResult(files=(shards.write_file(task.output, task.work_file, sizes.tobytes()),))


def places_within(output: str, files: Sequence[FileEntry], most_bytes: int) -> int:
    """Return below which place documents have at most so many bytes of text together, 0 where not one is so small."""
    sizes = np.zeros(PLACES, np.int64)
    for file in files:
        sizes += np.frombuffer(storage.read_bytes(storage.join(output, file.name)), np.int64)
    within = np.cumsum(sizes)
    below = int(np.searchsorted(within, most_bytes, side="right"))
    return below if below and within[below - 1] else 0


def count_shard(task: CountTask) -> TaskResult:
    """Count the words of a shard; write them, its part of the sample, and what was dropped."""
    dropped_name = shards.shard_name("dropped", task.shard.index)
    with (
        shards.write_shard(task.output, dropped_name, DROPPED_SCHEMA) as dropped,
        write_buckets(storage.join(task.output, task.work_file), COUNTS_SCHEMA) as written,
        _WordCounter(written.writer, task.buckets) as words,
    ):
        drops = Drops(dropped.writer)
        sample = SampleWriter(task.sample_bytes)
        documents = 0
        for batch in documents_to_count(task.shard, task.sampled_below, drops):
            keys = split_keys(batch, document_keys(batch, task.shard))
            held_out = [is_held_out(key, task.held_out) for key in keys]
            words.add(batch.column("text"), held_out)
            sample.add(batch, keys, group_names(batch, task.group_field), held_out)
            documents += batch.num_rows
        words.finish()
    work = FileEntry(task.work_file, written.size_bytes, written.sha256)
    return TaskResult(
        records_in=inputs.count_records_in(drops, documents),
        records_out=documents,
        dropped=drops.counts,
        counts={"text_bytes": words.text_bytes},
        files=(sample.write(task.output, task.shard.index), dropped.entry, work),
    )


def documents_to_count(
    shard: inputs.DocumentShard, sampled_below: int, drops: Drops, tell: Callable[[int], None] = progress.advance
) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a shard that have a text and are in the sample; count the others as drops.

    Those outside the sample are counted only, not listed: their hash tells which they are.
    """
    for batch in inputs.read_documents(shard, drops):
        tell(batch.num_rows)
        batch = with_text(batch, drops)
        if sampled_below < PLACES:
            chosen = [_place(key) < sampled_below for key in split_keys(batch, document_keys(batch, shard))]
            drops.counts["not_in_sample"] += len(chosen) - sum(chosen)
            batch = batch.filter(pa.array(chosen, pa.bool_()))
        if batch.num_rows:
            yield batch


def _place(key: str) -> int:
    return hash_key(key, "train-bpe") % PLACES


class _WordCounter:
    """Counts words apart for documents that are kept and those that are held out, in a thread of its own."""

    def __init__(self, writer: BucketWriter, buckets: int) -> None:
        self._writer = writer
        self._buckets = buckets
        self._table = WordTable(columns=2)
        self._thread = ThreadPoolExecutor(1)
        self._counting: Future[None] | None = None
        self.text_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown()

    def add(self, texts: pa.Array, held_out: Sequence[bool]) -> None:
        """Add the texts of documents; they are counted while the caller goes on."""
        data, starts = text_arrays(texts)
        self.text_bytes += int(starts[-1]) - int(starts[0])
        self._wait()
        self._counting = self._thread.submit(self._table.add, data, starts, np.array(held_out, np.uint8))

    def finish(self) -> None:
        """Write what is still in memory."""
        self._wait()
        self._write()

    def _wait(self) -> None:
        if self._counting is not None:
            self._counting.result()
        if self._table.words > WORDS_IN_MEMORY or self._table.word_bytes > _BYTES_IN_MEMORY:
            self._write()

    def _write(self) -> None:
        data, starts = self._table.column()
        counts = self._table.counts()
        for first, after in _slices(starts):
            offsets = (starts[first : after + 1] - starts[first]).astype(np.int32)
            texts = data[starts[first] : starts[after]]
            words = pa.StringArray.from_buffers(after - first, pa.py_buffer(offsets), pa.py_buffer(texts))
            columns = [words, *(pa.array(counts[first:after, column]) for column in range(2))]
            write_bucketed(self._writer, pa.RecordBatch.from_arrays(columns, schema=COUNTS_SCHEMA), self._buckets)
        self._table.clear()


def _slices(starts: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut words into parts, first and after the last, of which each fits into an Arrow array; one word at least."""
    first, words = 0, len(starts) - 1
    while first < words:
        fitting = int(np.searchsorted(starts, starts[first] + _BYTES_WRITTEN, side="right")) - 1
        after = min(first + _WORDS_WRITTEN, max(first + 1, fitting), words)
        yield first, after
        first = after
