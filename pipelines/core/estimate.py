"""What lies ahead: how much text an input holds, and a small sample of it, without reading the input.

The sample is taken in windows that stand evenly over the bytes of all files. Nothing here refuses or drops anything: a
file that cannot be read is left out, and the stage that reads it says why.
"""

from __future__ import annotations

import codecs
import dataclasses
import json
from collections.abc import Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from pipelines.core import inputs, shards, storage
from pipelines.core.compression import CountedReader, open_counted, strip_compression
from pipelines.core.errors import WebtextError
from pipelines.core.text_readers import replace_surrogates

_WINDOWS = 16
_WINDOW_BYTES = 512 << 10
# In lines a window is taken in so many parts that stand apart, since neighbours are alike.
_PLACES = 8
_PLACE_BYTES = _WINDOW_BYTES // _PLACES
# Of a long document the sample has the beginning, so that one of random signs, or one book, does not speak for all.
_SAMPLED_CHARACTERS = 128 << 10
# Of an input of at most this size in at most so many files, every file is looked into.
_SMALL_INPUT_BYTES = 2 << 20
_SMALL_INPUT_FILES = 256
# A line is one document, and a book is no long one; a line beyond this is given up, and so is the rest of its file.
_LONGEST_LINE_BYTES = 16 << 20
# How far compressed files are read to reach windows that stand apart: about a second in all.
_DECODED_BYTES = {".zst": 128 << 20, ".gz": 64 << 20, ".xz": 32 << 20, ".bz2": 16 << 20}
_BATCH_BYTES = 1 << 18


@dataclasses.dataclass(frozen=True)
class DocumentsEstimate:
    """How much text an input holds, in bytes of UTF-8, and a sample of it; exact where all of it was read.

    `shards` is how many tasks the input makes, and so how many workers it keeps busy.
    """

    text_bytes: int
    documents: int
    shards: int
    is_exact: bool
    sample: tuple[str, ...]
    sample_bytes: int


@dataclasses.dataclass(frozen=True)
class _Found:
    """What one file is thought to hold, and the texts taken from it."""

    text_bytes: float
    documents: float
    is_exact: bool
    texts: tuple[str, ...]


@dataclasses.dataclass
class _Tally:
    """The lines that begin in the bytes looked at: their bytes, their documents, the bytes of those, and the texts.

    Whether a line is among them does not depend on its length, so they stand for all.
    """

    looked_at_bytes: int = 0
    line_bytes: int = 0
    documents: int = 0
    text_bytes: int = 0
    texts: list[str] = dataclasses.field(default_factory=list)

    def add(self, line: bytes, text_field: str) -> None:
        """Count one line; one that holds no document counts only as bytes."""
        self.line_bytes += len(line)
        text = _text_of(line, text_field)
        if text is not None:
            self.documents += 1
            self.text_bytes += len(text.encode())
            self.texts.append(text[:_SAMPLED_CHARACTERS])


def estimate_documents(source: inputs.DocumentInput) -> DocumentsEstimate:
    """Estimate what documents hold, from at most about 8 MB of text and a second of reading; the same each time.

    The number of documents of a stage's folder is known. Of a compressed file too large to be read through, the sample
    is its beginning.
    """
    files = {file.path: (file, shard.text_field) for shard in source.shards for file in shard.files}
    chosen = _windows_of([file for file, _ in files.values()])
    found = {path: _look_into(*files[path], windows) for path, windows in chosen.items()}
    read = {path: each for path, each in found.items() if each is not None}
    text_bytes, documents = _scaled([file for file, _ in files.values()], chosen, read)
    sample = tuple(text for each in read.values() for text in each.texts)
    return DocumentsEstimate(
        text_bytes=round(text_bytes),
        documents=round(documents) if source.records is None else source.records,
        shards=len(source.shards),
        is_exact=len(read) == len(files) and all(each.is_exact for each in read.values()),
        sample=sample,
        sample_bytes=sum(len(text.encode()) for text in sample),
    )


