"""Streams documents past the indexes of the benchmarks' n-grams: what each shard of the corpus holds of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.ngrams.index import NgramIndex, scan
from pipelines.algorithms.ngrams.overlap_counts import SOURCES, CorpusCounts
from pipelines.core import inputs, progress, shards
from pipelines.core.document_filter import urls_of, with_text
from pipelines.core.document_split import document_keys, held_out_mask, split_keys
from pipelines.core.drops import Drops
from pipelines.core.manifest import FileEntry
from pipelines.core.records import DROPPED_SCHEMA
from pipelines.core.run import TaskResult
from pipelines.core.text_columns import text_arrays
from pipelines.stages.overlap_report.benchmarks import Benchmark, read_example_batches
from pipelines.stages.overlap_report.indexing import StoredIndex, load_index
from pipelines.stages.overlap_report.ngram_texts import ngram_texts

SOURCE_TYPE = pa.struct([pa.field("id", pa.string(), nullable=False), pa.field("url", pa.string())])
MATCH_SCHEMA = pa.schema(
    [
        pa.field("ngram_id", pa.int64(), nullable=False),
        pa.field("ngram", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("sources", pa.list_(SOURCE_TYPE), nullable=False),
    ]
)
OVERLAPPING_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("ngrams", pa.int64(), nullable=False),
        pa.field("overlapping", pa.int64(), nullable=False),
    ]
)
_FOUND_SCHEMA = pa.schema([pa.field("ngram_id", pa.int64(), nullable=False)])
_ROWS_WRITTEN = 8192
_BATCH_BYTES = 4 << 20
_GIVEN_BACK_AFTER_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class ScanTask:
    """A shard to hold against indexes, of which the first is the report's own; `held_out` documents are left out."""

    shard: inputs.DocumentShard
    indexes: tuple[StoredIndex, ...]
    held_out: float
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.shard.name


@dataclasses.dataclass(frozen=True)
class OwnTrainTask:
    """The train split of a benchmark, to hold against the report's index."""

    number: int
    benchmark: Benchmark
    example: str
    index: StoredIndex
    output: str
    work: str

    @property
    def name(self) -> str:
        """The name of the task."""
        return f"own-train-{self.number:05d}"


def scan_shard(task: ScanTask) -> TaskResult:
    """Write what a shard holds of each n-gram, the documents that overlap, and what was dropped.

    Of the indexes after the first it only writes which n-grams are there, as work files.
    """
    indexes = [load_index(stored) for stored in task.indexes]
    counted = CorpusCounts(len(indexes[0].hashes))
    found = [np.zeros(len(index.hashes), np.bool_) for index in indexes[1:]]
    sources: dict[int, dict[str, Any]] = {}
    documents = text_bytes = given_back_at = ngrams = overlapping_documents = 0
    with (
        shards.write_shard(
            task.output, shards.shard_name("overlapping", task.shard.index), OVERLAPPING_SCHEMA
        ) as lists,
        shards.write_shard(task.output, shards.shard_name("dropped", task.shard.index), DROPPED_SCHEMA) as dropped,
    ):
        drops = Drops(dropped.writer)
        for batch in corpus_batches(task.shard, task.held_out, drops):
            data, starts = text_arrays(batch.column("text"))
            hits = scan(indexes[0], data, starts)
            for row in counted.add(documents, hits.documents, hits.ids).tolist():
                sources[documents + row] = _source(batch, row)
            for index, flags in zip(indexes[1:], found, strict=True):
                flags[scan(index, data, starts).ids] = True
            overlapping = np.bincount(hits.documents, minlength=batch.num_rows)
            overlapping_documents += list_overlapping(lists.writer, batch, overlapping, hits.ngram_counts)
            documents += batch.num_rows
            text_bytes += int(starts[-1]) - int(starts[0])
            ngrams += int(hits.ngram_counts.sum())
            progress.advance(batch.num_rows)
            if text_bytes - given_back_at > _GIVEN_BACK_AFTER_BYTES:
                # What was read before would stay with the allocator: a hundred megabytes in each worker.
                pa.default_memory_pool().release_unused()
                given_back_at = text_bytes
    matches = _write_matches(task, indexes[0], counted, sources)
    flagged = [_write_found(task, number, flags) for number, flags in enumerate(found, 1)]
    return TaskResult(
        records_in=inputs.count_records_in(drops, documents),
        records_out=documents,
        dropped=drops.counts,
        counts={"corpus_ngrams": ngrams, "text_bytes": text_bytes, "overlapping_documents": overlapping_documents},
        files=(matches, lists.entry, dropped.entry, *flagged),
    )


