"""Streams documents past the indexes of the benchmarks' n-grams and records the matches of each shard."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.ngrams.index import NgramIndex, scan
from pipelines.algorithms.ngrams.overlap_counts import SOURCES, CorpusCounts
from pipelines.benchmark_sets.benchmarks import Benchmark, read_example_batches
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.records import inputs, shards
from pipelines.records.document_filter import urls_of, with_text
from pipelines.records.document_split import document_keys, held_out_mask, split_keys
from pipelines.records.drops import Drops
from pipelines.records.schemas import DROPPED_SCHEMA
from pipelines.records.text_columns import text_arrays
from pipelines.stages.overlap_report.indexing import Flags, StoredIndex, load_index, ngram_texts
from pipelines.stages.overlap_report.layout import IGNORED, found_name, own_train_name

_SOURCE_TYPE = pa.struct([pa.field("id", pa.string(), nullable=False), pa.field("url", pa.string())])
MATCH_SCHEMA = pa.schema(
    [
        pa.field("ngram_id", pa.int64(), nullable=False),
        pa.field("ngram", pa.string(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
        pa.field("sources", pa.list_(_SOURCE_TYPE), nullable=False),
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
_BATCH_ROWS = 8192
_BATCH_BYTES = 4 << 20
_RELEASE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class ScanContext:
    """The indexes to scan for, of which the first is that of the report; `held_out` documents are dropped."""

    indexes: tuple[StoredIndex, ...]
    held_out: float
    output: str


class _ShardMatches:
    """The n-grams of the indexes that are in a shard."""

    def __init__(self, indexes: Sequence[NgramIndex]) -> None:
        self._indexes = indexes
        self.counts = CorpusCounts(len(indexes[0].hashes))
        self.found_in_variants = [np.zeros(len(index.hashes), np.bool_) for index in indexes[1:]]
        self.sources: dict[int, dict[str, Any]] = {}
        self.documents = self.text_bytes = self.ngrams = self.overlapping_documents = 0

    def add(self, batch: pa.RecordBatch, overlapping: shards.ShardWriter) -> None:
        """Scan a batch of documents, and list those that overlap."""
        data, starts = text_arrays(batch.column("text"))
        hits = scan(self._indexes[0], data, starts)
        for row in self.counts.add(self.documents, hits.documents, hits.ids).tolist():
            source = {"id": batch.column("id")[row].as_py(), "url": urls_of(batch.slice(row, 1))[0]}
            self.sources[self.documents + row] = source
        for index, found in zip(self._indexes[1:], self.found_in_variants, strict=True):
            found[scan(index, data, starts).ids] = True
        hit_counts = np.bincount(hits.documents, minlength=batch.num_rows)
        self.overlapping_documents += _list_overlapping(overlapping, batch, hit_counts, hits.ngram_counts)
        self.documents += batch.num_rows
        self.text_bytes += int(starts[-1]) - int(starts[0])
        self.ngrams += int(hits.ngram_counts.sum())


def scan_shard(shard: inputs.DocumentShard, context: ScanContext) -> TaskResult:
    """Write the matches of a shard, the documents that overlap, and the dropped ones.

    For the indexes after the first, only the n-grams that are in the shard are written, as work files.
    """
    indexes = [load_index(stored) for stored in context.indexes]
    matches = _ShardMatches(indexes)
    released_at = 0
    with (
        shards.write_shard(
            context.output, shards.shard_name("overlapping", shard.index), OVERLAPPING_SCHEMA
        ) as overlapping,
        shards.write_shard(context.output, shards.shard_name("dropped", shard.index), DROPPED_SCHEMA) as dropped,
    ):
        drops = Drops(dropped.writer)
        for batch in read_corpus(shard, context.held_out, drops):
            matches.add(batch, overlapping.writer)
            progress.advance(batch.num_rows)
            if matches.text_bytes - released_at > _RELEASE_BYTES:
                # Otherwise the allocator keeps what was read: a hundred megabytes per worker.
                pa.default_memory_pool().release_unused()
                released_at = matches.text_bytes
    variants = [
        _write_found(context.output, found_name(shard.index, variant), found)
        for variant, found in enumerate(matches.found_in_variants, 1)
    ]
    files = (_write_matches(shard, context.indexes[0], matches), overlapping.entry, dropped.entry, *variants)
    counts = {
        "corpus_ngrams": matches.ngrams,
        "text_bytes": matches.text_bytes,
        "overlapping_documents": matches.overlapping_documents,
    }
    return drops.task_result(matches.documents, files, counts)


def read_corpus(shard: inputs.DocumentShard, held_out: float, drops: Drops) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a shard with text that are not held out; list the others as drops."""
    for batch in inputs.read_documents(shard, drops, batch_bytes=_BATCH_BYTES):
        batch = with_text(batch, drops)
        if held_out and batch.num_rows:
            is_held_out = pa.array(held_out_mask(split_keys(batch, document_keys(batch, shard)), held_out))
            dropped = batch.filter(is_held_out)
            for id, url in zip(dropped.column("id").to_pylist(), urls_of(dropped), strict=True):
                drops.add("held_out", id, url)
            batch = batch.filter(pc.invert(is_held_out))
        if batch.num_rows:
            yield batch


