"""Phase 1: the record of every document, and its keys, shuffled into buckets: one of its text and one per band."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.minhash.bands import band_keys, choose_bands
from pipelines.algorithms.minhash.signing import check_sample, sign
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.records import inputs, shards
from pipelines.records.buckets import write_buckets
from pipelines.records.document_filter import group_names
from pipelines.records.drops import Drops
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.paragraphs import ParagraphRemover
from pipelines.stages.dedup.records import (
    NO_DATE,
    NO_SCORE,
    Corpus,
    Records,
    bucket_batch,
    buckets_of,
    record_type,
    work_name,
)
from pipelines.stages.dedup.sources import SIGNATURES, SourceShard, signature_schema, signature_values

KEY_SCHEMA = pa.schema([pa.field("key", pa.uint64(), nullable=False), pa.field("row", pa.uint32(), nullable=False)])

# Each run compares so many documents of each shard with datasketch, none of them longer.
_SAMPLE_ROWS, _SAMPLE_BYTES = 2, 1 << 20
_ROWS_PER_BATCH = 8192


class _Signed(NamedTuple):
    """Documents with their signatures: without words there are no band keys, without text no keys.

    `is_emptied`: its text consisted of frequent paragraphs, so that it is dropped for that.
    """

    documents: pa.RecordBatch
    text_hashes: npt.NDArray[np.uint64]
    values: npt.NDArray[np.uint32]
    has_words: npt.NDArray[np.bool_]
    is_emptied: npt.NDArray[np.bool_]


def sign_shard(shard: SourceShard, context: tuple[DedupConfig, int, str]) -> TaskResult:
    """Write the records, the ids and the keys of a shard of documents; with `write_signatures` also the signatures."""
    config, buckets, output = context
    keys_name = work_name("keys", shard.index, "buckets")
    records, ids = [np.empty(0, record_type(config.num_perm))], [np.empty(0, np.uint8)]
    values = [np.empty((0, config.num_perm), np.uint32)]
    rows = id_end = 0
    counts = Counter[str]()
    with write_buckets(storage.join(output, keys_name), KEY_SCHEMA) as written:
        for signed in _read_signatures(shard) if shard.signatures else _sign_documents(shard, config, output):
            count = signed.documents.num_rows
            numbers = np.arange(rows, rows + count)
            text_rows, texts = numbers[~signed.is_emptied], signed.text_hashes[~signed.is_emptied, 0]
            written.writer.write(bucket_batch(KEY_SCHEMA, texts, text_rows), buckets_of(texts, buckets))
            keys = band_keys(signed.values, *choose_bands(config.num_perm, config.threshold))[signed.has_words]
            band_rows, bands = numbers[signed.has_words].repeat(keys.shape[1]), keys.reshape(-1)
            written.writer.write(bucket_batch(KEY_SCHEMA, bands, band_rows), buckets + buckets_of(bands, buckets))
            encoded = [id.encode() for id in signed.documents.column("id").to_pylist()]
            id_ends = id_end + np.cumsum([len(id) for id in encoded])
            batch_records, unreadable = _records(signed, id_ends)
            records.append(batch_records)
            counts.update(+unreadable)
            ids.append(np.frombuffer(b"".join(encoded), np.uint8))
            if config.write_signatures and not shard.is_earlier:
                values.append(signed.values)
            rows, id_end = rows + count, int(id_ends[-1])
            progress.advance(count)
    files = (
        shards.write_array(output, work_name("records", shard.index, "npy"), np.concatenate(records)),
        shards.write_array(output, work_name("ids", shard.index, "npy"), np.concatenate(ids)),
        shards.write_array(output, work_name("values", shard.index, "npy"), np.concatenate(values)),
        written.entry(keys_name),
    )
    return TaskResult(counts=dict(counts), files=files)


def _sign_documents(shard: SourceShard, config: DedupConfig, output: str) -> Iterator[_Signed]:
    remover = ParagraphRemover(shard, config, output)
    is_checked = False
    for original in inputs.read_documents(shard.require_documents(), Drops()):
        if original.num_rows:
            batch, is_emptied = remover(original)
            texts = batch.column("text")
            signed = sign(texts, config.ngram, config.num_perm, config.seed)
            if not is_checked:
                rows = np.flatnonzero(np.asarray(pc.binary_length(texts)) < _SAMPLE_BYTES)[:_SAMPLE_ROWS]
                check_sample(texts.take(pa.array(rows)), signed.values[rows], config.ngram, config.seed)
            is_checked = True
            yield _Signed(batch, signed.text_hashes, signed.values, signed.shingles > 0, is_emptied)


def _read_signatures(shard: SourceShard) -> Iterator[_Signed]:
    assert shard.signatures is not None
    shard.signatures.verify()
    for batch in shards.read_batches(shard.signatures.path):
        if batch.num_rows:
            text_hashes = np.frombuffer(b"".join(batch.column("text_hash").to_pylist()), "<u8").reshape(-1, 2)
            has_words = batch.column("has_words").to_numpy(zero_copy_only=False)
            values = signature_values(batch.column("minhash"))
            yield _Signed(batch, text_hashes, values, has_words, np.zeros(batch.num_rows, bool))


def _records(signed: _Signed, id_ends: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], Counter[str]]:
    """Return the records of documents, and how many scores and dates are not used."""
    records = np.empty(signed.documents.num_rows, record_type(signed.values.shape[1]))
    records["sketch"] = signed.values[:, : records["sketch"].shape[1]].astype(np.uint8)
    records["text_hash"] = signed.text_hashes
    records["has_words"] = signed.has_words
    records["score"], bad_scores = _ranking_column(signed.documents, "score", pa.float64(), NO_SCORE)
    records["created"], bad_dates = _ranking_column(signed.documents, "created_utc", pa.int64(), NO_DATE)
    records["id_end"] = id_ends
    return records, Counter(unreadable_scores=bad_scores, unreadable_dates=bad_dates)


def write_signatures(shard: int, is_kept: npt.NDArray[np.bool_], context: tuple[DedupConfig, Corpus]) -> FileEntry:
    """Write the signatures of the documents of a shard that are kept, in their order."""
    config, corpus = context
    kept = np.flatnonzero(is_kept)
    records = Records(corpus)
    values = storage.read_array(storage.join(corpus.output, work_name("values", shard, "npy")))
    schema = signature_schema(config)
    with shards.write_shard(corpus.output, shards.shard_name(SIGNATURES, shard), schema, repetitive=()) as written:
        for start in range(0, len(kept), _ROWS_PER_BATCH):
            rows = kept[start : start + _ROWS_PER_BATCH]
            numbers = rows + corpus.starts[shard]
            score, created = records.take(numbers, "score"), records.take(numbers, "created")
            flat = pa.array(np.ascontiguousarray(values[rows]).reshape(-1))
            columns = [
                pa.array(records.ids(numbers), pa.string()),
                pa.array(score, mask=score == NO_SCORE),
                pa.array(created, mask=created == NO_DATE),
                pa.array([row.tobytes() for row in records.take(numbers, "text_hash")], pa.binary(16)),
                pa.array(records.take(numbers, "has_words")),
                pa.FixedSizeListArray.from_arrays(flat, config.num_perm),
            ]
            written.writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return written.entry


def _ranking_column(batch: pa.RecordBatch, name: str, kind: pa.DataType, missing: float) -> tuple[Any, int]:
    """Return a column that ranks duplicates, dates in seconds, and how many of its values are not numbers or dates.

    `missing` stands for these, and where the input has none. In JSONL, the values may be among the further fields.
    """
    column = batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    if pa.types.is_floating(column.type):  # pandas stores integers with missing values as floats
        column = pc.if_else(pc.is_finite(column), column, None)
    elif not pa.types.is_integer(column.type):
        column = pa.nulls(batch.num_rows)
    values = np.asarray(column.cast(kind, safe=False).fill_null(missing)).copy()
    unreadable = 0
    if column.null_count:
        for row, text in enumerate(group_names(batch, name)):
            if text is not None and not column[row].is_valid:
                value = _number(text)
                unreadable += value is None
                values[row] = missing if value is None else value
    return values, unreadable


def _number(text: str) -> float | None:
    """Return a number, or a date as seconds since 1970; None for another text."""
    with contextlib.suppress(ValueError):
        number = float(text)
        return number if math.isfinite(number) else None
    with contextlib.suppress(ValueError):
        date = dt.datetime.fromisoformat(text)
        return (date if date.tzinfo else date.replace(tzinfo=dt.UTC)).timestamp()
    return None
