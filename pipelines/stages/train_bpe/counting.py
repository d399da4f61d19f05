"""Counts the words of documents: of all, or of a sample by hash.

A task counts the words of a shard into a table, which is written to its work file once it is large. So memory is
bounded whatever the size of the shard. While a batch is counted, the next one is read.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.bpe.word_table import WordTable
from pipelines.algorithms.columns import text_arrays
from pipelines.engine.journal import WORK
from pipelines.engine.machine import check_memory
from pipelines.engine.run import StageRun, TaskResult, result_files
from pipelines.errors import InputError
from pipelines.format import plural
from pipelines.records import inputs, shards
from pipelines.records.buckets import BucketWriter, write_buckets
from pipelines.records.document_split import document_keys, hash_keys, held_out_mask, split_keys
from pipelines.records.drops import Drops
from pipelines.records.schemas import DROPPED_SCHEMA
from pipelines.records.tally import LowestHashes
from pipelines.records.text_columns import slices_within
from pipelines.stages.train_bpe.config import TrainBpeConfig
from pipelines.stages.train_bpe.count_tables import (
    BATCH_BYTES,
    BUCKET_BYTES,
    COUNTS_SCHEMA,
    MAX_BUCKETS,
    SAMPLE_TEXTS,
    CountedWords,
    add_up,
    buckets_of,
    work_file,
)
from pipelines.stages.train_bpe.sample import sampled_text, write_sample

# The size from which a worker writes its table, in which a word takes about 100 bytes, twice that while it grows.
_TABLE_WORDS, _TABLE_BYTES = 1_000_000, 128 << 20
# Smaller inputs take seconds and little memory, so the memory of the workers is not checked.
_LARGE_INPUT_BYTES = 16 << 20
_ROWS_WRITTEN = 100_000
# A sample consists of the documents in the lowest of these buckets, by a hash of their key.
SAMPLE_BUCKETS = 4096
_MIN_SAMPLE_TEXTS = 4
# Python with the libraries, the table of words, and batches of texts.
_WORKER_BYTES = 650_000_000


@dataclasses.dataclass(frozen=True)
class CountContext:
    """What all shards share: only documents in the sample buckets below `sampled_below` are counted."""

    config: TrainBpeConfig
    sampled_below: int
    sample_texts: int
    buckets: int
    output: str


def count_documents(config: TrainBpeConfig, source: inputs.DocumentInput, run: StageRun) -> CountedWords:
    """Count the words of all documents, or of a sample of at most `sample_bytes`.

    Raises InputError if the workers need more memory than is available.
    """
    size_bytes = inputs.size_on_disk(source.files)
    memory_bytes = None
    if size_bytes >= _LARGE_INPUT_BYTES:
        workers = min(run.workers, len(source.shards))
        task = f"train-bpe: counting with {plural(workers, 'worker')}"
        check_memory(task, _WORKER_BYTES * workers, run.memory_bytes, "use fewer --workers")
        memory_bytes = _WORKER_BYTES
    buckets = min(MAX_BUCKETS, 1 + size_bytes // BUCKET_BYTES)
    context = CountContext(
        config=config,
        sampled_below=_sampled_below(config, source, run),
        sample_texts=max(_MIN_SAMPLE_TEXTS, SAMPLE_TEXTS // len(source.shards)),
        buckets=buckets,
        output=run.output,
    )
    entries = run.map(
        count_shard,
        source.shards,
        context,
        phase="count",
        work=True,
        total=source.records,
        serial=len(source.shards) == 1,
        memory_bytes=memory_bytes,
    )
    results = result_files(entries)
    run.once("documents", lambda: results)
    work_files = [work_file(shard.index) for shard in source.shards]
    samples = [file.name for file in results.files if file.name.startswith("sample-")]
    return add_up(run, buckets, work_files, samples)


def _sampled_below(config: TrainBpeConfig, source: inputs.DocumentInput, run: StageRun) -> int:
    """Return the number of sample buckets to count: their documents have at most `sample_bytes` of text in total."""
    if config.sample_bytes is None:
        return SAMPLE_BUCKETS
    entries = run.map(
        measure_shard,
        source.shards,
        run.output,
        phase="measure",
        work=True,
        total=source.records,
        serial=len(source.shards) == 1,
    )
    sizes = np.zeros(SAMPLE_BUCKETS, np.int64)
    for entry in entries:
        sizes += np.frombuffer(storage.read_bytes(storage.join(run.output, entry.files[0].name)), np.int64)
    totals = np.cumsum(sizes)
    below = int(np.searchsorted(totals, config.sample_bytes, side="right"))
    if not below or not totals[below - 1]:
        raise InputError(
            f"train-bpe: a sample of {config.sample_bytes:,} bytes contains no documents; use a larger --sample-bytes"
        )
    if below == SAMPLE_BUCKETS:
        run.note(f"the documents have less text than {config.sample_bytes:,} bytes, so all are used (--sample-bytes)")
    return below


def measure_shard(shard: inputs.DocumentShard, output: str) -> TaskResult:
    """Write how many bytes of text the documents of each sample bucket have."""
    sizes = np.zeros(SAMPLE_BUCKETS, np.int64)
    for batch in inputs.read_documents(shard, Drops()):
        np.add.at(sizes, _sample_buckets(batch, shard), pc.binary_length(batch.column("text")).to_numpy())
        progress.advance(batch.num_rows)
    name = storage.join(WORK, f"sizes-{shard.index:05d}")
    return TaskResult(files=(shards.write_file(output, name, sizes.tobytes()),))


def count_shard(shard: inputs.DocumentShard, context: CountContext) -> TaskResult:
    """Count the words of a shard; write them, sampled texts, and the dropped documents."""
    with (
        shards.write_shard(context.output, shards.shard_name("dropped", shard.index), DROPPED_SCHEMA) as dropped,
        write_buckets(storage.join(context.output, work_file(shard.index)), COUNTS_SCHEMA) as written,
        ThreadPoolExecutor(1) as thread,
    ):
        words = _WordCounter(written, context.buckets, thread)
        drops = Drops(dropped.write)
        sample = LowestHashes(context.sample_texts)
        documents = 0
        for records in inputs.read_documents(shard, drops):
            progress.advance(records.num_rows)
            batch = _select_documents(records, shard, context.sampled_below, drops)
            keys = split_keys(batch, document_keys(batch, shard))
            held_out = held_out_mask(keys, context.config.held_out)
            words.add(batch.column("text"), held_out)
            for row, hash in enumerate(hash_keys(keys, "sample").tolist()):
                if sample.accepts(hash):
                    sample.add(hash, sampled_text(batch, row, bool(held_out[row])))
            documents += batch.num_rows
        words.finish()
    counts = written.entry(work_file(shard.index))
    files = (write_sample(context.output, shard.index, sample), dropped.entry, counts)
    return drops.task_result(documents, files, {"text_bytes": words.text_bytes})


def _select_documents(
    batch: pa.RecordBatch, shard: inputs.DocumentShard, sampled_below: int, drops: Drops
) -> pa.RecordBatch:
    """Return the documents of a batch that are in the sample; count the others as drops.

    They are not listed: their hash identifies them.
    """
    if sampled_below == SAMPLE_BUCKETS:
        return batch
    sampled = batch.filter(pa.array(_sample_buckets(batch, shard) < sampled_below))
    drops.counts["not_in_sample"] += batch.num_rows - sampled.num_rows
    return sampled


def _sample_buckets(batch: pa.RecordBatch, shard: inputs.DocumentShard) -> npt.NDArray[np.int64]:
    keys = split_keys(batch, document_keys(batch, shard))
    return (hash_keys(keys, "train-bpe") % np.uint64(SAMPLE_BUCKETS)).astype(np.int64)


class _WordCounter:
    """Counts words separately for kept and held-out documents, in a thread of its own."""

    def __init__(self, writer: BucketWriter, buckets: int, thread: ThreadPoolExecutor) -> None:
        self._writer = writer
        self._buckets = buckets
        self._table = WordTable(columns=2)
        self._thread = thread
        self._counting: Future[None] | None = None
        self.text_bytes = 0

    def add(self, texts: pa.Array, held_out: npt.NDArray[np.bool_]) -> None:
        """Add the texts of documents; they are counted while the caller continues."""
        data, starts = text_arrays(texts)
        self.text_bytes += int(starts[-1]) - int(starts[0])
        self._wait()
        self._counting = self._thread.submit(self._table.add, data, starts, held_out.astype(np.uint8))

    def finish(self) -> None:
        """Write the words that are still in memory."""
        self._wait()
        self._write()

    def _wait(self) -> None:
        if self._counting is not None:
            self._counting.result()
        if self._table.words > _TABLE_WORDS or self._table.word_bytes > _TABLE_BYTES:
            self._write()

    def _write(self) -> None:
        data, starts = self._table.column()
        counts = self._table.counts()
        for first, after in slices_within(starts, BATCH_BYTES, _ROWS_WRITTEN):
            offsets = (starts[first : after + 1] - starts[first]).astype(np.int32)
            texts = data[starts[first] : starts[after]]
            words = pa.StringArray.from_buffers(after - first, pa.py_buffer(offsets), pa.py_buffer(texts))
            columns = [words, *(pa.array(counts[first:after, column]) for column in range(2))]
            batch = pa.RecordBatch.from_arrays(columns, schema=COUNTS_SCHEMA)
            self._writer.write(batch, buckets_of(batch, self._buckets))
        self._table.clear()
