"""Reads lists of URLs: one a line, or a column of a table, or a field of JSON lines."""

from __future__ import annotations

import csv
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa

from pipelines.core import progress, shards, storage
from pipelines.core.compression import open_decompressed, strip_compression
from pipelines.core.errors import DamagedFileError, InputError, UsageError
from pipelines.stages.scrape.file_stats import FileStats
from pipelines.stages.scrape.reading import Rejects, numbered_lines
from pipelines.stages.scrape.sources import SourceFile
from pipelines.stages.scrape.submission import RawSubmission

DEFAULT_COLUMN = "url"

_Cell = TypeVar("_Cell", str, bytes)

_PLAIN_SUFFIX = ".txt"
# What a JSON object with all of these is, is clear; as a list of URLs its scores would count for nothing.
_OF_SUBMISSIONS = {"score", "created_utc", "subreddit", "is_self"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SURROGATES = re.compile(r"[\ud800-\udfff]")

# A row of more lines than this has a quotation mark that nothing closes.
_MAX_LINES_OF_ROW = 1000


class _BadListError(Exception):
    """A file that is no list, or cannot be read further; its message says what is wrong with it."""


class _BadRowError(ValueError):
    """A row that holds no text where its URL should be; its message is the reason, in snake_case."""


def check_url_column(column: str, files: Iterable[SourceFile]) -> None:
    """Raise UsageError where a column is named that none of the files can have."""
    if column != DEFAULT_COLUMN and all(strip_compression(file.path).endswith(_PLAIN_SUFFIX) for file in files):
        raise UsageError(
            f"--url-column {column} has no meaning for lists of one URL a line (.txt); leave it out, or name a file of "
            "CSV, TSV, Parquet or JSON lines by its suffix"
        )


def counted_urls(file: SourceFile, column: str, rejects: Rejects, stats: FileStats) -> Iterator[RawSubmission]:
    """Yield the URLs of a list as submissions without id, score and time, and count them in `stats`.

    By its name, compression aside, a list is a table with that column (`.parquet`, `.csv`, `.tsv`), one URL a line
    (`.txt`; `#` begins a comment), or such lines and JSON objects with that field (all others). Rows that cannot be
    read are listed in `rejects`. What is wrong with the file as a whole stands in `stats`: a damaged one ends early, it
    may be empty, or more than 1% of its rows are bad. Raises InputError, naming the file, where it has no such column.
    """
    try:
        for url in _urls(file, column, rejects):
            stats.lines += 1
            yield RawSubmission("", 0, url or None, None, "", "", over_18=False, is_self=False, promoted=False)
    except DamagedFileError as error:
        stats.damaged_at, stats.damage = error.offset_bytes, error.reason
    except _BadListError as error:
        stats.damage = str(error)
    stats.bad_lines = rejects.count
    stats.lines += rejects.count
    stats.too_many_bad = rejects.too_many(stats.lines)
    if stats.too_many_bad and not stats.damage:
        stats.damage = (
            f"{stats.bad_lines:,} of its {stats.lines:,} lines cannot be read (more than 1%); is it a list of URLs?"
        )


def _urls(file: SourceFile, column: str, rejects: Rejects) -> Iterator[str | None]:
    name = strip_compression(file.path)
    if name.endswith(".parquet"):
        return _parquet_urls(file.path, column, rejects)
    if name.endswith(".csv"):
        return _csv_urls(file.path, column, rejects)
    if name.endswith(".tsv"):
        return _tsv_urls(file.path, column, rejects)
    return _line_urls(file.path, None if name.endswith(_PLAIN_SUFFIX) else column, rejects)


def _line_urls(path: str, field: str | None, rejects: Rejects) -> Iterator[str | None]:
    """Yield the URLs of a file of lines; with a field, a line that begins with `{` is a JSON object that has it."""
    lines = 0
    absent = _AbsentField(path, field)
    with open_decompressed(path, report_bytes=True) as stream:
        for number, line in _lines(stream):
            start = line.lstrip()[:1]
            if start == b"#":
                continue
            lines += 1
            if lines == 1 and field is not None:
                _refuse_table(path, line, field)
            try:
                if field is None or start != b"{":
                    yield _decoded(line)
                else:
                    record = _json_object(line)
                    absent.look_at(record)
                    yield _field(record, field)
            except _BadRowError as error:
                rejects.add(number, str(error), line)
    _refuse_empty(lines)
    absent.check()


def _refuse_table(path: str, line: bytes, field: str) -> None:
    """Raise InputError where the first line of what was taken for lines is the header of a table."""
    for separator, suffix in ((b",", ".csv"), (b"\t", ".tsv")):
        cells = [cell.strip(b' "') for cell in line.strip().split(separator)]
        if len(cells) > 1 and field.encode() in cells:
            raise InputError(
                f"{path}: begins with the header of a table, but is read as lines; give it a name that ends in {suffix}"
            )


class _AbsentField:
    """Notices a file in which no object has the field, before its lines are merely called bad."""

    def __init__(self, path: str, field: str | None) -> None:
        self._path = path
        self._names = {field, (field or "").partition(".")[0]}
        self._field = field
        self._first_keys: list[str] | None = None
        self._found = False

    def look_at(self, record: dict[str, Any]) -> None:
        if self._first_keys is None and not _OF_SUBMISSIONS - set(record):
            raise InputError(f"{self._path}: is a dump of submissions, not a list of URLs; leave out --source urls")
        if not self._found:
            self._found = not self._names.isdisjoint(record)
            self._first_keys = self._first_keys or list(record)

    def check(self) -> None:
        if self._first_keys is not None and not self._found:
            has = ", ".join(self._first_keys) or "none"
            raise InputError(
                f"{self._path}: no line has a field {self._field!r}; the first has: {has} (name one with --url-column)"
            )


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        raise _BadRowError("not_json") from None
    assert isinstance(record, dict)  # it begins with a brace
    return record


def _field(record: dict[str, Any], field: str) -> str | None:
    """Return the text in a field, or in one of an object in it (`meta.url`)."""
    value = record[field] if field in record else _deep_value(record, field.split("."))
    if isinstance(value, str):
        # JSON can spell half a character ("\ud83d"), which no UTF-8 file can hold.
        return value if value.isascii() else _SURROGATES.sub("\ufffd", value)
    if value is not None:
        raise _BadRowError("not_text")
    return None


def _deep_value(value: Any, names: list[str]) -> Any:
    for name in names:
        if not isinstance(value, dict) or name not in value:
            raise _BadRowError("no_field")
        value = value[name]
    return value


def _tsv_urls(path: str, column: str, rejects: Rejects) -> Iterator[str | None]:
    # Quotation marks mean nothing in this format, so a row is a line.
    place: int | None = None
    rows = 0
    with open_decompressed(path, report_bytes=True) as stream:
        for number, line in _lines(stream):
            rows += 1
            cells = line.rstrip(b"\r\n").split(b"\t")
            if place is None:
                place = _place_of_column(path, [cell.decode(errors="replace") for cell in cells], column)
                continue
            try:
                yield _decoded(_cell(cells, place))
            except _BadRowError as error:
                rejects.add(number, str(error), line)
    _refuse_empty(rows)


def _csv_urls(path: str, column: str, rejects: Rejects) -> Iterator[str | None]:
    place: int | None = None
    rows = 0
    with open_decompressed(path, report_bytes=True) as stream:
        lines = _LinesOfRows(_lines(stream))
        # Strict, so that a quotation mark that nothing closes is an error and does not swallow the rows after it.
        reader = csv.reader(lines, strict=True)
        while True:
            lines.start_row()
            try:
                cells = next(reader, None)
            except csv.Error as error:
                rows += 1
                if place is None:
                    raise _BadListError(f"its first row cannot be read as CSV ({error})") from error
                rejects.add(*lines.give_up_row("bad_csv"))
                continue
            if cells is None:
                break
            rows += 1
            if place is None:
                place = _place_of_column(path, cells, column)
                continue
            try:
                yield _checked_cell(_cell(cells, place))
            except _BadRowError as error:
                rejects.add(lines.row[0][0], str(error), b"".join(line for _, line in lines.row))
    _refuse_empty(rows)


class _LinesOfRows:
    """Hands lines to `csv.reader` and remembers those of its row, so that a bad one costs only its first line."""

    def __init__(self, lines: Iterator[tuple[int, bytes]]) -> None:
        self._lines = lines
        self._again: deque[tuple[int, bytes]] = deque()
        self.row: list[tuple[int, bytes]] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if len(self.row) == _MAX_LINES_OF_ROW:
            raise csv.Error("a row of too many lines")
        line = self._again.popleft() if self._again else next(self._lines)
        self.row.append(line)
        # Bytes that are no text may stand in other columns; in the URL's they are noticed.
        return line[1].decode("utf-8", "surrogateescape")

    def start_row(self) -> None:
        self.row = []

    def give_up_row(self, reason: str) -> tuple[int, str, bytes]:
        """Return the first line of the row for the rejects, and read the others again as rows of their own."""
        (number, line), *others = self.row
        self._again.extendleft(reversed(others))
        return number, reason, line


def _checked_cell(cell: str) -> str:
    cell = cell.strip()
    if "\n" in cell or "\r" in cell:
        raise _BadRowError("several_lines")
    if not cell.isascii() and _SURROGATES.search(cell):
        raise _BadRowError("not_utf8")
    return cell


def _parquet_urls(path: str, column: str, rejects: Rejects) -> Iterator[str | None]:
    rows = _parquet_rows(path, column)
    size_bytes = storage.size_bytes(path)
    done = 0
    for batch in _parquet_batches(path, column):
        values = batch.column(column)
        _require_text(path, column, values.type)
        yield from _texts(values, done + 1, rejects)
        before, done = done, done + batch.num_rows
        progress.advance(size_bytes * done // rows - size_bytes * before // rows)


def _parquet_rows(path: str, column: str) -> int:
    """Return the number of rows of a table that has the column."""
    with storage.open_read(path) as stream:
        try:
            table = shards.open_parquet(stream, path)
        except InputError as error:
            raise _bad_table(path, error) from error
        _place_of_column(path, table.schema_arrow.names, column)
        return int(table.metadata.num_rows)


def _parquet_batches(path: str, column: str) -> Iterator[pa.RecordBatch]:
    try:
        # The column is there, so that what is wrong is wrong with the file.
        yield from shards.read_batches(path, [column])
    except InputError as error:
        raise _bad_table(path, error) from error


def _bad_table(path: str, error: InputError) -> _BadListError:
    return _BadListError(str(error).removeprefix(f"{path}: "))


def _require_text(path: str, column: str, kind: pa.DataType) -> None:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_null(plain)):
        raise InputError(f"{path}: column {column!r} is {kind}, not text")


def _texts(values: pa.Array, first_row: int, rejects: Rejects) -> Iterator[str | None]:
    """Yield the texts of a batch; Parquet does not check that its strings are UTF-8."""
    try:
        texts = values.to_pylist()
    except UnicodeDecodeError:
        plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        texts = plain.cast(pa.large_binary()).to_pylist()
    for row, text in enumerate(texts, first_row):
        try:
            yield _decoded(text) if isinstance(text, bytes) else text
        except _BadRowError as error:
            rejects.add(row, str(error), text)


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers, without a byte order mark."""
    for number, line in numbered_lines(stream):
        yield number, line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line


def _place_of_column(path: str, names: list[str], column: str) -> int:
    names = [name.strip() for name in names]
    if column not in names:
        raise InputError(
            f"{path}: has no column {column!r}; it has: {', '.join(names)} (name one of them with --url-column)"
        )
    return names.index(column)


def _cell(cells: list[_Cell], place: int) -> _Cell:
    if place >= len(cells):
        raise _BadRowError("short_row")
    return cells[place]


def _decoded(text: bytes) -> str:
    try:
        return text.decode().strip()
    except UnicodeDecodeError:
        raise _BadRowError("not_utf8") from None


def _refuse_empty(lines: int) -> None:
    if not lines:
        raise _BadListError("holds no lines at all; is the download complete?")
