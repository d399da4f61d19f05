"""The one reader of records: files of every format, compressed or not, as numbered records.

A record that cannot be read is a `BadRecord`, which the caller counts; `require_records` raises an error instead.
"""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import progress, storage
from pipelines.algorithms.web.text_repair import replace_surrogates
from pipelines.errors import InputError
from pipelines.format import plural
from pipelines.records import shards
from pipelines.records.file_parts import FilePart
from pipelines.storage import bounded
from pipelines.storage.bounded import BYTE_ORDER_MARK, line_blocks, stream_lines
from pipelines.storage.compression import open_decompressed, strip_compression

FORMATS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".md": "text",
}
TABLES = ("parquet", "arrow")

_BATCH_BYTES = 16 << 20
_READ_BYTES = 1 << 20
_IPC_FILE_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"

_STRUCTURE = re.compile(rb'["\[\]{},]')
# The rest of a string; possessive, so that a string that ends in the next block does not cost memory.
_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)

_PROBLEMS = {
    "bad_json": "is not valid JSON",
    "bad_csv": "cannot be read as CSV",
    "bad_value": "has a value that cannot be read",
    "not_utf8": "is not UTF-8",
    "too_large": "is too long",
}


class BadRecord(NamedTuple):
    """What stands for a record that cannot be read: the reason in snake_case, its details, and the fields it has."""

    reason: str
    detail: str
    fields: dict[str, Any] | None = None


# The number of a record from 1, its value, and the bytes that it was read from (of a table none). The number is that
# of the line where it begins, the element of an array, or the row of a table. A plain tuple, since a named one is slow.
Record = tuple[int, Any, bytes]


def file_format(path: str) -> str:
    """Return the format of a file by its name, `text` for one without a known suffix."""
    name = strip_compression(path)
    return next((form for suffix, form in FORMATS.items() if name.endswith(suffix)), "text")


def read_records(
    path: str,
    form: str | None = None,
    *,
    columns: Sequence[str] = (),
    default_header: Sequence[str] = (),
    max_bytes: int | None = None,
    keep_blank: bool = False,
    report_bytes: bool = False,
    part: FilePart | None = None,
) -> Iterator[Record]:
    """Yield the records of a file: JSON values, rows as dictionaries, those of CSV with texts, or lines of a text.

    `form` is that of `file_format` by default. A table must have `columns`; of Parquet, only these are read. The names
    of `default_header` are recognized in upper case, too; a CSV file with as many columns may have no header. A record
    of `max_bytes` or more (None: see `bounded`) is a BadRecord. A line of a text includes its end; blank lines are
    skipped unless `keep_blank`. `report_bytes` reports progress in bytes of the file. Of JSONL and texts, only
    the lines of a `part` are read if there is one.

    Raises InputError if a table cannot be read or lacks a column, or if an array or a row of CSV does not end.
    """
    form = form or file_format(path)
    if form in TABLES:
        yield from table_records(table_batches(path, columns or None))
        if report_bytes:
            progress.advance(storage.size_bytes(path))
        return
    max_bytes = max_bytes or bounded.MAX_LINE_BYTES
    with open_decompressed(path, report_bytes=report_bytes) as stream:
        if form in ("csv", "tsv"):
            yield from _csv_records(path, stream, form == "tsv", max_bytes, columns, default_header)
            return
        start = stream.peek(1).removeprefix(BYTE_ORDER_MARK) if form == "json" else b""  # type: ignore[attr-defined]
        # Many files that are named .json are JSONL.
        is_array = start.lstrip().startswith(b"[")
        lines = _split_array(path, stream, max_bytes) if is_array else stream_lines(stream, max_bytes)
        if part:
            if part.offset:
                stream.seek(part.offset)
            skipped = 1 if part.offset else part.start
            lines = itertools.islice(lines, skipped, skipped + part.stop - part.start)
        parse = parse_line if form == "text" else parse_json
        for number, content in enumerate(lines, part.start + 1 if part else 1):
            if keep_blank or (content and not content.isspace()):
                yield number, parse(content) if len(content) < max_bytes else _too_large(max_bytes), content


