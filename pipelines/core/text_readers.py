"""Readers of documents from Parquet, JSONL and plain text, as Arrow batches with `id` and `text`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipelines.core import shards, storage
from pipelines.core.bounded import MAX_LINE_BYTES, max_text_bytes, numbered_lines, read_at_most
from pipelines.core.compression import open_decompressed
from pipelines.core.drops import Drops
from pipelines.core.errors import InputError
from pipelines.core.records import DOCUMENT_SCHEMA
from pipelines.core.text_columns import drop_invalid_text

_BATCH_ROWS = 1024
_BATCH_BYTES = 4 << 20

# A surrogate escaped in JSON; only lines with one are searched for unpaired surrogates.
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# A surrogate as raw bytes, which UTF-8 forbids but json.loads accepts. A separate pattern, tried only on lines with its
# first byte: a combined pattern is many times slower on every line.
_RAW_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")

# JSONL may have fields that are not part of a document; they are kept, as JSON, in this column.
JSONL_SCHEMA = DOCUMENT_SCHEMA.append(pa.field("metadata", pa.string()))


def document_fields(schema: pa.Schema, text_field: str, path: str) -> pa.Schema:
    """Return the schema of the documents of a Parquet file: its columns, with `id`, and its text as `text`."""
    shards.require_distinct(path, schema.names)
    kind = schema.field(text_field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise InputError(f"{path}: column {text_field!r} is {kind}, not text; choose another with --text-field")
    if "id" in schema.names and pa.types.is_nested(schema.field("id").type):
        raise InputError(f"{path}: column 'id' is {schema.field('id').type}, not text or a number; rename or remove it")
    fields = [pa.field("id", pa.string(), nullable=False)] + [field for field in schema if field.name != "id"]
    renamed = [
        pa.field("text", pa.string(), nullable=False) if field.name == text_field else field
        for field in fields
        if field.name == text_field or field.name != "text"
    ]
    return pa.schema(renamed)


def read_parquet(
    path: str,
    name: str,
    row_groups: Sequence[int] | None,
    *,
    text_field: str,
    drops: Drops,
    batch_bytes: int,
    is_verified: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a Parquet file, or of some of its row groups, in batches of about `batch_bytes`."""
    schema = None
    row, batches = _parquet_batches(path, row_groups, batch_bytes, is_verified)
    for batch in batches:
        schema = schema or document_fields(batch.schema, text_field, path)
        shards.check_values(path, batch, row, except_column=text_field)
        columns = {field.name: batch.column(field.name) for field in batch.schema}
        texts = columns.pop(text_field).cast(pa.string())
        default_ids = [f"{name}:{row + offset}" for offset in range(batch.num_rows)]
        row += batch.num_rows
        try:
            ids = columns.pop("id").cast(pa.string()).to_pylist() if "id" in columns else default_ids
        except (pa.ArrowException, ValueError) as error:
            kind = batch.schema.field("id").type
            raise InputError(f"{path}: column 'id' is {kind} and cannot be written as text ({error})") from error
        ids = [default if id is None else id for id, default in zip(ids, default_ids, strict=True)]
        columns |= {"id": pa.array(ids, pa.string()), "text": texts}
        documents = pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)
        yield drop_invalid_text(documents, drops)