def clean_shard(shard: inputs.DocumentShard, context: tuple[StoredIndex, str]) -> TaskResult:
    """Write `documents-N.parquet`, the documents of a shard without overlap, and `removed-N.parquet`, the others.

    N-grams that are ignored do not count. Held-out documents are treated like others.
    """
    stored, output = context
    index = load_index(stored)
    is_counted = ~storage.read_array(storage.join(output, IGNORED))
    schema = inputs.document_schema(shard)
    with (
        shards.write_shard(output, shards.shard_name("documents", shard.index), schema) as kept,
        shards.write_shard(output, shards.shard_name("removed", shard.index), OVERLAPPING_SCHEMA) as removed,
    ):
        for batch in read_corpus(shard, 0.0, Drops()):
            hits = scan(index, *text_arrays(batch.column("text")))
            hit_counts = np.bincount(hits.documents[is_counted[hits.ids]], minlength=batch.num_rows)
            _list_overlapping(removed.writer, batch, hit_counts, hits.ngram_counts)
            kept.writer.write_batch(batch.filter(pa.array(hit_counts == 0)))
            progress.advance(batch.num_rows)
    counts = {"clean_documents": kept.writer.records, "overlapping_documents_left_out": removed.writer.records}
    return TaskResult(counts=counts, files=(kept.entry, removed.entry))


def scan_own_train(number: int, context: tuple[Sequence[Benchmark], str, StoredIndex]) -> TaskResult:
    """Write which n-grams of the index are in a train split, as a work file."""
    trains, example, stored = context
    index = load_index(stored)
    found = np.zeros(len(index.hashes), np.bool_)
    for batch in read_example_batches(trains[number], example):
        found[scan(index, *text_arrays(batch.texts)).ids] = True
        progress.advance(len(batch.texts))
    name = storage.join(WORK, f"{own_train_name(number)}.parquet")
    return TaskResult(files=(_write_found(stored.output, name, found),))


def read_found(paths: Sequence[str], ngrams: int) -> Flags:
    """Return which of the n-grams are in any of the work files."""
    found = np.zeros(ngrams, np.bool_)
    for path in paths:
        for batch in shards.read_batches(path, ["ngram_id"]):
            found[batch.column("ngram_id").to_numpy()] = True
    return found


def _list_overlapping(
    writer: shards.ShardWriter,
    batch: pa.RecordBatch,
    hit_counts: npt.NDArray[np.int64],
    ngram_counts: npt.NDArray[np.int64],
) -> int:
    """List the documents of a batch with hits; return their number."""
    rows = np.flatnonzero(hit_counts)
    if len(rows):
        documents = batch.take(pa.array(rows))
        columns = [
            documents.column("id"),
            pa.array(urls_of(documents), pa.string()),
            pa.array(ngram_counts[rows]),
            pa.array(hit_counts[rows].astype(np.int64)),
        ]
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=OVERLAPPING_SCHEMA))
    return len(rows)


def _write_matches(shard: inputs.DocumentShard, stored: StoredIndex, matches: _ShardMatches) -> FileEntry:
    counts = matches.counts
    found = np.flatnonzero(counts.counts)
    with shards.write_shard(stored.output, shards.shard_name("matches", shard.index), MATCH_SCHEMA) as written:
        for start in range(0, len(found), _BATCH_ROWS):
            ids = found[start : start + _BATCH_ROWS]
            sources = [
                [matches.sources[document] for document in row[row >= 0].tolist()]
                for row in counts.sources[ids][:, :SOURCES]
            ]
            columns = [
                pa.array(ids),
                ngram_texts(stored, ids),
                pa.array(counts.counts[ids]),
                pa.array(counts.documents[ids]),
                pa.array(sources, pa.list_(_SOURCE_TYPE)),
            ]
            written.writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=MATCH_SCHEMA))
    return written.entry


def _write_found(output: str, name: str, found: Flags) -> FileEntry:
    with shards.write_shard(output, name, _FOUND_SCHEMA) as written:
        ids = pa.array(np.flatnonzero(found))
        written.writer.write_batch(pa.RecordBatch.from_arrays([ids], schema=_FOUND_SCHEMA))
    return written.entry
