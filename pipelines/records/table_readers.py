"""Readers of documents from Parquet and Arrow files, and the schema that the files of an input have in common."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.drops import Drops
from pipelines.records.text_columns import drop_invalid_text, is_text
from pipelines.records.text_readers import ID_COLUMNS_TO_KEEP, TEXT_FIELD_ADVICE, ReadOptions

TABLE_SUFFIXES = (".parquet", ".arrow", ".feather")
_BATCH_BYTES = 16 << 20
_IPC_FILE_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"


def document_fields(schema: pa.Schema, options: ReadOptions, path: str) -> pa.Schema:
    """Return the schema of the documents of a table: its columns, with `id`, and its text as `text`.

    Raises InputError if a column is missing, occurs twice, or is not of a type that can be read.
    """
    shards.require_distinct(path, schema.names)
    with shards.damage_reported(path, "has columns that cannot be read"):
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        return _documents(empty, path, "", 0, options).schema


def read_table(
    batches: Iterable[pa.RecordBatch], path: str, name: str, first_row: int, options: ReadOptions, drops: Drops
) -> Iterator[pa.RecordBatch]:
    """Yield the documents of the batches of a table, the first of which begins at row `first_row`."""
    row = first_row
    for batch in batches:
        with shards.damage_reported(path, "has columns that cannot be read"):  # damaged, or of types without functions
            documents = drop_invalid_text(_documents(batch, path, name, row, options), drops)
        row += batch.num_rows
        yield documents


@contextlib.contextmanager
def parquet_batches(
    path: str, row_groups: Sequence[int] | None, batch_bytes: int | None, is_verified: bool
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """Yield the number of the first row to read, and the rows in batches of limited size (a row is never split).

    The rows are those of a Parquet file, or of some of its row groups; `batch_bytes` is about 16 MiB by default.
    """
    batch_bytes = batch_bytes or _BATCH_BYTES
    groups = None if row_groups is None else list(row_groups)
    with shards.open_stream(path) as stream:
        metadata = shards.open_parquet(stream, path).metadata
        rows = shards.rows_per_batch(stream, path, groups, batch_bytes, is_verified=is_verified)
        first_row = sum(metadata.row_group(group).num_rows for group in range(groups[0])) if groups else 0
        batches = shards.stream_batches(stream, path, None, groups, rows)
        # Single large rows, and texts that repeat, make a batch larger than the footer lets expect.
        yield first_row, (part for batch in batches for part in shards.split_by_bytes(batch, 4 * batch_bytes))


@contextlib.contextmanager
def open_arrow(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Yield the schema and the batches of an Arrow IPC file or stream; raise InputError if it is neither, or damaged.

    The file is memory-mapped, so that an uncompressed batch is never in memory as a whole.
    """
    with (
        shards.damage_reported(path, "cannot be read as Arrow"),
        pa.memory_map(storage.mapped_path(path)) as source,
    ):
        start = source.read(len(_IPC_FILE_MAGIC))
        source.seek(0)
        if start.startswith(_FEATHER_1_MAGIC):
            raise InputError(f"{path}: is a file of Feather version 1; write it again with version 2, or as Parquet")
        if start == _IPC_FILE_MAGIC:
            file = pa.ipc.open_file(source)
            yield file.schema, (file.get_batch(number) for number in range(file.num_record_batches))
        else:
            reader = pa.ipc.open_stream(source)
            yield reader.schema, iter(reader)


