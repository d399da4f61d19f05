"""Lists of URLs: one per line, a column of CSV, TSV or Parquet, or a field of JSON lines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from pipelines import progress, storage
from pipelines.algorithms.web.text_repair import replace_surrogates
from pipelines.errors import DamagedFileError, InputError
from pipelines.records.documents import pop_field
from pipelines.records.reader import BadRecord, Record, line_columns, parse_json, read_records, table_batches
from pipelines.records.shards import ColumnError, MissingColumnError
from pipelines.records.text_columns import is_text
from pipelines.storage.compression import strip_compression

DEFAULT_COLUMN = "url"
TOO_LONG = "too_long"
PLAIN_SUFFIX = ".txt"
TABLE_SUFFIXES = (".parquet", ".csv", ".tsv")
JSON_SUFFIXES = (".json", ".ndjson", ".jsonl")
URL_LIST_SUFFIXES = (PLAIN_SUFFIX, *TABLE_SUFFIXES, *JSON_SUFFIXES)

_ABSENT = object()
_EMPTY = "contains no lines; the download may be incomplete"

# A JSON object with all of these fields is a submission of a Reddit dump, whose scores a list of URLs would ignore.
_SUBMISSION_FIELDS = {"score", "created_utc", "subreddit", "is_self"}

_SHOWN_BYTES = 200
# Servers refuse URLs of a quarter of this.
_MAX_URL_BYTES = 32 << 10
# Corrupt data may contain no newline at all; no URL is near this size.
_MAX_LINE_BYTES = 32 << 20


class BadRow(NamedTuple):
    """A row without a readable URL: its line (of Parquet: its row) from 1, the reason in snake_case, its content."""

    line: int
    reason: str
    content: bytes


class UrlListError(InputError):
    """Refuse a file that is not a list of URLs, or cannot be read to its end."""


def read_urls(path: str, column: str = DEFAULT_COLUMN, *, report_bytes: bool = False) -> Iterator[str | BadRow | None]:
    """Yield each URL of a list, None if it is missing, and a BadRow if it cannot be read.

    The name, without a suffix of compression, decides the format: a table with that column (`.parquet`, `.csv`,
    `.tsv`), one URL per line (`.txt`; `#` begins a comment), or a mix of such lines and JSON objects with that field
    (anything else). `report_bytes` reports progress in bytes of the file. Raises ColumnError if there is no such
    column, UrlListError if the file is empty or not of its format, DamagedFileError if it is truncated or corrupt.
    """
    name = strip_compression(path)
    if not name.endswith(TABLE_SUFFIXES):
        yield from _urls_of_lines(path, None if name.endswith(PLAIN_SUFFIX) else column, report_bytes)
        return
    with list_errors():
        if name.endswith(".parquet"):
            row = 0
            for batch in table_batches(path, [column]):
                values = batch.column(column)
                if not is_text(values.type) and values.null_count < len(values):
                    raise ColumnError(f"{path}: column {column!r} has the type {values.type}, not text")
                for row, url in enumerate(_texts(values), row + 1):  # noqa: B020
                    yield _checked_url(row, url) if url else None
            if report_bytes:
                progress.advance(storage.size_bytes(path))
            return
        if next(_lines(path, report_bytes=False), None) is None:
            raise UrlListError(f"{path}: {_EMPTY}")
        for record in read_records(path, columns=[column], max_bytes=_MAX_LINE_BYTES, report_bytes=report_bytes):
            yield _url_of_row(column, record)


@contextlib.contextmanager
def list_errors() -> Iterator[None]:
    """Raise UrlListError where the reading of a list or table ends."""
    try:
        yield
    except (ColumnError, DamagedFileError, UrlListError):
        raise
    except InputError as error:
        raise UrlListError(str(error)) from error


def _texts(values: pa.Array) -> list[str | None]:
    """Return the texts of a block; surrogates stand for bytes that are not UTF-8."""
    try:
        texts: list[str | None] = values.to_pylist()
    except UnicodeDecodeError:
        plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        contents = plain.cast(pa.large_binary()).to_pylist()
        texts = [content and content.decode("utf-8", "surrogateescape") for content in contents]
    return texts


def _url_of_row(column: str, record: Record) -> str | BadRow | None:
    """Return the URL of a row of CSV, of which other cells may be missing or not be UTF-8."""
    number, value, content = record
    if isinstance(value, BadRecord):
        if value.reason == "too_large":
            return BadRow(number, TOO_LONG, content[:_SHOWN_BYTES])
        if value.fields is None:
            return BadRow(number, value.reason, content)
        value = value.fields
    if column not in value:
        return BadRow(number, "short_row", content)
    url = value[column].strip()
    if "\n" in url or "\r" in url:
        return BadRow(number, "several_lines", content)
    return _checked_url(number, url, content)


def _checked_url(number: int, url: str, content: bytes = b"") -> str | BadRow | None:
    """Return a URL, None if it is empty, or a BadRow with its content, by default the URL itself."""
    if len(url) > _MAX_URL_BYTES:
        return BadRow(number, TOO_LONG, (content or url.encode("utf-8", "surrogateescape"))[:_SHOWN_BYTES])
    if url.isascii() or replace_surrogates(url) == url:
        return url or None
    return BadRow(number, "not_utf8", content or url.encode("utf-8", "surrogateescape"))


def _urls_of_lines(path: str, field: str | None, report_bytes: bool) -> Iterator[str | BadRow | None]:
    """Yield the URLs of lines; with a field, a line that begins with `{` is a JSON object that has it."""
    is_empty = True
    first_fields: list[str] | None = None
    has_field = False
    for number, line in _lines(path, report_bytes):
        if line[0] == "#":
            continue
        if is_empty and field is not None:
            _check_not_table(path, line, field)
        is_empty = False
        if field is None or line[0] != "{" or len(line) >= _MAX_LINE_BYTES:
            yield _checked_url(number, line)
            continue
        content = line.encode("utf-8", "surrogateescape")
        record = parse_json(content)
        if isinstance(record, BadRecord):
            yield BadRow(number, "not_json", content)
            continue
        if not first_fields:
            first_fields = list(record)
            if set(record) >= _SUBMISSION_FIELDS:
                raise InputError(f"{path}: is a dump of submissions, not a list of URLs; omit --source urls")
        value = pop_field(record, field, _ABSENT)
        has_field = has_field or value is not _ABSENT
        if isinstance(value, str | None):
            yield _checked_url(number, value, content) if value else None
        else:
            yield BadRow(number, "no_field" if value is _ABSENT else "not_text", content)
    if is_empty:
        raise UrlListError(f"{path}: {_EMPTY}")
    if first_fields is not None and not has_field:
        names = ", ".join(first_fields) or "none"
        raise MissingColumnError(f"{path}: no line has a field {field!r}; the first has: {names}")


def _lines(path: str, report_bytes: bool) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, without white space around them, and their numbers."""
    with list_errors():
        for first, lines in line_columns(path, _MAX_LINE_BYTES, may_be_bad=True, report_bytes=report_bytes):
            for number, line in enumerate(_texts(lines), first):
                if line and (stripped := line.strip()):
                    yield number, stripped


def _check_not_table(path: str, line: str, field: str) -> None:
    """Raise InputError if the first line is the header of a table, although the file is read as lines."""
    for separator, suffix in ((",", ".csv"), ("\t", ".tsv")):
        cells = [cell.strip(" \"'") for cell in line.split(separator)]
        if len(cells) > 1 and field in cells:
            raise InputError(
                f"{path}: begins with the header of a table, but is read as lines; rename it to end in {suffix}"
            )
