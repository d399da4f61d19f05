"""Streams documents past the indexes of the benchmarks' n-grams and records the matches of each shard."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.columns import text_arrays
from pipelines.algorithms.ngrams.index import Hits, NgramIndex, ngram_texts, scan
from pipelines.algorithms.ngrams.overlap_counts import Flags, Numbers
from pipelines.benchmark_sets.benchmarks import Benchmark, read_example_batches
from pipelines.engine.journal import WORK
from pipelines.engine.manifest import FileEntry, ShardEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import InputError
from pipelines.records import inputs, shards
from pipelines.records.document_split import document_keys, hash_keys, held_out_mask, split_keys
from pipelines.records.drops import Drops
from pipelines.records.schemas import DROPPED_SCHEMA, make_schema
from pipelines.records.tally import Tally, read_tallies
from pipelines.records.text_columns import drop_rows, urls_of
from pipelines.stages.overlap_report.config import OverlapReportConfig
from pipelines.stages.overlap_report.indexing import Variant, load_index

IGNORED = storage.join(WORK, "ignored.npy")
HELD_OUT_SAMPLE = storage.join(WORK, "held-out.parquet")
HELD_OUT = "held-out"

# Documents that are listed per n-gram, and per passage.
SOURCES = 3

_SOURCE_TYPE = pa.struct([pa.field("id", pa.string(), nullable=False), pa.field("url", pa.string())])
MATCH_SCHEMA = make_schema(
    ngram_id="int64", ngram="string", count="int64", documents="int64", sources=pa.list_(_SOURCE_TYPE),
)  # fmt: skip
_BATCH_ROWS = 8192

OVERLAPPING_SCHEMA = make_schema(id="string", url="string?", ngrams="int64", overlapping="int64")
_BATCH_BYTES = 4 << 20
_RELEASE_BYTES = 64 << 20
_HELD_OUT_DOCUMENTS = 1000


class CorpusMatches:
    """Counts of the n-grams of an index in a corpus, and their first documents, in the order of addition.

    `counts` and `documents` are int64 per n-gram; they stay zero for the `answers` of a Bloom filter, which only knows
    whether an n-gram is found. Memory: 40 bytes per n-gram, and the names of the documents.
    """

    def __init__(self, ngrams: int, answers: Flags | None = None) -> None:
        self.answers = answers
        self.counts = np.zeros(ngrams, np.int64)
        self.documents = np.zeros(ngrams, np.int64)
        # Rows of the table of documents.
        self._source_rows = np.full((ngrams, SOURCES), -1, np.int64)
        self._sources: list[pa.StructArray] = []
        self._source_count = 0

    @property
    def is_found(self) -> Flags:
        """Which n-grams are in the corpus."""
        return self.counts > 0 if self.answers is None else self.answers

    def add_hits(self, hits: Hits, batch: pa.RecordBatch) -> None:
        """Add the hits in a batch of documents; no document is in two batches."""
        if not len(hits.ids):
            return
        pairs, counts = np.unique(hits.ids * batch.num_rows + hits.documents, return_counts=True)
        pair_ids, rows = np.divmod(pairs, batch.num_rows)
        ids, firsts, documents = np.unique(pair_ids, return_index=True, return_counts=True)
        self.counts[ids] += np.add.reduceat(counts, firsts)
        self.documents[ids] += documents
        urls = pa.array(urls_of(batch), pa.string())
        table = pa.StructArray.from_arrays([batch.column("id"), urls], fields=list(_SOURCE_TYPE))
        self._add_sources(ids, documents, rows, table)

    def add_shard(self, path: str) -> None:
        """Add the matches of a shard that `write` wrote."""
        for batch in shards.read_batches(path, ["ngram_id", "count", "documents", "sources"]):
            ids, sources = batch.column("ngram_id").to_numpy(), batch.column("sources")
            self.counts[ids] += batch.column("count").to_numpy()
            self.documents[ids] += batch.column("documents").to_numpy()
            table = sources.flatten()
            sizes = np.diff(sources.offsets.to_numpy())
            self._add_sources(ids, sizes, np.arange(len(table)), table)

    def _add_sources(self, ids: Numbers, sizes: Numbers, rows: Numbers, table: pa.StructArray) -> None:
        """Add `sizes[i]` documents of each n-gram `ids[i]`; `rows` are their rows in a table of documents."""
        parents = np.repeat(np.arange(len(ids)), sizes)
        first_slots = (self._source_rows[ids] >= 0).sum(axis=1)
        slots = np.arange(len(rows)) - (np.cumsum(sizes) - sizes)[parents] + first_slots[parents]
        kept = np.flatnonzero(slots < SOURCES)
        table_rows, numbers = np.unique(rows[kept], return_inverse=True)
        self._source_rows[ids[parents[kept]], slots[kept]] = self._source_count + numbers
        self._sources.append(table.take(pa.array(table_rows)))
        self._source_count += len(table_rows)

    def write(self, output: str, name: str, index: NgramIndex) -> FileEntry:
        """Write the n-grams that are in a shard, in order of their ids."""
        with shards.write_shard(output, name, MATCH_SCHEMA) as writer:
            all_ids = np.flatnonzero(self.is_found)
            for start in range(0, len(all_ids), _BATCH_ROWS):
                ids = all_ids[start : start + _BATCH_ROWS]
                rows = self._source_rows[ids]
                ends = np.cumsum((rows >= 0).sum(axis=1))
                sources = self._source_table().take(pa.array(rows[rows >= 0]))
                columns = [
                    pa.array(ids),
                    ngram_texts(index, ids),
                    pa.array(self.counts[ids]),
                    pa.array(self.documents[ids]),
                    pa.ListArray.from_arrays(pa.array([0, *ends], pa.int32()), sources),
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=MATCH_SCHEMA))
        return writer.entry

    def shared_sources(self, ids: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the documents, at most three, that contain the most of these n-grams."""
        rows = self._source_rows[ids]
        sources = self._source_table().take(pa.array(rows[rows >= 0])).to_pylist()
        shared = Counter((source["id"], source["url"]) for source in sources)
        return [{"id": id, "url": url} for (id, url), _ in shared.most_common(SOURCES)]

    def first_sources(self, ids: npt.NDArray[np.int64]) -> tuple[pa.Array, pa.Array]:
        """Return the id and the URL of the first document of each n-gram, null if unknown."""
        firsts = self._source_rows[ids, 0]
        rows = pa.array(firsts, pa.int64(), mask=firsts < 0)
        table = self._source_table()
        return pc.take(table.field("id"), rows), pc.take(table.field("url"), rows)

    def _source_table(self) -> pa.StructArray:
        if len(self._sources) != 1:
            self._sources = [pa.concat_arrays([pa.array([], _SOURCE_TYPE), *self._sources])]
        return self._sources[0]


