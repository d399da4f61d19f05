"""Lists of URLs: one per line, a column of CSV, TSV or Parquet, or a field of JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from pipelines import progress, storage
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.records.csv_rows import NumberedLines, TableRow, table_rows
from pipelines.records.text_columns import is_text
from pipelines.records.text_readers import SURROGATE, pop_field, replace_surrogates
from pipelines.storage.bounded import numbered_lines
from pipelines.storage.compression import open_decompressed, strip_compression

DEFAULT_COLUMN = "url"
TOO_LONG = "too_long"
PLAIN_SUFFIX = ".txt"
TABLE_SUFFIXES = (".parquet", ".csv", ".tsv")
JSON_SUFFIXES = (".json", ".ndjson", ".jsonl")
URL_LIST_SUFFIXES = (PLAIN_SUFFIX, *TABLE_SUFFIXES, *JSON_SUFFIXES)

_SHOWN_BYTES = 200
_ABSENT = object()

# A JSON object with all of these fields is a submission of a Reddit dump, whose scores a list of URLs would ignore.
_SUBMISSION_FIELDS = {"score", "created_utc", "subreddit", "is_self"}

# Corrupt data may contain no newline at all; no URL is near this size.
_MAX_LINE_BYTES = 32 << 20
# Servers refuse URLs of a quarter of this.
_MAX_URL_BYTES = 32 << 10
# A CSV row of more lines than this contains an unclosed quote.
_MAX_LINES_PER_ROW = 1000


class BadRow(NamedTuple):
    """A row without a readable URL: its line (of Parquet: its row) from 1, the reason in snake_case, its content."""

    line: int
    reason: str
    content: bytes


class UrlListError(InputError):
    """Refuse a file that is not a list of URLs, or cannot be read to its end."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem

    def __reduce__(self) -> tuple[type[UrlListError], tuple[str, str]]:
        """Pickle both parts, so that the error can pass between processes."""
        return type(self), (self.path, self.problem)


class ColumnError(InputError):
    """Refuse a list of URLs that does not have the column or field."""


class MissingColumnError(ColumnError):
    """Refuse a list of URLs that has no such column or field."""


def read_urls(path: str, column: str = DEFAULT_COLUMN, *, report_bytes: bool = False) -> Iterator[str | BadRow | None]:
    """Yield each URL of a list, None if it is missing, and a BadRow if it cannot be read.

    The name, without a suffix of compression, decides the format: a table with that column (`.parquet`, `.csv`,
    `.tsv`), one URL per line (`.txt`; `#` begins a comment), or a mix of such lines and JSON objects with that field
    (anything else). `report_bytes` reports progress in bytes of the file. Raises ColumnError if there is no such
    column, UrlListError if the file is empty or not of its format, DamagedFileError if it is truncated or corrupt.
    """
    name = strip_compression(path)
    if name.endswith(".parquet"):
        yield from _parquet_urls(path, column, report_bytes)
        return
    with open_decompressed(path, report_bytes=report_bytes) as stream:
        lines = numbered_lines(stream, _MAX_LINE_BYTES)
        if name.endswith((".csv", ".tsv")):
            yield from _table_urls(path, column, table_rows(path, lines, _MAX_LINES_PER_ROW))
        else:
            yield from _line_urls(path, None if name.endswith(PLAIN_SUFFIX) else column, lines)


def _empty_list(path: str) -> UrlListError:
    return UrlListError(path, "contains no lines at all; is the download complete?")


def _line_urls(path: str, field: str | None, lines: Iterable[tuple[int, bytes]]) -> Iterator[str | BadRow | None]:
    """Yield the URLs of lines; with a field, a line that begins with `{` is a JSON object that has it."""
    count = 0
    first_fields: list[str] | None = None
    has_field = False
    for number, line in lines:
        start = line.lstrip()[:1]
        if start == b"#":
            continue
        count += 1
        if count == 1 and field is not None:
            _check_not_table(path, line, field)
        if field is None or start != b"{":
            yield _decode(number, line)
            continue
        try:
            record = json.loads(line.decode())
        except (ValueError, RecursionError):
            yield BadRow(number, "not_json", line)
            continue
        if not first_fields:
            first_fields = list(record)
            if set(record) >= _SUBMISSION_FIELDS:
                raise InputError(f"{path}: is a dump of submissions, not a list of URLs; omit --source urls")
        value = pop_field(record, field, _ABSENT)
        has_field = has_field or value is not _ABSENT
        if value is _ABSENT:
            yield BadRow(number, "no_field", line)
        elif not isinstance(value, str | None):
            yield BadRow(number, "not_text", line)
        elif value and len(value) > _MAX_URL_BYTES:
            yield _long_url(number, line)
        else:  # JSON can spell half of a surrogate pair ("\\ud83d"), which UTF-8 cannot encode
            yield (value if value is None or value.isascii() else replace_surrogates(value)) or None
    if not count:
        raise _empty_list(path)
    if first_fields is not None and not has_field:
        names = ", ".join(first_fields) or "none"
        raise MissingColumnError(f"{path}: no line has a field {field!r}; the first has: {names}")


