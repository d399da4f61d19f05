"""Counts the words of each shard into a work file, cut into buckets by a hash of the word.

A task counts into a dictionary, which goes to the work file when it has grown large. So memory is bounded, whatever the
size of the shard; and each bucket of all shards can be added up by itself.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.word_counts import count_words
from pipelines.core import inputs, progress, shards, storage
from pipelines.core.buckets import BucketWriter, write_buckets
from pipelines.core.document_filter import group_names, with_text
from pipelines.core.document_split import document_keys, hashed, is_held_out, split_keys
from pipelines.core.drops import Drops
from pipelines.core.machine import use_one_thread_in_a_worker
from pipelines.core.manifest import FileEntry
from pipelines.core.records import DROPPED_SCHEMA
from pipelines.core.run import TaskResult
from pipelines.stages.train_bpe.counts import COUNTS_SCHEMA, write_bucketed
from pipelines.stages.train_bpe.sample import SampleWriter

# Texts are counted together up to this size, which is long enough that the call itself does not count.
_COUNTED_TOGETHER_BYTES = 32 << 20
# A word with its two counts takes about 200 bytes in the dictionary.
WORDS_IN_MEMORY = 1_000_000
# Words may be long; so their bytes are bounded too, by a count that takes those that were known for new ones.
_BYTES_IN_MEMORY = 128 << 20
_WORDS_WRITTEN, _BYTES_WRITTEN = 100_000, 32 << 20
PLACES = 4096
_WORD = operator.itemgetter(0)


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
    use_one_thread_in_a_worker()
    dropped_name = shards.shard_name("dropped", task.shard.index)
    with (
        shards.write_shard(task.output, dropped_name, DROPPED_SCHEMA) as dropped,
        write_buckets(storage.join(task.output, task.work_file), COUNTS_SCHEMA) as written,
    ):
        drops = Drops(dropped.writer)
        words = _WordCounter(written.writer, task.buckets)
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
        records_in=inputs.documents_read(drops, documents),
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
    return hashed(key, "train-bpe") % PLACES


class _WordCounter:
    """Counts words apart for documents that are kept and those that are held out."""

    def __init__(self, writer: BucketWriter, buckets: int) -> None:
        self._writer = writer
        self._buckets = buckets
        self._counts: tuple[dict[bytes, int], dict[bytes, int]] = ({}, {})
        self._waiting: tuple[list[bytes], list[bytes]] = ([], [])
        self._waiting_bytes = self._counted_bytes = 0
        self.text_bytes = 0

    def add(self, texts: pa.Array, held_out: Sequence[bool]) -> None:
        """Add the texts of documents."""
        for text, apart in zip(texts.cast(pa.binary()).to_pylist(), held_out, strict=True):
            self._waiting[apart].append(text)
            self._waiting_bytes += len(text)
            self.text_bytes += len(text)
            if self._waiting_bytes >= _COUNTED_TOGETHER_BYTES:
                self._count()

    def finish(self) -> None:
        """Write what is still in memory."""
        self._count()
        self._write()

    def _count(self) -> None:
        for counts, texts in zip(self._counts, self._waiting, strict=True):
            counted = count_words(texts)
            texts.clear()
            self._counted_bytes += sum(map(len, map(_WORD, counted)))
            if not counts:
                counts.update(counted)
                continue
            known = counts.get
            for word, count in counted:
                counts[word] = known(word, 0) + count
        self._waiting_bytes = 0
        if sum(map(len, self._counts)) > WORDS_IN_MEMORY or self._counted_bytes > _BYTES_IN_MEMORY:
            self._write()

    def _write(self) -> None:
        for counts, apart in zip(self._counts, (False, True), strict=True):
            # In order, since the counter's own order depends on the number of its threads.
            for words in _slices(sorted(counts)):
                numbers = pa.array(list(map(counts.__getitem__, words)), pa.int64())
                nothing = pa.array(np.zeros(len(words), np.int64))
                texts = pa.array(words, pa.binary()).cast(pa.string())
                columns = [texts, nothing, numbers] if apart else [texts, numbers, nothing]
                write_bucketed(self._writer, pa.RecordBatch.from_arrays(columns, schema=COUNTS_SCHEMA), self._buckets)
            counts.clear()
        self._counted_bytes = 0


def _slices(words: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Cut words into parts of which each fits into an Arrow array with ease, one word at least."""
    for first in range(0, len(words), _WORDS_WRITTEN):
        waiting = [words[first : first + _WORDS_WRITTEN]]
        while waiting:
            part = waiting.pop()
            if len(part) == 1 or sum(map(len, part)) <= _BYTES_WRITTEN:
                yield part
            else:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