@dataclasses.dataclass(frozen=True)
class ScanContext:
    """The options of a run, the indexes to scan for, that of the report first, and the train splits to scan."""

    config: OverlapReportConfig
    output: str
    variants: tuple[Variant, ...] = ()
    trains: tuple[Benchmark, ...] = ()


def flags_name(variant: Variant, shard: int) -> str:
    """Return the name of the work file with the n-grams of a variant that are in a shard."""
    return storage.join(WORK, f"found-{variant.number:02d}-{shard:05d}.npy")


def scan_shard(shard: inputs.DocumentShard, context: ScanContext) -> TaskResult:
    """Write the matches of a shard, the documents that overlap, and the dropped ones.

    Of the n-grams of further indexes, only those that are in the shard are listed, in work files.
    """
    output, others = context.output, context.variants[1:]
    index = load_index(context.variants[0])
    matches = CorpusMatches(len(index.arrays.hashes))
    other_flags = [np.zeros(len(load_index(variant).arrays.hashes), np.bool_) for variant in others]
    documents = text_bytes = ngrams = released_at = 0
    with (
        shards.write_shard(output, shards.shard_name("overlapping", shard.index), OVERLAPPING_SCHEMA) as overlapping,
        shards.write_shard(output, shards.shard_name("dropped", shard.index), DROPPED_SCHEMA) as dropped,
    ):
        drops = Drops(dropped.write)
        for batch in _read_corpus(shard, context.config.held_out, drops):
            data, starts = text_arrays(batch.column("text"))
            hits = scan(index, data, starts)
            matches.add_hits(hits, batch)
            for variant, flags in zip(others, other_flags, strict=True):
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
        matches.write(output, shards.shard_name("matches", shard.index), index),
        overlapping.entry,
        dropped.entry,
        *(
            shards.write_array(output, flags_name(variant, shard.index), np.flatnonzero(flags))
            for variant, flags in zip(others, other_flags, strict=True)
        ),
    )
    counts = {"corpus_ngrams": ngrams, "text_bytes": text_bytes, "overlapping_documents": overlapping.records}
    return drops.task_result(documents, files, counts)


