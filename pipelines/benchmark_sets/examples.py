"""The examples of a benchmark's file or data set: their texts, and the line or row at which each begins."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from pipelines import storage
from pipelines.errors import InputError
from pipelines.records.reader import (
    file_format,
    line_blocks,
    read_records,
    require_records,
    table_batches,
    table_records,
    table_schema,
)
from pipelines.records.text_columns import is_text
from pipelines.storage.bounded import max_text_bytes
from pipelines.storage.compression import strip_compression

_PLAIN_SUFFIXES = (".txt", ".tokens", ".raw")
SUFFIXES = (".parquet", ".jsonl", ".ndjson", *_PLAIN_SUFFIXES)
MAX_EXAMPLE_BYTES = 2**31 - 2  # the capacity of a column of texts

# The files of the one-billion-word benchmark: news.en.heldout-00000-of-00050.
_NUMBERED = re.compile(r"-\d+-of-\d+$")
_BLANK_LINES = re.compile(r"(?:\r?\n[ \t\f\v]*){2,}")

# The number of the line or row at which an example begins, from 1, and its text.
Example = tuple[int, str]


class _NoTextError(Exception):
    """A record has no text under the name of the field."""


def example_format(path: str) -> str:
    """Return "parquet", "jsonl" or "text" by a file's name; raise InputError for another format."""
    name = strip_compression(storage.basename(path))
    if name.endswith(_PLAIN_SUFFIXES) or "." not in name or _NUMBERED.search(name):
        return "text"
    if name.endswith(SUFFIXES):
        return file_format(name)
    if name.endswith(".json"):
        raise InputError(
            f"{path}: is a single JSON value; write one record per line as .jsonl, for instance with `jq -c '.data[]'`"
        )
    raise InputError(f"{path}: unknown file type; benchmarks are {', '.join(SUFFIXES)} (text also compressed)")


@dataclasses.dataclass(frozen=True)
class TextField:
    """The field of a benchmark's text: `story`, `answers.text`, `question+answer`; `label` names it in messages."""

    name: str
    label: str

    def text_of(self, record: Any, place: str) -> str:
        """Return the text of a record; that of a null is empty.

        Names of nested fields have dots; the texts of a list and of several fields are joined by line ends. Raises
        InputError, with the texts of the record, if a field is missing or not text.
        """
        try:
            if not isinstance(record, dict):
                raise _NoTextError
            return "\n".join(_join_texts(_find_value(record, name)) for name in self._parts(record))
        except _NoTextError as error:
            texts = list(_named_texts("", record)) if isinstance(record, dict) else []
            others = f"its texts are: {', '.join(texts)}" if texts else "it contains no text at all"
            raise InputError(
                f"{place}: has no text {self.name!r}; {others}; choose one with --benchmark {self.label}:FIELD=PATH"
            ) from error

    def columns_in(self, schema: pa.Schema) -> list[str]:
        """Return the columns of a table that contain the text, none if some are missing or not text."""
        known = [field.name for field in schema if is_text(field.type) or pa.types.is_nested(field.type)]
        columns = [name if name in known else name.partition(".")[0] for name in self._parts(known)]
        return list(dict.fromkeys(columns)) if set(columns) <= set(known) else []

    def _parts(self, known: Iterable[str]) -> list[str]:
        return [self.name] if self.name in known else self.name.split("+")


def file_examples(path: str, field: TextField, example: str, max_bytes: int) -> Iterator[list[Example]]:
    """Yield the examples of a file: those of `record_examples`, or of a plain text.

    Of a text, `example` is auto or line, paragraph (lines between blank ones), or document (all lines). Lines without a
    word are not examples.
    """
    form = example_format(path)
    if form == "parquet":
        columns = field.columns_in(table_schema(path)) or None
        return table_examples(path, table_batches(path, columns), field, example, max_bytes)
    if form == "jsonl":
        records = require_records(path, read_records(path, form))
        texts = ([(number, field.text_of(record, f"{path}:{number}"))] for number, record in records)
        return _split_records(path, texts, example, max_bytes)
    blocks = line_blocks(path, max_text_bytes(storage.size_bytes(path)))
    lines = ([(number, line.rstrip("\r")) for number, line in block if line and not line.isspace()] for block in blocks)
    if example == "document":
        return _join(path, itertools.chain.from_iterable(lines), max_bytes)
    return _paragraphs(path, lines, max_bytes) if example == "paragraph" else lines


