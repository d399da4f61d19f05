"""Lists of URLs: one per line, a column of CSV, TSV or Parquet, or a field of JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pipelines import storage
from pipelines.algorithms.web.text_repair import replace_surrogates
from pipelines.errors import DamagedFileError, InputError
from pipelines.records.documents import pop_field
from pipelines.records.reader import BadRecord, Record, file_format, parse_json, read_records
from pipelines.records.shards import ColumnError, MissingColumnError
from pipelines.storage.compression import strip_compression

DEFAULT_COLUMN = "url"
TOO_LONG = "too_long"
PLAIN_SUFFIX = ".txt"
TABLE_SUFFIXES = (".parquet", ".csv", ".tsv")
JSON_SUFFIXES = (".json", ".ndjson", ".jsonl")
URL_LIST_SUFFIXES = (PLAIN_SUFFIX, *TABLE_SUFFIXES, *JSON_SUFFIXES)

_ABSENT = object()

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

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem

    def __reduce__(self) -> tuple[type[UrlListError], tuple[str, str]]:
        """Pickle both parts, so that the error can pass between processes."""
        return type(self), (self.path, self.problem)


def read_urls(path: str, column: str = DEFAULT_COLUMN, *, report_bytes: bool = False) -> Iterator[str | BadRow | None]:
    """Yield each URL of a list, None if it is missing, and a BadRow if it cannot be read.

    The name, without a suffix of compression, decides the format: a table with that column (`.parquet`, `.csv`,
    `.tsv`), one URL per line (`.txt`; `#` begins a comment), or a mix of such lines and JSON objects with that field
    (anything else). `report_bytes` reports progress in bytes of the file. Raises ColumnError if there is no such
    column, UrlListError if the file is empty or not of its format, DamagedFileError if it is truncated or corrupt.
    """
    is_table = strip_compression(path).endswith(TABLE_SUFFIXES)
    form = file_format(path) if is_table else "text"
    records = _list_records(path, form, [column] if is_table else [], report_bytes)
    if is_table:
        yield from (_url_of_row(path, column, record) for record in records)
    else:
        is_plain = strip_compression(path).endswith(PLAIN_SUFFIX)
        yield from _urls_of_lines(path, None if is_plain else column, records)


def _list_records(path: str, form: str, columns: list[str], report_bytes: bool) -> Iterator[Record]:
    """Yield the records of a list; raise UrlListError where it cannot be read on."""
    is_empty = True
    try:
        for record in read_records(path, form, columns=columns, max_bytes=_MAX_LINE_BYTES, report_bytes=report_bytes):
            is_empty = is_empty and record[2].lstrip().startswith(b"#")
            yield record
    except (ColumnError, DamagedFileError):
        raise
    except InputError as error:
        raise UrlListError(path, str(error).removeprefix(f"{path}: ")) from error
    # A table may have no rows.
    if is_empty and (form == "text" or not storage.size_bytes(path)):
        raise UrlListError(path, "contains no lines at all; is the download complete?")


def _url_of_row(path: str, column: str, record: Record) -> str | BadRow | None:
    """Return the URL of a row of a table, of which other cells may be missing or not be UTF-8."""
    number, value, content = record
    if isinstance(value, BadRecord):
        if value.fields is None:
            return _long_url(number, content) if value.reason == "too_large" else BadRow(number, value.reason, content)
        value = value.fields
    if column not in value:
        return BadRow(number, "short_row", content)
    url = value[column]
    if not isinstance(url, str | None):
        raise ColumnError(f"{path}: column {column!r} is not text (row {number} has {str(url)[:60]!r})")
    if content and url is not None:  # of CSV
        url = url.strip()
        if "\n" in url or "\r" in url:
            return BadRow(number, "several_lines", content)
        if replace_surrogates(url) != url:
            return BadRow(number, "not_utf8", content)
    return _long_url(number, content or url.encode()) if url and len(url) > _MAX_URL_BYTES else url or None


def _urls_of_lines(path: str, field: str | None, records: Iterator[Record]) -> Iterator[str | BadRow | None]:
    """Yield the URLs of lines; with a field, a line that begins with `{` is a JSON object that has it."""
    is_first = True
    first_fields: list[str] | None = None
    has_field = False
    for number, line, content in records:
        start = content.lstrip()[:1]
        if start == b"#":
            continue
        if is_first and field is not None:
            _check_not_table(path, content, field)
        is_first = False
        if isinstance(line, BadRecord):
            is_long = line.reason == "too_large" or len(content.strip()) > _MAX_URL_BYTES
            yield _long_url(number, content.lstrip()) if is_long else BadRow(number, line.reason, content)
            continue
        if field is None or start != b"{":
            url = line.strip()
            yield _long_url(number, content.lstrip()) if len(url.encode()) > _MAX_URL_BYTES else url or None
            continue
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
        if not isinstance(value, str | None):
            yield BadRow(number, "no_field" if value is _ABSENT else "not_text", content)
        else:
            yield _long_url(number, content) if value and len(value) > _MAX_URL_BYTES else value or None
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


def _long_url(number: int, content: bytes) -> BadRow:
    return BadRow(number, TOO_LONG, content[:_SHOWN_BYTES])
