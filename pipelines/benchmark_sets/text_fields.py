"""The text of a record: one field, a nested field, a list of texts, or several fields joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.web.text_repair import replace_surrogates
from pipelines.errors import InputError

_JOIN = "+"
_NESTED = "."


class NoTextError(Exception):
    """A record has no text under the name of the field."""


@dataclasses.dataclass(frozen=True)
class TextField:
    """The field of a benchmark's text: `story`, `answers.text`, `question+answer`; `label` names it in messages."""

    name: str
    label: str

    def text_of(self, record: Any) -> str:
        """Return the text of a JSON record; that of a null is empty.

        Names of nested fields have dots; the texts of a list and of several fields are joined by line ends. Raises
        NoTextError if a field is missing or not text.
        """
        if not isinstance(record, dict):
            raise NoTextError
        names = [self.name] if self.name in record else self.name.split(_JOIN)
        return replace_surrogates("\n".join(_join_texts(_find_value(record, name)) for name in names))

    def columns_in(self, schema: pa.Schema) -> list[str] | None:
        """Return the columns of a table that contain the text, or None if it has no such text."""
        known = text_columns(schema)
        names = [self.name] if self.name in known else self.name.split(_JOIN)
        if not set(names) <= set(known):
            return None
        columns = (name if name in schema.names else name.split(_NESTED)[0] for name in names)
        return list(dict.fromkeys(columns))

    def missing_error(self, where: str, texts: Sequence[str]) -> InputError:
        """Return the error for a record without the text, listing the texts that it has."""
        others = f"its texts are: {', '.join(texts)}" if texts else "it contains no text at all"
        return InputError(
            f"{where}: has no text {self.name!r}; {others}; choose one with --benchmark {self.label}:FIELD=PATH"
        )


def record_texts(record: Any) -> list[str]:
    """Return the names of the texts in a JSON record, nested ones with dots."""
    return list(_named_texts("", record)) if isinstance(record, dict) else []


def text_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the texts in a table, nested ones with dots."""
    return [name for field in schema for name in _named_types(field.name, field.type)]


def column_texts(batch: pa.RecordBatch, field: TextField) -> pa.StringArray:
    """Return the texts of a batch that has the field's columns; nulls become empty texts.

    Raises NoTextError if the field is not text, ArrowInvalid if a text is not UTF-8.
    """
    if field.name in batch.schema.names and _is_text(batch.schema.field(field.name).type):
        texts = batch.column(field.name).cast(pa.string()).cast(pa.binary()).cast(pa.string())
        return pc.fill_null(texts, "") if texts.null_count else texts
    try:
        return pa.array([field.text_of(record) for record in batch.to_pylist()], pa.string())
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(str(error)) from error


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _find_value(record: Any, name: str) -> Any:
    """Return the value of a dotted name; of a list, the list of the values of its items."""
    if isinstance(record, list):
        return [_find_value(item, name) for item in record]
    if record is None:
        return None
    if not isinstance(record, dict):
        raise NoTextError
    if name in record:
        return record[name]
    outer, dot, inner = name.partition(_NESTED)
    if not dot or outer not in record:
        raise NoTextError
    return _find_value(record[outer], inner)


def _join_texts(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(_join_texts(item) for item in value)
    raise NoTextError


def _named_texts(prefix: str, value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield prefix
    elif isinstance(value, list) and value:
        yield from _named_texts(prefix, value[0])
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _named_texts(f"{prefix}{_NESTED}{key}" if prefix else key, item)


def _named_types(prefix: str, kind: pa.DataType) -> Iterator[str]:
    if _is_text(kind):
        yield prefix
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _named_types(prefix, kind.value_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _named_types(f"{prefix}{_NESTED}{field.name}", field.type)
