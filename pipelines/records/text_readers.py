"""Readers of documents from JSON, JSONL, CSV, plain text and WET, as Arrow batches of JSONL_SCHEMA."""

from __future__ import annotations

import csv
import dataclasses
import datetime as dt
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from pipelines import storage
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.csv_rows import LongRowError, table_rows
from pipelines.records.drops import Drops
from pipelines.records.json_arrays import split_array
from pipelines.records.schemas import DOCUMENT_SCHEMA
from pipelines.storage.bounded import BYTE_ORDER_MARK, MAX_LINE_BYTES, max_text_bytes, numbered_lines, read_at_most
from pipelines.storage.compression import open_decompressed, strip_compression

_BATCH_ROWS = 1024
_BATCH_BYTES = 4 << 20
# A document with more lines is not in a table; the quote before it is rather not closed.
_MAX_LINES_PER_CSV_ROW = 1 << 20

# A surrogate escaped in JSON; only lines with one are searched for unpaired surrogates.
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# A surrogate as raw bytes, which UTF-8 forbids but json.loads accepts. A separate pattern, tried only on lines with its
# first byte: a combined pattern is many times slower on every line.
_RAW_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")
SURROGATE = re.compile(r"[\ud800-\udfff]")
_INTEGER = re.compile(r"-?\d{1,18}")

# JSONL may have fields that are not part of a document; they are kept, as JSON, in this column.
JSONL_SCHEMA = DOCUMENT_SCHEMA.append(pa.field("metadata", pa.string()))

# Of --id-field: later stages read these columns.
ID_COLUMNS_TO_KEEP = {*DOCUMENT_SCHEMA.names} - {"id"}

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Which fields of a record are the text and the id, and how large a document may be (None: see `bounded`).

    `one_per_line` makes each line of a .txt file a document.
    """

    text_field: str = "text"
    id_field: str | None = None
    one_per_line: bool = False
    max_bytes: int | None = None

    @property
    def max_line_bytes(self) -> int:
        """The length at which a line or record is too large."""
        return self.max_bytes or MAX_LINE_BYTES


TEXT_FIELD_ADVICE = " (--text-field chooses another column)"

# Reads the rows of one file, given its path, the name with which generated ids begin, what it drops, and the options;
# yields each row with the bytes that it was read from.
RowReader = Callable[[str, str, Drops, ReadOptions], Iterator[tuple[Row, int]]]


def read_rows(files: Iterable[tuple[str, str]], drops: Drops, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the documents of files, pairs of path and name, in batches: one per file costs ~2 ms in every stage."""
    rows: list[Row] = []
    pending_bytes = 0
    for path, name in files:
        for row, size_bytes in row_reader(path)(path, name, drops, options):
            if rows and (len(rows) == _BATCH_ROWS or pending_bytes + size_bytes > _BATCH_BYTES):
                yield pa.RecordBatch.from_pylist(rows, schema=JSONL_SCHEMA)
                rows, pending_bytes = [], 0
            rows.append(row)
            pending_bytes += size_bytes
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=JSONL_SCHEMA)


def row_reader(path: str) -> RowReader:
    """Return the reader for a type of file; raise InputError if there is none."""
    name = strip_compression(path)
    for suffix, reader in ROW_READERS.items():
        if name.endswith(suffix):
            return reader
    raise InputError(f"{path}: unknown file type")


def _read_text(path: str, name: str, drops: Drops, options: ReadOptions) -> Iterator[tuple[Row, int]]:
    """Yield a text file as one document."""
    limit = options.max_bytes or max_text_bytes(storage.size_bytes(path))
    with open_decompressed(path) as stream:
        data = read_at_most(stream, limit)
    if data is None:
        drops.add("too_large", name, detail=f"more than {limit} bytes in one text file")
    else:
        yield from _text_row(data, name, drops)


def _read_text_or_lines(path: str, name: str, drops: Drops, options: ReadOptions) -> Iterator[tuple[Row, int]]:
    if not options.one_per_line:
        yield from _read_text(path, name, drops, options)
        return
    with open_decompressed(path) as stream:
        for number, line in numbered_lines(stream, options.max_line_bytes):
            if not _is_too_long(line, f"{name}:{number}", drops, options):
                # Only \n ends a line: form feeds and U+2028 may be part of a document.
                yield from _text_row(line.removesuffix(b"\n").removesuffix(b"\r"), f"{name}:{number}", drops)