def _check_not_table(path: str, line: bytes, field: str) -> None:
    """Raise InputError if the first line is the header of a table, although the file is read as lines."""
    for separator, suffix in ((b",", ".csv"), (b"\t", ".tsv")):
        cells = [cell.strip(b' "') for cell in line.strip().split(separator)]
        if len(cells) > 1 and field.encode() in cells:
            raise InputError(
                f"{path}: begins with the header of a table, but is read as lines; rename it to end in {suffix}"
            )


def _table_urls(path: str, column: str, rows: Iterable[TableRow]) -> Iterator[str | BadRow | None]:
    index: int | None = None
    for lines, cells in rows:
        if index is None:
            if isinstance(cells, csv.Error):
                raise UrlListError(path, f"its first row cannot be read as CSV ({cells})")
            index = _column_index(path, cells, column)
        elif isinstance(cells, csv.Error):
            yield _bad_row(lines[:1], "bad_csv")
        elif index >= len(cells):
            yield _bad_row(lines, "short_row")
        else:
            url = cells[index].strip()
            if len(url) > _MAX_URL_BYTES:
                yield _long_url(*lines[0])
            elif "\n" in url or "\r" in url:
                yield _bad_row(lines, "several_lines")
            elif not url.isascii() and SURROGATE.search(url):
                yield _bad_row(lines, "not_utf8")
            else:
                yield url or None
    if index is None:
        raise _empty_list(path)


def _bad_row(lines: NumberedLines, reason: str) -> BadRow:
    return BadRow(lines[0][0], reason, b"".join(line for _, line in lines))


def _parquet_urls(path: str, column: str, report_bytes: bool) -> Iterator[str | BadRow | None]:
    size_bytes = storage.size_bytes(path)
    done = 0
    try:
        with shards.open_stream(path) as stream:
            table = shards.open_parquet(stream, path)
            names, rows = table.schema_arrow.names, table.metadata.num_rows
        _column_index(path, names, column)
        for batch in shards.read_batches(path, [column]):
            values = batch.column(column)
            if not (is_text(values.type) or pa.types.is_null(values.type)):
                raise ColumnError(f"{path}: column {column!r} is {values.type}, not text")
            yield from _decode_values(values, done + 1)
            previous, done = done, done + batch.num_rows
            if report_bytes:
                progress.advance(size_bytes * done // rows - size_bytes * previous // rows)
    except ColumnError:
        raise
    except InputError as error:
        raise UrlListError(path, str(error).removeprefix(f"{path}: ")) from error


def _decode_values(values: pa.Array, first_row: int) -> Iterator[str | BadRow | None]:
    """Yield the texts of a batch; Parquet does not check that its strings are UTF-8."""
    try:
        texts = values.to_pylist()
    except UnicodeDecodeError:
        plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        texts = plain.cast(pa.large_binary()).to_pylist()
    for row, text in enumerate(texts, first_row):
        if isinstance(text, bytes):
            yield _decode(row, text)
        elif text and len(text) > _MAX_URL_BYTES:
            yield _long_url(row, text.encode())
        else:
            yield text or None


def _column_index(path: str, names: list[str], column: str) -> int:
    names = [name.strip() for name in names]
    if column not in names:
        raise MissingColumnError(f"{path}: has no column {column!r}; it has: {replace_surrogates(', '.join(names))}")
    return names.index(column)


def _long_url(number: int, content: bytes) -> BadRow:
    return BadRow(number, TOO_LONG, content[:_SHOWN_BYTES])


def _decode(number: int, content: bytes) -> str | BadRow | None:
    if len(content) > _MAX_URL_BYTES and len(content.strip()) > _MAX_URL_BYTES:
        return _long_url(number, content.lstrip())
    try:
        return content.decode().strip() or None
    except UnicodeDecodeError:
        return BadRow(number, "not_utf8", content)
