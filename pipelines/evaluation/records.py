"""The records of a task's files: JSONL, JSON, CSV, TSV, Parquet, Arrow, or the lines of a text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipelines import storage
from pipelines.errors import InputError, UsageError
from pipelines.records import reader
from pipelines.records.reader import BadRecord, file_format, parse_json, parse_line, require_records
from pipelines.storage.compression import open_decompressed

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".tokens", ".raw", "")
_READ_BYTES = 1 << 20
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
        for number, value in _text_lines(path) if is_text(path) else _values(path, columns):
            if not isinstance(value, Mapping):
                raise InputError(f"{name}:{number}: is not a record, but {json.dumps(value, default=str)[:60]}")
            yield Record(value, f"{name}:{number}")


def is_text(path: str) -> bool:
    """Return whether a file is plain text, and has lines instead of records."""
    return file_format(storage.basename(path)) == "text"


def read_lines(path: str, tail_bytes: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text with their ends, and their numbers from 1; with `tail_bytes` only of its last bytes.

    Such a tail begins with its first whole character.
    """
    lines = _tail_lines(path, tail_bytes) if tail_bytes else reader.read_records(path, "text", keep_blank=True)
    yield from require_records(path, _checked_start(path, lines))


def _checked_start(path: str, lines: Iterator[reader.Record]) -> Iterator[reader.Record]:
    for record in lines:
        if record[0] == 1 and _FOREIGN.match(record[2]):
            raise InputError(f"{path}: is a web page or binary data, not text (begins with {record[2][:20]!r})")
        yield record


def _tail_lines(path: str, size: int) -> Iterator[reader.Record]:
    tail = b""
    with open_decompressed(path) as stream:
        while block := stream.read(max(size, _READ_BYTES)):
            tail = (tail + block)[-size:]
    for number, line in enumerate(re.sub(rb"^[\x80-\xbf]+", b"", tail).splitlines(True), 1):
        yield number, parse_line(line), line


def _values(path: str, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
    if file_format(path) == "json":
        with open_decompressed(path) as stream:
            value = parse_json(stream.read())
        if isinstance(value, BadRecord):
            raise InputError(f"{path}: is not valid JSON ({value.detail})")
        records = value.get("data") if isinstance(value, dict) else value
        if not isinstance(records, list):
            raise InputError(f"{path}: is neither a list of records nor an object with such a list in 'data'")
        yield from enumerate(records, 1)
    else:
        yield from require_records(path, reader.read_records(path, default_header=columns))


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
    if isinstance(parse_json(line.encode()), dict | list):
        return "JSON (.jsonl)"
    return "JSON (.json)" if line in ("{", "[", "[{") else None
