"""Filters documents: keeps all columns, and lists the dropped documents."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress
from pipelines.engine.run import TaskResult
from pipelines.records import inputs, shards
from pipelines.records.drops import Drops
from pipelines.records.schemas import DROPPED_SCHEMA
from pipelines.records.text_columns import is_text, urls_of


class DropReason(NamedTuple):
    """Why a document is dropped."""

    reason: str
    detail: str | None = None


# Returns a batch with `id` and `text` (and other columns), its texts possibly changed, and for each row the reason to
# drop it, or None to keep it.
Decide = Callable[[pa.RecordBatch], tuple[pa.RecordBatch, list[DropReason | None]]]


def filter_shard(
    shard: inputs.DocumentShard, output: str, decide: Decide, schema: pa.Schema | None = None
) -> TaskResult:
    """Write `documents-N.parquet` with the documents that are kept and `dropped-N.parquet` with the others' ids.

    If `decide` adds columns, `schema` is that of its results. A column of numbers `words` is counted again if it
    changes texts; a document with a URL gets its `domain` if the input gives none.
    """
    schema = with_domains(pa.RecordBatch.from_pylist([], schema or inputs.document_schema(shard))).schema
    with (
        shards.write_shard(output, shards.shard_name("documents", shard.index), schema) as kept,
        shards.write_shard(output, shards.shard_name("dropped", shard.index), DROPPED_SCHEMA) as dropped,
    ):
        drops = Drops(dropped.write)
        for batch in inputs.read_documents(shard, drops):
            before = batch
            batch, reasons = decide(batch)
            batch = _without_stale_spans(_with_words(batch, before.column("text")), before)
            is_kept = pa.array([reason is None for reason in reasons], pa.bool_())
            others = batch.filter(pc.invert(is_kept))
            rows = zip(others.column("id").to_pylist(), urls_of(others), filter(None, reasons), strict=True)
            for id, url, (reason, detail) in rows:
                drops.add(reason, id, url, detail)
            kept.write_batch(with_domains(batch.filter(is_kept)))
            progress.advance(len(reasons))
    return drops.task_result(kept.records, (kept.entry, dropped.entry))


def _with_words(batch: pa.RecordBatch, texts: pa.Array) -> pa.RecordBatch:
    """Return a batch whose column `words` is that of its texts, which were `texts` before."""
    index = batch.schema.get_field_index("words")
    if index < 0 or not pa.types.is_integer(batch.schema.field(index).type) or texts.equals(batch.column("text")):
        return batch
    words = [count_words(text) for text in batch.column("text").to_pylist()]
    return batch.set_column(index, batch.schema.field(index), pa.array(words, batch.schema.field(index).type))


def _without_stale_spans(batch: pa.RecordBatch, before: pa.RecordBatch) -> pa.RecordBatch:
    """Return documents whose `redactions` are null where they are still those of the text that was changed."""
    if "redactions" not in before.schema.names or before.column("text").equals(batch.column("text")):
        return batch
    columns = [table.column(name).to_pylist() for name in ("text", "redactions") for table in (before, batch)]
    spans = [None if a != b and old and old == new else new for a, b, old, new in zip(*columns, strict=True)]
    index = batch.schema.get_field_index("redactions")
    return batch.set_column(index, batch.schema.field(index), pa.array(spans, batch.schema.field(index).type))


def with_domains(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return documents whose column `domain` has the registered domain of each URL where it was null or absent."""
    if "url" in batch.schema.names and "domain" not in batch.schema.names:
        batch = batch.append_column("domain", pa.nulls(batch.num_rows, pa.string()))
    index = batch.schema.get_field_index("domain")
    if "url" not in batch.schema.names or not pa.types.is_string(batch.schema.field(index).type):
        return batch
    places = list(zip(batch.column(index).to_pylist(), urls_of(batch), strict=True))
    if all(domain or not url for domain, url in places):
        return batch
    from pipelines.algorithms.web.urls import registered_domain  # deferred: the public suffix list takes 0.1 s

    domains = [domain or (url and registered_domain(url)) for domain, url in places]
    return batch.set_column(index, batch.schema.field(index), pa.array(domains, pa.string()))


def count_words(text: str) -> int:
    """Return the number of words of a document, for its column `words`: what white space divides."""
    return len(text.split())


def group_names(batch: pa.RecordBatch, field: str) -> list[str | None]:
    """Return the group of each document: a column, or else a further field of JSONL; None for neither."""
    names: list[str | None] = [None] * batch.num_rows
    if field in batch.schema.names:
        names = [None if value is None else str(value) for value in batch.column(field).to_pylist()]
    if "metadata" not in batch.schema.names or not is_text(batch.schema.field("metadata").type):
        return names
    metadata = batch.column("metadata").cast(pa.string())
    # Parse only rows that contain the quoted name, as `read_documents` writes it: most inputs do not have the field.
    rows = np.flatnonzero(pc.fill_null(pc.match_substring(metadata, json.dumps(field, ensure_ascii=False)), False))
    for row, value in zip(rows.tolist(), metadata.take(pa.array(rows)).to_pylist(), strict=True):
        if names[row] is None:
            name = json_fields(value).get(field)
            names[row] = None if name is None else str(name)
    return names


def json_fields(metadata: Any) -> dict[str, Any]:
    """Return the further fields of a record of JSONL, which the column `metadata` contains as JSON.

    Empty if a foreign file has a different column of this name.
    """
    try:
        fields = json.loads(metadata)
    except (TypeError, ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
