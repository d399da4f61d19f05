"""Documents from the records of any file: which fields are their text and id, and what is dropped instead."""

from __future__ import annotations

import datetime as dt
import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.algorithms.web.text_repair import replace_surrogates
from pipelines.errors import InputError
from pipelines.format import plural
from pipelines.records import shards
from pipelines.records.document_options import DocumentConfig
from pipelines.records.drops import Drops
from pipelines.records.file_parts import FilePart
from pipelines.records.reader import BadRecord, file_format, parse_json, parse_line, read_records
from pipelines.records.schemas import DOCUMENT_SCHEMA
from pipelines.records.text_columns import drop_invalid_text, is_text
from pipelines.storage.bounded import BYTE_ORDER_MARK, MAX_LINE_BYTES, max_text_bytes, read_at_most
from pipelines.storage.compression import open_decompressed, strip_compression

_BATCH_ROWS = 1024
_BATCH_BYTES = 4 << 20
_INTEGER = re.compile(r"-?\d{1,18}")
_TEXT_FIELD_ADVICE = " (--text-field chooses another column)"

# JSONL may have fields that are not part of a document; they are kept, as JSON, in this column.
JSONL_SCHEMA = DOCUMENT_SCHEMA.append(pa.field("metadata", pa.string()))

# Of the other fields; `Schema.names` would make a list of all at each access.
_TYPES = {field.name: field.type for field in DOCUMENT_SCHEMA if field.name not in ("id", "text")}
_dump_json = json.JSONEncoder(ensure_ascii=False, sort_keys=True).encode

# Of --id-field: later stages read these columns.
_ID_COLUMNS_TO_KEEP = {*DOCUMENT_SCHEMA.names} - {"id"}

Row = dict[str, Any]


class SourceFile(NamedTuple):
    """A file of documents, its name in their ids, and the part to read if it is not read whole."""

    path: str
    name: str
    part: FilePart | None = None


