"""Streams documents past the indexes of the benchmarks' n-grams and records the matches of each shard."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.ngrams.index import scan
from pipelines.algorithms.ngrams.overlap_counts import Flags, Numbers
from pipelines.benchmark_sets.benchmarks import Benchmark, read_example_batches
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError
from pipelines.records import inputs, shards
from pipelines.records.document_filter import urls_of, with_text
from pipelines.records.document_split import document_keys, hash_keys, held_out_mask, split_keys
from pipelines.records.drops import Drops
from pipelines.records.schemas import DROPPED_SCHEMA, make_schema
from pipelines.records.tally import Tally, read_tallies
from pipelines.records.text_columns import text_arrays
from pipelines.stages.overlap_report.indexing import Variant, load_index
from pipelines.stages.overlap_report.matches import CorpusMatches

IGNORED = storage.join(WORK, "ignored.npy")
HELD_OUT_SAMPLE = storage.join(WORK, "held-out.parquet")
HELD_OUT = "held-out"

OVERLAPPING_SCHEMA = make_schema(id="string", url="string?", ngrams="int64", overlapping="int64")
_BATCH_BYTES = 4 << 20
_RELEASE_BYTES = 64 << 20
_HELD_OUT_DOCUMENTS = 1000


@dataclasses.dataclass(frozen=True)
class ScanContext:
    """The indexes to scan for, first that of the report; a share of documents, `held_out`, is dropped."""

    variants: tuple[Variant, ...]
    held_out: float
    output: str


@dataclasses.dataclass(frozen=True)
class TrainScan:
    """The train splits to scan for the n-grams of an index, and what an example is."""

    trains: Sequence[Benchmark]
    example: str
    variant: Variant


def matches_name(shard: int) -> str:
    """Return the name of the file with the matches of a shard."""
    return shards.shard_name("matches", shard)


def found_name(variant: Variant, shard: int) -> str:
    """Return the name of the work file with the n-grams of a variant that are in a shard."""
    return storage.join(WORK, f"found-{variant.number:02d}-{shard:05d}.npy")


def scan_shard(shard: inputs.DocumentShard, context: ScanContext) -> TaskResult:
    """Write the matches of a shard, the documents that overlap, and the dropped ones.

    For the indexes after the first, only the n-grams that are in the shard are written, as work files.
    """
    output, others = context.output, context.variants[1:]
    index = load_index(context.variants[0])
    matches = CorpusMatches(len(index.arrays.hashes))
    found = [np.zeros(len(load_index(variant).arrays.hashes), np.bool_) for variant in others]
    documents = text_bytes = ngrams = released_at = 0
    with (
        shards.write_shard(output, shards.shard_name("overlapping", shard.index), OVERLAPPING_SCHEMA) as overlapping,
        shards.write_shard(output, shards.shard_name("dropped", shard.index), DROPPED_SCHEMA) as dropped,
    ):
        drops = Drops(dropped)
        for batch in _read_corpus(shard, context.held_out, drops):
            data, starts = text_arrays(batch.column("text"))
            hits = scan(index, data, starts)
            matches.add_hits(hits, batch)
            for variant, flags in zip(others, found, strict=True):
                flags[scan(load_index(variant), data, starts).ids] = True
            hit_counts = np.bincount(hits.documents, minlength=batch.num_rows)
            _list_overlapping(overlapping, batch, hit_counts, hits.ngram_counts)
            documents += batch.num_rows
            text_bytes += int(starts[-1]) - int(starts[0])
            ngrams += int(hits.ngram_counts.sum())
            progress.advance(batch.num_rows)
            if text_bytes - released_at > _RELEASE_BYTES:
                # Otherwise the allocator keeps what was read: a hundred megabytes per worker.
                pa.default_memory_pool().release_unused()
                released_at = text_bytes
    files = (
        matches.write(output, matches_name(shard.index), index),
        overlapping.entry,
        dropped.entry,
        *(
            _write_found(output, found_name(variant, shard.index), flags)
            for variant, flags in zip(others, found, strict=True)
        ),
    )
    counts = {
        "corpus_ngrams": ngrams,
        "text_bytes": text_bytes,
        "overlapping_documents": overlapping.records,
    }
    return drops.task_result(documents, files, counts)


def _read_corpus(shard: inputs.DocumentShard, held_out: float, drops: Drops) -> Iterator[pa.RecordBatch]:
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


def _list_overlapping(
    writer: shards.ShardWriter, batch: pa.RecordBatch, hit_counts: Numbers, ngram_counts: Numbers
) -> None:
    """List the documents of a batch with hits."""
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


def clean_shard(shard: inputs.DocumentShard, variant: Variant) -> TaskResult:
    """Write `documents-N.parquet`, the documents of a shard without overlap, and `removed-N.parquet`, the others.

    N-grams that are ignored do not count. Held-out documents are treated like others.
    """
    output, index = variant.output, load_index(variant)
    is_counted = ~storage.read_array(storage.join(output, IGNORED))
    schema = inputs.document_schema(shard)
    with (
        shards.write_shard(output, shards.shard_name("documents", shard.index), schema) as kept,
        shards.write_shard(output, shards.shard_name("removed", shard.index), OVERLAPPING_SCHEMA) as removed,
    ):
        for batch in _read_corpus(shard, 0.0, Drops()):
            hits = scan(index, *text_arrays(batch.column("text")))
            hit_counts = np.bincount(hits.documents[is_counted[hits.ids]], minlength=batch.num_rows)
            _list_overlapping(removed, batch, hit_counts, hits.ngram_counts)
            kept.write_batch(batch.filter(pa.array(hit_counts == 0)))
            progress.advance(batch.num_rows)
    counts = {"clean_documents": kept.records, "overlapping_documents_left_out": removed.records}
    return TaskResult(counts=counts, files=(kept.entry, removed.entry))


def scan_own_train(number: int, context: TrainScan) -> TaskResult:
    """Write which n-grams of the index are in a train split, as a work file."""
    variant = context.variant
    index = load_index(variant)
    found = np.zeros(len(index.arrays.hashes), np.bool_)
    for batch in read_example_batches(context.trains[number], context.example):
        found[scan(index, *text_arrays(batch.texts)).ids] = True
        progress.advance(len(batch.texts))
    return TaskResult(files=(_write_found(variant.output, storage.join(WORK, f"own-train-{number:05d}.npy"), found),))


def _write_found(output: str, name: str, found: Flags) -> FileEntry:
    return shards.write_array(output, name, np.flatnonzero(found))


def read_found(paths: Sequence[str], variant: Variant) -> Flags:
    """Return which n-grams of an index are in any of the work files."""
    found = np.zeros(len(load_index(variant).arrays.hashes), np.bool_)
    for path in paths:
        found[storage.read_array(path)] = True
    return found


def sample_held_out(shard: inputs.DocumentShard, context: ScanContext) -> TaskResult:
    """Write the documents of a shard that `tokenize` held out with the lowest hashes, at most 1,000, as a work file."""
    tally = Tally()
    sample = tally.sample(HELD_OUT, _HELD_OUT_DOCUMENTS)
    for batch in inputs.read_documents(shard, Drops()):
        progress.advance(batch.num_rows)
        batch = with_text(batch, Drops())
        if batch.num_rows:
            keys = split_keys(batch, document_keys(batch, shard))
            is_held_out = held_out_mask(keys, context.held_out)
            texts = batch.column("text").filter(pa.array(is_held_out)).to_pylist()
            for hash, text in zip(hash_keys(keys, "overlap")[is_held_out].tolist(), texts, strict=True):
                sample.add(hash, text)
    return TaskResult(files=(tally.write(context.output, storage.join(WORK, f"held-out-{shard.index:05d}.json")),))


def join_held_out(parts: Sequence[FileEntry], output: str) -> TaskResult:
    """Write the 1,000 held-out documents with the lowest hashes; raise InputError if there is none."""
    sample = read_tallies([storage.join(output, part.name) for part in parts]).sample(HELD_OUT, _HELD_OUT_DOCUMENTS)
    if not len(sample):
        raise InputError("overlap-report: --held-out selects no document to compare with the samples; raise its share")
    with shards.write_shard(output, HELD_OUT_SAMPLE, pa.schema([pa.field("text", pa.string())])) as written:
        for text in sample:
            written.write({"text": text})
    return TaskResult(files=(written.entry,))
