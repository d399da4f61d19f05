"""The examples of a file or data set, as columns of text with the line or row at which each begins."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.benchmark_sets.text_fields import NoTextError, TextField, column_texts, record_texts, text_columns
from pipelines.errors import InputError
from pipelines.records import shards
from pipelines.storage.bounded import MAX_LINE_BYTES, max_text_bytes, numbered_lines
from pipelines.storage.compression import open_decompressed, strip_compression

LINE_SUFFIXES = (".jsonl", ".ndjson")
_PLAIN_SUFFIXES = (".txt", ".tokens", ".raw")
SUFFIXES = (".parquet", *LINE_SUFFIXES, *_PLAIN_SUFFIXES)

# The files of the one-billion-word benchmark: news.en.heldout-00000-of-00050.
_NUMBERED = re.compile(r"-\d+-of-\d+$")
_BLANK_LINES = r"(?:\r?\n[ \t\f\v]*){2,}"


class Texts(NamedTuple):
    """Texts without nulls, and the line or row, from 1, at which each begins."""

    texts: pa.StringArray
    numbers: npt.NDArray[np.int64]

    def slice(self, start: int, end: int | None = None) -> Texts:
        """Return some of the texts."""
        return Texts(self.texts[start:end], self.numbers[start:end])

    def offsets(self) -> npt.NDArray[np.int64]:
        """Return the bytes before each text, and finally of all texts."""
        sizes = pc.binary_length(self.texts).to_numpy(zero_copy_only=False)
        return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])

    def joined_size(self) -> int:
        """Return the bytes of the texts, joined by line ends."""
        return int(self.offsets()[-1]) + len(self.texts)


@dataclasses.dataclass(frozen=True)
class ReadLimits:
    """Bounds of what is read at once; an example longer than `batch_bytes` is a batch of its own."""

    batch_examples: int = 8192
    batch_bytes: int = 16 << 20
    block_bytes: int = 4 << 20
    example_bytes: int = 2**31 - 2  # the capacity of a column of texts


DEFAULT_LIMITS = ReadLimits()


def file_kind(path: str) -> str:
    """Return "parquet", "jsonl" or "txt" by a file's name; raise InputError for another kind."""
    name = strip_compression(storage.basename(path))
    if name.endswith(".parquet"):
        return "parquet"
    if name.endswith(LINE_SUFFIXES):
        return "jsonl"
    if name.endswith(_PLAIN_SUFFIXES) or "." not in name or _NUMBERED.search(name):
        return "txt"
    if name.endswith(".json"):
        raise InputError(
            f"{path}: is a single JSON value; write one record per line as .jsonl, for instance with `jq -c '.data[]'`"
        )
    raise InputError(f"{path}: unknown file type; benchmarks are {', '.join(SUFFIXES)} (text also compressed)")


def parquet_schema(path: str) -> pa.Schema:
    """Return the schema of a Parquet file."""
    with shards.open_stream(path) as stream:
        return shards.open_parquet(stream, path).schema_arrow