def corpus_batches(shard: inputs.DocumentShard, held_out: float, drops: Drops) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a shard that have a text and are not held out; the others are listed as drops."""
    for batch in inputs.read_documents(shard, drops, batch_bytes=_BATCH_BYTES):
        batch = with_text(batch, drops)
        if held_out and batch.num_rows:
            flags = pa.array(held_out_mask(split_keys(batch, document_keys(batch, shard)), held_out))
            apart = batch.filter(flags)
            for id, url in zip(apart.column("id").to_pylist(), urls_of(apart), strict=True):
                drops.add("held_out", id, url)
            batch = batch.filter(pc.invert(flags))
        if batch.num_rows:
            yield batch


def scan_own_train(task: OwnTrainTask) -> TaskResult:
    """Write which n-grams of the index stand in the train split of a benchmark, as a work file."""
    index = load_index(task.index)
    flags = np.zeros(len(index.hashes), np.bool_)
    for batch in read_example_batches(task.benchmark, task.example):
        flags[scan(index, *text_arrays(batch.texts)).ids] = True
        progress.advance(len(batch.texts))
    return TaskResult(files=(_write_flags(task.output, f"{task.work}/{task.name}.parquet", flags),))


def read_found(paths: Sequence[str], ngrams: int) -> npt.NDArray[np.bool_]:
    """Return which of the n-grams any of the work files names."""
    found = np.zeros(ngrams, np.bool_)
    for path in paths:
        for batch in shards.read_batches(path, ["ngram_id"]):
            found[batch.column("ngram_id").to_numpy()] = True
    return found


def found_name(work: str, shard: int, variant: int) -> str:
    """Return the name of the work file that says what a shard holds of the n-grams of a variant."""
    return f"{work}/found-{variant:02d}-{shard:05d}.parquet"


def _source(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
    return {"id": batch.column("id")[row].as_py(), "url": urls_of(batch.slice(row, 1))[0]}


def list_overlapping(
    writer: shards.ShardWriter,
    batch: pa.RecordBatch,
    overlapping: npt.NDArray[np.int64],
    ngrams: npt.NDArray[np.int64],
) -> int:
    """List the documents of a batch that hold n-grams of benchmarks, `overlapping` of `ngrams`; return their number."""
    rows = np.flatnonzero(overlapping)
    if len(rows):
        chosen = batch.take(pa.array(rows))
        columns = [
            chosen.column("id"),
            pa.array(urls_of(chosen), pa.string()),
            pa.array(ngrams[rows]),
            pa.array(overlapping[rows].astype(np.int64)),
        ]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=OVERLAPPING_SCHEMA))
    return len(rows)


def _write_matches(
    task: ScanTask, index: NgramIndex, counted: CorpusCounts, sources: dict[int, dict[str, Any]]
) -> FileEntry:
    held = np.flatnonzero(counted.counts)
    with shards.write_shard(task.output, shards.shard_name("matches", task.shard.index), MATCH_SCHEMA) as matches:
        for start in range(0, len(held), _ROWS_WRITTEN):
            ids = held[start : start + _ROWS_WRITTEN]
            listed = [
                [sources[document] for document in row[row >= 0].tolist()] for row in counted.sources[ids][:, :SOURCES]
            ]
            columns = [
                pa.array(ids),
                ngram_texts(index, ids),
                pa.array(counted.counts[ids]),
                pa.array(counted.documents[ids]),
                pa.array(listed, pa.list_(SOURCE_TYPE)),
            ]
            matches.writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=MATCH_SCHEMA))
    return matches.entry


def _write_found(task: ScanTask, variant: int, flags: npt.NDArray[np.bool_]) -> FileEntry:
    return _write_flags(task.output, found_name(task.work, task.shard.index, variant), flags)


def _write_flags(output: str, name: str, flags: npt.NDArray[np.bool_]) -> FileEntry:
    with shards.write_shard(output, name, _FOUND_SCHEMA) as written:
        ids = pa.array(np.flatnonzero(flags))
        written.writer.write_batch(pa.RecordBatch.from_arrays([ids], schema=_FOUND_SCHEMA))
    return written.entry
