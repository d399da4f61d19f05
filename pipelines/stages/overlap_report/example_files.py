"""The examples of one file, or of one data set, as columns of text with the line or row at which each begins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core import shards, storage
from pipelines.core.compression import open_decompressed, strip_compression
from pipelines.core.errors import InputError
from pipelines.stages.overlap_report.text_fields import NoTextError, TextField, column_texts, text_columns, texts_in

MOST_EXAMPLES = 8192
MOST_BYTES = 16 << 20

_BLOCK_BYTES = 4 << 20
_MOST_TEXT_BYTES = 2**31 - 2  # what one column of texts holds
_LINE_SUFFIXES = (".jsonl", ".ndjson")
_PLAIN_SUFFIXES = (".txt", ".tokens", ".raw")
SUFFIXES = (".parquet", *_LINE_SUFFIXES, *_PLAIN_SUFFIXES)

# The files of the one-billion-word benchmark: news.en.heldout-00000-of-00050.
_NUMBERED = re.compile(r"-\d+-of-\d+$")
_BLANK_LINES = r"(?:\r?\n[ \t\f\v]*){2,}"


class Texts(NamedTuple):
    """Texts without nulls, and the line or row, from 1, at which each begins."""

    texts: pa.StringArray
    numbers: npt.NDArray[np.int64]


def file_kind(path: str) -> str:
    """Return "parquet", "jsonl" or "txt" by a file's name; raise InputError for another kind."""
    name = strip_compression(storage.basename(path))
    if name.endswith(".parquet"):
        return "parquet"
    if name.endswith(_LINE_SUFFIXES):
        return "jsonl"
    if name.endswith(_PLAIN_SUFFIXES) or "." not in name or _NUMBERED.search(name):
        return "txt"
    if name.endswith(".json"):
        raise InputError(
            f"{path}: is one JSON value; write a record a line, for instance with `jq -c '.data[]'`, as .jsonl"
        )
    raise InputError(f"{path}: its kind is unknown; benchmarks are {', '.join(SUFFIXES)} (text also compressed)")


def file_examples(path: str, field: TextField, example: str) -> Iterator[Texts]:
    """Yield the examples of a file, in order, in parts of at most 8,192 or about 16 MB; an example is never cut.

    `example` is auto (a line of a .txt, a record of JSONL or Parquet), line, paragraph, or document (the whole file,
    its lines or records with a line end between). Lines and paragraphs without a word are none. Raises InputError, with
    the place, for a record without the field, for what is not UTF-8, and for an example of 2 GiB or more.
    """
    kind = file_kind(path)
    if kind == "txt":
        return in_parts(_of_lines(path, _plain_lines(path), example))
    records = _jsonl_texts(path, field) if kind == "jsonl" else _parquet_texts(path, field)
    return in_parts(split_records(path, records, example))


def split_records(where: str, records: Iterable[Texts], example: str) -> Iterator[Texts]:
    """Yield the examples that records hold: each record whole, its lines, its paragraphs, or all records together."""
    for part in records if example != "document" else _whole(where, records):
        if example == "line":
            yield _pieces(part, pc.split_pattern(part.texts, "\n"))
        elif example == "paragraph":
            yield _pieces(part, pc.split_pattern_regex(part.texts, _BLANK_LINES))
        else:
            yield part


def batch_texts(where: str, batch: pa.RecordBatch, field: TextField, row: int) -> Texts:
    """Return the texts of a batch whose first row has that number, from 1; raise InputError where it has none."""
    try:
        texts = column_texts(batch, field)
    except NoTextError as error:
        raise field.wrong(where, text_columns(batch.schema)) from error
    except pa.ArrowInvalid as error:
        bad = next(row + offset for offset in range(batch.num_rows) if not _is_valid(batch.slice(offset, 1), field))
        raise InputError(f"{where}:{bad}: is not UTF-8") from error
    return Texts(texts, np.arange(row, row + len(texts), dtype=np.int64))


def _is_valid(batch: pa.RecordBatch, field: TextField) -> bool:
    try:
        column_texts(batch, field)
    except pa.ArrowInvalid:
        return False
    return True


def _of_lines(path: str, lines: Iterator[Texts], example: str) -> Iterator[Texts]:
    if example == "paragraph":
        return _paragraphs(path, lines)
    return _whole(path, lines) if example == "document" else lines


def _plain_lines(path: str) -> Iterator[Texts]:
    """Yield the lines of a text file that are not blank."""
    line = 1
    for block in _line_blocks(path):
        try:
            text = block.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            bad = line + block.count(b"\n", 0, error.start)
            raise InputError(f"{path}: is not UTF-8, in line {bad} ({error.reason})") from error
        lines = pc.utf8_rtrim(pc.split_pattern(pa.array([text]), "\n").flatten(), "\r")
        yield _without_blank(lines, np.arange(line, line + len(lines), dtype=np.int64))
        line += len(lines) - text.endswith("\n")


