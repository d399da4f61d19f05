"""The records of a task's files: JSONL, JSON, CSV, TSV, Parquet, Arrow, or the lines of a text."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from pipelines import storage
from pipelines.errors import InputError, UsageError
from pipelines.records import shards
from pipelines.records.csv_rows import table_rows
from pipelines.records.table_readers import arrow_batches
from pipelines.storage.bounded import MAX_LINE_BYTES, numbered_lines
from pipelines.storage.compression import open_decompressed, strip_compression

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".tokens", ".raw", "")
_READ_BYTES = 1 << 20
_MAX_ROW_LINES = 10_000
# A page in place of a download that failed, or data that no decompression is known for.
_FOREIGN = re.compile(rb"\s*<(!doctype html|html)\b|[^\n]*\0", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{([\w.-]+)\}")
_UNCLOSED = re.compile(r"\{[\w.-]+(?=[^{}]*(\{|$))")


class Record(NamedTuple):
    """The fields of a record, and its file and line or row, as in messages."""

    fields: Mapping[str, Any]
    place: str

    def text(self, template: str) -> str:
        """Return a template with its `{field}` placeholders replaced; raise InputError for a field that is missing."""
        return _PLACEHOLDER.sub(lambda match: str(self.value(match[1])), template)

    def value(self, name: str) -> Any:
        """Return a field; dots go into a record, and numbers into a list. Raise InputError for null and NaN."""
        value: Any = self.fields
        for key in name.split("."):
            if isinstance(value, Mapping) and key in value:
                value = value[key]
            elif (
                isinstance(value, Sequence) and not isinstance(value, str) and key.isdecimal() and int(key) < len(value)
            ):
                value = value[int(key)]
            else:
                known = ", ".join(map(repr, self.fields)) or "none"
                raise InputError(f"{self.place}: has no field {name!r}; its fields are {known}")
        for part in value if isinstance(value, list) else [value]:
            if part is None or (isinstance(part, float) and math.isnan(part)):
                verb, kind = "is" if part is value else "contains", "null" if part is None else "NaN"
                raise InputError(f"{self.place}: field {name!r} {verb} {kind}")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a field with a list of texts; raise InputError for another value."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise InputError(f"{self.place}: {name} is not a list of texts")
        return value


def check_template(template: str, option: str) -> None:
    """Raise UsageError for a placeholder that is not closed; other braces are text."""
    if match := _UNCLOSED.search(template):
        raise UsageError(f"{option}: the placeholder {match[0]!r} is not closed; write {match[0] + '}'!r}")


def read_records(paths: Sequence[str], columns: Sequence[str] = ()) -> Iterator[Record]:
    """Yield the records of files; a line of a text has the field `text`, and blank ones are passed over.

    Of a `.json` file with one object, the records are those of its field `data`. CSV and TSV with as many columns as
    `columns` may lack a header. Raises InputError, with the place, for what cannot be read.
    """
    for path, name in zip(paths, storage.names_below_common_folder(paths), strict=True):
        reader = _reader(strip_compression(name))
        for number, fields in _table(path, columns) if reader is _table else reader(path):
            place = f"{name}:{number}"
            if not isinstance(fields, Mapping):
                raise InputError(f"{place}: is not a record, but {json.dumps(fields, default=str)[:60]}")
            yield Record(fields, place)


def is_text(path: str) -> bool:
    """Return whether a file is plain text, and has lines instead of records."""
    return _reader(strip_compression(storage.basename(path))) is _text_lines


def read_lines(path: str, tail_bytes: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text with their ends, and their numbers from 1; with `tail_bytes` only of its last bytes.

    Such a tail begins with its first whole character.
    """
    with open_decompressed(path) as stream:
        lines = _tail_lines(stream, tail_bytes) if tail_bytes else numbered_lines(stream, keep_blank=True)
        for number, line in lines:
            if not tail_bytes and len(line) >= MAX_LINE_BYTES:
                raise InputError(f"{path}:{number}: the line has {MAX_LINE_BYTES:,} bytes or more; split it")
            if number == 1 and _FOREIGN.match(line):
                raise InputError(f"{path}: is a web page or binary data, not text (begins with {line[:20]!r})")
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{path}:{number}: is not UTF-8 ({error.reason})") from error


def _tail_lines(stream: BinaryIO, size: int) -> Iterator[tuple[int, bytes]]:
    tail = b""
    while block := stream.read(max(size, _READ_BYTES)):
        tail = (tail + block)[-size:]
    return enumerate(re.sub(rb"^[\x80-\xbf]+", b"", tail).splitlines(True), 1)


def _reader(name: str) -> Any:
    readers = {
        (".jsonl", ".ndjson"): _json_lines,
        (".json",): _json,
        (".csv", ".tsv"): _table,
        (".parquet",): lambda path: enumerate(shards.read_rows(path), 1),
        (".arrow",): _arrow,
    }
    texts = (reader for suffixes, reader in readers.items() if name.lower().endswith(suffixes))
    return next(texts, _text_lines)


def _text_lines(path: str) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in read_lines(path):
        if number == 1 and (form := _structured(line.strip())):
            remedy = "name records or a text" if path.lower().endswith(".xml") else "rename it to its own suffix"
            raise InputError(f"{path}: is {form}, not a text with a line per example; {remedy}")
        if line.strip():
            yield number, {"text": line.rstrip("\r\n")}


def _structured(line: str) -> str | None:
    """Return what a file is that begins with this line, if it is not text."""
    if line.startswith("<?xml"):
        return "XML"
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(json.loads(line), dict | list):
            return "JSON (.jsonl)"
    return "JSON (.json)" if line in ("{", "[", "[{") else None


def _json_lines(path: str) -> Iterator[tuple[int, Any]]:
    for number, line in read_lines(path):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}:{number}: is not valid JSON ({error})") from error


def _json(path: str) -> Iterator[tuple[int, Any]]:
    with open_decompressed(path) as stream:
        try:
            value = json.load(stream)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: is not valid JSON ({error})") from error
    records = value.get("data") if isinstance(value, dict) else value
    if not isinstance(records, list):
        raise InputError(f"{path}: is neither a list of records nor an object with such a list in 'data'")
    yield from enumerate(records, 1)


def _table(path: str, columns: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, str]]]:
    header: list[str] | None = None
    with open_decompressed(path) as stream:
        for lines, cells in table_rows(path, numbered_lines(stream, keep_blank=True), _MAX_ROW_LINES):
            number = lines[0][0]
            if isinstance(cells, csv.Error):
                raise InputError(f"{path}:{number}: cannot be read as CSV ({cells})")
            if header is None:
                # Names of the columns are recognized in upper case, too.
                header = [cell.lower() if cell.lower() in columns else cell for cell in cells]
                if len(cells) != len(columns) or not set(columns).isdisjoint(header):
                    continue
                header = list(columns)
            if cells:
                if len(cells) != len(header):
                    raise InputError(f"{path}:{number}: has {len(cells)} cells, the header {len(header)}")
                yield number, dict(zip(header, cells, strict=True))


def _arrow(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    return enumerate((row for batch in arrow_batches(path, None) for row in batch.to_pylist()), 1)
