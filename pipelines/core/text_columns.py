"""Columns of text: as foreign Parquet files hold them, with nulls and bytes that are no text; and as plain arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core.drops import Drops


def arrays_of(texts: pa.StringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return the bytes of a column without nulls and where each text begins in them, and last where all end.

    Nothing is copied; the bytes may hold more before the first text and after the last.
    """
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, np.int32)
    _, starts, data = texts.buffers()
    whole = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return whole, np.frombuffer(starts, np.int32)[texts.offset : texts.offset + len(texts) + 1]


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
