"""Phase 1: the record of each document, and its keys in buckets: the hash of its text, and one key per band."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress
from pipelines.algorithms.minhash.signing import band_keys, choose_bands, permutations, sign
from pipelines.engine.manifest import FileEntry
from pipelines.engine.run import TaskResult
from pipelines.errors import WebtextError
from pipelines.extras import require_extra
from pipelines.records import inputs, shards
from pipelines.records.buckets import write_buckets
from pipelines.records.document_filter import group_names
from pipelines.records.documents import parse_instant
from pipelines.records.drops import Drops
from pipelines.stages.dedup.documents import (
    NO_DATE,
    NO_SCORE,
    SIGNATURES,
    Corpus,
    Records,
    SourceShard,
    buckets_of,
    record_type,
    signature_schema,
    work_name,
)
from pipelines.stages.dedup.paragraphs import ParagraphRemover

KEY_SCHEMA = pa.schema([pa.field("key", pa.uint64(), nullable=False), pa.field("row", pa.uint32(), nullable=False)])

_ROWS_PER_BATCH = 8192


class _Signed(NamedTuple):
    """Documents with their signatures: documents without words have no band keys, documents without text no keys.

    `is_emptied` marks documents whose text consisted of frequent paragraphs, which are dropped for that reason.
    """

    documents: pa.RecordBatch
    text_hashes: npt.NDArray[np.uint64]
    values: npt.NDArray[np.uint32]
    has_words: npt.NDArray[np.bool_]
    is_emptied: npt.NDArray[np.bool_]


def sign_shard(shard: SourceShard, corpus: Corpus) -> TaskResult:
    """Write the records, the ids and the keys of a shard of documents; with `write_signatures` also the signatures."""
    config, buckets = corpus.config, corpus.buckets
    all_records, ids = [np.empty(0, record_type(config.num_perm))], [np.empty(0, np.uint8)]
    values = [np.empty((0, config.num_perm), np.uint32)]
    bands = choose_bands(config.num_perm, config.threshold)
    rows = id_end = 0
    counts = Counter[str]()
    with write_buckets(corpus.path("keys", shard.index, "buckets"), KEY_SCHEMA) as written:
        for signed in _read_signatures(shard) if shard.signatures else _sign_documents(shard, corpus):
            numbers = np.arange(rows, rows + signed.documents.num_rows)
            texts, text_rows = signed.text_hashes[~signed.is_emptied, 0], numbers[~signed.is_emptied]
            batch = pa.RecordBatch.from_arrays([texts, text_rows], schema=KEY_SCHEMA)
            written.write(batch, buckets_of(texts, buckets))
            keys = band_keys(signed.values, *bands)[signed.has_words]
            key_rows, keys = numbers[signed.has_words].repeat(keys.shape[1]), keys.reshape(-1)
            batch = pa.RecordBatch.from_arrays([keys, key_rows], schema=KEY_SCHEMA)
            written.write(batch, buckets + buckets_of(keys, buckets))
            encoded = [id.encode() for id in signed.documents.column("id").to_pylist()]
            ids.append(np.frombuffer(b"".join(encoded), np.uint8))
            records = np.empty(len(numbers), record_type(config.num_perm))
            records["sketch"] = signed.values[:, : records["sketch"].shape[1]].astype(np.uint8)
            records["text_hash"], records["has_words"] = signed.text_hashes, signed.has_words
            records["id_end"] = id_end + np.cumsum([len(id) for id in encoded])
            for field, column, missing in (("score", "score", NO_SCORE), ("created", "created_utc", NO_DATE)):
                kind = pa.from_numpy_dtype(records[field].dtype)
                records[field], unreadable = _ranking_column(signed.documents, column, kind, missing)
                if unreadable:
                    counts["unreadable_scores" if field == "score" else "unreadable_dates"] += unreadable
            all_records.append(records)
            if config.write_signatures and not shard.is_earlier:
                values.append(signed.values)
            rows, id_end = rows + len(numbers), int(records["id_end"][-1])
            progress.advance(len(numbers))
    files = (
        corpus.write_array("records", shard.index, np.concatenate(all_records)),
        corpus.write_array("ids", shard.index, np.concatenate(ids)),
        corpus.write_array("values", shard.index, np.concatenate(values)),
        written.entry(work_name("keys", shard.index, "buckets")),
    )
    return TaskResult(counts=dict(counts), files=files)


def _sign_documents(shard: SourceShard, corpus: Corpus) -> Iterator[_Signed]:
    config, remover = corpus.config, ParagraphRemover(shard, corpus)
    for original in inputs.read_documents(shard.require_documents(), Drops()):
        if original.num_rows:
            batch, is_emptied = remover(original)
            signed = sign(batch.column("text"), config.ngram, config.num_perm, config.minhash_seed)
            yield _Signed(batch, signed.text_hashes, signed.values, signed.shingles > 0, is_emptied)


def _read_signatures(shard: SourceShard) -> Iterator[_Signed]:
    assert shard.signatures is not None
    shard.signatures.verify()
    for batch in shards.read_batches(shard.signatures.path):
        if batch.num_rows:
            text_hashes = np.frombuffer(b"".join(batch.column("text_hash").to_pylist()), "<u8").reshape(-1, 2)
            has_words = batch.column("has_words").to_numpy(zero_copy_only=False)
            values = np.asarray(batch.column("minhash").flatten()).reshape(batch.num_rows, -1)
            yield _Signed(batch, text_hashes, values, has_words, np.zeros(batch.num_rows, bool))


def check_datasketch(num_perm: int, seed: int) -> None:
    """Raise WebtextError if datasketch is not installed or would not understand the signatures."""
    require_extra("datasketch", "--write-signatures", "datasketch")
    from datasketch import MinHash  # deferred: it loads scipy

    if (permutations(num_perm, seed) != MinHash(num_perm, seed, scheme="affine32").permutations).any():
        raise WebtextError(
            "--write-signatures: datasketch computes other signatures; run: pip install datasketch==2.0.0"
        )


def write_signatures(shard: int, is_kept: npt.NDArray[np.bool_], corpus: Corpus) -> FileEntry:
    """Write the signatures of the documents of a shard that are kept, in their order."""
    records, values = Records(corpus), corpus.read_array("values", shard)
    schema = signature_schema(corpus.config)
    with shards.write_shard(corpus.output, shards.shard_name(SIGNATURES, shard), schema, repetitive=()) as written:
        kept = np.flatnonzero(is_kept)
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
                pa.FixedSizeListArray.from_arrays(flat, corpus.config.num_perm),
            ]
            written.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return written.entry


def _ranking_column(batch: pa.RecordBatch, name: str, kind: pa.DataType, missing: float) -> tuple[Any, int]:
    """Return a column that ranks duplicates, and how many of its values are neither numbers nor dates.

    Dates are in seconds. `missing` replaces such values and absent ones. In JSONL, the values may be among the further
    fields.
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
    """Return a number, or a date in seconds since 1970; None for other texts."""
    with contextlib.suppress(ValueError):
        number = float(text)
        return number if math.isfinite(number) else None
    date = parse_instant(text)
    return None if date is None else date.timestamp()
