"""The text of a record: of one field, of a field inside others, of a list of them, or of several joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core.errors import InputError
from pipelines.core.text_readers import replace_surrogates

_JOINED = "+"
_INSIDE = "."


class NoTextError(Exception):
    """A record has no text under the name of the field."""


@dataclasses.dataclass(frozen=True)
class TextField:
    """Where the text stands: `story`, `answers.text`, `question+answer`; and whose it is, for messages."""

    name: str
    label: str

    def of(self, record: Any) -> str:
        """Return the text of a record as JSON gives it; that of a null is empty.

        What stands inside others is named with dots, the texts of a list and of several fields are joined by line ends.
        Raises NoTextError where a field is missing or is no text.
        """
        if not isinstance(record, dict):
            raise NoTextError
        if self.name in record:
            return replace_surrogates(_joined(record[self.name]))  # type: ignore[no-any-return]
        parts = [_joined(_value(record, name)) for name in self.name.split(_JOINED)]
        return replace_surrogates("\n".join(parts))  # type: ignore[no-any-return]

    def columns(self, schema: pa.Schema) -> list[str] | None:
        """Return the columns of a table that hold the text, or None where it has no such text."""
        known = text_columns(schema)
        names = [self.name] if self.name in known else self.name.split(_JOINED)
        if not set(names) <= set(known):
            return None
        columns = (name if name in schema.names else name.split(_INSIDE)[0] for name in names)
        return list(dict.fromkeys(columns))

    def wrong(self, where: str, texts: Sequence[str]) -> InputError:
        """Return the error for a record without the text, which names the texts that it has."""
        held = f"its texts are: {', '.join(texts)}" if texts else "it holds no text at all"
        return InputError(
            f"{where}: has no text {self.name!r}; {held}; name one as --benchmark {self.label}:FIELD=PATH"
        )


def texts_in(record: Any) -> list[str]:
    """Return the names of the texts in a record as JSON gives it, those inside others with dots."""
    return list(_named_texts("", record)) if isinstance(record, dict) else []


def text_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the texts in a table, those inside others with dots."""
    return [name for field in schema for name in _named_types(field.name, field.type)]


def column_texts(batch: pa.RecordBatch, field: TextField) -> pa.StringArray:
    """Return the texts of a batch that has the field's columns; a null is an empty text.

    Raises NoTextError where the field is no text, ArrowInvalid where a text is not UTF-8.
    """
    if field.name in batch.schema.names and is_text(batch.schema.field(field.name).type):
        texts = batch.column(field.name).cast(pa.string()).cast(pa.binary()).cast(pa.string())
        return pc.fill_null(texts, "") if texts.null_count else texts
    try:
        return pa.array([field.of(record) for record in batch.to_pylist()], pa.string())
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(str(error)) from error


def is_text(kind: pa.DataType) -> bool:
    """Tell whether a column's type is text."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _value(record: Any, name: str) -> Any:
    """Return what a dotted name means: in a list, the list of what it means in each."""
    if isinstance(record, list):
        return [_value(item, name) for item in record]
    if record is None:
        return None
    if not isinstance(record, dict):
        raise NoTextError
    if name in record:
        return record[name]
    first, dot, rest = name.partition(_INSIDE)
    if not dot or first not in record:
        raise NoTextError
    return _value(record[first], rest)


def _joined(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(_joined(item) for item in value)
    raise NoTextError


def _named_texts(prefix: str, value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield prefix
    elif isinstance(value, list) and value:
        yield from _named_texts(prefix, value[0])
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _named_texts(f"{prefix}{_INSIDE}{key}" if prefix else key, each)


def _named_types(prefix: str, kind: pa.DataType) -> Iterator[str]:
    if is_text(kind):
        yield prefix
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _named_types(prefix, kind.value_type)
    elif pa.types.is_struct(kind):
        for each in kind:
            yield from _named_types(f"{prefix}{_INSIDE}{each.name}", each.type)