def require_records(path: str, records: Iterable[Record]) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and values of records; raise InputError, with the number, for one that cannot be read."""
    for number, value, _ in records:
        if isinstance(value, BadRecord):
            raise InputError(f"{path}:{number}: {_PROBLEMS[value.reason]} ({value.detail})")
        yield number, value


def line_columns(
    path: str, max_bytes: int, *, may_be_bad: bool = False, report_bytes: bool = False
) -> Iterator[tuple[int, pa.StringArray]]:
    """Yield the lines of a text without their ends, many at a time, with the number of the first.

    Faster than `read_records`. The text after the last line end is a line, too. Raises InputError, with the number of
    the line, for one that is not UTF-8, or has `max_bytes` or more; if lines `may_be_bad`, they are yielded as they
    are, a longer one cut to `max_bytes`.
    """
    first = 1
    with open_decompressed(path, report_bytes=report_bytes) as stream:
        for block in line_blocks(stream, max_bytes):
            contents = pc.split_pattern(pa.array([block.removesuffix(b"\n")], pa.binary()), b"\n").flatten()
            lines = contents.view(pa.string())
            if not may_be_bad:
                _check_lines(path, first, contents, max_bytes)
                lines = pc.utf8_rtrim(lines, "\r")
            yield first, lines
            first += len(lines)


def _check_lines(path: str, first: int, contents: pa.BinaryArray, max_bytes: int) -> None:
    lengths = pc.binary_length(contents)
    longest = pc.max(lengths)
    is_long = longest.as_py() >= max_bytes
    for row in [pc.index(lengths, longest).as_py()] if is_long else shards.invalid_rows(contents.view(pa.string())):
        content = contents[row].as_py()
        list(require_records(path, [(first + row, _too_large(max_bytes) if is_long else parse_line(content), content)]))


def _too_large(max_bytes: int) -> BadRecord:
    return BadRecord("too_large", f"a line of {max_bytes} bytes or more")


def parse_json(content: bytes) -> Any:
    """Return a JSON value, with U+FFFD for unpaired surrogates, or a BadRecord if it is invalid."""
    try:
        try:
            return msgspec.json.decode(content)
        except (ValueError, RecursionError):
            # `json`, which is slower, also accepts NaN, surrogates and other encodings than UTF-8.
            return _without_surrogates(json.loads(content))
    except (ValueError, RecursionError) as error:
        return BadRecord("bad_json", str(error))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def parse_line(content: bytes | bytearray) -> str | BadRecord:
    """Return a text, or a BadRecord if it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        return BadRecord("not_utf8", str(error))


def _split_array(path: str, stream: BinaryIO, max_bytes: int) -> Iterator[bytes]:
    """Yield the elements of an array as bytes; one longer than `max_bytes` is cut to that.

    Only strings and brackets are recognized, so an element need not be valid JSON. Raises InputError if the array does
    not end, or if anything but white space follows it.
    """
    depth = 0
    is_begun = in_string = False
    element = bytearray()
    block = b""
    while data := stream.read(_READ_BYTES):
        block += data
        start = position = 0
        while position < len(block):
            match = (_STRING if in_string else _STRUCTURE).search(block, position)
            if in_string and match is not None:
                position = match.end()
                if block[position : position + 1] != b'"':
                    break  # it continues in the next block; at most an escape character is left
                position, in_string = position + 1, False
                continue
            if match is None:
                position = len(block)
                break
            position, character = match.end(), match[0]
            in_string = character == b'"'
            depth += (character in b"[{") - (character in b"]}")
            if depth == 1 and not is_begun:
                is_begun, start = True, position
            elif depth == 0 or (depth == 1 and character == b","):
                element += block[start : position - 1][: max_bytes - len(element)]
                yield bytes(element)
                start = position
                element.clear()
            if depth == 0:
                rest = block[position:]
                while not rest.strip():
                    if not (rest := stream.read(_READ_BYTES)):
                        return
                raise InputError(f"{path}: has content after its JSON array; write one array, or one record per line")
        element += block[start:position][: max_bytes - len(element)]
        block = block[position:]
    raise InputError(f"{path}: its JSON array does not end; check that the copy is complete")


def _csv_records(
    path: str, stream: BinaryIO, is_tsv: bool, max_bytes: int, columns: Sequence[str], default_header: Sequence[str]
) -> Iterator[Record]:
    """Yield the rows of CSV, or of TSV, which has no quotes; surrogates stand for bytes that are not UTF-8.

    Raises InputError if the first row cannot be read, or if the quote of a row of several lines is not closed before
    the limit or the end of the file.
    """
    csv.field_size_limit(1 << 31)  # of this process; rows are limited here
    lines: list[bytes] = []
    size = 0

    def decode(line: bytes) -> str:
        nonlocal size
        lines.append(line)
        size += len(line)
        if size >= max_bytes:
            raise csv.Error(f"a row of {max_bytes} bytes or more")
        return line.decode("utf-8", "surrogateescape")

    feed = map(decode, stream_lines(stream, max_bytes))
    # Strict, so that an unclosed quote is an error.
    rows = map(_split_tsv, feed) if is_tsv else csv.reader(feed, strict=True)
    header: list[str] = []
    number = 1
    while True:
        try:
            for cells in rows:
                content = lines[0] if len(lines) == 1 else b"".join(lines)
                first, number = number, number + len(lines)
                lines.clear()
                size = 0
                if header and len(cells) == len(header):
                    yield first, dict(zip(header, cells)), content  # noqa: B905, since `strict` costs a tenth
                elif header and cells:
                    problem = f"{plural(len(cells), 'cell')}, the header has {len(header)}"
                    yield first, BadRecord("bad_csv", problem, dict(zip(header, cells, strict=False))), content
                elif cells:
                    names = [replace_surrogates(cell.strip()) for cell in cells]
                    header = [name.lower() if name.lower() in default_header else name for name in names]
                    if len(header) != len(default_header) or not set(default_header).isdisjoint(header):
                        shards.require_columns(path, header, columns)
                    else:
                        header = list(default_header)
                        yield first, dict(zip(header, cells, strict=True)), content
            if not header and number > 1:  # blank lines only
                shards.require_columns(path, header, columns)
            return
        except csv.Error as error:
            is_long = size >= max_bytes
            is_unclosed = len(lines) > 1 and (is_long or str(error) == "unexpected end of data")
            if is_unclosed or not header:
                problem = f"the row that begins in line {number} cannot be read as CSV ({error})"
                raise InputError(f"{path}: {problem}; close its quotes, or allow longer records") from error
            yield number, BadRecord("too_large" if is_long else "bad_csv", str(error)), b"".join(lines)
            number += len(lines)
            lines.clear()
            size = 0


