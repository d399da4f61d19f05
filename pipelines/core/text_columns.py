"""Columns of text as foreign Parquet files hold them: with nulls, and with bytes that are no text."""

from __future__ import annotations

import pyarrow as pa

from pipelines.core.drops import Drops


def with_valid_text(batch: pa.RecordBatch, drops: Drops) -> pa.RecordBatch:
    """Return the rows of a batch with `id` and `text` whose text is there and is UTF-8; count the others in `drops`."""
    return _without_bad_text(_without_missing_text(batch, drops), drops)


def _without_missing_text(batch: pa.RecordBatch, drops: Drops) -> pa.RecordBatch:
    texts = batch.column("text")
    if not texts.null_count:
        return batch
    for id in batch.filter(texts.is_null()).column("id").to_pylist():
        drops.add("missing_text", id)
    return batch.filter(texts.is_valid())


def _without_bad_text(batch: pa.RecordBatch, drops: Drops) -> pa.RecordBatch:
    """Drop the rows whose text is not UTF-8, which a Parquet file may hold in a column of strings all the same."""
    raw = batch.column("text").cast(pa.binary())
    try:
        raw.cast(pa.string())
        return batch
    except pa.ArrowInvalid:
        problems = [_problem(text) for text in raw.to_pylist()]
    for id, problem in zip(batch.column("id").to_pylist(), problems, strict=True):
        if problem is not None:
            drops.add("not_utf8", id, detail=problem)
    return batch.filter(pa.array([problem is None for problem in problems], pa.bool_()))


def _problem(text: bytes) -> str | None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return str(error)
    return None