def table_examples(
    where: str, batches: Iterable[pa.RecordBatch], field: TextField, example: str, max_bytes: int
) -> Iterator[list[Example]]:
    """Yield the examples of a table, which messages name as `where`; see `file_examples`."""
    return _split_records(where, _table_texts(where, batches, field), example, max_bytes)


def _table_texts(where: str, batches: Iterable[pa.RecordBatch], field: TextField) -> Iterator[list[Example]]:
    row = 1
    for batch in batches:
        try:  # without a record per row, which takes ten times as long
            is_plain = field.name in batch.schema.names and is_text(batch.schema.field(field.name).type)
            texts = batch.column(field.name).to_pylist() if is_plain else None
        except UnicodeDecodeError:
            texts = None
        if texts is None:
            records = require_records(where, table_records([batch], row))
            texts = [field.text_of(record, f"{where}:{number}") for number, record in records]
        yield [(number, text or "") for number, text in enumerate(texts, row)]
        row += batch.num_rows


def _split_records(
    where: str, records: Iterable[list[Example]], example: str, max_bytes: int
) -> Iterator[list[Example]]:
    """Yield records as they are (auto), their lines or paragraphs that have a word, or all joined (document)."""
    if example == "document":
        yield from _join(where, itertools.chain.from_iterable(records), max_bytes)
        return
    for chunk in records:
        if example == "line":
            chunk = [(row, part) for row, text in chunk for part in text.split("\n") if part.strip()]
        elif example == "paragraph":
            split = _BLANK_LINES.split
            chunk = [(row, part) for row, text in chunk for part in (split(text) if "\n" in text else [text])]
            chunk = [(row, part) for row, part in chunk if part.strip()]
        yield chunk


def check_size(where: str, size: int, max_bytes: int) -> None:
    """Raise InputError for an example that a column of texts cannot contain."""
    if size > max_bytes:
        raise InputError(f"{where}: has an example of 2 GiB or more; split the file, or use --example line")


def _paragraphs(path: str, lines: Iterable[list[Example]], max_bytes: int) -> Iterator[list[Example]]:
    """Join the lines of consecutive numbers, that is, those between blank lines."""
    numbered = enumerate(itertools.chain.from_iterable(lines))
    for _, group in itertools.groupby(numbered, lambda item: item[1][0] - item[0]):
        yield from _join(path, (line for _, line in group), max_bytes)


def _join(where: str, texts: Iterable[Example], max_bytes: int) -> Iterator[list[Example]]:
    """Yield all texts as one, with the number of the first; nothing if there are none or only blank ones."""
    parts: list[str] = []
    first = size = 0
    for number, text in texts:
        first = first or number
        size += len(text) + 1
        check_size(where, size, max_bytes)
        parts.append(text)
    joined = "\n".join(parts)
    if joined.strip():
        yield [(first, joined)]


def _find_value(record: Any, name: str) -> Any:
    """Return the value of a dotted name; of a list, the list of the values of its items."""
    if isinstance(record, list):
        return [_find_value(item, name) for item in record]
    if record is None:
        return None
    if not isinstance(record, dict):
        raise _NoTextError
    if name in record:
        return record[name]
    outer, dot, inner = name.partition(".")
    if not dot or outer not in record:
        raise _NoTextError
    return _find_value(record[outer], inner)


def _join_texts(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(map(_join_texts, value))
    raise _NoTextError


def _named_texts(prefix: str, value: Any) -> Iterator[str]:
    """Yield the names of the texts in a record, nested ones with dots."""
    if isinstance(value, str):
        yield prefix
    elif isinstance(value, list) and value:
        yield from _named_texts(prefix, value[0])
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _named_texts(f"{prefix}.{key}" if prefix else key, item)