def _split_tsv(line: str) -> list[str]:
    line = line.rstrip("\r\n")
    return line.split("\t") if line else []


def table_schema(path: str) -> pa.Schema:
    """Return the columns of a Parquet or Arrow file."""
    if file_format(path) == "arrow":
        with _open_arrow(path) as (schema, _):
            return schema
    with shards.open_stream(path) as stream:
        return shards.open_parquet(stream, path).schema_arrow


def table_batches(
    path: str,
    columns: Sequence[str] | None = None,
    *,
    part: FilePart | None = None,
    batch_bytes: int | None = None,
    is_verified: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet or Arrow file in batches of about 16 MiB, or `batch_bytes`; a row is never split.

    Of Parquet, only `columns` and the rows of `part` are read; `is_verified` if webtext wrote it.
    """
    batch_bytes = batch_bytes or _BATCH_BYTES
    # Single large rows, and texts that repeat, make a batch larger than the footer lets expect.
    if file_format(path) == "arrow":
        with _open_arrow(path) as (_, batches):
            for batch in shards.bounded_batches(map(_check_offsets, batches), path):
                yield from shards.split_by_bytes(batch, 4 * batch_bytes)
        return
    with shards.open_stream(path) as stream:
        row_groups, first = shards.row_groups_with(stream, path, part.start, part.stop) if part else (None, 0)
        rows, step = shards.rows_per_batch(stream, path, row_groups, batch_bytes, columns, is_verified=is_verified)
        batches = shards.stream_batches(stream, path, columns, row_groups, step)
        batches = shards.join_batches(batches, rows, 4 * batch_bytes) if step < rows else batches
        for batch in _slice_rows(batches, part, first) if part else batches:
            yield from shards.split_by_bytes(batch, 4 * batch_bytes)


def _slice_rows(batches: Iterable[pa.RecordBatch], part: FilePart, row: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part of a table from batches, the first of which begins at `row`."""
    for batch in batches:
        if rows := batch[max(0, part.start - row) : part.stop - row]:
            yield rows
        row += batch.num_rows
        if row >= part.stop:
            return


def table_records(batches: Iterable[pa.RecordBatch], first: int = 1) -> Iterator[Record]:
    """Yield the rows of a table; one with a text that is not UTF-8, or a time beyond all years, is a BadRecord."""
    number = first - 1
    for batch in batches:
        try:
            rows = batch.to_pylist()
        except (ValueError, OverflowError):
            rows = [_row(batch.slice(row, 1)) for row in range(batch.num_rows)]
        for number, row in enumerate(rows, number + 1):  # noqa: B020
            yield (number, *row) if isinstance(row, tuple) else (number, row, b"")


def _row(batch: pa.RecordBatch) -> tuple[Any, bytes]:
    try:
        return batch.to_pylist()[0], b""
    except UnicodeDecodeError as error:
        return BadRecord("not_utf8", str(error)), error.object
    except (ValueError, OverflowError) as error:
        return BadRecord("bad_value", str(error)), b""


@contextlib.contextmanager
def _open_arrow(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Yield the schema and the batches of an Arrow IPC file or stream; raise InputError if it is neither, or damaged.

    The file is memory-mapped, so that an uncompressed batch is never in memory as a whole.
    """
    with shards.damage_reported(path, "cannot be read as Arrow"), pa.memory_map(storage.mapped_path(path)) as source:
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


def _check_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Raise ArrowInvalid for a damaged column, which pyarrow would read beyond its end; any bytes are texts here."""
    for column in batch.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = column.view(pa.binary() if pa.types.is_string(column.type) else pa.large_binary())
        column.validate(full=True)
    return batch