def _text_row(data: bytes | bytearray, id: str, drops: Drops) -> Iterator[tuple[Row, int]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        drops.add("not_utf8", id, detail=str(error))
        return
    if text:
        yield {"id": id, "text": text}, len(data)
    else:
        drops.add("empty_text", id)


def _is_too_long(line: bytes, id: str, drops: Drops, options: ReadOptions) -> bool:
    is_too_long = len(line) >= options.max_line_bytes
    if is_too_long:
        drops.add("too_large", id, detail=f"a line of {options.max_line_bytes} bytes or more")
    return is_too_long


def _read_jsonl(path: str, name: str, drops: Drops, options: ReadOptions) -> Iterator[tuple[Row, int]]:
    with open_decompressed(path) as stream:
        yield from _json_rows(path, name, numbered_lines(stream, options.max_line_bytes), drops, options)


def _read_json(path: str, name: str, drops: Drops, options: ReadOptions) -> Iterator[tuple[Row, int]]:
    """Yield the elements of an array; the lines of a file that does not begin as one, since many are JSONL."""
    with open_decompressed(path) as stream:
        start = stream.peek(1)  # type: ignore[attr-defined]
        is_array = start.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"[")
        split = split_array(stream, path, options.max_line_bytes) if is_array else None
        lines = split or numbered_lines(stream, options.max_line_bytes)
        yield from _json_rows(path, name, lines, drops, options)


def _json_rows(
    path: str, name: str, records: Iterable[tuple[int, bytes]], drops: Drops, options: ReadOptions
) -> Iterator[tuple[Row, int]]:
    """Yield the rows of records in JSON; raise InputError if none has the text field, or the requested id field."""
    kept = count = ids = 0
    first = b""
    for number, line in records:
        count += 1
        id = f"{name}:{number}"
        if _is_too_long(line, id, drops, options):
            continue
        first = first or line
        row = json_row(line, id, drops, options)
        if row is not None:
            kept += 1
            ids += row["id"] != id
            yield row, len(line)
    if first and not kept:
        raise InputError(
            f"{path}: none of its {count:,} records has a text in the field {options.text_field!r}; the first "
            f"{_describe_record(first, options.text_field)} (--text-field chooses another field)"
        )
    if options.id_field and kept and not ids:
        raise InputError(f"{path}: none of its {count:,} records has the field {options.id_field!r} of --id-field")


