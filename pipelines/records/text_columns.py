"""Columns of text: which they are, slices of them, and validation of texts in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.records import shards
from pipelines.records.drops import Drops
from pipelines.records.reader import BadRecord, parse_line


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type contains texts, of a dictionary or not."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def urls_of(batch: pa.RecordBatch, column: str = "url") -> list[str | None]:
    """Return the URLs of a batch of documents, all None if the input has no such column."""
    if column not in batch.schema.names:
        return [None] * batch.num_rows
    return [None if url is None else str(url) for url in batch.column(column).to_pylist()]


def slices_within(
    starts: npt.NDArray[np.integer], max_bytes: int, max_rows: int | None = None
) -> Iterator[tuple[int, int]]:
    """Yield first and last row (exclusive) of slices of at most `max_bytes`, or of one row.

    `starts` are the offsets of the rows, and the end of the last.
    """
    first, rows = 0, len(starts) - 1
    while first < rows:
        last = int(np.searchsorted(starts, int(starts[first]) + max_bytes, side="right")) - 1
        last = min(max(first + 1, last), rows, first + (max_rows or rows))
        yield first, last
        first = last


def drop_invalid_text(batch: pa.RecordBatch, drops: Drops) -> pa.RecordBatch:
    """Return the rows of a batch whose text is present, valid UTF-8 and not blank; count the others in `drops`.

    A Parquet column of strings can contain texts that are not UTF-8.
    """
    batch = drop_rows(batch, batch.column("text").is_null(), "missing_text", drops)
    rows = shards.invalid_rows(batch.column("text"))
    if rows:
        bad = batch.take(pa.array(rows))
        for id, text in zip(bad.column("id").to_pylist(), bad.column("text").cast(pa.binary()), strict=True):
            if isinstance(problem := parse_line(text.as_py()), BadRecord):
                drops.add(problem.reason, id, detail=problem.detail)
        batch = batch.filter(pa.array(np.isin(np.arange(batch.num_rows), rows, invert=True)))
    texts = batch.column("text")
    return drop_rows(batch, pc.or_(pc.equal(pc.binary_length(texts), 0), pc.utf8_is_space(texts)), "empty_text", drops)


def drop_rows(batch: pa.RecordBatch, mask: pa.BooleanArray, reason: str, drops: Drops) -> pa.RecordBatch:
    """Return the rows of a batch of documents that a mask excludes; list the others in `drops`."""
    if not mask.true_count:
        return batch
    dropped = batch.filter(mask)
    for id, url in zip(dropped.column("id").to_pylist(), urls_of(dropped), strict=True):
        drops.add(reason, id, url)
    return batch.filter(pc.invert(mask))