def _windows_of(files: Sequence[inputs.InputFile]) -> dict[str, int]:
    """Return how many windows fall into which file, by its share of all bytes; the others are not opened."""
    total = sum(file.size_bytes for file in files)
    if total <= _SMALL_INPUT_BYTES and len(files) <= _SMALL_INPUT_FILES:
        return {file.path: max(1, round(_WINDOWS * file.size_bytes / max(1, total))) for file in files}
    chosen: dict[str, int] = {}
    before = taken = 0
    for file in files:
        before += file.size_bytes
        while taken < _WINDOWS and (2 * taken + 1) * total < 2 * _WINDOWS * before:
            chosen[file.path] = chosen.get(file.path, 0) + 1
            taken += 1
    return chosen


def _scaled(files: Sequence[inputs.InputFile], chosen: dict[str, int], read: dict[str, _Found]) -> tuple[float, float]:
    """Return text bytes and documents of all files: those read as found, the others as the windows say."""
    sizes = {file.path: file.size_bytes for file in files}
    rest = sum(size for path, size in sizes.items() if path not in read)
    windows = sum(chosen[path] for path in read)
    text_bytes = documents = 0.0
    for path, found in read.items():
        # Each window stands for an equal part of the bytes that were not looked into.
        times = 1 + (rest * chosen[path] / windows) / max(1, sizes[path])
        text_bytes += times * found.text_bytes
        documents += times * found.documents
    return text_bytes, documents


def _look_into(file: inputs.InputFile, text_field: str, windows: int) -> _Found | None:
    """Return what a file holds; None where it cannot be read, which is for the stage to report."""
    kind = strip_compression(file.path)
    try:
        if kind.endswith(".parquet"):
            return _look_into_parquet(file, text_field, windows)
        if kind.endswith(".txt"):
            return _look_into_text(file, windows)
        return _look_into_lines(file, text_field, windows)
    except (WebtextError, OSError, pa.ArrowException):
        return None


def _look_into_parquet(file: inputs.InputFile, text_field: str, windows: int) -> _Found:
    """The footer tells the rows, and the size that the column has before it is compressed."""
    with storage.open_read(file.path) as stream:
        parquet = shards.open_parquet(stream, file.path)
        shards.require_columns(file.path, parquet.schema_arrow.names, [text_field])
        rows = parquet.metadata.num_rows
        text_bytes: float = shards.estimate_text_bytes(parquet.metadata, text_field)
        batch_rows = max(1, min(1024, int(_BATCH_BYTES * rows / max(1.0, text_bytes))))
        seen, texts = _spread_rows(parquet, text_field, windows, batch_rows)
    sampled_bytes = sum(len(text.encode()) for text in texts)
    kept = tuple(text[:_SAMPLED_CHARACTERS] for text in texts)
    if seen == rows:
        return _Found(sampled_bytes, len(texts), True, kept)
    # Of repeated texts a dictionary holds one; then what stands in the rows says more than the size of the column.
    if seen and sampled_bytes / seen > 2 * text_bytes / rows:
        text_bytes = sampled_bytes / seen * rows
    return _Found(text_bytes, rows * len(texts) / max(1, seen), False, kept)