def parquet_batches(
    path: str, columns: list[str] | None = None, batch_bytes: int = 16 << 20
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in batches of about so many bytes."""
    with shards.open_stream(path) as stream:
        rows = shards.rows_per_batch(stream, path, None, batch_bytes, columns=columns)
    for batch in shards.read_batches(path, columns, rows=rows):
        yield from shards.split_by_bytes(batch, 4 * batch_bytes)


def read_json_lines(path: str, **options: Any) -> Iterator[tuple[int, Any, int]]:
    """Yield the number, value and bytes of each line that is not blank; raise InputError if it is not JSON."""
    with open_decompressed(path) as stream:
        for number, line in numbered_lines(stream):
            if len(line) >= MAX_LINE_BYTES:
                raise InputError(f"{path}:{number}: the line has {MAX_LINE_BYTES:,} bytes or more; split the record")
            try:
                yield number, json.loads(line, **options), len(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}:{number}: is not valid JSON ({error})") from error


@dataclasses.dataclass(frozen=True)
class ExampleReader:
    """Reads the examples of a file or data set, which messages name as `where`.

    `example` is auto (a line of a .txt, a record of others), line, paragraph, or document (all lines or records joined
    by line ends). Lines and paragraphs without a word are not examples. Examples come in order, in batches within
    `limits`, and are never split. Raises InputError, with the place, for a record without the field, text that is not
    UTF-8, and an example of 2 GiB or more.
    """

    where: str
    field: TextField
    example: str
    limits: ReadLimits = DEFAULT_LIMITS

    def read_file(self) -> Iterator[Texts]:
        """Yield the examples of the file `where`."""
        kind = file_kind(self.where)
        if kind == "txt":
            return self._split_batches(self._from_lines(self._plain_lines()))
        if kind == "jsonl":
            return self._split_batches(self._from_records(self._jsonl_texts()))
        limit = self.limits.batch_bytes
        return self.read_table(parquet_schema(self.where), lambda columns: parquet_batches(self.where, columns, limit))

    def read_table(
        self, schema: pa.Schema, read_columns: Callable[[list[str]], Iterator[pa.RecordBatch]]
    ) -> Iterator[Texts]:
        """Yield the examples of a table."""
        columns = self.field.columns_in(schema)
        if columns is None:
            raise self.field.missing_error(self.where, text_columns(schema))
        return self._split_batches(self._from_records(self._table_texts(read_columns(columns))))

    def _from_lines(self, lines: Iterator[Texts]) -> Iterator[Texts]:
        if self.example == "paragraph":
            return self._paragraphs(lines)
        return self._join_all(lines) if self.example == "document" else lines

    def _from_records(self, records: Iterator[Texts]) -> Iterator[Texts]:
        for batch in self._join_all(records) if self.example == "document" else records:
            if self.example == "line":
                yield _split_texts(batch, pc.split_pattern(batch.texts, "\n"))
            elif self.example == "paragraph":
                yield _split_texts(batch, pc.split_pattern_regex(batch.texts, _BLANK_LINES))
            else:
                yield batch

    def _plain_lines(self) -> Iterator[Texts]:
        """Yield the lines of a text file that are not blank."""
        line = 1
        for block in self._line_blocks():
            try:
                text = block.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                bad_line = line + block.count(b"\n", 0, error.start)
                raise InputError(f"{self.where}: is not UTF-8, in line {bad_line} ({error.reason})") from error
            lines = pc.utf8_rtrim(pc.split_pattern(pa.array([text]), "\n").flatten(), "\r")
            yield _without_blank(lines, np.arange(line, line + len(lines), dtype=np.int64))
            line += len(lines) - text.endswith("\n")

    def _line_blocks(self) -> Iterator[bytes]:
        """Yield a file in blocks of whole lines; a longer line makes a longer block."""
        max_bytes = max_text_bytes(storage.size_bytes(self.where))
        with open_decompressed(self.where) as stream:
            rest: list[bytes] = []
            size = 0
            # A long line is read in ever larger steps, so that it is not searched again for each block.
            while block := stream.read(max(self.limits.block_bytes, size)):
                end = block.rfind(b"\n") + 1
                size = size + len(block) if not end else len(block) - end
                self._check_size(size)
                if size > max_bytes:
                    raise InputError(f"{self.where}: has a line of more than {max_bytes:,} bytes; split it into lines")
                if end:
                    yield b"".join([*rest, block[:end]])
                    rest = []
                rest.append(block[end:])
            if size:
                yield b"".join(rest)

    def _jsonl_texts(self) -> Iterator[Texts]:
        texts: list[str] = []
        numbers: list[int] = []
        pending_bytes = 0
        for number, record, line_bytes in read_json_lines(self.where):
            try:
                texts.append(self.field.text_of(record))
            except NoTextError as error:
                raise self.field.missing_error(f"{self.where}:{number}", record_texts(record)) from error
            numbers.append(number)
            pending_bytes += line_bytes
            if len(texts) >= self.limits.batch_examples or pending_bytes >= self.limits.batch_bytes:
                yield Texts(pa.array(texts, pa.string()), np.array(numbers, np.int64))
                texts, numbers, pending_bytes = [], [], 0
        yield Texts(pa.array(texts, pa.string()), np.array(numbers, np.int64))

    def _table_texts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Texts]:
        row = 1
        for batch in batches:
            try:
                texts = column_texts(batch, self.field)
            except NoTextError as error:
                raise self.field.missing_error(self.where, text_columns(batch.schema)) from error
            except pa.ArrowInvalid as error:
                raise InputError(f"{self.where}:{row + self._first_invalid(batch)}: is not UTF-8") from error
            yield Texts(texts, np.arange(row, row + len(texts), dtype=np.int64))
            row += len(texts)

    def _first_invalid(self, batch: pa.RecordBatch) -> int:
        for row in range(batch.num_rows):
            try:
                column_texts(batch.slice(row, 1), self.field)
            except pa.ArrowInvalid:
                return row
        return 0

    def _paragraphs(self, lines: Iterator[Texts]) -> Iterator[Texts]:
        """Join lines of consecutive numbers, that is, those between blank lines."""
        pending: list[Texts] = []  # the lines of a paragraph that may continue in the next batch
        size = 0
        for batch in lines:
            if not len(batch.texts):
                continue
            breaks = np.flatnonzero(np.diff(batch.numbers) != 1) + 1
            continues = bool(pending) and pending[-1].numbers[-1] + 1 == batch.numbers[0]
            if pending and not continues:
                yield self._join(pending)
                pending = []
            if continues and len(breaks):
                yield self._join([*pending, batch.slice(0, int(breaks[0]))])
                pending, batch, breaks = [], batch.slice(int(breaks[0])), breaks[1:] - breaks[0]
            if len(breaks):
                yield _join_between(batch, breaks)
                batch = batch.slice(int(breaks[-1]))
            size = batch.joined_size() + (size if pending else 0)
            self._check_size(size)
            pending.append(batch)
        if pending:
            yield self._join(pending)

    def _join_all(self, batches: Iterable[Texts]) -> Iterator[Texts]:
        """Join all texts to one; yield nothing if there are none or only blank ones."""
        pending: list[Texts] = []
        size = 0
        for batch in batches:
            if len(batch.texts):
                size += batch.joined_size()
                self._check_size(size)
                pending.append(batch)
        if pending:
            yield _without_blank(*self._join(pending))

    def _join(self, parts: list[Texts]) -> Texts:
        self._check_size(sum(part.joined_size() for part in parts))
        texts = pa.concat_arrays([part.texts for part in parts])
        number = parts[0].numbers[:1]
        parts.clear()  # the texts may be large: do not hold a third copy
        lists = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
        return Texts(pc.binary_join(lists, "\n"), number)

    def _check_size(self, size: int) -> None:
        if size > self.limits.example_bytes:
            raise InputError(f"{self.where}: has an example of 2 GiB or more; split the file, or use --example line")

    def _split_batches(self, batches: Iterable[Texts]) -> Iterator[Texts]:
        """Yield the texts in batches within the limits, or of one text."""
        limits = self.limits
        for batch in batches:
            offsets = batch.offsets()
            start = 0
            while start < len(batch.texts):
                end = int(np.searchsorted(offsets, offsets[start] + limits.batch_bytes, "right")) - 1
                end = min(max(end, start + 1), start + limits.batch_examples, len(batch.texts))
                yield batch.slice(start, end)
                start = end


def _without_blank(texts: pa.StringArray, numbers: npt.NDArray[np.int64]) -> Texts:
    is_blank = pc.or_(pc.equal(pc.binary_length(texts), 0), pc.utf8_is_space(texts))
    if not pc.any(is_blank).as_py():
        return Texts(texts, numbers)
    is_kept = pc.invert(is_blank)
    return Texts(texts.filter(is_kept), numbers[is_kept.to_numpy(zero_copy_only=False)])


def _split_texts(batch: Texts, split: pa.ListArray) -> Texts:
    parents = pc.list_parent_indices(split).to_numpy()
    return _without_blank(split.flatten(), batch.numbers[parents])


def _join_between(batch: Texts, breaks: npt.NDArray[np.int64]) -> Texts:
    """Return the lines before the last break, joined between breaks."""
    offsets = np.concatenate([[0], breaks]).astype(np.int32)
    runs = pa.ListArray.from_arrays(pa.array(offsets), batch.texts.slice(0, int(breaks[-1])))
    return Texts(pc.binary_join(runs, "\n"), batch.numbers[offsets[:-1]])