def arrow_batches(path: str, batch_bytes: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an Arrow file in batches of at most 64 MiB, or four times `batch_bytes`."""
    with open_arrow(path) as (_, batches):
        for batch in batches:
            for column in batch.columns:
                _check_offsets(column)
            yield from shards.split_by_bytes(batch, 4 * (batch_bytes or _BATCH_BYTES))


def _check_offsets(column: pa.Array) -> None:
    """Raise ArrowInvalid for a damaged column, which pyarrow would read beyond its end; any bytes are texts here."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.view(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
    column.validate(full=True)


def _documents(batch: pa.RecordBatch, path: str, name: str, row: int, options: ReadOptions) -> pa.RecordBatch:
    """Return a batch with the columns `id` and `text`; the texts may be missing, or not be UTF-8."""
    columns = {
        # pyarrow cannot filter views.
        name: column.cast(pa.string()) if pa.types.is_string_view(column.type) else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    texts = _pop_column(columns, options.text_field, path, TEXT_FIELD_ADVICE)
    if not is_text(texts.type):
        raise InputError(
            f"{path}: column {options.text_field!r} is {texts.type}, not text; choose another with --text-field"
        )
    given_ids, id_field = None, options.id_field or "id"
    if options.id_field or "id" in columns:
        given_ids = _pop_column(columns, id_field, path)
    checked = columns if given_ids is None else {**columns, id_field: given_ids}
    if id_field in ID_COLUMNS_TO_KEEP:
        columns = checked
    rest = {key: column for key, column in columns.items() if key not in ("id", "text")}
    shards.check_values(path, pa.RecordBatch.from_pydict(checked), row)
    ids = _ids(given_ids, id_field, path, [f"{name}:{row + offset}" for offset in range(len(texts))])
    output = {"id": (pa.field("id", pa.string(), nullable=False), ids)}
    text_field = options.text_field if options.text_field in batch.schema.names else options.text_field.split(".")[0]
    for field in batch.schema:
        if field.name == text_field:
            decoded = texts.dictionary_decode() if pa.types.is_dictionary(texts.type) else texts
            output["text"] = (pa.field("text", pa.string(), nullable=False), decoded.cast(pa.string()))
        if field.name in rest:
            column = rest[field.name]
            # Of another type without what was the text or the id.
            output[field.name] = (
                field if field.type.equals(column.type) else pa.field(field.name, column.type),
                column,
            )
    fields, arrays = zip(*output.values(), strict=True)
    return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


def _pop_column(columns: dict[str, pa.Array], field: str, path: str, advice: str = "") -> pa.Array:
    """Remove a column, or a field of a struct (`doc.content`), and return it; raise InputError if it is absent."""
    name, _, rest = field.partition(".")
    if field in columns or not rest or name not in columns or not pa.types.is_struct(columns[name].type):
        shards.require_columns(path, list(columns), [field], advice)
        return columns.pop(field)
    struct = columns.pop(name)
    children = {struct.type.field(index).name: struct.field(index) for index in range(struct.type.num_fields)}
    value = _pop_column(children, rest, f"{path}: {name}", advice)
    if children:
        columns[name] = pa.StructArray.from_arrays(
            list(children.values()), names=list(children), mask=struct.is_null() if struct.null_count else None
        )
    # A text below a null is none.
    return pc.if_else(struct.is_valid(), value, pa.scalar(None, value.type)) if struct.null_count else value


def _ids(values: pa.Array | None, field: str, path: str, default_ids: list[str]) -> pa.Array:
    if values is None:
        return pa.array(default_ids, pa.string())
    if pa.types.is_nested(values.type):
        raise InputError(f"{path}: column {field!r} is {values.type}, not text or a number; rename or remove it")
    try:
        ids = values.cast(pa.string()).to_pylist()
    except (pa.ArrowException, ValueError) as error:
        raise InputError(
            f"{path}: column {field!r} is {values.type} and cannot be written as text ({error})"
        ) from error
    return pa.array([default if id is None else id for id, default in zip(ids, default_ids, strict=True)], pa.string())


def union_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return a schema with the columns of all schemas of documents; one of different types is of a type for all.

    That is text if there is no other.
    """
    distinct: list[pa.Schema] = []
    for schema in schemas:
        if not any(schema.equals(other) for other in distinct):
            distinct.append(schema)
    if len(distinct) == 1:
        return distinct[0]
    types: dict[str, pa.DataType] = {}
    for field in (field for schema in distinct for field in schema):
        types[field.name] = _common_type(types.get(field.name, field.type), field.type)
    return pa.schema([pa.field(name, kind, nullable=name not in ("id", "text")) for name, kind in types.items()])


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one.equals(other):
        return one
    fields = [pa.schema([("", kind.value_type if pa.types.is_dictionary(kind) else kind)]) for kind in (one, other)]
    try:
        return pa.unify_schemas(fields, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.string()


def conform(batch: pa.RecordBatch, schema: pa.Schema, path: str) -> pa.RecordBatch:
    """Return a batch of documents with the columns of `union_schema`; raise InputError if a value does not fit."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            if not pa.types.is_string(field.type):
                raise InputError(
                    f"{path}: column {field.name!r} is {column.type}, in another file of the input {field.type} "
                    f"({error}); read the files one by one, or rename the column"
                ) from error
            columns.append(pa.array([_as_text(value) for value in column.to_pylist()], pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