def _spread_rows(parquet: Any, text_field: str, windows: int, batch_rows: int) -> tuple[int, list[str]]:
    """Return how many rows were read at the beginnings of evenly spread row groups, and their texts."""
    groups = parquet.num_row_groups
    chosen = sorted({groups * window // windows for window in range(windows)}) if groups else []
    texts: list[str] = []
    seen = 0
    for group in chosen:
        # One thread: handing so little to several takes longer than reading it.
        batches = parquet.iter_batches(
            batch_size=batch_rows, row_groups=[group], columns=[text_field], use_threads=False
        )
        rows, of_group = _first_texts(batches, windows * _WINDOW_BYTES // len(chosen))
        seen += rows
        texts += of_group
    return seen, texts


def _first_texts(batches: Any, wanted_bytes: int) -> tuple[int, list[str]]:
    """Return the rows read, and their texts without those that are missing."""
    seen = size = 0
    texts: list[str] = []
    for batch in batches:
        given = [text for text in batch.column(0).to_pylist() if isinstance(text, str)]
        seen += batch.num_rows
        texts += given
        size += sum(map(len, given))
        if size >= wanted_bytes:
            break
    return seen, texts


def _look_into_text(file: inputs.InputFile, windows: int) -> _Found:
    wanted = windows * _WINDOW_BYTES
    with open_counted(file.path) as stream:
        data = stream.read(wanted)
        is_whole = not stream.peek(1)
        size = len(data) if is_whole else _decoded_size(file, stream)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data, is_whole)
    except UnicodeDecodeError:
        return _Found(0, 0, is_whole, ())
    return _Found(len(text.encode()) if is_whole else size, 1, is_whole, (text,))


def _look_into_lines(file: inputs.InputFile, text_field: str, windows: int) -> _Found:
    if strip_compression(file.path) == file.path:
        with storage.open_read(file.path) as plain:
            size: float = file.size_bytes
            tally, is_whole = _spread_lines(plain, file.size_bytes, text_field, windows)
    else:
        # It is read twice, since where the windows are to stand is only known when it is known how much there is.
        with open_counted(file.path) as stream:
            reach = _pass_over(stream, _reach(file.path, windows))
            size = _decoded_size(file, stream)
        with open_counted(file.path) as stream:
            tally, is_whole = _spread_lines(stream, reach, text_field, windows)
            is_whole = is_whole and not stream.peek(1)
    if is_whole or not tally.line_bytes:
        return _Found(tally.text_bytes, tally.documents, is_whole, tuple(tally.texts))
    documents = tally.documents * size / tally.looked_at_bytes
    return _Found(tally.text_bytes * size / tally.line_bytes, documents, False, tuple(tally.texts))


def _reach(path: str, windows: int) -> int:
    """Return how many decompressed bytes may be read of a file for so many of all windows."""
    most = next(size for suffix, size in _DECODED_BYTES.items() if path.endswith(suffix))
    return most // _WINDOWS * windows


def _decoded_size(file: inputs.InputFile, stream: CountedReader) -> float:
    """Return the bytes that a file holds decompressed, from what its beginning gave."""
    return stream.decoded_bytes * max(1.0, file.size_bytes / max(1, stream.file_bytes))


def _spread_lines(stream: BinaryIO | CountedReader, size: int, text_field: str, windows: int) -> tuple[_Tally, bool]:
    """Return the lines that begin at evenly spread places of so many bytes, and whether they are all lines."""
    tally = _Tally()
    position = 0
    is_whole = True
    places = windows * _PLACES
    for place in (size * number // places for number in range(places)):
        if place > position:
            is_whole = False
            _move_on(stream, position, place - 1)
            position = place - 1 + len(stream.readline(_LONGEST_LINE_BYTES))  # which began before
        end = min(size, place + _PLACE_BYTES)
        tally.looked_at_bytes += end - place
        while position < end:
            line = stream.readline(_LONGEST_LINE_BYTES)
            if not line or (len(line) == _LONGEST_LINE_BYTES and not line.endswith(b"\n")):
                return tally, False
            tally.add(line, text_field)
            position += len(line)
    return tally, is_whole


def _move_on(stream: BinaryIO | CountedReader, position: int, place: int) -> None:
    if isinstance(stream, CountedReader):
        _pass_over(stream, place - position)
    else:
        stream.seek(place)


def _pass_over(stream: CountedReader, size: int) -> int:
    passed = 0
    while passed < size and (data := stream.read1(min(_WINDOW_BYTES, size - passed))):
        passed += len(data)
    return passed


def _text_of(line: bytes, text_field: str) -> str | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    text = replace_surrogates(record.get(text_field)) if isinstance(record, dict) else None
    return text if isinstance(text, str) else None


def size_in_words(size_bytes: float) -> str:
    """Write an estimated size with two digits: `9.1 GB`, `350 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size_bytes < 995:
            return f"{_two_digits(size_bytes)} {unit}"
        size_bytes /= 1000
    return f"{_two_digits(size_bytes)} TB"


def round_down(number: int, digits: int = 2) -> int:
    """Return a number with its first digits alone, for a limit that is not to be passed."""
    unit = int(10 ** max(0, len(str(number)) - digits))
    return number // unit * unit


def time_in_words(seconds: float) -> str:
    """Write an estimated time with two digits: `25 s`, `12 min`, `3.5 h`."""
    if seconds < 1:
        return "1 s"
    for unit, length in (("s", 60), ("min", 60)):
        if seconds < 1.5 * length:
            return f"{seconds:.0f} {unit}"
        seconds /= length
    return f"{_two_digits(seconds)} h"


def _two_digits(number: float) -> str:
    if round(number, 1) < 10:
        return f"{number:.1f}".removesuffix(".0")
    unit = 10 ** (len(str(round(number))) - 2)
    return f"{round(number / unit) * unit:,}"