def record_batches(files: Iterable[SourceFile], drops: Drops, options: DocumentConfig) -> Iterator[pa.RecordBatch]:
    """Yield the documents of files other than tables, in batches of JSONL_SCHEMA.

    A batch can be of several files: one per file costs ~2 ms in every stage.
    """
    rows: list[Row] = []
    pending_bytes = 0
    for file in files:
        for row, size_bytes in _rows(file, drops, options):
            if rows and (len(rows) == _BATCH_ROWS or pending_bytes + size_bytes > _BATCH_BYTES):
                yield _batch(rows)
                rows, pending_bytes = [], 0
            rows.append(row)
            pending_bytes += size_bytes
    if rows:
        yield _batch(rows)


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Return rows as a batch of JSONL_SCHEMA; converting only the fields that occur takes half the time."""
    names = set().union(*rows)
    fields = pa.struct([field for field in JSONL_SCHEMA if field.name in names])
    return conform(pa.RecordBatch.from_struct_array(pa.array(rows, fields)), JSONL_SCHEMA, "")


def has_document_lines(path: str, options: DocumentConfig) -> bool:
    """Return whether each line of a file is a document, so that the file can be read in parts."""
    is_text = options.document == "line" and strip_compression(path).endswith(".txt")
    return file_format(path) == "jsonl" or is_text


def _rows(file: SourceFile, drops: Drops, options: DocumentConfig) -> Iterator[tuple[Row, int]]:
    """Yield the documents of a file, or of a part, with the bytes that each was read from.

    Raises InputError if the file has records in JSON, and none has the text field, or the requested id field.
    """
    path, name, part = file
    form = file_format(path)
    if strip_compression(path).endswith(".wet"):
        yield from _wet_rows(path, name, drops, options)
        return
    if form == "text" and not has_document_lines(path, options):
        yield from _text_file_row(path, name, drops, options)
        return
    columns = [options.text_field, *filter(None, [options.id_field])]
    is_json, kept, count, ids = form in ("jsonl", "json"), 0, 0, 0
    first, problem, empty = b"", "", drops.counts["empty_text"]
    try:
        for number, value, content in read_records(path, form, columns=columns, max_bytes=options.max_bytes, part=part):
            count += 1
            id = f"{name}:{number}"
            if form == "text" and isinstance(value, str):
                # Only \n ends a line: form feeds and U+2028 may be part of a document.
                content = content.removesuffix(b"\n").removesuffix(b"\r")
                row = _text_row(content, id, drops)
            elif form in ("csv", "tsv") and isinstance(value, dict):
                given_id = replace_surrogates(value.get(options.id_field or "id") or id)
                row = document_row(_typed_cells(value, options), given_id, drops, options)
            else:
                row = document_row(value, id, drops, options)
            if not isinstance(value, BadRecord):
                first = first or content
            elif value.reason == "bad_json":
                problem = problem or f"record {number} is not valid JSON ({value.detail})"
            if row is not None:
                kept += 1
                ids += row["id"] != id
                yield row, len(content)
    except shards.MissingColumnError as error:
        raise InputError(f"{error}{_TEXT_FIELD_ADVICE * (error.column == options.text_field)}") from error
    if not is_json or drops.counts["empty_text"] > empty:
        return
    if part and (not kept or (options.id_field and not ids)):
        # Only a problem of all parts is one of the file; the task of the first reads it whole to find out.
        if not part.start:
            for _ in _rows(file._replace(part=None), Drops(), options):
                pass
        return
    read = plural(count, "record")
    if problem and not first:
        raise InputError(f"{path}: {problem}{', nor is any other record' * (count > 1)}; write one object per line")
    if first and not kept:
        raise InputError(
            f"{path}: no record has a text in the field {options.text_field!r} (of {read}); the first "
            f"{_describe_record(parse_json(first), options.text_field)} (--text-field chooses another field)"
        )
    if options.id_field and kept and not ids:
        read += f"; the first {_describe_record(parse_json(first), options.id_field)}"
        raise InputError(f"{path}: no record has the field {options.id_field!r} of --id-field (of {read})")


def document_row(value: Any, default_id: str, drops: Drops, options: DocumentConfig) -> Row | None:
    """Return the row of JSONL_SCHEMA of a record, or None, counted in `drops`, for one that is not a document."""
    if not isinstance(value, dict):
        bad = value if isinstance(value, BadRecord) else BadRecord("bad_json", "the line is not a JSON object")
        drops.add(bad.reason, default_id, detail=bad.detail or None)
        return None
    text = pop_field(value, options.text_field)
    id_field = options.id_field or "id"
    id = value.get(id_field) if id_field in _ID_COLUMNS_TO_KEEP else pop_field(value, id_field)
    row: Row = {"id": default_id if id is None else str(id), "text": text}
    if not isinstance(text, str):
        drops.add("missing_text", row["id"])
        return None
    if not text or text.isspace():
        drops.add("empty_text", row["id"])
        return None
    rest = {}
    for key, item in value.items():
        if key in _TYPES and _fits(item, _TYPES[key]):
            row[key] = item
        else:
            rest[key] = item
    if rest:
        row["metadata"] = _dump_json(rest)
    return row


def pop_field(record: dict[str, Any], field: str, default: Any = None) -> Any:
    """Remove a field of a record, or of an object in it (`doc.content`), and return its value."""
    if field in record:
        return record.pop(field)
    name, _, rest = field.partition(".")
    nested = record.get(name)
    if not rest or not isinstance(nested, dict):
        return default
    nested = record[name] = dict(nested)
    value = pop_field(nested, rest, default)
    if not nested:
        del record[name]
    return value


def parse_instant(value: str) -> dt.datetime | None:
    """Return the time in ISO 8601, in UTC unless it has a time zone; None for what is not one."""
    try:
        instant = dt.datetime.fromisoformat(value)
    except ValueError:
        return None
    return instant if instant.tzinfo else instant.replace(tzinfo=dt.UTC)


def _describe_record(record: Any, text_field: str) -> str:
    """Return why a record has no text."""
    if not isinstance(record, dict):
        return "is not a JSON object"
    if (value := pop_field(dict(record), text_field)) is not None or text_field in record:
        if isinstance(value, dict) and value:
            return f"has an object there, with {', '.join(repr(f'{text_field}.{name}') for name in value)}"
        return f"has {json.dumps(value)[:80]} there"
    return f"has the fields {', '.join(map(repr, record))}"


def _fits(value: Any, kind: pa.DataType) -> bool:
    if value is None:
        return True
    if pa.types.is_string(kind):
        return isinstance(value, str)
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return pa.types.is_list(kind) and isinstance(value, list) and all(isinstance(item, str) for item in value)


def _typed_cells(record: Row, options: DocumentConfig) -> Row | BadRecord:
    """Return a row of CSV with its numbers, and None for empty cells; of its bytes, only the text must be UTF-8."""
    text = record[options.text_field]
    if replace_surrogates(text) != text:
        return BadRecord("not_utf8", "")
    for key, cell in record.items():
        if key in _TYPES and pa.types.is_integer(_TYPES[key]):
            record[key] = int(cell) if _INTEGER.fullmatch(cell) else cell or None
        else:
            record[key] = replace_surrogates(cell) or None
    return record


def _text_file_row(path: str, name: str, drops: Drops, options: DocumentConfig) -> Iterator[tuple[Row, int]]:
    limit = options.max_bytes or max_text_bytes(storage.size_bytes(path))
    with open_decompressed(path) as stream:
        data = read_at_most(stream, limit)
    if data is None:
        drops.add("too_large", name, detail=f"more than {limit} bytes in one text file")
    elif row := _text_row(data, name, drops):
        yield row, len(data)


def _text_row(data: bytes | bytearray, id: str, drops: Drops) -> Row | None:
    text = parse_line(data.removeprefix(BYTE_ORDER_MARK))
    if isinstance(text, str) and text.strip():
        return {"id": id, "text": text}
    drops.add("empty_text", id) if isinstance(text, str) else drops.add(text.reason, id, detail=text.detail)
    return None


def _wet_rows(path: str, name: str, drops: Drops, options: DocumentConfig) -> Iterator[tuple[Row, int]]:
    """Yield the conversion records of a WET file; raise InputError, with the offset, if the file is damaged."""
    # Deferred, since only this format needs them.
    from pipelines.algorithms.web.urls import id_of_url, registered_domain
    from pipelines.records.archives import read_archive

    limit = options.max_bytes or MAX_LINE_BYTES

    def read(record: Any) -> tuple[str, str, bytes] | None:
        if record.rec_type != "conversion":
            return None
        url, date = (record.rec_headers.get_header(header) for header in ("WARC-Target-URI", "WARC-Date"))
        id_of_url(url)  # AttributeError, which is damage, without a URL
        return url, date or "", record.raw_stream.read(limit)

    count = 0
    for record in read_archive(path, read):
        if record.content is None:
            continue
        count += 1
        url, date, data = record.content
        id = id_of_url(url)
        if not record.is_intact:
            drops.add("damaged_record", id, url, "the length of the record is wrong")
        elif len(data) >= limit:
            drops.add("too_large", id, detail=f"a line of {limit} bytes or more")
        elif row := _text_row(data, id, drops):
            place = {"warc_file": name, "warc_offset": record.offset, "fetched_at": parse_instant(date)}
            yield {**row, "url": url, "domain": registered_domain(url), **place}, len(data)
    if not count:
        raise InputError(f"{path}: has no conversion records; `webtext extract` reads the responses of WARC files")


def table_documents(
    batches: Iterable[pa.RecordBatch], path: str, name: str, row: int, options: DocumentConfig, drops: Drops
) -> Iterator[pa.RecordBatch]:
    """Yield the documents of the batches of a table, the first of which begins at row `row`."""
    for batch in batches:
        with shards.damage_reported(path, "has columns that cannot be read"):  # damaged, or of types without functions
            documents = drop_invalid_text(_documents(batch, path, name, row, options), drops)
        row += batch.num_rows
        yield documents


def table_document_schema(schema: pa.Schema, options: DocumentConfig, path: str) -> pa.Schema:
    """Return the schema of the documents of a table: its columns, with `id`, and its text as `text`.

    Raises InputError if a column is missing, occurs twice, or is not of a type that can be read.
    """
    shards.require_distinct(path, schema.names)
    with shards.damage_reported(path, "has columns that cannot be read"):
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        return _documents(empty, path, "", 0, options).schema


def _documents(batch: pa.RecordBatch, path: str, name: str, row: int, options: DocumentConfig) -> pa.RecordBatch:
    """Return a batch with the columns `id` and `text`; the texts may be missing, or not be UTF-8."""
    columns = {
        # pyarrow cannot filter views.
        name: column.cast(pa.string()) if pa.types.is_string_view(column.type) else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    try:
        texts = _pop_column(columns, options.text_field, path)
    except shards.MissingColumnError as error:
        raise InputError(f"{error}{_TEXT_FIELD_ADVICE}") from error
    if not is_text(texts.type):
        raise InputError(
            f"{path}: column {options.text_field!r} is {texts.type}, not text; choose another with --text-field"
        )
    given_ids, id_field = None, options.id_field or "id"
    if options.id_field or "id" in columns:
        given_ids = _pop_column(columns, id_field, path)
    checked = columns if given_ids is None else {**columns, id_field: given_ids}
    if id_field in _ID_COLUMNS_TO_KEEP:
        columns = checked
    rest = {key: column for key, column in columns.items() if key not in ("id", "text")}
    shards.check_values(path, pa.RecordBatch.from_pydict(checked), row)
    ids = pa.array([f"{name}:{row + offset}" for offset in range(len(texts))], pa.string())
    if given_ids is not None:
        ids = pc.coalesce(_as_ids(given_ids, id_field, path), ids)
    output = {"id": (pa.field("id", pa.string(), nullable=False), ids)}
    text_field = options.text_field if options.text_field in batch.schema.names else options.text_field.split(".")[0]
    for field in batch.schema:
        if field.name == text_field:
            decoded = texts.dictionary_decode() if pa.types.is_dictionary(texts.type) else texts
            output["text"] = (pa.field("text", pa.string(), nullable=False), decoded.cast(pa.string()))
        if field.name in rest:
            column = rest[field.name]
            # Of another type without what was the text or the id.
            same_type = field.type.equals(column.type)
            output[field.name] = (field if same_type else pa.field(field.name, column.type), column)
    fields, arrays = zip(*output.values(), strict=True)
    return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


def _pop_column(columns: dict[str, pa.Array], field: str, path: str) -> pa.Array:
    """Remove a column, or a field of a struct (`doc.content`), and return it; raise InputError if it is absent."""
    name, _, rest = field.partition(".")
    if field in columns or not rest or name not in columns or not pa.types.is_struct(columns[name].type):
        shards.require_columns(path, list(columns), [field])
        return columns.pop(field)
    struct = columns.pop(name)
    children = {struct.type.field(index).name: struct.field(index) for index in range(struct.type.num_fields)}
    value = _pop_column(children, rest, f"{path}: {name}")
    if children:
        columns[name] = pa.StructArray.from_arrays(
            list(children.values()), names=list(children), mask=struct.is_null() if struct.null_count else None
        )
    # A text below a null is missing.
    return pc.if_else(struct.is_valid(), value, pa.scalar(None, value.type)) if struct.null_count else value


def _as_ids(values: pa.Array, field: str, path: str) -> pa.Array:
    if pa.types.is_nested(values.type):
        raise InputError(f"{path}: column {field!r} is {values.type}, not text or a number; rename or remove it")
    try:
        return values.cast(pa.string())
    except pa.ArrowException as error:
        raise InputError(
            f"{path}: column {field!r} is {values.type} and cannot be written as text ({error})"
        ) from error


def union_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return a schema with the columns of all schemas of documents.

    A column of different types gets a type that fits all of them, or else text.
    """
    if all(schema.equals(schemas[0]) for schema in schemas):
        return schemas[0]
    types: dict[str, pa.DataType] = {}
    for field in itertools.chain.from_iterable(schemas):
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
            dump = functools.partial(json.dumps, ensure_ascii=False, sort_keys=True, default=str)
            texts = [None if value is None else dump(value) for value in column.to_pylist()]
            columns.append(pa.array(texts, pa.string()))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
