"""The examples of a benchmark's file or data set: their texts, and the line or row at which each begins."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.errors import InputError
from pipelines.records.reader import (
    file_format,
    line_columns,
    read_records,
    require_records,
    table_batches,
    table_records,
    table_schema,
)
from pipelines.records.shards import invalid_rows
from pipelines.records.text_columns import is_text
from pipelines.storage.bounded import max_text_bytes
from pipelines.storage.compression import strip_compression

_PLAIN_SUFFIXES = (".txt", ".tokens", ".raw")
SUFFIXES = (".parquet", ".jsonl", ".ndjson", *_PLAIN_SUFFIXES)
MAX_EXAMPLE_BYTES = 2**31 - 2  # the capacity of a column of texts

# The files of the one-billion-word benchmark: news.en.heldout-00000-of-00050.
_NUMBERED = re.compile(r"-\d+-of-\d+$")
_BLANK_LINES = r"(?:\r?\n[ \t\f\v]*){2,}"
_COLUMN_CHARACTERS = 16 << 20


class Examples(NamedTuple):
    """Texts without nulls, and the number of the line or row at which each begins, from 1."""

    texts: pa.StringArray
    numbers: npt.NDArray[np.int64]


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
        """Return the text of a record, "" for null.

        Names of nested fields have dots; the texts of a list and of several fields are joined by line ends. Raises
        InputError, with the names of the record's texts, if a field is missing or not text.
        """
        try:
            if not isinstance(record, dict):
                raise LookupError
            return "\n".join(_join_texts(_find_value(record, name)) for name in self._parts(record))
        except LookupError as error:
            texts = list(_named_texts("", record)) if isinstance(record, dict) else []
            others = f"its texts are: {', '.join(texts)}" if texts else "it contains no text at all"
            raise InputError(
                f"{place}: has no text {self.name!r}; {others}; choose one with --benchmark {self.label}:FIELD=PATH"
            ) from error

    def columns_in(self, schema: pa.Schema, place: str) -> list[str]:
        """Return the columns of a table that contain the text; raise InputError if one is missing or not text."""
        self.text_of({field.name: _value_of_type(field.type) for field in schema}, place)
        names = self._parts(schema.names)
        return list(dict.fromkeys(name if name in schema.names else name.partition(".")[0] for name in names))

    def _parts(self, known: Iterable[str]) -> list[str]:
        return [self.name] if self.name in known else self.name.split("+")


def file_examples(path: str, field: TextField, example: str) -> Iterator[Examples]:
    """Yield the examples of a file; see `table_examples` for records.

    For plain text, `example` is auto or line, paragraph (lines between blank ones), or document (all lines). Lines
    without a word are not examples.
    """
    form = example_format(path)
    if form == "parquet":
        batches = table_batches(path, field.columns_in(table_schema(path), path))
        return table_examples(path, batches, field, example)
    if form == "jsonl":
        records = require_records(path, read_records(path, form))
        texts = ((number, field.text_of(record, f"{path}:{number}")) for number, record in records)
        return _split_records(path, _columns(path, texts), example)
    columns = line_columns(path, max_text_bytes(storage.size_bytes(path)))
    lines = (_with_words(texts, np.arange(first, first + len(texts))) for first, texts in columns)
    if example == "paragraph":
        # The lines of consecutive numbers.
        groups = itertools.groupby(enumerate(_pairs(lines)), lambda item: item[1][0] - item[0])
        paragraphs = (_join(path, (line for _, line in group)) for _, group in groups)
        return _columns(path, itertools.chain.from_iterable(paragraphs))
    return _split_records(path, lines, "document" if example == "document" else "auto")


def table_examples(where: str, batches: Iterable[pa.RecordBatch], field: TextField, example: str) -> Iterator[Examples]:
    """Yield the examples of a table, which messages name as `where`.

    `example` is auto (a record), line or paragraph (of a record, if it has a word), or document (all records joined).
    """
    return _split_records(where, _table_texts(where, batches, field), example)


def _table_texts(where: str, batches: Iterable[pa.RecordBatch], field: TextField) -> Iterator[Examples]:
    row = 1
    for batch in batches:
        column = batch.column(field.name) if field.name in batch.schema.names else None
        if (
            column is not None
            and is_text(column.type)
            and column.nbytes < MAX_EXAMPLE_BYTES
            and not invalid_rows(column)
        ):
            # Without a record per row, which takes ten times as long.
            yield Examples(column.cast(pa.string()).fill_null(""), np.arange(row, row + batch.num_rows))
        else:
            records = require_records(where, table_records([batch], row))
            texts = ((number, field.text_of(record, f"{where}:{number}")) for number, record in records)
            yield from _columns(where, texts)
        row += batch.num_rows


def _split_records(where: str, records: Iterable[Examples], example: str) -> Iterator[Examples]:
    if example == "document":
        yield from _columns(where, _join(where, _pairs(records)))
        return
    for texts, numbers in records:
        if example == "auto":
            yield Examples(texts, numbers)
            continue
        parts = pc.split_pattern(texts, "\n") if example == "line" else pc.split_pattern_regex(texts, _BLANK_LINES)
        yield _with_words(parts.flatten(), numbers[pc.list_parent_indices(parts).to_numpy()])


def _with_words(texts: pa.StringArray, numbers: npt.NDArray[np.int64]) -> Examples:
    """Return the examples that are neither empty nor white space."""
    has_words = pc.invert(pc.or_(pc.equal(pc.binary_length(texts), 0), pc.utf8_is_space(texts)))
    return Examples(texts.filter(has_words), numbers[has_words.to_numpy(zero_copy_only=False)])


def _pairs(examples: Iterable[Examples]) -> Iterator[tuple[int, str]]:
    """Yield the number and text of every example."""
    for texts, numbers in examples:
        yield from zip(numbers.tolist(), texts.to_pylist(), strict=True)


def _columns(where: str, pairs: Iterable[tuple[int, str]]) -> Iterator[Examples]:
    """Yield examples as columns of about 16 million characters, or of one longer example.

    Raises InputError for an example that a column of texts cannot contain.
    """
    numbers: list[int] = []
    texts: list[str] = []
    size = 0
    for number, text in pairs:
        size += len(text)
        if texts and size > _COLUMN_CHARACTERS:
            yield Examples(pa.array(texts, pa.string()), np.array(numbers))
            numbers, texts, size = [], [], len(text)
        if len(text) > MAX_EXAMPLE_BYTES // 4:
            _check_size(where, len(text.encode()))
        numbers.append(number)
        texts.append(text)
    if texts:
        yield Examples(pa.array(texts, pa.string()), np.array(numbers))


def _check_size(where: str, size: int) -> None:
    if size > MAX_EXAMPLE_BYTES:
        raise InputError(f"{where}: has an example of 2 GiB or more; split the file, or use --example line")


def _join(where: str, texts: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield all texts as one, with the number of the first; nothing if all are blank."""
    parts: list[str] = []
    first = size = 0
    for number, text in texts:
        first = first or number
        size += len(text) + 1
        _check_size(where, size)
        parts.append(text)
    joined = "\n".join(parts)
    if joined.strip():
        yield first, joined


def _find_value(record: Any, name: str) -> Any:
    """Return the value of a dotted name; for a list, the values of its items."""
    if isinstance(record, list):
        return [_find_value(item, name) for item in record]
    if record is None:
        return None
    if not isinstance(record, dict):
        raise LookupError
    if name in record:
        return record[name]
    outer, dot, inner = name.partition(".")
    if not dot or outer not in record:
        raise LookupError
    return _find_value(record[outer], inner)


def _join_texts(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(map(_join_texts, value))
    raise LookupError


def _value_of_type(kind: pa.DataType) -> Any:
    """Return a value of a column that has all texts of its type."""
    if is_text(kind):
        return ""
    if pa.types.is_struct(kind):
        return {field.name: _value_of_type(field.type) for field in kind}
    return [_value_of_type(kind.value_type)] if hasattr(kind, "value_type") else 0


def _named_texts(prefix: str, value: Any) -> Iterator[str]:
    """Yield the names of the texts in a record, nested ones with dots."""
    if isinstance(value, str):
        yield prefix
    elif isinstance(value, list) and value:
        yield from _named_texts(prefix, value[0])
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _named_texts(f"{prefix}.{key}" if prefix else key, item)