def _read_corpus(shard: inputs.DocumentShard, held_out: float, drops: Drops) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a shard with text that are not held out; list the others as drops."""
    for batch in inputs.read_documents(shard, drops, batch_bytes=_BATCH_BYTES):
        if held_out and batch.num_rows:
            is_held_out = pa.array(held_out_mask(split_keys(batch, document_keys(batch, shard)), held_out))
            batch = drop_rows(batch, is_held_out, "held_out", drops)
        if batch.num_rows:
            yield batch


def _list_overlapping(
    writer: shards.ShardWriter, batch: pa.RecordBatch, hit_counts: Numbers, ngram_counts: Numbers
) -> None:
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


def scan_own_train(number: int, context: ScanContext) -> TaskResult:
    """Write which n-grams of the report's index are in a train split, as a work file."""
    index = load_index(context.variants[0])
    flags = np.zeros(len(index.arrays.hashes), np.bool_)
    for batch in read_example_batches(context.trains[number], context.config.example):
        flags[scan(index, *text_arrays(batch.texts)).ids] = True
        progress.advance(len(batch.texts))
    name = storage.join(WORK, f"own-train-{number:05d}.npy")
    return TaskResult(files=(shards.write_array(context.output, name, np.flatnonzero(flags)),))


def read_flags(paths: Sequence[str], variant: Variant) -> Flags:
    """Return which n-grams of an index are listed in any of the work files."""
    flags = np.zeros(len(load_index(variant).arrays.hashes), np.bool_)
    for path in paths:
        flags[storage.read_array(path)] = True
    return flags


def sample_held_out(shard: inputs.DocumentShard, context: ScanContext) -> TaskResult:
    """Write the held-out documents of a shard with the lowest hashes, at most 1,000, as a work file."""
    tally = Tally()
    sample = tally.sample(HELD_OUT, _HELD_OUT_DOCUMENTS)
    for batch in inputs.read_documents(shard, Drops()):
        progress.advance(batch.num_rows)
        if batch.num_rows:
            keys = split_keys(batch, document_keys(batch, shard))
            is_held_out = held_out_mask(keys, context.config.held_out)
            texts = batch.column("text").filter(pa.array(is_held_out)).to_pylist()
            for hash, text in zip(hash_keys(keys, "overlap")[is_held_out].tolist(), texts, strict=True):
                sample.add(hash, text)
    return TaskResult(files=(tally.write(context.output, storage.join(WORK, f"held-out-{shard.index:05d}.json")),))


def join_held_out(parts: Sequence[ShardEntry], output: str) -> TaskResult:
    """Write the 1,000 held-out documents with the lowest hashes; raise InputError if there is none."""
    paths = [storage.join(output, file.name) for part in parts for file in part.files]
    sample = read_tallies(paths).sample(HELD_OUT, _HELD_OUT_DOCUMENTS)
    if not len(sample):
        raise InputError("overlap-report: --held-out selects no documents to compare with the samples; raise it")
    with shards.write_shard(output, HELD_OUT_SAMPLE, make_schema(text="string?")) as writer:
        for text in sample:
            writer.write({"text": text})
    return TaskResult(files=(writer.entry,))
