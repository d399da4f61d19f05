"""Benchmarks: named on the command line or in `webtext.toml`, read example by example."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence

import pyarrow as pa

from pipelines.core import inputs, shards, storage
from pipelines.core.compression import open_decompressed, strip_compression
from pipelines.core.errors import InputError, UsageError

_BLANK_LINES = re.compile(r"(?:\r?\n[ \t\f\v]*){2,}")


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A benchmark's name, its split if one was named, the field of its text, and its files."""

    name: str
    split: str | None
    field: str
    files: tuple[str, ...]

    @property
    def label(self) -> str:
        """The name, with the split behind a slash."""
        return self.name if self.split is None else f"{self.name}/{self.split}"

    @property
    def fingerprint(self) -> str:
        """Hash of the content, and of the field that is read."""
        return f"{self.field}:{inputs.fingerprint_files(self.files)}"


@dataclasses.dataclass(frozen=True)
class Example:
    """One example: its number from 0, where it stands (`file:line`, `file:row`), and its text."""

    number: int
    place: str
    text: str


def parse_benchmarks(values: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks that strings `NAME[/SPLIT][:FIELD]=PATH` mean; PATH is a file, a folder or a glob.

    Raises UsageError for a string of another form or a name given twice, InputError for a path that means no file.
    """
    if not values:
        raise UsageError("overlap-report: no benchmark is given; name one with --benchmark NAME=PATH")
    benchmarks = [_parse(value) for value in values]
    labels = [benchmark.label for benchmark in benchmarks]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"--benchmark: {label} is given twice; two splits of one benchmark are NAME/SPLIT=PATH")
    return benchmarks


def read_examples(benchmark: Benchmark, txt_example: str) -> Iterator[Example]:
    """Yield the examples of a benchmark in the order of its files.

    Those of a `.txt` are its lines, its paragraphs, or the whole file, blank ones left out. A null is an empty text.
    Raises InputError, with the place, for a record that is no JSON object or lacks the field.
    """
    number = 0
    for path in benchmark.files:
        for place, text in _texts(path, benchmark, txt_example):
            yield Example(number, f"{storage.basename(path)}:{place}", text)
            number += 1


def _parse(value: str) -> Benchmark:
    left, _, path = value.partition("=")
    whole_name, colon, field = left.partition(":")
    name, slash, split = whole_name.partition("/")
    if not name or not path or (colon and not field) or (slash and not split):
        raise UsageError(f"--benchmark: {value!r} is not of the form NAME=PATH, NAME:FIELD=PATH or NAME/SPLIT=PATH")
    files = inputs.expand_paths([path], inputs.TEXT_SUFFIXES)
    return Benchmark(name, split or None, field or "text", tuple(files))


def _texts(path: str, benchmark: Benchmark, txt_example: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file, each with its line or row, from 1."""
    kind = strip_compression(path)
    if kind.endswith(".parquet"):
        return _parquet_texts(path, benchmark)
    if kind.endswith((".jsonl", ".ndjson")):
        return _jsonl_texts(path, benchmark)
    if kind.endswith(".txt"):
        return _plain_texts(path, txt_example)
    known = ", ".join(inputs.TEXT_SUFFIXES)
    raise InputError(f"{path}: its kind is unknown; benchmarks are {known} (text also compressed)")


def _parquet_texts(path: str, benchmark: Benchmark) -> Iterator[tuple[int, str]]:
    row = 0
    with storage.open_read(path) as stream:
        schema = shards.open_parquet(stream, path).schema_arrow
    if benchmark.field not in schema.names or not _is_text(schema.field(benchmark.field).type):
        texts = [field.name for field in schema if _is_text(field.type)]
        raise InputError(_wrong_field(path, benchmark, texts))
    for batch in shards.read_batches(path, [benchmark.field]):
        for text in batch.column(0).to_pylist():
            row += 1
            yield row, text or ""


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _jsonl_texts(path: str, benchmark: Benchmark) -> Iterator[tuple[int, str]]:
    with open_decompressed(path) as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                record = inputs.without_surrogates(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}:{number}: is not valid JSON ({error})") from error
            record = record if isinstance(record, dict) else {}
            text = record.get(benchmark.field, ...)
            if text is not None and not isinstance(text, str):
                fields = [key for key, each in record.items() if isinstance(each, str)]
                raise InputError(_wrong_field(f"{path}:{number}", benchmark, fields))
            yield number, text or ""


def _plain_texts(path: str, txt_example: str) -> Iterator[tuple[int, str]]:
    with open_decompressed(path) as stream:
        data = stream.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 ({error})") from error
    line = 1
    for piece, ending in _pieces(text, txt_example):
        if piece.strip():
            yield line, piece
        line += piece.count("\n") + ending.count("\n")


def _pieces(text: str, txt_example: str) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a text, each with what divides it from the next."""
    if txt_example == "file":
        yield text, ""
        return
    start = 0
    for match in re.finditer("\n", text) if txt_example == "line" else _BLANK_LINES.finditer(text):
        yield text[start : match.start()], match[0]
        start = match.end()
    yield text[start:], ""


def _wrong_field(where: str, benchmark: Benchmark, texts: Sequence[str]) -> str:
    held = f"its texts are: {', '.join(texts)}" if texts else "it holds no text at all"
    return f"{where}: has no text {benchmark.field!r}; {held}; name one as --benchmark {benchmark.label}:FIELD=PATH"