def _line_blocks(path: str) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines; a longer line makes a longer block."""
    with open_decompressed(path) as stream:
        rest: list[bytes] = []
        size = 0
        # A long line is read in ever larger steps, so that it is not searched again for each block.
        while block := stream.read(max(_BLOCK_BYTES, size)):
            end = block.rfind(b"\n") + 1
            size = size + len(block) if not end else len(block) - end
            _require_fits(path, size)
            if end:
                yield b"".join([*rest, block[:end]])
                rest = []
            rest.append(block[end:])
        if size:
            yield b"".join(rest)


def _require_fits(path: str, size: int) -> None:
    if size > _MOST_TEXT_BYTES:
        raise InputError(f"{path}: has an example of 2 GiB or more; cut the file, or choose --example line")


def _without_blank(texts: pa.StringArray, numbers: npt.NDArray[np.int64]) -> Texts:
    blank = pc.or_(pc.equal(pc.binary_length(texts), 0), pc.utf8_is_space(texts))
    if not pc.any(blank).as_py():
        return Texts(texts, numbers)
    kept = pc.invert(blank)
    return Texts(texts.filter(kept), numbers[kept.to_numpy(zero_copy_only=False)])


def _pieces(part: Texts, split: pa.ListArray) -> Texts:
    parents = pc.list_parent_indices(split).to_numpy()
    return _without_blank(split.flatten(), part.numbers[parents])


def _paragraphs(path: str, lines: Iterator[Texts]) -> Iterator[Texts]:
    """Join lines of consecutive numbers: those between blank ones."""
    held: list[Texts] = []
    size = 0
    for part in lines:
        if not len(part.texts):
            continue
        breaks = np.flatnonzero(np.diff(part.numbers) != 1) + 1
        goes_on = bool(held) and held[-1].numbers[-1] + 1 == part.numbers[0]
        if held and not goes_on:
            yield _joined(path, held)
            held = []
        if goes_on and len(breaks):
            yield _joined(path, [*held, _slice(part, 0, int(breaks[0]))])
            held, part, breaks = [], _slice(part, int(breaks[0])), breaks[1:] - breaks[0]
        if len(breaks):
            yield _runs(part, breaks)
            part = _slice(part, int(breaks[-1]))
        size = _size(part) + (size if held else 0)
        _require_fits(path, size)
        held.append(part)
    if held:
        yield _joined(path, held)


def _runs(part: Texts, breaks: npt.NDArray[np.int64]) -> Texts:
    """Return the lines before the last break, joined between breaks."""
    offsets = np.concatenate([[0], breaks]).astype(np.int32)
    runs = pa.ListArray.from_arrays(pa.array(offsets), part.texts.slice(0, int(breaks[-1])))
    return Texts(pc.binary_join(runs, "\n"), part.numbers[offsets[:-1]])


def _slice(part: Texts, start: int, end: int | None = None) -> Texts:
    return Texts(part.texts[start:end], part.numbers[start:end])


def _whole(where: str, parts: Iterable[Texts]) -> Iterator[Texts]:
    """Join all texts to one; none, or blank ones alone, give none."""
    held: list[Texts] = []
    size = 0
    for part in parts:
        if len(part.texts):
            size += _size(part)
            _require_fits(where, size)
            held.append(part)
    if held:
        yield _without_blank(*_joined(where, held))


def _joined(where: str, parts: list[Texts]) -> Texts:
    _require_fits(where, sum(map(_size, parts)))
    texts = pa.concat_arrays([part.texts for part in parts])
    number = parts[0].numbers[:1]
    parts.clear()  # what is joined may be large, so that no third copy is held
    return Texts(pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), "\n"), number)


def _jsonl_texts(path: str, field: TextField) -> Iterator[Texts]:
    texts: list[str] = []
    numbers: list[int] = []
    size = 0
    with open_decompressed(path) as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            text = _json_text(path, number, line, field)
            texts.append(text)
            numbers.append(number)
            size += len(line)
            if len(texts) >= MOST_EXAMPLES or size >= MOST_BYTES:
                yield Texts(pa.array(texts, pa.string()), np.array(numbers, np.int64))
                texts, numbers, size = [], [], 0
    yield Texts(pa.array(texts, pa.string()), np.array(numbers, np.int64))


def _json_text(path: str, number: int, line: bytes, field: TextField) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}:{number}: is not valid JSON ({error})") from error
    try:
        return field.of(record)
    except NoTextError as error:
        raise field.wrong(f"{path}:{number}", texts_in(record)) from error


def _parquet_texts(path: str, field: TextField) -> Iterator[Texts]:
    with storage.open_read(path) as stream:
        schema = shards.open_parquet(stream, path).schema_arrow
    columns = field.columns(schema)
    if columns is None:
        raise field.wrong(path, text_columns(schema))
    row = 1
    for batch in parquet_batches(path, columns):
        yield batch_texts(path, batch, field, row)
        row += batch.num_rows


def parquet_batches(path: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file in parts of about 16 MB."""
    with storage.open_read(path) as stream:
        metadata = shards.open_parquet(stream, path).metadata
    for batch in shards.read_batches(path, columns, rows=shards.rows_per_batch(metadata, None, MOST_BYTES)):
        yield from shards.split_by_bytes(batch, 4 * MOST_BYTES)


def in_parts(batches: Iterable[Texts]) -> Iterator[Texts]:
    """Yield texts at most 8,192 and about 16 MB at a time; one that is longer comes alone."""
    for batch in batches:
        yield from _parts(batch)


def _parts(batch: Texts) -> Iterator[Texts]:
    """Yield a batch in parts of at most so many examples and bytes, or of one example."""
    before = _bytes_before(batch.texts)
    start = 0
    while start < len(batch.texts):
        end = int(np.searchsorted(before, before[start] + MOST_BYTES, "right")) - 1
        end = min(max(end, start + 1), start + MOST_EXAMPLES, len(batch.texts))
        yield _slice(batch, start, end)
        start = end


def _size(part: Texts) -> int:
    """Return the bytes of texts that are joined by line ends."""
    return int(_bytes_before(part.texts)[-1]) + len(part.texts)


def _bytes_before(texts: pa.StringArray) -> npt.NDArray[np.int64]:
    """Return how many bytes stand before each text, and last those of all."""
    sizes = pc.binary_length(texts).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