def _parquet_batches(
    path: str, row_groups: Sequence[int] | None, batch_bytes: int, is_verified: bool
) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return the number of the first row to read, and the rows in batches of limited size (a row is never split)."""
    groups = None if row_groups is None else list(row_groups)
    with storage.open_read(path) as stream:
        metadata = shards.open_parquet(stream, path).metadata
        rows = shards.rows_per_batch(stream, path, groups, batch_bytes, is_verified=is_verified)
    first_row = sum(metadata.row_group(group).num_rows for group in range(groups[0])) if groups else 0
    batches = shards.read_batches(path, row_groups=groups, rows=rows)
    # Single large rows, and texts that repeat, make a batch larger than the footer lets expect.
    return first_row, (part for batch in batches for part in shards.split_by_bytes(batch, 4 * batch_bytes))


def read_plain_text(
    files: Iterable[tuple[str, str]], drops: Drops, max_bytes: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the documents of text files, pairs of path and id, in batches: one per file costs ~2 ms in every stage."""
    rows: list[dict[str, Any]] = []
    pending_bytes = 0
    for path, name in files:
        limit = max_bytes or max_text_bytes(storage.size_bytes(path))
        with open_decompressed(path) as stream:
            data = read_at_most(stream, limit)
        if data is None:
            drops.add("too_large", name, detail=f"more than {limit} bytes in one text file")
            continue
        if rows and (len(rows) == _BATCH_ROWS or pending_bytes + len(data) > _BATCH_BYTES):
            yield _batch(rows)
            rows, pending_bytes = [], 0
        try:
            rows.append({"id": name, "text": data.decode("utf-8-sig")})
            pending_bytes += len(data)
        except UnicodeDecodeError as error:
            drops.add("not_utf8", name, detail=str(error))
    if rows:
        yield _batch(rows)


def read_jsonl(
    path: str, name: str, text_field: str, drops: Drops, max_bytes: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the documents of a JSONL file; raise InputError if no record has the text field."""
    max_line_bytes = max_bytes or MAX_LINE_BYTES
    rows: list[dict[str, Any]] = []
    pending_bytes = kept = lines = 0
    first_line = b""
    with open_decompressed(path) as stream:
        for number, line in numbered_lines(stream, max_line_bytes):
            lines += 1
            first_line = first_line or line
            if len(line) >= max_line_bytes:
                drops.add("too_large", f"{name}:{number}", detail=f"a line of {max_line_bytes} bytes or more")
                continue
            row = jsonl_row(line, f"{name}:{number}", text_field, drops)
            if row is None:
                continue
            kept += 1
            rows.append(row)
            pending_bytes += len(line)
            if len(rows) >= _BATCH_ROWS or pending_bytes >= _BATCH_BYTES:
                yield _batch(rows)
                rows, pending_bytes = [], 0
    if rows:
        yield _batch(rows)
    if lines and not kept:
        raise InputError(
            f"{path}: none of its {lines:,} records has a text in the field {text_field!r}; the first "
            f"{_describe_record(first_line, text_field)} (--text-field chooses another field)"
        )


def _describe_record(line: bytes, text_field: str) -> str:
    """Return why a line has no text."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"is not valid JSON: {error}"
    if not isinstance(record, dict):
        return "is not a JSON object"
    if text_field in record:
        return f"has {json.dumps(record[text_field])[:80]} there"
    return f"has the fields {', '.join(map(repr, record))}"


def jsonl_row(line: bytes, default_id: str, text_field: str, drops: Drops) -> dict[str, Any] | None:
    """Return a row of JSONL_SCHEMA, or None, counted in `drops`, for a line without a document."""
    try:
        record = json.loads(line)
        if _ESCAPED_SURROGATE.search(line) or (b"\xed" in line and _RAW_SURROGATE.search(line)):
            record = replace_surrogates(record)
    except (ValueError, RecursionError) as error:
        drops.add("bad_json", default_id, detail=str(error))
        return None
    if not isinstance(record, dict):
        drops.add("bad_json", default_id, detail="the line is not a JSON object")
        return None
    text = record.pop(text_field, None)
    id = record.pop("id", None)
    row: dict[str, Any] = {"id": default_id if id is None else str(id), "text": text}
    if not isinstance(text, str):
        drops.add("missing_text", row["id"])
        return None
    rest = {}
    for key, value in record.items():
        if key in DOCUMENT_SCHEMA.names and key not in row and _fits(value, DOCUMENT_SCHEMA.field(key).type):
            row[key] = value
        else:
            rest[key] = value
    if rest:
        row["metadata"] = json.dumps(rest, ensure_ascii=False, sort_keys=True)
    return row


def replace_surrogates(value: Any) -> Any:
    """Replace unpaired surrogates, which JSON can express and UTF-8 cannot, by U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    return value


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    if pa.types.is_string(kind):
        return isinstance(value, str)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return pa.types.is_list(kind) and isinstance(value, list) and all(isinstance(item, str) for item in value)


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=JSONL_SCHEMA)