def _describe_record(line: bytes, text_field: str) -> str:
    """Return why a line has no text."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"is not valid JSON: {error}"
    if not isinstance(record, dict):
        return "is not a JSON object"
    if (value := pop_field(dict(record), text_field)) is not None or text_field in record:
        if isinstance(value, dict) and value:
            return f"has an object there, with {', '.join(repr(f'{text_field}.{name}') for name in value)}"
        return f"has {json.dumps(value)[:80]} there"
    return f"has the fields {', '.join(map(repr, record))}"


def json_row(line: bytes, default_id: str, drops: Drops, options: ReadOptions) -> Row | None:
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
    return _record_row(record, default_id, drops, options)


def _record_row(record: dict[str, Any], default_id: str, drops: Drops, options: ReadOptions) -> Row | None:
    text = pop_field(record, options.text_field)
    id_field = options.id_field or "id"
    id = record.get(id_field) if id_field in ID_COLUMNS_TO_KEEP else pop_field(record, id_field)
    row: Row = {"id": default_id if id is None else str(id), "text": text}
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


def _read_table(path: str, name: str, drops: Drops, options: ReadOptions) -> Iterator[tuple[Row, int]]:
    """Yield the rows below the header, which must have the text field, as records of texts."""
    limit = options.max_line_bytes
    csv.field_size_limit(1 << 31)  # of this process; lines and rows are limited already
    header: list[str] | None = None
    with open_decompressed(path) as stream:
        lines = numbered_lines(stream, limit, keep_blank=True)
        for row_lines, cells in table_rows(path, lines, _MAX_LINES_PER_CSV_ROW, limit):
            id = f"{name}:{row_lines[0][0]}"
            if isinstance(cells, csv.Error):
                if header is None or (isinstance(cells, LongRowError) and len(row_lines) > 1):
                    where = f"{path}: the row that begins in line {row_lines[0][0]} cannot be read as CSV ({cells})"
                    raise InputError(f"{where}; close its quotes, or allow longer documents by --max-document-mb")
                drops.add("too_large" if isinstance(cells, LongRowError) else "bad_csv", id, detail=str(cells))
            elif header is None:
                header = _check_header(path, cells, options)
            elif len(cells) not in (0, len(header)):
                drops.add("bad_csv", id, detail=f"{len(cells)} cells, the header has {len(header)}")
            elif cells:
                row = _csv_row(dict(zip(header, cells, strict=True)), id, drops, options)
                if row is not None:
                    yield row, sum(len(line) for _, line in row_lines)


def _check_header(path: str, names: list[str], options: ReadOptions) -> list[str]:
    names = [replace_surrogates(name.strip()) for name in names]
    shards.require_columns(path, names, [options.text_field], TEXT_FIELD_ADVICE)
    shards.require_columns(path, names, [options.id_field] if options.id_field else [])
    shards.require_distinct(path, names)
    return names


def _csv_row(record: dict[str, Any], id: str, drops: Drops, options: ReadOptions) -> Row | None:
    if SURROGATE.search(record[options.text_field]):
        drops.add("not_utf8", record.get(options.id_field or "id") or id)
        return None
    for key, cell in record.items():
        if key in DOCUMENT_SCHEMA.names and pa.types.is_integer(DOCUMENT_SCHEMA.field(key).type):
            record[key] = int(cell) if _INTEGER.fullmatch(cell) else cell or None
        else:  # the text has none of the surrogates that stand for bytes that are not UTF-8
            record[key] = (cell if cell.isascii() or key == options.text_field else replace_surrogates(cell)) or None
    return _record_row(record, id, drops, options)


def _read_wet(path: str, name: str, drops: Drops, options: ReadOptions) -> Iterator[tuple[Row, int]]:
    """Yield the conversion records of a WET file; raise InputError, with the offset, if the file is damaged."""
    # Deferred, since only this format needs them.
    from pipelines.algorithms.web.urls import id_of_url, registered_domain
    from pipelines.records.archives import RECORD_DAMAGE, BoundedArchiveIterator, damaged_archive, open_archive

    limit, offset, count = options.max_line_bytes, 0, 0
    with open_archive(path) as stream:
        records = BoundedArchiveIterator(stream)
        while True:
            try:
                record = next(records, None)
                if record is None:
                    break
                is_document = record.rec_type == "conversion"
                url = record.rec_headers.get_header("WARC-Target-URI")
                id = id_of_url(url) if is_document else ""
                data = record.raw_stream.read(limit) if is_document else b""
                errors, offset = records.err_count, records.get_record_offset()
                if getattr(record.raw_stream, "limit", 0) > 0:
                    raise EOFError("the record is truncated")
            except RECORD_DAMAGE as error:
                raise damaged_archive(path, offset, error) from error
            count += is_document
            if records.err_count > errors:
                drops.add("damaged_record", id, url, "the length of the record is wrong")
            elif is_document and not _is_too_long(data, id, drops, options):
                date = record.rec_headers.get_header("WARC-Date") or ""
                fields = {"url": url, "domain": registered_domain(url), "warc_file": name, "warc_offset": offset}
                for row, size_bytes in _text_row(data, id, drops):
                    yield {**row, **fields, "fetched_at": parse_instant(date)}, size_bytes
    if not count:
        raise InputError(f"{path}: has no conversion records; `webtext extract` reads the responses of WARC files")


def parse_instant(value: str) -> dt.datetime | None:
    """Return the time in ISO 8601; None for what is not one."""
    try:
        return dt.datetime.fromisoformat(value)
    except ValueError:
        return None


ROW_READERS: dict[str, RowReader] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".txt": _read_text_or_lines,
    ".md": _read_text,
    ".wet": _read_wet,
}
